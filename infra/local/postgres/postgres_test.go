package postgres_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/postgres"
)

const root = "../../.."

func start(t *testing.T, options postgres.Options) *postgres.Server {
	t.Helper()
	server, err := postgres.Start(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(server.Close)
	return server
}

func connect(t *testing.T, server *postgres.Server) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.URL())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // the server may be gone
	return conn
}

func count(t *testing.T, server *postgres.Server) int {
	t.Helper()
	var n int
	require.NoError(t, connect(t, server).QueryRow(t.Context(), "SELECT count(*) FROM t").Scan(&n))
	return n
}

// Every PostgreSQL of this machine starts, and goes on with its data however it ended.
func TestDataSurvive(t *testing.T) {
	found, err := postgres.FindAll(root)
	require.NoError(t, err)
	for _, installation := range found {
		t.Run(installation.String(), func(t *testing.T) {
			server := start(t, postgres.Options{Installation: installation})
			conn := connect(t, server)
			var version string
			require.NoError(t, conn.QueryRow(t.Context(), "SHOW server_version").Scan(&version))
			require.Contains(t, version, installation.Version)
			_, err := conn.Exec(t.Context(), "CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
			require.NoError(t, err)

			url, rows := server.URL(), 1
			for _, end := range []func(){server.Kill, server.Crash, server.Stop} {
				end()
				<-server.Dead()
				_, err := pgx.Connect(t.Context(), url)
				require.Error(t, err)
				require.NoError(t, server.Restart(t.Context()))
				require.Equal(t, url, server.URL())
				require.Equal(t, rows, count(t, server))
				_, err = connect(t, server).Exec(t.Context(), "INSERT INTO t VALUES (1)")
				require.NoError(t, err)
				rows++
			}
		})
	}
}

// Killed in the middle of statements and transactions, with backends at work,
// the server is back at once: nothing of the old one lives on.
func TestKillUnderLoad(t *testing.T) {
	server := start(t, postgres.Options{Root: root, Settings: map[string]string{"fsync": "off"}})
	_, err := connect(t, server).Exec(t.Context(), "CREATE TABLE t (a int)")
	require.NoError(t, err)
	for range 3 {
		idle := connect(t, server)
		_, err = idle.Exec(t.Context(), "BEGIN; INSERT INTO t VALUES (1)")
		require.NoError(t, err)
		busy := connect(t, server)
		failed := make(chan error)
		go func() {
			_, err := busy.Exec(context.Background(), "SELECT pg_sleep(3600)")
			failed <- err
		}()
		server.Kill()
		require.Error(t, <-failed)
		require.NoError(t, server.Restart(t.Context()))
		require.Zero(t, count(t, server))
	}
}

func TestSettings(t *testing.T) {
	server := start(t, postgres.Options{Root: root, Settings: map[string]string{"fsync": "off", "max_prepared_transactions": "7"}})
	for name, want := range map[string]string{"fsync": "off", "max_prepared_transactions": "7", "listen_addresses": "127.0.0.1", "unix_socket_directories": ""} {
		var value string
		require.NoError(t, connect(t, server).QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&value))
		require.Equal(t, want, value, name)
	}
}

// A directory that is kept has the data for the next Start; a temporary one goes.
func TestDirectories(t *testing.T) {
	dir := filepath.Join(open(t), "kept")
	first := start(t, postgres.Options{Root: root, Dir: dir})
	_, err := connect(t, first).Exec(t.Context(), "CREATE TABLE t (a int)")
	require.NoError(t, err)
	first.Close()
	require.Zero(t, count(t, start(t, postgres.Options{Root: root, Dir: dir})))

	t.Setenv("TMPDIR", open(t))
	temporary := start(t, postgres.Options{Root: root})
	made, err := filepath.Glob(filepath.Join(os.TempDir(), "oncehouse-postgres-*"))
	require.NoError(t, err)
	require.Len(t, made, 1)
	temporary.Close()
	require.NoDirExists(t, made[0])
}

// open is a directory that the user nobody can reach, unlike t.TempDir.
func open(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "oncehouse-test-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// As npm leaves the package when it runs no scripts, below a directory that only
// its owner may enter: the links are made, and the server's user gets a copy.
func TestPackageBelowAClosedDirectory(t *testing.T) {
	found, err := postgres.Find(root)
	require.NoError(t, err)
	require.Equal(t, "npm", found.Source, "run make setup")
	closed := t.TempDir()
	require.NoError(t, os.Chmod(closed, 0o700))
	pkg := filepath.Join(closed, "node_modules", postgres.Package(runtime.GOOS, runtime.GOARCH), "native")
	require.NoError(t, os.CopyFS(pkg, os.DirFS(found.Dir)))
	links := 0
	require.NoError(t, filepath.WalkDir(pkg, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type() == fs.ModeSymlink {
			links++
			return os.Remove(path)
		}
		return err
	}))
	require.NotZero(t, links)
	server := start(t, postgres.Options{Root: closed})
	require.NoError(t, connect(t, server).Ping(t.Context()))
	made, err := filepath.Glob(filepath.Join(pkg, "lib", "libpq.so*"))
	require.NoError(t, err)
	require.Len(t, made, 3)
	require.Equal(t, os.Geteuid() == 0, server.Installation().Dir != pkg)
}

func TestNothingInstalled(t *testing.T) {
	_, err := postgres.Start(t.Context(), postgres.Options{Installation: postgres.Installation{Dir: t.TempDir()}})
	require.ErrorContains(t, err, "no such file")
	if os.Geteuid() == 0 {
		_, err = postgres.Start(t.Context(), postgres.Options{Root: root, Dir: filepath.Join(t.TempDir(), "below")})
		require.ErrorContains(t, err, "the user nobody may not enter")
	}
}

// A standby follows, and is a server of its own once it is promoted.
func TestStandby(t *testing.T) {
	primary := start(t, postgres.Options{Root: root, Settings: map[string]string{"fsync": "off"}})
	conn := connect(t, primary)
	_, err := conn.Exec(t.Context(), "CREATE TABLE t (a int)")
	require.NoError(t, err)
	standby, err := primary.Standby(t.Context(), postgres.Options{})
	require.NoError(t, err)
	t.Cleanup(standby.Close)
	_, err = conn.Exec(t.Context(), "INSERT INTO t VALUES (1)")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return count(t, standby) == 1 }, 30*time.Second, 10*time.Millisecond)

	follower := connect(t, standby)
	_, err = follower.Exec(t.Context(), "INSERT INTO t VALUES (2)")
	require.ErrorContains(t, err, "read-only")
	_, err = follower.Exec(t.Context(), "SELECT pg_promote()")
	require.NoError(t, err)
	_, err = follower.Exec(t.Context(), "INSERT INTO t VALUES (2)")
	require.NoError(t, err)
	require.Equal(t, 2, count(t, standby))
	require.Equal(t, 1, count(t, primary))
}
