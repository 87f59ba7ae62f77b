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

// buildSink builds the function of the pipelines.
func (s *Stack) buildSink(ctx context.Context, log io.Writer) (string, error) {
	var err error
	if s.bootstrap, err = s.build(ctx, "sink", log); err != nil {
		return "", err
	}
	return s.relative(s.bootstrap), nil
}

// build builds a function as production gets it, and returns the executable's
// path. Only the processor is this machine's.
func (s *Stack) build(ctx context.Context, function string, log io.Writer) (string, error) {
	dir := filepath.Join(s.options.Root, ".build", function)
	path := filepath.Join(dir, "bootstrap")
	if _, err := os.Stat(path); err != nil {
		s.say("%-20s being built, which takes minutes for the first time", function)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", fmt.Errorf("build %s: %w", function, err)
	}
	// The new file takes the old one's name in one step: another stack may be
	// starting processes from it.
	fresh, err := os.MkdirTemp(dir, "new-")
	if err != nil {
		return "", fmt.Errorf("build %s: %w", function, err)
	}
	defer func() { _ = os.RemoveAll(fresh) }()
	built := filepath.Join(fresh, "bootstrap")
	source := artifact.Source{Root: s.options.Root, Function: function, Arch: runtime.GOARCH, OS: runtime.GOOS, Log: log}
	if err := artifact.Compile(ctx, source, built); err != nil {
		return "", fmt.Errorf("%w (see %s)", err, s.relative(s.logPath(function)))
	}
	if err := os.Rename(built, path); err != nil {
		return "", fmt.Errorf("build %s: %w", function, err)
	}
	return path, nil
}
