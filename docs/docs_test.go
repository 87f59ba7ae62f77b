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

func TestEveryCaseHasItsTest(t *testing.T) {
	tests := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	sources(t, func(_, text string) {
		for _, m := range declared.FindAllStringSubmatch(text, -1) {
			tests[m[1]] = true
		}
	})
	page := read(t, "cases.md")
	for _, m := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(page, -1) {
		require.True(t, tests[m[1]], "there is no %s", m[1])
	}
	lines := regexp.MustCompile(`(?m)^\| D(\d+) \|.*\| ([^|]+) \|$`).FindAllStringSubmatch(page, -1)
	require.Len(t, lines, 30)
	for i, line := range lines {
		require.Equal(t, fmt.Sprint(i+1), line[1])
		files, err := filepath.Glob(fmt.Sprintf("../shared/delivery/testdata/scenarios/D%02d-*.txt", i+1))
		require.NoError(t, err)
		require.Equal(t, len(files) > 0, strings.HasPrefix(line[2], "scenario"), "D%s", line[1])
		require.Regexp(t, "^scenario|`Test", line[2], "D%s", line[1])
	}
	lines = regexp.MustCompile(`(?m)^\| O(\d+) \|.*\| ([^|]+) \|$`).FindAllStringSubmatch(page, -1)
	require.Len(t, lines, 39)
	for i, line := range lines {
		require.Equal(t, fmt.Sprint(i+1), line[1])
		require.Contains(t, line[2], "`Test", "O%s", line[1])
	}
}

// Links to files of the repository lead somewhere.
func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	for _, pattern := range []string{"../*.md", "*.md", "../events/*.md", "../infra/*/*.md"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, file := range files {
			for _, m := range link.FindAllStringSubmatch(read(t, file), -1) {
				_, err := os.Stat(filepath.Join(filepath.Dir(file), m[1]))
				require.NoError(t, err, "%s links to %s", file, m[1])
			}
		}
	}
}
