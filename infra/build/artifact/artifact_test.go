package artifact

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../../.."

// stamp is like no text in the sources.
var stamp = Stamp{Version: "v7.31.4-stamped", Commit: "5ca1ab1e0ddba11"}

// The same sources are the same bytes: built again, in another directory, and
// with other settings in the shell.
func TestMakeIsReproducible(t *testing.T) {
	clones := []string{t.TempDir(), t.TempDir()}
	for i, from := range []string{root, clones[0]} {
		for _, name := range []string{"functions", "shared"} {
			require.NoError(t, os.CopyFS(filepath.Join(clones[i], name), os.DirFS(filepath.Join(from, name))))
		}
		for _, name := range []string{"go.mod", "go.sum"} {
			require.NoError(t, os.WriteFile(filepath.Join(clones[i], name), read(t, filepath.Join(from, name)), 0o600))
		}
	}
	for _, arch := range []string{ARM64, AMD64} {
		first := makeSink(t, clones[0], arch, stamp)
		t.Setenv("GOFLAGS", "-ldflags=-w")
		t.Setenv("GOAMD64", "v3")
		t.Setenv("CGO_ENABLED", "1")
		second := makeSink(t, clones[1], arch, stamp)
		require.Equal(t, first.CodeSHA256, second.CodeSHA256, arch)
		require.Equal(t, read(t, first.Zip), read(t, second.Zip), arch)
	}
}

// What is in the zip is what Lambda looks for, and the stamp makes a difference.
func TestZipIsWhatLambdaRuns(t *testing.T) {
	m := makeSink(t, root, ARM64, stamp)
	require.NotEqual(t, m.CodeSHA256, makeSink(t, root, ARM64, Stamp{Version: "v7.31.5", Commit: stamp.Commit}).CodeSHA256)
	require.Equal(t, "sink-arm64.zip", filepath.Base(m.Zip))
	require.Less(t, m.Bytes, m.BinaryBytes)
	archive, err := zip.OpenReader(m.Zip)
	require.NoError(t, err)
	defer func() { require.NoError(t, archive.Close()) }()
	require.Len(t, archive.File, 1)
	entry := archive.File[0]
	require.Equal(t, "bootstrap", entry.Name)
	require.Equal(t, os.FileMode(0o755), entry.Mode())
	in, err := entry.Open()
	require.NoError(t, err)
	packed, err := io.ReadAll(in)
	require.NoError(t, err)
	require.Equal(t, read(t, m.Binary), packed)
	require.NotContains(t, string(packed), mustAbs(t, root), "a path of this machine")
}

// Every function has the two variables, for both processors, and says them when
// it does not start: the linker accepts names that nothing reads.
func TestFunctionsTellTheirStamp(t *testing.T) {
	names, err := Functions(root)
	require.NoError(t, err)
	require.Contains(t, names, "sink")
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			for _, arch := range []string{ARM64, AMD64} {
				m, err := Make(t.Context(), Source{Root: root, Function: name, Arch: arch, Stamp: stamp}, t.TempDir())
				require.NoError(t, err)
				binary := read(t, m.Binary)
				require.True(t, bytes.Contains(binary, []byte(stamp.Version)), "functions/%s/main.go has no var version", name)
				require.True(t, bytes.Contains(binary, []byte(stamp.Commit)), "functions/%s/main.go has no var commit", name)
			}
			own := filepath.Join(t.TempDir(), "bootstrap")
			require.NoError(t, Compile(t.Context(), Source{Root: root, Function: name, Arch: runtime.GOARCH, OS: runtime.GOOS, Stamp: stamp}, own))
			cmd := exec.CommandContext(t.Context(), own)
			cmd.Env = []string{}
			out, err := cmd.Output()
			require.ErrorContains(t, err, "exit status 1", "without settings it does not start")
			line, _, _ := strings.Cut(string(out), "\n")
			var said struct{ Version, Commit string }
			require.NoError(t, json.Unmarshal([]byte(line), &said), line)
			require.Equal(t, stamp, Stamp(said))
		})
	}
}

func TestStampOf(t *testing.T) {
	repository := t.TempDir()
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.com"}, args...)...)
		cmd.Dir = repository
		cmd.Env = append(os.Environ(), "GIT_COMMITTER_DATE=2026-03-04T05:06:07Z")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return strings.TrimSpace(string(out))
	}
	commit := func(path, text string) string {
		t.Helper()
		path = filepath.Join(repository, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		run("add", ".")
		run("commit", "-q", "-m", path)
		return run("rev-parse", "HEAD")
	}
	of := func() Stamp {
		t.Helper()
		s, err := StampOf(t.Context(), repository)
		require.NoError(t, err)
		return s
	}
	require.Equal(t, Unknown, of(), "no repository")

	run("init", "-q")
	source := commit("functions/sink/main.go", "package main")
	untagged := Stamp{Version: "v0.0.0-20260304050607-" + source[:12], Commit: source}
	require.Equal(t, untagged, of())
	commit("docs/runbook.md", "words")
	require.Equal(t, untagged, of(), "documentation is in no executable")
	run("tag", "v1.2.0")
	run("tag", "v1.10.0")
	require.Equal(t, Stamp{Version: "v1.10.0", Commit: source}, of(), "a release is called by its tag")

	require.NoError(t, os.WriteFile(filepath.Join(repository, "README.md"), []byte("more"), 0o600))
	require.Equal(t, source, of().Commit)
	require.NoError(t, os.WriteFile(filepath.Join(repository, "functions", "new.go"), []byte("package main"), 0o600))
	require.Equal(t, Stamp{Version: "v1.10.0+dirty", Commit: source + "+dirty"}, of())
}

func TestFailuresSayWhy(t *testing.T) {
	_, err := Functions(t.TempDir())
	require.ErrorContains(t, err, "no functions/<name>/main.go")

	clone := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(clone, "functions", "broken"), 0o750))
	require.NoError(t, os.WriteFile(filepath.Join(clone, "go.mod"), []byte("module broken\n\ngo 1.26\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(clone, "functions", "broken", "main.go"), []byte("package main\n\nfunc main() { nothing() }\n"), 0o600))
	var log bytes.Buffer
	_, err = Make(t.Context(), Source{Root: clone, Function: "broken", Arch: ARM64, Log: &log}, t.TempDir())
	require.ErrorContains(t, err, "build broken: exit status 1: functions/broken/main.go:3:15: undefined: nothing")
	require.Contains(t, log.String(), "undefined: nothing")

	full := errors.New("no space left on device")
	require.ErrorIs(t, write(failing{full}, filepath.Join(root, "go.sum")), full)
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func makeSink(t *testing.T, root, arch string, s Stamp) Made {
	t.Helper()
	m, err := Make(t.Context(), Source{Root: root, Function: "sink", Arch: arch, Stamp: s}, t.TempDir())
	require.NoError(t, err)
	return m
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return text
}

func mustAbs(t *testing.T, path string) string {
	t.Helper()
	absolute, err := filepath.Abs(path)
	require.NoError(t, err)
	return absolute
}
