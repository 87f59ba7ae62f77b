package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every reason that a function can give is a heading of the runbook.
func TestRunbookHasEveryReason(t *testing.T) {
	headings := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^## (\S+)$`).FindAllStringSubmatch(read(t, "runbook.md"), -1) {
		headings[m[1]] = true
	}
	all := reasons(t)
	require.Subset(t, all, []string{"InDoubt", "Source", "Event", "OutboxFailed", "NotInitialised", "Replica", "CursorTopicWrong"}, "reasons are found in every package")
	for _, reason := range all {
		require.True(t, headings[reason], "runbook.md has no heading %s", reason)
	}
}

// reasons are the values of all constants called Reason... in the code of functions.
func reasons(t *testing.T) (found []string) {
	t.Helper()
	sources(t, func(path, text string) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			for i := 0; ok && i < len(spec.Values); i++ {
				if literal, ok := spec.Values[i].(*ast.BasicLit); ok && strings.HasPrefix(spec.Names[i].Name, "Reason") {
					reason, err := strconv.Unquote(literal.Value)
					require.NoError(t, err, path)
					found = append(found, reason)
				}
			}
			return true
		})
	})
	return found
}
