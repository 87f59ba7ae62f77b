package stack

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"oncehouse/infra/build/artifact"
)

// buildSink builds the sink as production gets it. Only the processor is this
// machine's.
func (s *Stack) buildSink(ctx context.Context, log io.Writer) (string, error) {
	dir := filepath.Join(s.options.Root, ".build", "sink")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", fmt.Errorf("build the sink: %w", err)
	}
	// The new file takes the old one's name in one step: another stack may be
	// starting processes from it.
	fresh, err := os.MkdirTemp(dir, "new-")
	if err != nil {
		return "", fmt.Errorf("build the sink: %w", err)
	}
	defer func() { _ = os.RemoveAll(fresh) }()
	built := filepath.Join(fresh, "bootstrap")
	source := artifact.Source{Root: s.options.Root, Function: "sink", Arch: runtime.GOARCH, OS: runtime.GOOS, Log: log}
	if err := artifact.Compile(ctx, source, built); err != nil {
		return "", fmt.Errorf("%w (see %s)", err, s.relative(s.logPath("sink")))
	}
	s.bootstrap = filepath.Join(dir, "bootstrap")
	if err := os.Rename(built, s.bootstrap); err != nil {
		return "", fmt.Errorf("build the sink: %w", err)
	}
	return s.relative(s.bootstrap), nil
}
