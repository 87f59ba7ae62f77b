package lambdahost

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
)

// Config describes a function. Zero fields take Lambda's own defaults.
type Config struct {
	// Name is the function's name. Required.
	Name string
	// Bootstrap is the path of the executable. Required.
	Bootstrap string
	// MemoryMB is what the function is told and the reports show; default 128.
	MemoryMB int
	// Timeout bounds one invocation; default 3 s, at most 900 s.
	Timeout time.Duration
	// InitTimeout bounds the init phase; default 10 s.
	InitTimeout time.Duration
	// Concurrency is how many environments there may be; default 1.
	Concurrency int
	// Env are the function's own variables. They win over Lambda's.
	Env map[string]string
	// Region; default us-east-1.
	Region string
	// Log takes the output of the processes and the START, END and REPORT
	// lines; nil discards them. It is written under a lock.
	Log io.Writer
	// OnInvoke is called when an event has been handed to a process, before
	// its answer; it must not block. nil: not called.
	OnInvoke func(Delivery)
}

// Delivery is one event in the hands of one process.
type Delivery struct {
	RequestID string
	Pid       int
}

// Function is a deployed function. Its methods may be called concurrently.
type Function struct {
	cfg Config
	log *lineWriter

	mu   sync.Mutex
	idle []*environment
	busy map[*environment]struct{}
	// taken counts the busy environments and those about to start.
	taken int
	// killAfter is armed by KillDuring for the next event.
	killAfter *time.Duration
	// closed: no more events are taken. killed: those running are given up too.
	closed, killed bool
	running        sync.WaitGroup
}

// New checks the configuration and the executable. It starts nothing. Error:
// every problem at once.
func New(cfg Config) (*Function, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	absolute, err := filepath.Abs(cfg.Bootstrap)
	if err != nil {
		return nil, fmt.Errorf("locate the bootstrap of %s: %w", cfg.Name, err)
	}
	cfg.Bootstrap = absolute
	return &Function{cfg: cfg, log: &lineWriter{next: cfg.Log}, busy: map[*environment]struct{}{}}, nil
}

func (c *Config) setDefaults() {
	c.MemoryMB = cmp.Or(c.MemoryMB, 128)
	c.Timeout = cmp.Or(c.Timeout, 3*time.Second)
	c.InitTimeout = cmp.Or(c.InitTimeout, 10*time.Second)
	c.Concurrency = cmp.Or(c.Concurrency, 1)
	c.Region = cmp.Or(c.Region, "us-east-1")
	if c.Log == nil {
		c.Log = io.Discard
	}
}

func (c *Config) validate() error {
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	check(c.Name != "", "name is missing")
	check(c.MemoryMB >= 128 && c.MemoryMB <= 10240, "memory is %d MB, must be 128..10240", c.MemoryMB)
	check(c.Timeout > 0 && c.Timeout <= 900*time.Second, "time-out is %s, must be up to 900s", c.Timeout)
	check(c.InitTimeout > 0, "init time-out is %s, must be positive", c.InitTimeout)
	check(c.Concurrency > 0, "concurrency is %d, must be positive", c.Concurrency)
	info, err := os.Stat(c.Bootstrap)
	check(err == nil, "bootstrap: %w", err)
	check(err != nil || (info.Mode().IsRegular() && info.Mode()&0o111 != 0), "bootstrap %s is not an executable file", c.Bootstrap)
	if len(problems) > 0 {
		return fmt.Errorf("configure function %q: %w", c.Name, errors.Join(problems...))
	}
	return nil
}

func (c *Config) arn() string {
	return fmt.Sprintf("arn:aws:lambda:%s:000000000000:function:%s", c.Region, c.Name)
}

// ARN is the function's name as events and metadata carry it.
func (f *Function) ARN() string { return f.cfg.arn() }

