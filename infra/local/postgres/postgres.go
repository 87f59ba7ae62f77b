// Package postgres runs a real PostgreSQL on one machine: that of the npm package
// or of the system, as a child process on a free port of loopback.
//
//	server, err := postgres.Start(ctx, postgres.Options{Output: os.Stderr})
//	defer server.Close()
//	conn, err := pgx.Connect(ctx, server.URL())
//
// Its data survive Stop, Kill and Crash; Restart goes on with them at the same
// address. Anyone on this machine may log in: it is for tests and for show.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"oncehouse/infra/local/process"
)

const (
	startTimeout = 60 * time.Second
	stopGrace    = 30 * time.Second
	portAttempts = 3
)

// Options of a server.
type Options struct {
	// Installation is the PostgreSQL to run; the zero value is what Find finds in Root.
	Installation Installation
	// Root is the directory that holds node_modules; "" looks for it upwards
	// from the working directory, as Node.js does.
	Root string
	// Dir keeps everything of the server; "" is a temporary directory that Close
	// removes. Where this user is root, the user nobody has to be able to reach it.
	Dir string
	// Port is the server's; 0 a free one.
	Port int
	// Settings are those of postgresql.conf, for example "fsync": "off".
	Settings map[string]string
	// Output takes what the server prints; nil discards it.
	Output io.Writer
}

// Server is a PostgreSQL in a process of its own.
type Server struct {
	options    Options
	temporary  bool
	created    bool
	credential *syscall.Credential
	port       int
	process    *process.Process
}

// Start starts a server and returns when it answers. On a directory with data
// it goes on from there. Error: there is no PostgreSQL, with the remedy, or it
// does not come up, with its own last words.
func Start(ctx context.Context, options Options) (*Server, error) {
	s, err := prepare(options)
	if err == nil {
		if _, missing := os.Stat(filepath.Join(s.data(), "PG_VERSION")); missing != nil {
			s.created = true
			err = s.initialise(ctx)
		}
	}
	if err == nil {
		err = s.boot(ctx)
	}
	if err != nil {
		if s != nil {
			s.Close()
		}
		return nil, err
	}
	return s, nil
}

// URL is how clients connect to the server's database postgres as its superuser.
func (s *Server) URL() string {
	return "postgres://postgres@127.0.0.1:" + strconv.Itoa(s.port) + "/postgres?sslmode=disable"
}

// Installation is the PostgreSQL that runs.
func (s *Server) Installation() Installation { return s.options.Installation }

// Created is true of a server whose directory held no data before Start.
func (s *Server) Created() bool { return s.created }

// Temporary is true of a server whose data go with Close.
func (s *Server) Temporary() bool { return s.temporary }

// Pid is the server's main process.
func (s *Server) Pid() int { return s.process.Pid() }

// Dead is closed when the present process of the server has ended.
func (s *Server) Dead() <-chan struct{} { return s.process.Dead() }

// Stop shuts the server down in order: connections are cut, data are on disk.
func (s *Server) Stop() { s.end(syscall.SIGINT) }

// Crash has every process of the server end where it stands (an immediate stop):
// what was not written to the log yet is lost, as in a crash of the server.
func (s *Server) Crash() { s.end(syscall.SIGQUIT) }

func (s *Server) end(sig syscall.Signal) {
	if s.process.Signal(sig) != nil {
		return
	}
	select {
	case <-s.process.Dead():
	case <-time.After(stopGrace):
		s.Kill()
	}
}

// Kill ends every process of the server with SIGKILL.
func (s *Server) Kill() {
	// Each backend leads a group of its own and would outlive the main process
	// until it looks up; stopped, that one starts no other meanwhile.
	if s.process.Freeze() == nil {
		for _, pid := range children(s.process.Pid()) {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended by itself
		}
	}
	s.process.Kill()
}

// Close ends the server: in order where its data are kept, at once where they
// are thrown away.
func (s *Server) Close() {
	switch {
	case s.process == nil:
	case s.temporary:
		s.Kill()
	default:
		s.Stop()
	}
	if s.temporary {
		_ = os.RemoveAll(s.options.Dir) // a temporary directory: the system removes what stays
	}
}

