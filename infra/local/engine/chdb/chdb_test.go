package chdb

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

func TestFind(t *testing.T) {
	root := t.TempDir()
	_, err := find(root, "linux", "arm64")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "run make setup, which installs @chdb/lib-linux-arm64-gnu@"+Release)
	_, err = find(root, "windows", "amd64")
	require.ErrorContains(t, err, "chdb publishes no library for windows/amd64")

	path := filepath.Join(root, "node_modules", "@chdb", "lib-linux-arm64-gnu", "libchdb.so")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	got, err := find(root, "linux", "arm64")
	require.NoError(t, err)
	require.Equal(t, path, got)
	_, err = Load(path)
	require.ErrorContains(t, err, "load the ClickHouse engine")
}

// TestEngine is one test, because a process opens the engine once.
func TestEngine(t *testing.T) {
	path, err := Find(filepath.Join("..", "..", "..", ".."))
	require.NoError(t, err)
	lib, err := Load(path)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(Release, lib.Version()), lib.Version())

	config := filepath.Join(t.TempDir(), "config.xml")
	require.NoError(t, os.WriteFile(config, []byte("<clickhouse></clickhouse>"), 0o600))
	options := []string{"--path=" + t.TempDir(), "--config-file=" + config}
	conn, err := lib.Connect(options...)
	require.NoError(t, err)
	defer conn.Close()

	t.Run("query", func(t *testing.T) {
		res, err := conn.Query([]byte("SELECT number FROM numbers(3)"), "TSV", nil)
		require.NoError(t, err)
		require.Equal(t, &Result{Data: []byte("0\n1\n2\n"), ResultRows: 3, ReadRows: 3, ReadBytes: 24}, res)
	})
	t.Run("zero bytes and parameters", func(t *testing.T) {
		res, err := conn.Query([]byte("SELECT length('a\x00b'), {s:String}, length({empty:String})"), "RowBinary", map[string]string{"s": "it's", "empty": ""})
		require.NoError(t, err)
		require.Equal(t, "\x03\x00\x00\x00\x00\x00\x00\x00\x04it's\x00\x00\x00\x00\x00\x00\x00\x00", string(res.Data))
	})
	t.Run("error", func(t *testing.T) {
		_, err := conn.Query([]byte("SELECT * FROM missing"), "TSV", nil)
		engine := (*Error)(nil)
		require.ErrorAs(t, err, &engine)
		require.Contains(t, engine.Text, "Code: 60. DB::Exception: ")
	})
	t.Run("a connection of its own", func(t *testing.T) {
		other, err := lib.Connect(append(options, "--max_threads=3")...)
		require.NoError(t, err)
		defer other.Close()
		res, err := other.Query([]byte("SELECT getSetting('max_threads')"), "TSV", nil)
		require.NoError(t, err)
		require.Equal(t, "3\n", string(res.Data))
		_, err = lib.Connect("--path=" + t.TempDir())
		require.Error(t, err, "a second data directory in one process")
	})
	t.Run("classify", func(t *testing.T) {
		for sql, want := range map[string]Class{"SELECT 1": ReadOnly, "INSERT INTO t VALUES (1)": Mutating, "CREATE FUNCTION f AS x -> x": MutatingGlobal,
			"SET max_threads = 1": Control, "SELECT FROM WHERE": Unknown} {
			got, err := conn.Classify([]byte(sql))
			require.NoError(t, err)
			require.Equal(t, want, got, sql)
		}
	})
	t.Run("insert", func(t *testing.T) { testInsert(t, conn) })
}

func testInsert(t *testing.T, conn *Conn) {
	_, err := conn.Query([]byte("CREATE TABLE t (a UInt32) ENGINE = MergeTree ORDER BY a"), "TSV", nil)
	require.NoError(t, err)
	count := func() string {
		res, err := conn.Query([]byte("SELECT count() FROM t"), "TSV", nil)
		require.NoError(t, err)
		return string(res.Data)
	}
	res, err := conn.Insert([]byte("INSERT INTO {t:Identifier}"), "TSV", map[string]string{"t": "t"}, iotest.OneByteReader(strings.NewReader("1\n2\n")))
	require.NoError(t, err)
	require.Equal(t, uint64(2), res.WrittenRows)
	require.Equal(t, "2\n", count())

	// Data that break cancel the insert, whatever they call it.
	for _, broken := range []error{errors.New("gone"), io.ErrUnexpectedEOF} {
		for _, rows := range []int{0, 10, 500_000} {
			data := io.MultiReader(strings.NewReader(strings.Repeat("1234\n", rows)), iotest.ErrReader(broken))
			_, err = conn.Insert([]byte("INSERT INTO t"), "TSV", nil, data)
			require.ErrorIs(t, err, broken)
		}
	}
	require.Equal(t, "2\n", count())

	engine := (*Error)(nil)
	_, err = conn.Insert([]byte("INSERT INTO missing"), "TSV", nil, strings.NewReader("1\n"))
	require.ErrorAs(t, err, &engine)
	_, err = conn.Insert([]byte("INSERT INTO t"), "TSV", nil, strings.NewReader("1\nx\n"))
	require.ErrorAs(t, err, &engine)
	require.Contains(t, engine.Text, "Code: 27.")
	require.Equal(t, "2\n", count())
}