// Invoke hands payload to an idle environment, or to a new one, and waits for
// the end of the invocation. The payload is the function's from then on and
// must not be changed.
//
// Errors: ErrTooLarge, ErrThrottled, ErrClosed (the function did not run), or
// the context's (the function runs on and may still do its work).
func (f *Function) Invoke(ctx context.Context, payload []byte) (Result, error) {
	if len(payload) > MaxRequestBytes {
		return Result{}, fmt.Errorf("invoke %s with %d bytes: %w", f.cfg.Name, len(payload), ErrTooLarge)
	}
	env, err := f.take()
	if err != nil {
		return Result{}, fmt.Errorf("invoke %s: %w", f.cfg.Name, err)
	}
	type outcome struct {
		result Result
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		defer f.running.Done()
		result, err := f.serve(env, payload)
		done <- outcome{result, err}
	}()
	select {
	case o := <-done:
		return o.result, o.err
	case <-ctx.Done():
		return Result{}, fmt.Errorf("wait for %s: %w", f.cfg.Name, ctx.Err())
	}
}

// take reserves one of the concurrent environments: an idle one, or nil for
// one that has yet to be started. Each take is given back by serve.
func (f *Function) take() (*environment, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, ErrClosed
	}
	if f.taken == f.cfg.Concurrency {
		return nil, ErrThrottled
	}
	f.taken++
	f.running.Add(1)
	for len(f.idle) > 0 {
		env := f.idle[len(f.idle)-1]
		f.idle = f.idle[:len(f.idle)-1]
		if env.alive() {
			f.busy[env] = struct{}{}
			return env, nil
		}
		env.close()
	}
	return nil, nil
}

// serve runs one event in env and puts the environment back.
func (f *Function) serve(env *environment, payload []byte) (Result, error) {
	inv := &invocation{id: uuid.NewString(), traceID: traceID(), payload: payload, ended: make(chan struct{})}
	f.log.start(inv.id)
	cold := env == nil
	result, env, err := f.prepare(env, inv)
	if err == nil && result == nil {
		ran := f.run(env, inv)
		result = &ran
	}
	f.giveBack(env)
	if err != nil {
		return Result{}, err
	}
	result.RequestID, result.Cold = inv.id, cold
	if env != nil {
		result.MaxMemoryUsedMB = env.maxMemoryMB
		if cold {
			result.InitDuration = env.initDuration
		}
	}
	f.log.end(&f.cfg, *result)
	return *result, nil
}

// prepare starts an environment where there is none. A result means that its
// init phase failed: the event gets it and no process sees the event.
func (f *Function) prepare(env *environment, inv *invocation) (*Result, *environment, error) {
	if env != nil {
		return nil, env, nil
	}
	env, err := startEnvironment(&f.cfg, logStream(), f.log)
	if err != nil {
		result := hostFailure(TypeInvalidEntrypoint, "RequestId: %s Error: %v", inv.id, err)
		return &result, nil, nil
	}
	f.mu.Lock()
	killed := f.killed
	f.busy[env] = struct{}{}
	f.mu.Unlock()
	if killed {
		env.kill()
		return nil, env, fmt.Errorf("start %s: %w", f.cfg.Name, ErrClosed)
	}
	return env.awaitInit(inv.id), env, nil
}

// run has env do the event, with the kill that KillDuring armed for it.
func (f *Function) run(env *environment, inv *invocation) Result {
	f.mu.Lock()
	killAfter := f.killAfter
	f.killAfter = nil
	f.mu.Unlock()
	over := make(chan struct{})
	defer close(over)
	inv.delivered = func() {
		if killAfter != nil {
			go env.killUnless(over, *killAfter)
		}
		if f.cfg.OnInvoke != nil {
			f.cfg.OnInvoke(Delivery{RequestID: inv.id, Pid: env.proc.Pid()})
		}
	}
	return env.run(inv)
}

// giveBack returns what take reserved. A dead environment is not used again.
func (f *Function) giveBack(env *environment) {
	f.mu.Lock()
	f.taken--
	delete(f.busy, env)
	reuse := env != nil && !f.closed && env.alive() && !env.frozen
	if reuse {
		f.idle = append(f.idle, env)
	}
	f.mu.Unlock()
	if env != nil && !reuse {
		env.shutdown()
	}
}

