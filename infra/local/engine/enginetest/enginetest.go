// Package enginetest starts embedded ClickHouse servers for tests.
//
//	srv := enginetest.Run(t)              // a fresh server, ended with the test
//	conn := srv.Open(t)                   // clickhouse-go, over HTTP
//	srv.Kill(); srv.Restart(t)            // the data stay
//
// Tests that do nothing to the server but talk to it share one (Shared).
//
// The server's program is built once and kept in .build of the repository.
package enginetest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/engine"
	"oncehouse/infra/local/engine/chdb"
	"oncehouse/infra/local/engine/faults"
	"oncehouse/infra/local/repository"
)

// startTimeout is generous: a busy machine loads the library from disk.
const startTimeout = 90 * time.Second

// Server is an embedded server of one test.
type Server struct {
	*engine.Server
	opts engine.Options
}

// Run starts a server on a fresh data directory and ends it with the test.
func Run(t testing.TB) *Server { return RunWith(t, engine.Options{}) }

// RunWith is Run with options; what is empty gets a default.
func RunWith(t testing.TB, opts engine.Options) *Server {
	t.Helper()
	opts = Options(t, opts)
	srv, err := engine.Start(timeout(t), opts)
	require.NoError(t, err)
	t.Cleanup(srv.Kill)
	return &Server{Server: srv, opts: opts}
}

// Shared is one server for the tests of a package, started when the first one
// wants it. They run one after another, each finds it without tables, and none
// stops it. TestMain ends it:
//
//	code := m.Run()
//	shared.Close()
//	os.Exit(code)
type Shared struct {
	server *Server
	data   string
}

// Run returns the server, emptied.
func (s *Shared) Run(t testing.TB) *Server {
	t.Helper()
	if s.server == nil {
		data, err := os.MkdirTemp("", "enginetest-")
		require.NoError(t, err)
		s.data = data
		opts := Options(t, engine.Options{Data: data})
		srv, err := engine.Start(timeout(t), opts)
		require.NoError(t, err)
		s.server = &Server{Server: srv, opts: opts}
	}
	s.server.empty(t)
	return s.server
}

// Close ends the server and removes its data.
func (s *Shared) Close() {
	if s.server != nil {
		s.server.Kill()
	}
	_ = os.RemoveAll(s.data) // in the system's directory for what may go
}

// empty drops all that earlier tests have made.
func (s *Server) empty(t testing.TB) {
	t.Helper()
	conn := s.Open(t)
	for list, drop := range map[string]string{
		"SELECT name FROM system.databases WHERE engine = 'Atomic' AND name NOT IN ('default', 'system')": "DROP DATABASE `%s` SYNC",
		"SELECT name FROM system.tables WHERE database = 'default'":                                       "DROP TABLE IF EXISTS `%s` SYNC",
	} {
		rows, err := conn.Query(t.Context(), list)
		require.NoError(t, err)
		for rows.Next() {
			var name string
			require.NoError(t, rows.Scan(&name))
			require.NoError(t, conn.Exec(t.Context(), fmt.Sprintf(drop, name)))
		}
		require.NoError(t, rows.Err())
		require.NoError(t, rows.Close())
	}
}

// Options fills in the program, the library and a fresh data directory.
func Options(t testing.TB, opts engine.Options) engine.Options {
	t.Helper()
	if opts.Binary == "" {
		binary, err := binary()
		require.NoError(t, err)
		opts.Binary = binary
	}
	if opts.Library == "" {
		root, err := repository.Root()
		require.NoError(t, err)
		opts.Library, err = chdb.Find(root)
		require.NoError(t, err)
	}
	if opts.Data == "" {
		opts.Data = t.TempDir()
	}
	return opts
}

// Data is the server's data directory.
func (s *Server) Data() string { return s.opts.Data }

// Restart starts the server again on the same data and address, after Kill or
// Stop; one that runs is stopped first.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	require.NoError(t, s.Server.Restart(timeout(t)))
}

// Options are clickhouse-go's for this server, over HTTP.
func (s *Server) Options() *clickhouse.Options {
	return &clickhouse.Options{
		Protocol: clickhouse.HTTP, Addr: []string{s.Addr()},
		Auth: clickhouse.Auth{Database: "default", Username: s.opts.User, Password: s.opts.Password},
	}
}

// Open returns a clickhouse-go connection, closed with the test.
func (s *Server) Open(t testing.TB) clickhouse.Conn {
	t.Helper()
	conn, err := clickhouse.Open(s.Options())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn
}

// Exec runs statements one after the other.
func (s *Server) Exec(t testing.TB, statements ...string) {
	t.Helper()
	conn := s.Open(t)
	for _, statement := range statements {
		require.NoError(t, conn.Exec(t.Context(), statement), statement)
	}
}

// Faults puts a proxy that breaks requests in front of the server. Every armed
// fault must have been met when the test ends.
func Faults(t testing.TB, srv *Server) *faults.Proxy {
	t.Helper()
	proxy, err := faults.New(t.Context(), srv.Addr())
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, proxy.Close())
		require.Empty(t, proxy.Pending(), "faults that no request met")
	})
	return proxy
}

func timeout(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	t.Cleanup(cancel)
	return ctx
}

// binary builds the server's program once per test process.
var binary = sync.OnceValues(func() (string, error) {
	root, err := repository.Root()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, ".build", "engine")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", fmt.Errorf("build the engine's program: %w", err)
	}
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	return build(root, dir)
})

// build keeps each version under the hash of its content: a test of another
// package may be running an older one.
func build(root, dir string) (string, error) {
	fresh := filepath.Join(dir, "new")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", fresh, "./infra/local/engine/cmd/engine")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the engine's program: %w: %s", err, out)
	}
	sum, err := hash(fresh)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "engine-"+sum)
	if err := os.Rename(fresh, path); err != nil {
		return "", fmt.Errorf("build the engine's program: %w", err)
	}
	return path, prune(dir, path)
}

// prune removes the programs of other versions that no test can be using.
func prune(dir, keep string) error {
	old, err := filepath.Glob(filepath.Join(dir, "engine-*"))
	if err != nil {
		return fmt.Errorf("build the engine's program: %w", err)
	}
	for _, path := range old {
		info, err := os.Stat(path)
		if err != nil || path == keep || time.Since(info.ModTime()) < 24*time.Hour {
			continue
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("build the engine's program: %w", err)
		}
	}
	return nil
}

func hash(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("build the engine's program: %w", err)
	}
	defer func() { _ = file.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", fmt.Errorf("build the engine's program: %w", err)
	}
	return hex.EncodeToString(sum.Sum(nil))[:12], nil
}

// lock takes a file lock: test processes of several packages build at once.
func lock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the build: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock the build: %w", err), file.Close())
	}
	return func() { _ = file.Close() }, nil
}
