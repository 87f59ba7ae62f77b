// Command mutants switches each guard of the protocol off, one at a time, and
// wants a named test to turn red. It proves that the tests would notice if a
// rule were lost.
//
//	go run ./infra/mutants                  every guard
//	go run ./infra/mutants -run window      guards whose name matches
//	go run ./infra/mutants -list            the table, without running anything
//
// The guards are in guards.yaml: name, the exact source text, what takes its
// place, and the test. A mutant is compiled with go test -overlay: the work tree
// is never touched. The program fails when a text is not found exactly once, when
// a mutant does not compile, when a test is red without any mutant, and when a
// mutant survives. The last line is for machines.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"
)

//go:embed guards.yaml
var table []byte

// Guard is one rule of the protocol, and how to switch it off. A rule that two
// places keep is switched off in both, and its name says so.
type Guard struct {
	Name  string `yaml:"guard"`
	Edits []Edit `yaml:"edits"`
	// Package and Test are the test that must turn red: its full name, subtests
	// included, as go test -v shows it.
	Package string `yaml:"package"`
	Test    string `yaml:"test"`
}

// Edit replaces a text that stands in a file exactly once.
type Edit struct {
	File string `yaml:"file"`
	Find string `yaml:"find"`
	Put  string `yaml:"put"`
}

// timeout ends a mutant that loops. To hang is not to turn red.
const timeout = 5 * time.Minute

func main() {
	run := flag.String("run", "", "only the guards whose name matches this regular expression")
	list := flag.Bool("list", false, "show the guards and run nothing")
	parallel := flag.Int("parallel", 2, "how many mutants to build and run at once")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := mutate(ctx, *run, *list, *parallel); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has run
	}
}

