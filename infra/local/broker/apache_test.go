//go:build integration

package broker

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// cache is the repository's own, filled by the first run.
func cache() string { return filepath.Join("..", "..", "..", ".cache", "kafka") }

func TestApache(t *testing.T) {
	var log bytes.Buffer
	b, err := Apache(t.Context(), ApacheConfig{Cache: cache(), Log: &log})
	require.NoError(t, err)
	defer b.Close()
	conform(t, b)

	first := b.Addrs()
	b.Kill()
	require.NoError(t, b.Restart(t.Context()))
	require.Equal(t, first, b.Addrs())
	require.Equal(t, []string{"a", "b", "c"}, consume(t, b, 3), "after kill -9")
	produce(t, b, "d")

	b.Stop()
	require.NoError(t, b.Restart(t.Context()))
	require.Equal(t, []string{"a", "b", "c", "d"}, consume(t, b, 4), "after a stop")
	b.Close()
	require.NoDirExists(t, b.cfg.Dir)
	require.Less(t, bytes.Count(log.Bytes(), []byte("\n")), 60, "the log is quiet: %s", &log)
}

func TestApacheOnKeptData(t *testing.T) {
	dir := t.TempDir()
	b, err := Apache(t.Context(), ApacheConfig{Cache: cache(), Dir: dir})
	require.NoError(t, err)
	require.NoError(t, CreateTopics(t.Context(), b, Topic{Name: "clicks", Partitions: 1}))
	produce(t, b, "a")
	b.Close()

	b, err = Apache(t.Context(), ApacheConfig{Cache: cache(), Dir: dir})
	require.NoError(t, err)
	defer b.Close()
	require.Equal(t, []string{"a"}, consume(t, b, 1))
}
