package repository_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/repository"
)

func TestRoot(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	below := filepath.Join(top, "a", "b")
	require.NoError(t, os.MkdirAll(below, 0o750))
	t.Chdir(below)
	_, err = repository.Root()
	require.ErrorContains(t, err, "run this in a clone")
	require.NoError(t, os.WriteFile(filepath.Join(top, "go.mod"), nil, 0o600))
	for _, dir := range []string{below, top} {
		t.Chdir(dir)
		found, err := repository.Root()
		require.NoError(t, err)
		require.Equal(t, top, found)
	}
}