// Kill ends the environment of that process at once and reports whether the
// process was one of the function's.
func (f *Function) Kill(pid int) bool {
	return f.killWhere(func(env *environment) bool { return env.proc.Pid() == pid })
}

// KillAny ends one environment at once, a busy one if there is any, and
// reports whether there was one.
func (f *Function) KillAny() bool {
	return f.killWhere(func(*environment) bool { return true })
}

// Freeze stops the process of an event that is not answered yet, as a machine
// does that stands still under it, and returns its pid: false when there is
// none. Kill and the time-out end a frozen process like any other, and one whose
// answer was already under way takes no more events.
func (f *Function) Freeze() (pid int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for env := range f.busy {
		if !env.frozen && env.proc.Freeze() == nil {
			env.frozen = true
			return env.proc.Pid(), true
		}
	}
	return 0, false
}

// Thaw has a frozen process go on. One that is gone is none to thaw.
func (f *Function) Thaw(pid int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for env := range f.busy {
		if env.frozen && env.proc.Pid() == pid {
			_ = env.proc.Signal(syscall.SIGCONT) // or it has just been killed
			env.frozen = false
		}
	}
}

// KillDuring ends the environment of the next event that is handed over, after
// that long. An invocation that ends sooner is not killed.
func (f *Function) KillDuring(after time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.killAfter = &after
}

func (f *Function) killWhere(match func(*environment) bool) bool {
	f.mu.Lock()
	var victim *environment
	for env := range f.busy {
		if match(env) && env.alive() {
			victim = env
		}
	}
	if i := slices.IndexFunc(f.idle, func(env *environment) bool { return match(env) && env.alive() }); victim == nil && i >= 0 {
		victim = f.idle[i]
	}
	f.mu.Unlock()
	if victim == nil {
		return false
	}
	victim.kill()
	return true
}

// Shutdown takes no more events, waits for the running invocations while ctx
// lasts, and ends every environment: by SIGTERM and, 500 ms later, SIGKILL
// where the function asked for it (lambda.WithEnableSIGTERM), else by SIGKILL.
// Error: ctx ended first, and running invocations were killed.
func (f *Function) Shutdown(ctx context.Context) error {
	f.mu.Lock()
	f.closed = true
	idle := f.idle
	f.idle = nil
	f.mu.Unlock()
	var ending sync.WaitGroup
	for _, env := range idle {
		ending.Go(env.shutdown)
	}
	finished := make(chan struct{})
	go func() {
		f.running.Wait()
		close(finished)
	}()
	var err error
	select {
	case <-finished:
	case <-ctx.Done():
		err = fmt.Errorf("shut down %s: %w: running invocations were killed", f.cfg.Name, ctx.Err())
		f.killBusy()
		<-finished
	}
	ending.Wait()
	return err
}

// Close ends every environment at once and waits until all are gone.
func (f *Function) Close() {
	f.mu.Lock()
	for _, env := range f.idle {
		env.kill()
	}
	f.mu.Unlock()
	over, cancel := context.WithCancel(context.Background())
	cancel()
	_ = f.Shutdown(over) // its only error is that invocations were killed, as asked
}

// killBusy kills the environments that run an event, and those that are about
// to be started for one.
func (f *Function) killBusy() {
	f.mu.Lock()
	f.killed = true
	victims := slices.Collect(maps.Keys(f.busy))
	f.mu.Unlock()
	for _, env := range victims {
		env.kill()
	}
}

// traceID is an X-Ray header that is not sampled.
func traceID() string {
	id := strings.ReplaceAll(uuid.NewString(), "-", "")
	return fmt.Sprintf("Root=1-%08x-%s;Parent=%s;Sampled=0", time.Now().Unix(), id[:24], id[:16])
}

// logStream is a name of the form that Lambda gives an environment's log.
func logStream() string {
	return time.Now().UTC().Format("2006/01/02") + "/[$LATEST]" + strings.ReplaceAll(uuid.NewString(), "-", "")
}
