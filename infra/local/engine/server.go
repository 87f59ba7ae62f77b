package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"oncehouse/infra/local/process"
)

// Server is a running server process.
type Server struct {
	opts Options

	mu    sync.Mutex
	child *process.Process
}

// Start runs opts.Binary, a program that calls [Serve], and waits until it
// answers or ctx is over. Error: what the process said, when it did not come up.
func Start(ctx context.Context, opts Options) (*Server, error) {
	s := &Server{opts: opts}
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Server) start(ctx context.Context) error {
	watch := &readyWatch{next: s.opts.Output}
	child, err := process.Start(process.Spec{Name: "clickhouse engine", Path: s.opts.Binary, Args: arguments(s.opts), Env: s.opts.Env, Output: watch})
	if err != nil {
		return err
	}
	err = child.WaitReady(ctx, func(ctx context.Context) error {
		addr := watch.addr()
		if addr == "" {
			return errors.New("it has not said where it listens")
		}
		return ping(ctx, addr)
	})
	if err != nil {
		child.Kill()
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.child, s.opts.Addr = child, watch.addr()
	return nil
}

func arguments(opts Options) []string {
	args := append([]string(nil), opts.Args...)
	for _, flag := range [][2]string{{"data", opts.Data}, {"addr", opts.Addr}, {"library", opts.Library}, {"config", opts.Config},
		{"user", opts.User}, {"password", opts.Password}} {
		if flag[1] != "" {
			args = append(args, "--"+flag[0]+"="+flag[1])
		}
	}
	return args
}

func ping(ctx context.Context, addr string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/ping", nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return errors.Join(fmt.Errorf("ping answered %s", res.Status), res.Body.Close())
	}
	return res.Body.Close()
}

// Addr is host:port; it stays over a restart.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opts.Addr
}

// URL is the address as a URL without path.
func (s *Server) URL() string { return "http://" + s.Addr() }

// Pid is the process's id.
func (s *Server) Pid() int { return s.process().Pid() }

// Dead is closed when the present process has ended.
func (s *Server) Dead() <-chan struct{} { return s.process().Dead() }

// Err is how the present process ended; nil while it runs or when it ended
// with status 0.
func (s *Server) Err() error { return s.process().Err() }

// Kill ends the process by SIGKILL and waits until it is gone.
func (s *Server) Kill() { s.process().Kill() }

// stopGrace is longer than what Serve takes at most.
const stopGrace = grace + 10*time.Second

// Stop ends the process by SIGTERM: requests are finished, the engine is closed.
func (s *Server) Stop() { s.process().Stop(stopGrace) }

// Restart starts a new process on the same data directory and address; one
// that still runs is stopped first.
func (s *Server) Restart(ctx context.Context) error {
	s.Stop()
	return s.start(ctx)
}

func (s *Server) process() *process.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.child
}

// readyWatch finds the ready line in what the process prints and passes
// everything on.
type readyWatch struct {
	next io.Writer

	mu    sync.Mutex
	line  []byte
	found string
}

func (w *readyWatch) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for rest := b; w.found == "" && len(rest) > 0; {
		part, after, whole := bytes.Cut(rest, []byte("\n"))
		w.line, rest = append(w.line, part...), after
		if !whole {
			break
		}
		var line ready
		if json.Unmarshal(w.line, &line) == nil {
			w.found = line.Addr
		}
		w.line = w.line[:0]
	}
	if w.next != nil {
		return w.next.Write(b)
	}
	return len(b), nil
}

func (w *readyWatch) addr() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.found
}
