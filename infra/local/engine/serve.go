package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"oncehouse/infra/local/engine/chdb"
)

// Options say what a server is. The first group is [Serve]'s, and [Start]
// passes it on; the second is [Start]'s alone.
type Options struct {
	// Data is the directory that holds everything; it is made when missing. One
	// process at a time may use it.
	Data string
	// Addr is host:port to listen on; default 127.0.0.1:0, a free port.
	Addr string
	// Library is the path of libchdb ([chdb.Find] knows it).
	Library string
	// Config is a ClickHouse configuration file; default an empty one.
	Config string
	// User and Password are asked for when Password is not empty.
	User, Password string
	// Ready takes the ready line; default os.Stdout.
	Ready io.Writer

	// Binary is the program that runs Serve, Args what stands before the flags
	// (a subcommand). It must take the first group as --data, --addr, --library,
	// --config, --user and --password, each as --name=value.
	Binary string
	Args   []string
	// Env is the process's whole environment; nil inherits this one's.
	Env []string
	// Output takes what the process prints; nil discards it.
	Output io.Writer
}

// ready is the line that a server prints when it answers.
type ready struct {
	Addr    string `json:"addr"`
	Pid     int    `json:"pid"`
	Version string `json:"version"`
}

// grace is how long running requests may take after SIGTERM.
const grace = 10 * time.Second

// Serve runs a server in this process until ctx is over or SIGTERM or SIGINT
// arrives; then running requests are finished and the engine is closed. It
// prints one JSON line, {"addr","pid","version"}, when it answers. The engine
// can be opened once in a process.
func Serve(ctx context.Context, opts Options) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	root, handler, err := open(opts)
	if err != nil {
		return err
	}
	defer root.Close()
	defer handler.sessions.close()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cmp.Or(opts.Addr, "127.0.0.1:0"))
	if err != nil {
		return fmt.Errorf("listen for ClickHouse queries: %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 30 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	if err := announce(opts, listener, handler.identity.version); err != nil {
		return errors.Join(err, server.Close())
	}
	select {
	case err := <-served:
		return fmt.Errorf("serve ClickHouse queries: %w", err)
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if err := server.Shutdown(closing); err != nil {
		return fmt.Errorf("finish the running queries: %w", err)
	}
	return nil
}

func announce(opts Options, listener net.Listener, version string) error {
	out := opts.Ready
	if out == nil {
		out = os.Stdout
	}
	line, err := json.Marshal(ready{listener.Addr().String(), os.Getpid(), version})
	if err != nil {
		return fmt.Errorf("print the ready line: %w", err)
	}
	if _, err := out.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("print the ready line: %w", err)
	}
	return nil
}

// open starts the engine on the data directory. The root connection keeps it
// running.
func open(opts Options) (*chdb.Conn, *Handler, error) {
	lib, err := chdb.Load(opts.Library)
	if err != nil {
		return nil, nil, err
	}
	args, err := prepare(opts)
	if err != nil {
		return nil, nil, err
	}
	root, err := lib.Connect(args...)
	if err != nil {
		return nil, nil, fmt.Errorf("open the data directory %s: %w", opts.Data, explain(opts.Data, err))
	}
	id, err := identify(root, opts.Data)
	if err != nil {
		root.Close()
		return nil, nil, err
	}
	connect := func() (*chdb.Conn, error) { return lib.Connect(args...) }
	return root, newHandler(connect, id, opts.User, opts.Password), nil
}

// prepare makes the data directory and returns the engine's options. The
// configuration is always named, because the library would otherwise take one
// from the working or the home directory; and what the library sets unlike the
// server is set back.
func prepare(opts Options) ([]string, error) {
	if err := os.MkdirAll(opts.Data, 0o750); err != nil {
		return nil, fmt.Errorf("make the data directory: %w", err)
	}
	data, err := filepath.Abs(opts.Data)
	if err != nil {
		return nil, fmt.Errorf("make the data directory: %w", err)
	}
	config := opts.Config
	if config == "" {
		config = filepath.Join(data, "config.xml")
		if err := os.WriteFile(config, []byte("<clickhouse></clickhouse>\n"), 0o600); err != nil {
			return nil, fmt.Errorf("write the engine's configuration: %w", err)
		}
	}
	return []string{"--path=" + data, "--config-file=" + config, "--implicit_select=0", "--allow_introspection_functions=0"}, nil
}

// explain says why the engine refused a directory, where that can be seen: the
// library prints its reason and returns none.
func explain(data string, err error) error {
	file, openErr := os.Open(filepath.Join(data, "status"))
	if openErr != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if lockErr := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(lockErr, syscall.EWOULDBLOCK) {
		return errors.New("another process is using it")
	}
	return err
}

// identify asks the engine for its names and gives the data directory an
// identity that stays: the library does not keep one (serverUUID() is zero).
func identify(conn *chdb.Conn, data string) (identity, error) {
	res, err := conn.Query([]byte(helloQuery), "TSVRaw", nil)
	if err != nil {
		return identity{}, fmt.Errorf("ask the engine for its version: %w", err)
	}
	fields := strings.Split(strings.TrimSpace(string(res.Data)), "\t")
	if len(fields) != 4 {
		return identity{}, fmt.Errorf("ask the engine for its version: it answered %q", res.Data)
	}
	id, err := directoryUUID(filepath.Join(data, "uuid"))
	return identity{name: fields[0], version: fields[1], timezone: fields[3], uuid: id}, err
}

// directoryUUID reads the identity from the file that the server keeps it in,
// or writes a new one.
func directoryUUID(path string) (string, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		id := uuid.NewString()
		if err := os.WriteFile(path, []byte(id), 0o600); err != nil {
			return "", fmt.Errorf("write the server's identity: %w", err)
		}
		return id, nil
	}
	if err != nil {
		return "", fmt.Errorf("read the server's identity: %w", err)
	}
	id, err := uuid.ParseBytes(text)
	if err != nil {
		return "", fmt.Errorf("read the server's identity from %s: %w", path, err)
	}
	return id.String(), nil
}