// Restart starts the server again, on the same data and port, after Stop, Crash
// or Kill, and returns when it answers.
func (s *Server) Restart(ctx context.Context) error {
	args := []string{
		"-D", s.data(), "-p", strconv.Itoa(s.port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
	}
	for name, value := range s.options.Settings {
		args = append(args, "-c", name+"="+value)
	}
	p, err := process.Start(process.Spec{
		Name: "PostgreSQL", Path: s.options.Installation.program("postgres"), Args: args,
		Env: environment(), Dir: s.options.Dir, Output: s.options.Output, Credential: s.credential,
	})
	if err != nil {
		return err
	}
	s.process = p
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := p.WaitReady(ctx, s.ping); err != nil {
		s.Kill()
		return err
	}
	return nil
}

// boot is the first Restart: it looks for the port.
func (s *Server) boot(ctx context.Context) error {
	if s.port != 0 {
		return s.Restart(ctx)
	}
	// A free port can be taken between the look and the child's bind.
	var err error
	for range portAttempts {
		if s.port, err = process.FreePort(); err != nil {
			return err
		}
		if err = s.Restart(ctx); err == nil || ctx.Err() != nil {
			break
		}
	}
	return err
}

func (s *Server) ping(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		return err
	}
	return errors.Join(conn.Ping(ctx), conn.Close(ctx))
}

func (s *Server) data() string { return filepath.Join(s.options.Dir, "data") }

// prepare finds the server's programs, user and directories. The server that it
// returns beside an error is to be closed.
func prepare(options Options) (*Server, error) {
	s := &Server{options: options, port: options.Port}
	var err error
	if options.Installation == (Installation{}) {
		if s.options.Installation, err = Find(rootOf(options.Root)); err != nil {
			return nil, err
		}
	}
	if s.credential, err = unprivileged(); err != nil {
		return nil, err
	}
	if options.Dir == "" {
		s.temporary = true
		s.options.Dir, err = os.MkdirTemp("", "oncehouse-postgres-")
	} else {
		s.options.Dir, err = filepath.Abs(options.Dir)
	}
	if err == nil {
		err = os.MkdirAll(s.data(), 0o700)
	}
	if err != nil {
		return s, fmt.Errorf("make the server's directory: %w", err)
	}
	if s.credential != nil {
		return s, s.handOver()
	}
	return s, nil
}

// handOver gives the directories to the unprivileged user, and a copy of the
// programs where that user cannot read them.
func (s *Server) handOver() error {
	uid, gid := int(s.credential.Uid), int(s.credential.Gid)
	for _, dir := range []string{s.options.Dir, s.data()} {
		if err := os.Chown(dir, uid, gid); err != nil {
			return fmt.Errorf("give the server's directory to its user: %w", err)
		}
	}
	closed, err := barrier(filepath.Dir(s.options.Dir))
	if err != nil {
		return err
	}
	if closed != "" {
		return fmt.Errorf("PostgreSQL refuses to run as root, and the user nobody may not enter %s: choose another directory than %s, or run as another user", closed, s.options.Dir)
	}
	programs := s.options.Installation.Dir
	if closed, err = barrier(programs); err != nil || closed == "" {
		return err
	}
	s.options.Installation.Dir = filepath.Join(s.options.Dir, "programs")
	if _, err := os.Stat(s.options.Installation.Dir); err == nil {
		return nil
	}
	if err := os.CopyFS(s.options.Installation.Dir, os.DirFS(programs)); err != nil {
		return fmt.Errorf("copy PostgreSQL to where its user can read it: %w", err)
	}
	return nil
}

// initialise makes an empty database cluster.
func (s *Server) initialise(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, s.options.Installation.program("initdb"),
		"-D", s.data(), "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
	cmd.Env, cmd.Dir = environment(), s.options.Dir
	if s.credential != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.credential}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make the database cluster: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// environment is this process's without the settings of PostgreSQL's clients,
// and without a locale that this machine may lack.
func environment() []string {
	return append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "PG") || strings.HasPrefix(v, "LC_") || strings.HasPrefix(v, "LANG")
	}), "LC_ALL=C")
}

// rootOf is root, or the nearest directory upwards that has node_modules.
func rootOf(root string) string {
	if root != "" {
		return root
	}
	dir, err := os.Getwd()
	if err != nil {
		return "."
	}
	for dir != filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "node_modules")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	return "."
}

// children are the processes that pid started and that live. Where the system
// has no /proc it knows none: backends then end when they look up.
func children(pid int) []int {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}
	var found []int
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// 4711 (name, which may hold anything) S <parent> ...
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			child, _ := strconv.Atoi(filepath.Base(filepath.Dir(path))) // the pattern: a number
			found = append(found, child)
		}
	}
	return found
}
