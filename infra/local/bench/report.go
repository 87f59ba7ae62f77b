package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// report is what bench.json holds.
type report struct {
	Machine machine  `json:"machine"`
	Figures []figure `json:"figures"`
	Targets []target `json:"targets"`

	out io.Writer
	err error // the first of out
}

// machine is what the figures were measured on.
type machine struct {
	CPU    string    `json:"cpu"`
	Cores  int       `json:"cores"`
	OS     string    `json:"os"`
	Go     string    `json:"go"`
	Commit string    `json:"commit"`
	Dirty  bool      `json:"dirty"` // files differ from the commit
	Load   string    `json:"load"`  // the machine's load averages at the start
	Time   time.Time `json:"time"`
}

// figure is one quantity over the runs.
type figure struct {
	Name   string  `json:"name"`
	Unit   string  `json:"unit"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Runs   int     `json:"runs"`
}

// target is what a figure should be.
type target struct {
	Figure string `json:"figure"`
	// Of is what has to keep to the bound: the median of the runs, or for a
	// peak the highest.
	Of    string  `json:"of"`
	Is    string  `json:"is"` // "at least" or "at most"
	Bound float64 `json:"bound"`
	Value float64 `json:"value"`
	Met   bool    `json:"met"`
}

const (
	atLeast = "at least"
	atMost  = "at most"
	median  = "median"
	highest = "highest"
)

// targets are those of the project for this kind of machine, when it is idle.
func targets() []target {
	return []target{
		{Figure: "path/300/ratio_idiomatic_to_sink", Of: median, Is: atLeast, Bound: 8},
		{Figure: "path/1600/ratio_idiomatic_to_sink", Of: median, Is: atLeast, Bound: 8},
		{Figure: "path/300/ratio_sink_to_floor", Of: median, Is: atMost, Bound: 5},
		{Figure: "path/1600/ratio_sink_to_floor", Of: median, Is: atMost, Bound: 5},
		{Figure: "path/300/sink/allocations_per_record", Of: median, Is: atMost, Bound: 0.01},
		{Figure: "path/1600/sink/allocations_per_record", Of: median, Is: atMost, Bound: 0.01},
		{Figure: "path/1600/sink/throughput", Of: median, Is: atLeast, Bound: 150},
		{Figure: "wire/ratio_exactly_once_to_at_least_once", Of: median, Is: atMost, Bound: 1.10},
		{Figure: "wire/memory/300", Of: highest, Is: atMost, Bound: 64},
		{Figure: "wire/memory/1600", Of: highest, Is: atMost, Bound: 64},
		{Figure: "wire/cold/first_insert", Of: median, Is: atMost, Bound: 150},
		{Figure: "outbox/oncehouse/rows", Of: median, Is: atLeast, Bound: 30_000},
		{Figure: "outbox/oncehouse/latency_median", Of: median, Is: atMost, Bound: 50},
		{Figure: "outbox/oncehouse/dead_rows", Of: highest, Is: atMost, Bound: 0},
	}
}

// add keeps a figure and prints it.
func (r *report) add(name, unit string, values []float64) {
	if len(values) == 0 {
		return
	}
	sorted := slices.Sorted(slices.Values(values))
	f := figure{
		Name: name, Unit: unit, Runs: len(sorted), Min: sorted[0], Max: sorted[len(sorted)-1],
		Median: (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2,
	}
	r.Figures = append(r.Figures, f)
	r.printf("%-50s %12s  %-10s %s - %s\n", f.Name, digits(f.Median), f.Unit, digits(f.Min), digits(f.Max))
}

// digits shows four significant ones, and whole numbers whole.
func digits(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	case v >= 100:
		return fmt.Sprintf("%.1f", v)
	case v >= 10:
		return fmt.Sprintf("%.2f", v)
	case v >= 0.1 || v == 0:
		return fmt.Sprintf("%.3f", v)
	}
	return fmt.Sprintf("%.6f", v)
}

// judge compares the figures that were measured with their targets.
func (r *report) judge() {
	r.printf("\n")
	for _, t := range targets() {
		i := slices.IndexFunc(r.Figures, func(f figure) bool { return f.Name == t.Figure })
		if i < 0 {
			continue
		}
		if t.Value = r.Figures[i].Median; t.Of == highest {
			t.Value = r.Figures[i].Max
		}
		t.Met = t.Is == atLeast && t.Value >= t.Bound || t.Is == atMost && t.Value <= t.Bound
		verdict := "target met   "
		if !t.Met {
			verdict = "target missed"
		}
		line := fmt.Sprintf("%s %s: the %s is %s, should be %s %s %s", verdict, t.Figure, t.Of, digits(t.Value), t.Is, digits(t.Bound), r.Figures[i].Unit)
		r.printf("%s\n", strings.TrimSpace(line))
		r.Targets = append(r.Targets, t)
	}
}

func (r *report) head() {
	m := r.Machine
	changed := ""
	if m.Dirty {
		changed = " with changes"
	}
	r.printf("%s, %d cores, load %s, %s, %s, commit %s%s\n\n%-50s %12s  %-10s %s\n", m.CPU, m.Cores, m.Load, m.OS, m.Go, m.Commit, changed,
		"figure", "median", "unit", "lowest - highest")
}

func (r *report) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(r.out, format, args...); err != nil && r.err == nil {
		r.err = fmt.Errorf("print the figures: %w", err)
	}
}

// describe says what this machine tells about itself; "unknown" where it does not.
func describe(ctx context.Context, root string) machine {
	m := machine{
		CPU: lineOf("/proc/cpuinfo", "model name"), Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH,
		Go: runtime.Version(), Commit: "unknown", Load: "unknown", Time: time.Now().UTC().Truncate(time.Second),
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load = strings.Join(strings.Fields(string(load))[:3], " ")
	}
	git := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Dir = root
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	if commit, err := git("rev-parse", "--short=12", "HEAD"); err == nil {
		m.Commit = commit
	}
	if changes, err := git("status", "--porcelain"); err == nil {
		m.Dirty = changes != ""
	}
	return m
}

// lineOf is the value of the first line "name : value" of a file of /proc.
func lineOf(path, name string) string {
	file, err := os.Open(path)
	if err != nil {
		return "unknown processor"
	}
	defer func() { _ = file.Close() }()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		key, value, ok := strings.Cut(lines.Text(), ":")
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}
