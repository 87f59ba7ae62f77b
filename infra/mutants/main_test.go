package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The table cannot rot: every text stands exactly once in its file, and every test
// is there.
func TestGuardsAreThere(t *testing.T) {
	t.Chdir("../..")
	guards, err := load(table, "")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(guards), 25)
	_, err = prepare(guards)
	require.NoError(t, err)
}

// A text that stands twice, or not at all, is told.
func TestPrepareWantsATextOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.go")
	require.NoError(t, os.WriteFile(file, []byte("x := 1\nx := 1\ny := 2\n"), 0o600))
	for find, times := range map[string]string{"x := 1": "2 times", "z": "0 times"} {
		_, err := prepare([]Guard{{Name: "g", Edits: []Edit{{File: file, Find: find}}}})
		require.ErrorContains(t, err, times)
	}
	mutated, err := prepare([]Guard{{Name: "g", Edits: []Edit{{File: file, Find: "y := 2\n", Put: "y := 3\n"}}}})
	require.NoError(t, err)
	require.Equal(t, "x := 1\nx := 1\ny := 3\n", mutated[0][file])
}

// What is incomplete, misspelt or there twice is refused.
func TestLoadIsStrict(t *testing.T) {
	good := "- {guard: g, edits: [{file: f, find: a, put: b}], package: p, test: T}\n"
	_, err := load([]byte(good), "")
	require.NoError(t, err)
	for name, text := range map[string]string{
		"twice":      good + good,
		"no test":    "- {guard: g, edits: [{file: f, find: a, put: b}], package: p}\n",
		"misspelt":   "- {guard: g, edits: [{file: f, find: a, with: b}], package: p, test: T}\n",
		"no edits":   "- {guard: g, package: p, test: T}\n",
		"not a list": "guard: g\n",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load([]byte(text), "")
			require.Error(t, err)
		})
	}
	_, err = load([]byte(good), "none")
	require.ErrorContains(t, err, "no guard matches")
}

// A mutant of a module of its own: killed by a test that tells, surviving one that
// does not, and an error where it does not compile.
func TestKill(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"go.mod":    "module guarded\n\ngo 1.26\n",
		"a.go":      "package guarded\n\nfunc allowed(n int) bool { return n < 3 }\n",
		"a_test.go": "package guarded\n\nimport \"testing\"\n\nfunc TestTells(t *testing.T) {\n\tif allowed(3) {\n\t\tt.Fatal()\n\t}\n}\n\nfunc TestDoesNot(t *testing.T) {\n\tif !allowed(1) {\n\t\tt.Fatal()\n\t}\n}\n",
	} {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	g := Guard{Name: "bound", Package: ".", Test: "TestTells"}
	require.NoError(t, baseline(t.Context(), []Guard{g}))
	verdict, err := kill(t.Context(), t.TempDir(), g, map[string]string{"a.go": "package guarded\n\nfunc allowed(n int) bool { return true }\n"})
	require.NoError(t, err)
	require.Equal(t, "killed", verdict)
	g.Test = "TestDoesNot"
	verdict, err = kill(t.Context(), t.TempDir(), g, map[string]string{"a.go": "package guarded\n\nfunc allowed(n int) bool { return true }\n"})
	require.NoError(t, err)
	require.Equal(t, "SURVIVED", verdict)
	_, err = kill(t.Context(), t.TempDir(), g, map[string]string{"a.go": "package guarded\n\nfunc allowed(n int) bool { return }\n"})
	require.ErrorContains(t, err, "does not compile")
	g.Test = "TestNoSuch"
	require.Error(t, baseline(t.Context(), []Guard{g}))
	text, err := os.ReadFile("a.go")
	require.NoError(t, err)
	require.Contains(t, string(text), "n < 3", "the work tree is not touched")
}
