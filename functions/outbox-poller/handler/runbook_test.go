package handler

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every reason that the poller can give is a heading of the runbook.
func TestRunbookHasEveryReason(t *testing.T) {
	runbook, err := os.ReadFile("../../../docs/runbook.md")
	require.NoError(t, err)
	headings := map[string]bool{}
	for line := range strings.Lines(string(runbook)) {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			headings[strings.TrimSpace(heading)] = true
		}
	}
	all := append(reasons(t, "."), reasons(t, "../../../shared/outbox")...)
	require.Subset(t, all, []string{"OutboxFailed", "NotInitialised", "Replica", "CursorTopicWrong"}, "reasons are found in every package")
	for _, reason := range all {
		require.True(t, headings[reason], "docs/runbook.md has no heading %s", reason)
	}
}

// reasons are the values of the constants called Reason... in the Go files below dir.
func reasons(t *testing.T, dir string) (found []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for i, name := range spec.Names {
				if strings.HasPrefix(name.Name, "Reason") && i < len(spec.Values) {
					text, err := strconv.Unquote(spec.Values[i].(*ast.BasicLit).Value)
					require.NoError(t, err, path)
					found = append(found, text)
				}
			}
			return true
		})
		return nil
	}))
	return found
}
