// Package process starts, watches and ends the child processes of the local
// stack. A child has its own process group, dies with its parent, and is ended
// by signal to that group only: nothing it did not start is ever touched.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Spec describes a child.
type Spec struct {
	// Name is what errors and status lines call it.
	Name string
	Path string
	Args []string
	// Env is the whole environment; nil inherits the parent's.
	Env []string
	Dir string
	// Output takes stdout and stderr; nil discards them.
	Output io.Writer
	// Credential runs the child as another user; nil as this one.
	Credential *syscall.Credential
}

// Process is a running child.
type Process struct {
	name string
	cmd  *exec.Cmd
	dead chan struct{}
	tail *tail
	mu   sync.Mutex
	err  error
}

// Start starts the child. Error: the program is missing or cannot be run.
func Start(spec Spec) (*Process, error) {
	p := &Process{name: spec.Name, dead: make(chan struct{}), tail: &tail{next: spec.Output}}
	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Env, cmd.Dir = spec.Env, spec.Dir
	cmd.Stdout, cmd.Stderr = p.tail, p.tail
	cmd.SysProcAttr = childAttr(spec.Credential)
	cmd.WaitDelay = time.Second
	p.cmd = cmd
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	go func() {
		err := cmd.Wait()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(p.dead)
	}()
	return p, nil
}

// Pid is the child's process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Dead is closed when the child has ended and was reaped.
func (p *Process) Dead() <-chan struct{} { return p.dead }

// Err is how the child ended, with the end of its output; nil while it runs
// or when it ended with status 0.
func (p *Process) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		return nil
	}
	return fmt.Errorf("%s ended: %w: %s", p.name, p.err, p.tail.String())
}

// Signal sends sig to the child's process group.
func (p *Process) Signal(sig syscall.Signal) error {
	select {
	case <-p.dead:
		return os.ErrProcessDone
	default:
	}
	return syscall.Kill(-p.Pid(), sig)
}

// Freeze stops the child where it stands (SIGSTOP), until SIGCONT, and waits until
// it stands still: a signal is obeyed when the system next runs the child, which on
// a busy machine does much before.
func (p *Process) Freeze() error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return waitStopped(p.Pid())
}

// Kill ends the child at once (SIGKILL) and waits until it is reaped.
func (p *Process) Kill() {
	if err := p.Signal(syscall.SIGKILL); err == nil {
		<-p.dead
	}
}

// Stop asks the child to end (SIGTERM) and kills it when grace is over.
func (p *Process) Stop(grace time.Duration) {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return
	}
	select {
	case <-p.dead:
	case <-time.After(grace):
		p.Kill()
	}
}

// WaitReady polls check until it returns nil. It fails early when the child
// ends, and with check's last error when ctx is over.
func (p *Process) WaitReady(ctx context.Context, check func(context.Context) error) error {
	var last error
	for {
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		last = check(attempt)
		cancel()
		if last == nil {
			return nil
		}
		select {
		case <-p.dead:
			return errors.Join(fmt.Errorf("%s did not come up", p.name), p.Err())
		case <-ctx.Done():
			return fmt.Errorf("%s did not come up: %w: %s", p.name, last, p.tail.String())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// FreePort returns a loopback TCP port that was free a moment ago, for children
// that cannot be told to listen on port 0.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

const tailBytes = 2048

// tail passes output on and remembers its end, for error messages.
type tail struct {
	mu   sync.Mutex
	next io.Writer
	end  []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, b...)
	if n := len(t.end); n > tailBytes {
		t.end = append(t.end[:0], t.end[n-tailBytes:]...)
	}
	if t.next != nil {
		return t.next.Write(b)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.end)
}
