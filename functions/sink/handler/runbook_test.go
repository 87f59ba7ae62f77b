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

// Every reason that the code can give is a heading of the runbook.
func TestRunbookHasEveryReason(t *testing.T) {
	runbook, err := os.ReadFile("../../../docs/runbook.md")
	require.NoError(t, err)
	headings := map[string]bool{}
	for line := range strings.Lines(string(runbook)) {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			headings[strings.TrimSpace(heading)] = true
		}
	}
	all := append(reasons(t, ".."), reasons(t, "../../../shared")...)
	require.Greater(t, len(all), 15)
	require.Subset(t, all, []string{"InDoubt", "Source", "Event"}, "reasons are found in every package")
	for _, reason := range all {
		require.True(t, headings[reason], "docs/runbook.md has no heading %s", reason)
	}
}

// reasons are the values of all constants of type Reason in the Go files below dir.
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
			if spec, ok := n.(*ast.ValueSpec); ok && isReason(spec.Type) {
				for _, value := range spec.Values {
					text, err := strconv.Unquote(value.(*ast.BasicLit).Value)
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

func isReason(typ ast.Expr) bool {
	switch typ := typ.(type) {
	case *ast.Ident:
		return typ.Name == "Reason"
	case *ast.SelectorExpr:
		return typ.Sel.Name == "Reason"
	}
	return false
}
