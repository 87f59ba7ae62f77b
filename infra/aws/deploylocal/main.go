// Command deploylocal deploys the app as it is, by the CDK CLI, to an AWS that
// runs on this machine, and looks at what came into being:
//
//	go run ./deploylocal [-example examples/....yaml] [-if-installed]
//
// It bootstraps the account, creates every stack of the example, changes some
// settings, and destroys everything. After each step it reads the resources back
// by AWS's own API and compares them with the example: what must be there, what
// must have kept its identity and its content through the update, and what must
// outlive its stack. Credentials are made up, every endpoint is on loopback.
//
// The AWS is moto (emulator.py). It checks much less than AWS does: no
// permission is checked, nothing is invoked, and what CloudFormation would
// replace is changed in place. So this proves that the templates are whole and
// in order, that CDK's own way to AWS works with them, and what is retained; not
// that AWS would take every value.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

const (
	root = "../.." // of the repository: this is run in infra/aws
	// directory of logs, assemblies and the changed example.
	directory = root + "/.cache/deploy-local"
	// patience is for a machine that builds the app for the first time.
	patience = 30 * time.Minute
)

func main() {
	example := flag.String("example", "examples/serverless-clickhouse-cloud.yaml", "the installation")
	ifInstalled := flag.Bool("if-installed", false, "succeed where the emulator is not installed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, patience)
	err := run(ctx, *example)
	cancel()
	stop()
	var missing *missingError
	switch {
	case errors.As(err, &missing) && *ifInstalled:
		fmt.Println("deploy-local: NOT RUN:", err)
	case err != nil:
		fmt.Fprintln(os.Stderr, "deploy-local:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, example string) error {
	begun := time.Now()
	if err := os.RemoveAll(directory); err != nil {
		return fmt.Errorf("remove what an earlier run left: %w", err)
	}
	if err := os.MkdirAll(directory, 0o750); err != nil {
		return fmt.Errorf("make the directory of logs: %w", err)
	}
	before, err := readExample(example)
	if err != nil {
		return err
	}
	after, err := before.changed(filepath.Join(directory, "changed.yaml"))
	if err != nil {
		return err
	}
	aws, err := startEmulator(ctx, before.Environment.Account, before.Environment.Region)
	if err != nil {
		return err
	}
	defer aws.stop()
	d := &deployment{cdk: cdk{emulator: aws}, account: connect(aws), before: before, after: after}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"bootstrap", d.bootstrap},
		{"create", d.create},
		{"update", d.update},
		{"destroy", d.destroy},
	} {
		started := time.Now()
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w (logs are in %s)", step.name, err, filepath.Clean(directory))
		}
		say(step.name, "done in %.1f s", time.Since(started).Seconds())
	}
	say("everything", "as it should be, in %.0f s", time.Since(begun).Seconds())
	return nil
}

// fact says what holds if it does, and else returns what does not.
func fact(problems error, format string, args ...any) error {
	if problems == nil {
		say("", format, args...)
	}
	return problems
}

// say prints one line about a step.
func say(step, format string, args ...any) {
	fmt.Printf("%-11s"+format+"\n", append([]any{step}, args...)...)
}
