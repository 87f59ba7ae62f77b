package chain

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"oncehouse/infra/local/process"
)

// service is the order service: a process that is started again when it dies,
// until it is done.
type service struct {
	done chan error

	mu      sync.Mutex
	process *process.Process
}

// restartAfter is the pause before the service is started again.
const restartAfter = 200 * time.Millisecond

// startService starts the service. done gets nil when all is committed.
func (r *run) startService(ctx context.Context) *service {
	s := &service{done: make(chan error, 1)}
	go func() { s.done <- r.serve(ctx, s) }()
	return s
}

func (r *run) serve(ctx context.Context, s *service) error {
	log, err := os.Create(filepath.Join(r.Dir, "log", "orders.log"))
	if err != nil {
		return fmt.Errorf("open the log of the order service: %w", err)
	}
	defer func() { _ = log.Close() }() // nothing is buffered
	for life := uint64(0); ctx.Err() == nil; life++ {
		p, err := r.spawn(log, r.Seed+life<<32)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.process = p
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			p.Kill()
			return ctx.Err()
		case <-p.Dead():
		}
		if p.Err() == nil {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(restartAfter):
		}
	}
	return ctx.Err()
}

// spawn starts one life of the service. Its seed is its own: ids must not come
// again.
func (r *run) spawn(log io.Writer, seed uint64) (*process.Process, error) {
	program := r.Program
	if program == "" {
		var err error
		if program, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
	}
	return process.Start(process.Spec{
		Name: "order service", Path: program, Output: log,
		Args: []string{
			"orders", "--database", r.stack.Postgres.URL(), "--events", strconv.FormatInt(r.Events, 10),
			"--rate", strconv.Itoa(r.Rate), "--seed", strconv.FormatUint(seed, 10),
		},
	})
}

// kill ends the present life of the service, if it lives.
func (s *service) kill() bool {
	s.mu.Lock()
	p := s.process
	s.mu.Unlock()
	if p == nil {
		return false
	}
	select {
	case <-p.Dead():
		return false
	default:
		p.Kill()
		return true
	}
}
