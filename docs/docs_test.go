// Package docs holds the documents to what they speak of.
package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

// sources calls fn for every Go file of functions, infra, shared and events.
func sources(t *testing.T, fn func(path, text string)) {
	t.Helper()
	for _, folder := range []string{"functions", "infra", "shared", "events"} {
		require.NoError(t, filepath.WalkDir(filepath.Join("..", folder), func(path string, _ fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") {
				fn(path, read(t, path))
			}
			return err
		}))
	}
}

// pages calls fn for every document.
func pages(t *testing.T, fn func(path, text string)) {
	t.Helper()
	for _, pattern := range []string{"../*.md", "*.md", "../events/*.md", "../infra/*/*.md"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, path := range files {
			fn(path, read(t, path))
		}
	}
}

func TestTestsThatAreNamedAreThere(t *testing.T) {
	tests := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)\w+)\(`)
	sources(t, func(_, text string) {
		for _, m := range declared.FindAllStringSubmatch(text, -1) {
			tests[m[1]] = true
		}
	})
	named := regexp.MustCompile("`((?:Test|Benchmark|Fuzz)[A-Z]\\w+)`")
	pages(t, func(path, text string) {
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			require.True(t, tests[m[1]], "%s names %s, which is not there", path, m[1])
		}
	})
}

func TestEveryCaseHasItsTest(t *testing.T) {
	page := read(t, "cases.md")
	lines := regexp.MustCompile(`(?m)^\| D(\d+) \|.*\| ([^|]+) \|$`).FindAllStringSubmatch(page, -1)
	require.Len(t, lines, 30)
	for i, line := range lines {
		require.Equal(t, fmt.Sprint(i+1), line[1])
		files, err := filepath.Glob(fmt.Sprintf("../shared/delivery/testdata/scenarios/D%02d-*.txt", i+1))
		require.NoError(t, err)
		require.Equal(t, len(files) > 0, strings.HasPrefix(line[2], "scenario"), "D%s", line[1])
		require.Regexp(t, "^scenario|`Test", line[2], "D%s", line[1])
	}
	named := regexp.MustCompile("`([DVW]\\d\\d-[a-z0-9-]+)`")
	for _, m := range named.FindAllStringSubmatch(page, -1) {
		require.FileExists(t, "../shared/delivery/testdata/scenarios/"+m[1]+".txt")
	}
	for letter, cases := range map[string]int{"V": 29, "W": 6} {
		lines := regexp.MustCompile(`(?m)^\| `+letter+`(\d+) \|.*\| ([^|]+) \|$`).FindAllStringSubmatch(page, -1)
		require.Len(t, lines, cases)
		for i, line := range lines {
			require.Equal(t, fmt.Sprint(i+1), line[1])
			files, err := filepath.Glob(fmt.Sprintf("../shared/delivery/testdata/scenarios/%s%02d-*.txt", letter, i+1))
			require.NoError(t, err)
			require.Equal(t, len(files) > 0, strings.HasPrefix(line[2], "scenario"), "%s%s", letter, line[1])
			require.Regexp(t, "^scenario|`Test|`D", line[2], "%s%s", letter, line[1])
		}
	}
	lines = regexp.MustCompile(`(?m)^\| O(\d+) \|.*\| ([^|]+) \|$`).FindAllStringSubmatch(page, -1)
	require.Len(t, lines, 39)
	for i, line := range lines {
		require.Equal(t, fmt.Sprint(i+1), line[1])
		require.Contains(t, line[2], "`Test", "O%s", line[1])
	}
}

// The page of cases names worlds of the model and guards in quotes.
func TestWorldsAndGuardsThatAreNamedAreThere(t *testing.T) {
	there := map[string]bool{}
	for path, declared := range map[string]string{"../shared/delivery/model/worlds.go": `Name: "([^"]+)"`, "../infra/mutants/guards.yaml": `(?m)^- guard: (.+)$`} {
		for _, m := range regexp.MustCompile(declared).FindAllStringSubmatch(read(t, path), -1) {
			there[m[1]] = true
		}
	}
	lines := regexp.MustCompile(`(?m)^\| .*\| ([^|]+) \|$`).FindAllStringSubmatch(read(t, "cases.md"), -1)
	names := 0
	for _, line := range lines {
		for _, m := range regexp.MustCompile(`"([^"]+)"`).FindAllStringSubmatch(line[1], -1) {
			require.True(t, there[m[1]], "neither a world nor a guard: %s", m[1])
			names++
		}
	}
	require.Greater(t, names, 30)
}

// Links to files of the repository lead somewhere.
func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	pages(t, func(path, text string) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			_, err := os.Stat(filepath.Join(filepath.Dir(path), m[1]))
			require.NoError(t, err, "%s links to %s", path, m[1])
		}
	})
}

// The maps name every part of functions, shared and infra, and only what is there.
func TestMapsNameEveryPart(t *testing.T) {
	for _, c := range []struct{ page, root, parts string }{
		{"../ARCHITECTURE.md", "..", "functions/* shared/* infra/* infra/local/*"},
		{"../infra/aws/README.md", "../infra/aws", "*"},
	} {
		_, section, found := strings.Cut(read(t, c.page), "\n## Where it ")
		require.True(t, found, c.page)
		named := namedPaths(section)
		for _, path := range named {
			_, err := os.Stat(filepath.Join(c.root, path))
			require.NoError(t, err, "%s names %s", c.page, path)
		}
		for parts := range strings.FieldsSeq(c.parts) {
			code, err := filepath.Glob(filepath.Join(c.root, parts, "*.go"))
			require.NoError(t, err)
			require.NotEmpty(t, code, parts)
			for _, file := range code {
				part, err := filepath.Rel(c.root, filepath.Dir(file))
				require.NoError(t, err)
				require.Contains(t, named, filepath.ToSlash(part), "%s does not name it", c.page)
			}
		}
	}
}

// namedPaths are the paths in the first column of a section's table. a/{b,c} is
// a/b and a/c.
func namedPaths(section string) (paths []string) {
	for _, row := range regexp.MustCompile(`(?m)^\| (`+"`[^|]+`"+`) \|`).FindAllStringSubmatch(section, -1) {
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			folder, names, braces := strings.Cut(strings.TrimSuffix(m[1], "}"), "{")
			if !braces {
				paths = append(paths, m[1])
				continue
			}
			for name := range strings.SplitSeq(names, ",") {
				paths = append(paths, folder+name)
			}
		}
	}
	return paths
}
