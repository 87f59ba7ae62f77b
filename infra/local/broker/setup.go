package broker

import (
	"context"
	_ "embed" // the pom
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// ApacheVersion is the Apache Kafka that Apache runs.
const ApacheVersion = "4.3.1"

//go:embed pom.xml
var pom []byte

// Setup puts Apache Kafka's jars into cache unless they are there, and returns
// their directory. It runs mvn, whose own settings say from where. Several
// processes may call it at once. Errors are one line and say what to install.
func Setup(ctx context.Context, cache string, log io.Writer) (string, error) {
	cache, err := filepath.Abs(cache)
	if err != nil {
		return "", fmt.Errorf("locate the cache directory: %w", err)
	}
	jars := filepath.Join(cache, "kafka-"+ApacheVersion)
	if _, err := os.Stat(jars); err == nil {
		return jars, nil
	}
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return "", errors.New("Apache Kafka needs mvn for its first set-up and it is missing: install Maven (for example apt install maven), or use the embedded broker")
	}
	if err := os.MkdirAll(cache, 0o750); err != nil {
		return "", fmt.Errorf("make the cache directory: %w", err)
	}
	work, err := os.MkdirTemp(cache, ".download-")
	if err != nil {
		return "", fmt.Errorf("make a directory to download into: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }() // what cannot be removed is in an ignored directory
	if err := download(ctx, mvn, work, log); err != nil {
		return "", err
	}
	// Only a whole directory ever gets the name; if another process was first,
	// its one is as good.
	err = os.Rename(filepath.Join(work, "jars"), jars)
	if err != nil && !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("keep the downloaded jars: %w", err)
	}
	return jars, nil
}

func download(ctx context.Context, mvn, work string, log io.Writer) error {
	path := filepath.Join(work, "pom.xml")
	if err := os.WriteFile(path, pom, 0o600); err != nil {
		return fmt.Errorf("write the pom: %w", err)
	}
	cmd := exec.CommandContext(ctx, mvn, "--batch-mode", "--quiet", "--file", path,
		"-Dkafka.version="+ApacheVersion, "dependency:copy-dependencies",
		"-DincludeScope=runtime", "-DoutputDirectory="+filepath.Join(work, "jars"))
	end := &tail{next: log}
	cmd.Stdout, cmd.Stderr = end, end
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("download Apache Kafka %s with mvn (is Maven Central, or your mirror of it, reachable?): %w: %s", ApacheVersion, err, end.b)
	}
	return nil
}

// tail passes output on and keeps its end for the error message.
type tail struct {
	next io.Writer
	b    []byte
}

func (t *tail) Write(b []byte) (int, error) {
	const most = 1024
	t.b = append(t.b, b...)
	t.b = t.b[max(0, len(t.b)-most):]
	if t.next != nil {
		return t.next.Write(b)
	}
	return len(b), nil
}
