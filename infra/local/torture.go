package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"oncehouse/infra/local/repository"
	"oncehouse/infra/local/stack"
	"oncehouse/infra/local/torture"
)

type tortureCommand struct {
	Kills    int      `help:"How many processes are killed under exactly-once." default:"1000"`
	Controls int      `help:"How many under each of the others: the first of the same schedule; default a quarter."`
	Minutes  int      `help:"End a subject's schedule after so many minutes; 0 is when all kills are done."`
	Seed     uint64   `help:"Seed of the records and of the schedule." default:"1"`
	Subjects []string `help:"Subjects, with commas; default all: exactly-once, at-least-once, at-most-once, naive-token, kafka-table-engine, postgres-chain."`
	Report   string   `help:"HTML page to write." type:"path" default:".cache/torture/report.html"`
	Dir      string   `help:"Directory for data and logs; emptied at the start." type:"path" default:".cache/torture"`
	Kafka    string   `help:"The broker: embedded, apache (Java 17, and Maven once), or host:port of one that runs." env:"KAFKA" default:"embedded"`
}

// Run runs the torture on a fresh stack.
func (c *tortureCommand) Run(ctx context.Context) error {
	root, err := repository.Root()
	if err != nil {
		return err
	}
	if err := c.prepare(); err != nil {
		return err
	}
	s, err := stack.Start(ctx, stack.Options{Root: root, Dir: c.Dir, Fresh: true, Kafka: c.Kafka, Status: os.Stdout})
	if err != nil {
		return err
	}
	defer s.Stop()
	log, err := os.Create(filepath.Join(c.Dir, "log", "torture.log"))
	if err != nil {
		return fmt.Errorf("open the log of the steps: %w", err)
	}
	defer func() { _ = log.Close() }() // nothing is buffered
	options := torture.Options{
		Root: root, Dir: c.Dir, Kills: c.Kills, Controls: c.Controls, Limit: time.Duration(c.Minutes) * time.Minute,
		Seed: c.Seed, Subjects: c.Subjects, Out: os.Stdout, Log: log,
	}
	report := torture.Report{Command: c.command(), Revision: revision(ctx, root), Broker: c.Kafka, Machine: machine(), Begun: time.Now()}
	results, failed := torture.Run(ctx, s, options)
	failed = s.Explain(failed)
	report.Results = results // those that were finished, whatever became of the others
	failed = errors.Join(failed, c.write(&report))
	fmt.Println()
	torture.PrintTable(os.Stdout, results)
	fmt.Printf("\nreport: %s\nagain:  %s\n\n", shown(c.Report), report.Command)
	for i := range results {
		fmt.Println(&results[i])
		failed = errors.Join(failed, results[i].Verdict())
	}
	return failed
}

// prepare finds out now what would be a pity in an hour.
func (c *tortureCommand) prepare() error {
	if c.Controls == 0 {
		c.Controls = max(1, c.Kills/4)
	}
	if c.Kills < 1 || c.Controls < 1 {
		return fmt.Errorf("--kills is %d and --controls %d: at least 1 expected", c.Kills, c.Controls)
	}
	if err := torture.Check(c.Subjects); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.Report), 0o750); err != nil {
		return fmt.Errorf("make the report's directory: %w", err)
	}
	return nil
}

// command is how to repeat the run.
func (c *tortureCommand) command() string {
	args := fmt.Sprintf("--kills %d --controls %d --seed %d", c.Kills, c.Controls, c.Seed)
	if c.Minutes > 0 {
		args += fmt.Sprintf(" --minutes %d", c.Minutes)
	}
	if len(c.Subjects) > 0 {
		args += " --subjects " + strings.Join(c.Subjects, ",")
	}
	command := fmt.Sprintf("make torture ARGS=%q", args)
	if c.Kafka != "embedded" {
		command = "KAFKA=" + c.Kafka + " " + command
	}
	return command
}

// write writes the page.
func (c *tortureCommand) write(report *torture.Report) error {
	file, err := os.Create(c.Report)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return errors.Join(report.Write(file), file.Close())
}

// revision is the commit that is tortured; nothing depends on it.
func revision(ctx context.Context, root string) string {
	git := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty")
	git.Dir = root
	out, err := git.Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func machine() string {
	return fmt.Sprintf("%d processors, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}

type mappingCommand struct{ torture.Poller }

// Run polls until SIGTERM.
func (c *mappingCommand) Run(ctx context.Context) error { return c.Poller.Run(ctx, os.Stderr) }