func mutate(ctx context.Context, match string, list bool, parallel int) error {
	guards, err := load(table, match)
	if err != nil {
		return err
	}
	overlays, err := prepare(guards)
	if err != nil {
		return err
	}
	if list {
		return show(guards, nil)
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return fmt.Errorf("make a folder for the mutants: %w", err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	if err := baseline(ctx, guards); err != nil {
		return err
	}
	verdicts := make([]string, len(guards))
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i, g := range guards {
		group.Go(func() error {
			begun := time.Now()
			verdict, err := kill(ctx, filepath.Join(dir, fmt.Sprint(i)), g, overlays[i])
			if err != nil {
				return fmt.Errorf("guard %q: %w", g.Name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			verdicts[i] = verdict
			fmt.Fprintf(os.Stderr, "%-8s %4.1fs  %s\n", verdict, time.Since(begun).Seconds(), g.Name)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return show(guards, verdicts)
}

// load reads the table. Every guard has a name of its own and all that it needs.
func load(text []byte, match string) ([]Guard, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	var all, chosen []Guard
	if err := decoder.Decode(&all); err != nil {
		return nil, fmt.Errorf("read guards.yaml: %w", err)
	}
	pattern, err := regexp.Compile(match)
	if err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	names := map[string]bool{}
	for _, g := range all {
		if g.Name == "" || g.Package == "" || g.Test == "" || len(g.Edits) == 0 || names[g.Name] {
			return nil, fmt.Errorf("guard %q: a name of its own, edits, a package and a test are needed", g.Name)
		}
		names[g.Name] = true
		if pattern.MatchString(g.Name) {
			chosen = append(chosen, g)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no guard matches %q", match)
	}
	return chosen, nil
}

// prepare makes the mutated files of every guard. All texts that do not match
// are told at once.
func prepare(guards []Guard) ([]map[string]string, error) {
	overlays := make([]map[string]string, len(guards))
	var errs []error
	for i, g := range guards {
		overlays[i] = map[string]string{}
		for _, e := range g.Edits {
			text, ok := overlays[i][e.File]
			if !ok {
				read, err := os.ReadFile(e.File)
				if err != nil {
					return nil, fmt.Errorf("guard %q: %w", g.Name, err)
				}
				text = string(read)
			}
			find := strings.TrimSuffix(e.Find, "\n")
			if n := strings.Count(text, find); n != 1 {
				errs = append(errs, fmt.Errorf("guard %q: its text stands %d times in %s, and must once:\n%s", g.Name, n, e.File, find))
			}
			overlays[i][e.File] = strings.Replace(text, find, strings.TrimSuffix(e.Put, "\n"), 1)
		}
	}
	return overlays, errors.Join(errs...)
}

// baseline runs every test that is to kill without any mutant: all must be green.
func baseline(ctx context.Context, guards []Guard) error {
	type part struct { // the tests of a package with a subtest's name, and those without
		pkg string
		sub bool
	}
	tests := map[part][]string{}
	for _, g := range guards {
		of := part{g.Package, strings.Contains(g.Test, "/")}
		tests[of] = append(tests[of], g.Test)
	}
	for of, names := range tests {
		var levels [2][]string
		for _, name := range names {
			for i, level := range strings.SplitN(name, "/", 2) {
				levels[i] = append(levels[i], regexp.QuoteMeta(level))
			}
		}
		pattern := oneOf(levels[0])
		if of.sub {
			pattern += "/" + oneOf(levels[1])
		}
		report, err := test(ctx, "", of.pkg, pattern)
		if err != nil {
			return fmt.Errorf("without any mutant: %w", err)
		}
		for _, name := range names {
			if report[name] != "pass" {
				return fmt.Errorf("without any mutant: %s of %s must pass, and it did not (%q)", name, of.pkg, report[name])
			}
		}
	}
	return nil
}

// oneOf is the pattern of some tests of one level.
func oneOf(names []string) string {
	slices.Sort(names)
	return "^(" + strings.Join(slices.Compact(names), "|") + ")$"
}

// kill runs a guard's test with the guard switched off.
func kill(ctx context.Context, dir string, g Guard, files map[string]string) (verdict string, err error) {
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make a folder: %w", err)
	}
	for file, text := range files {
		mutated := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(mutated, []byte(text), 0o600); err != nil {
			return "", fmt.Errorf("write the mutant: %w", err)
		}
		path, err := filepath.Abs(file)
		if err != nil {
			return "", fmt.Errorf("find %s: %w", file, err)
		}
		overlay.Replace[path] = mutated
	}
	spec, err := json.Marshal(overlay)
	if err != nil {
		return "", fmt.Errorf("describe the mutant: %w", err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, spec, 0o600); err != nil {
		return "", fmt.Errorf("write the overlay: %w", err)
	}
	parts := strings.Split(g.Test, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	report, err := test(ctx, path, g.Package, strings.Join(parts, "/"))
	if err != nil {
		return "", err
	}
	switch report[g.Test] {
	case "fail":
		return "killed", nil
	case "pass":
		return "SURVIVED", nil
	}
	return "", fmt.Errorf("%s of %s neither passed nor failed (%q)", g.Test, g.Package, report[g.Test])
}

// test runs tests and returns what became of each. An error is a package that
// does not compile.
func test(ctx context.Context, overlay, pkg, pattern string) (map[string]string, error) {
	args := []string{"test", "-json", "-vet=off", "-count=1", "-ldflags=-s -w", "-timeout=" + timeout.String(), "-run", pattern}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	out, err := exec.CommandContext(ctx, "go", append(args, pkg)...).Output()
	report, build := map[string]string{}, ""
	for line := range bytes.Lines(out) {
		var event struct{ Action, Test, Output, FailedBuild string }
		if json.Unmarshal(line, &event) != nil {
			continue
		}
		switch {
		case event.Action == "build-output":
			build += event.Output
		case strings.HasPrefix(event.Output, "panic: test timed out"):
			return nil, fmt.Errorf("%s hangs: take a test that ends", pattern)
		case event.FailedBuild != "":
			return nil, fmt.Errorf("it does not compile:\n%s", build)
		case event.Test != "" && slices.Contains([]string{"pass", "fail", "skip"}, event.Action):
			report[event.Test] = event.Action
		}
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, fmt.Errorf("run go test: %w", err)
	}
	return report, ctx.Err()
}

// show prints the table; verdicts are nil when nothing ran.
func show(guards []Guard, verdicts []string) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprint(w, "guard switched off\ttest that turns red\tverdict\n")
	survivors, killed := []string{}, 0
	for i, g := range guards {
		verdict := ""
		if verdicts != nil {
			if verdict = verdicts[i]; verdict == "killed" {
				killed++
			} else {
				survivors = append(survivors, g.Name)
			}
		}
		_, _ = fmt.Fprintf(w, "%s\t%s %s\t%s\n", g.Name, strings.TrimPrefix(g.Package, "./"), g.Test, verdict)
	}
	if err := w.Flush(); err != nil || verdicts == nil {
		return err
	}
	line, err := json.Marshal(struct {
		Guards    int      `json:"guards"`
		Killed    int      `json:"killed"`
		Survivors []string `json:"survivors"`
	}{len(guards), killed, survivors})
	if err != nil {
		return err
	}
	fmt.Printf("\nMUTANTS %s\n", line)
	if len(survivors) > 0 {
		return fmt.Errorf("%d guards could be lost and no test would tell", len(survivors))
	}
	return nil
}
