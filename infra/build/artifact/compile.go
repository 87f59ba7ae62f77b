package artifact

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

// The processors that Lambda has, by Go's names.
const (
	ARM64 = "arm64"
	AMD64 = "amd64"
)

// linux is Lambda's.
const linux = "linux"

// Source says what is compiled, and for which processor.
type Source struct {
	// Root is the repository.
	Root string
	// Function is the name of a directory in functions.
	Function string
	// Arch is ARM64 or AMD64.
	Arch string
	// OS; "" is Lambda's. A machine that runs the function itself says its own.
	OS string
	// Stamp is linked into the executable; the zero Stamp leaves what the source says.
	Stamp Stamp
	// Log takes the compiler's output; nil discards it.
	Log io.Writer
}

// Functions are the names of all that can be deployed.
func Functions(root string) ([]string, error) {
	mains, err := filepath.Glob(filepath.Join(root, "functions", "*", "main.go"))
	if err != nil || len(mains) == 0 {
		return nil, errors.Join(fmt.Errorf("find functions in %s: there is no functions/<name>/main.go", root), err)
	}
	names := make([]string, len(mains))
	for i, path := range mains {
		names[i] = filepath.Base(filepath.Dir(path))
	}
	return names, nil
}

// Compile writes the executable to path.
//
// What would make its bytes depend on the machine is off or pinned: paths
// (-trimpath), the repository's state (-buildvcs; the Stamp is what we want of
// it), C, and the settings that a shell may carry. lambda.norpc leaves out the
// protocol of the retired go1.x runtime.
// https://docs.aws.amazon.com/lambda/latest/dg/golang-package.html
func Compile(ctx context.Context, src Source, path string) error {
	goTool, err := exec.LookPath("go")
	if err != nil {
		return fmt.Errorf("build %s: go is not installed: install Go 1.26 or later", src.Function)
	}
	if path, err = filepath.Abs(path); err != nil {
		return fmt.Errorf("build %s: %w", src.Function, err)
	}
	system := src.OS
	if system == "" {
		system = linux
	}
	cmd := exec.CommandContext(ctx, goTool, "build", "-tags", "lambda.norpc", "-trimpath", "-buildvcs=false",
		"-ldflags="+src.Stamp.linkFlags(), "-o", path, "./functions/"+src.Function)
	cmd.Dir = src.Root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+src.Arch,
		"GOFLAGS=", "GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0", "GOWORK=off")
	out, err := cmd.CombinedOutput()
	if src.Log != nil {
		if _, logErr := src.Log.Write(out); logErr != nil {
			return fmt.Errorf("build %s: %w", src.Function, logErr)
		}
	}
	if err != nil {
		return fmt.Errorf("build %s: %w: %s", src.Function, err, firstError(string(out)))
	}
	return nil
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
