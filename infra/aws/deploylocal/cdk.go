package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// cdk is the CDK CLI of the repository's node_modules, told where AWS is.
type cdk struct{ emulator *emulator }

// run runs one command, at the root as a person would. What it prints goes to a
// log by the command's name.
func (c *cdk) run(ctx context.Context, log string, args ...string) error {
	program, err := filepath.Abs(filepath.Join(root, "node_modules", ".bin", "cdk"))
	if err != nil {
		return fmt.Errorf("find the CDK CLI: %w", err)
	}
	if _, err := os.Stat(program); err != nil {
		return errors.New("the CDK CLI is not installed: run make setup")
	}
	begun := time.Now()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = root, c.emulator.environ()
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	path := filepath.Join(directory, log+".log")
	if logErr := os.WriteFile(path, out, 0o600); logErr != nil {
		return fmt.Errorf("keep what cdk %s printed: %w", args[0], errors.Join(err, logErr))
	}
	if err != nil {
		return fmt.Errorf("cdk %s: %w:\n%s", args[0], err, lastLines(out, 15))
	}
	say("", "cdk %s: %.1f s", strings.Join(args, " "), time.Since(begun).Seconds())
	return nil
}

func lastLines(text []byte, n int) []byte {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-n):], []byte("\n"))
}
