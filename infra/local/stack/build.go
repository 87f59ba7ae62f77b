package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// buildSink builds the sink as production gets it: static, without the RPC
// mode of old runtimes, without paths of this machine. Only the processor is
// this machine's.
func (s *Stack) buildSink(ctx context.Context, log io.Writer) (string, error) {
	dir := filepath.Join(s.options.Root, ".build", "sink")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", fmt.Errorf("build the sink: %w", err)
	}
	goTool, err := exec.LookPath("go")
	if err != nil {
		return "", errors.New("build the sink: go is not installed: install Go 1.26 or later")
	}
	// The new file takes the old one's name in one step: another stack may be
	// starting processes from it.
	fresh, err := os.MkdirTemp(dir, "new-")
	if err != nil {
		return "", fmt.Errorf("build the sink: %w", err)
	}
	defer func() { _ = os.RemoveAll(fresh) }()
	built := filepath.Join(fresh, "bootstrap")
	cmd := exec.CommandContext(ctx, goTool, "build", "-tags", "lambda.norpc", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", built, "./functions/sink")
	cmd.Dir, cmd.Env = s.options.Root, append(os.Environ(), "CGO_ENABLED=0", "GOOS=", "GOARCH=")
	out, err := cmd.CombinedOutput()
	if _, logErr := log.Write(out); logErr != nil {
		return "", fmt.Errorf("build the sink: %w", logErr)
	}
	if err != nil {
		return "", fmt.Errorf("build the sink: %w: %s (see %s)", err, firstError(string(out)), s.relative(s.logPath("sink")))
	}
	s.bootstrap = filepath.Join(dir, "bootstrap")
	if err := os.Rename(built, s.bootstrap); err != nil {
		return "", fmt.Errorf("build the sink: %w", err)
	}
	return s.relative(s.bootstrap), nil
}

// firstError is the first line of go build's output that says what is wrong:
// those before it name the package.
func firstError(out string) string {
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "# ") && !strings.HasPrefix(line, "go: downloading ") {
			return strings.TrimSpace(line)
		}
	}
	return strings.TrimSpace(out)
}
