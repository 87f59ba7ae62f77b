package lambdahost

import (
	"cmp"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"oncehouse/infra/local/process"
)

// shutdownGrace is what Lambda gives a function with an internal extension
// between SIGTERM and SIGKILL.
const shutdownGrace = 500 * time.Millisecond

// environment is one execution environment: one process behind a Runtime API
// of its own, one event at a time.
type environment struct {
	cfg   *Config
	api   *runtimeAPI
	proc  *process.Process
	start time.Time
	// initDuration is 0 until the first event was asked for.
	initDuration time.Duration
	maxMemoryMB  int
	frozen       bool // under the function's lock
}

// startEnvironment starts the process. It does not wait for its init phase.
func startEnvironment(cfg *Config, logStream string, log *lineWriter) (*environment, error) {
	api, err := serveRuntimeAPI(cfg.arn())
	if err != nil {
		return nil, err
	}
	env := &environment{cfg: cfg, api: api, start: time.Now()}
	env.proc, err = process.Start(process.Spec{
		Name: cfg.Name, Path: cfg.Bootstrap, Dir: filepath.Dir(cfg.Bootstrap),
		Env: cfg.environ(api.addr, logStream), Output: log,
	})
	if err != nil {
		api.close()
		return nil, err
	}
	return env, nil
}

// awaitInit waits for the end of the init phase. It returns nil when the process
// asked for its first event, else the result that the event at hand gets.
func (e *environment) awaitInit(requestID string) *Result {
	timer := time.NewTimer(e.cfg.InitTimeout)
	defer timer.Stop()
	var failed Result
	select {
	case <-e.api.ready:
		e.initDuration = time.Since(e.start)
		return nil
	case <-e.proc.Dead():
		failed = exited(requestID, exitReason(e.proc))
		if posted := e.api.initFailure(); posted != nil {
			failed = *posted
		}
	case <-timer.C:
		failed = timedOut(requestID, e.cfg.InitTimeout)
		e.kill()
	}
	e.initDuration = time.Since(e.start)
	return &failed
}

// run hands the event to the process and waits until the invocation ended: at
// the next request for an event, at the death of the process, or at the
// time-out, which kills it.
func (e *environment) run(inv *invocation) Result {
	start := time.Now()
	inv.deadline = start.Add(e.cfg.Timeout)
	timer := time.NewTimer(e.cfg.Timeout)
	defer timer.Stop()
	result := e.await(inv, timer.C)
	result.Duration = time.Since(start)
	return result
}

func (e *environment) await(inv *invocation, timeout <-chan time.Time) Result {
	events := e.api.events
	for {
		select {
		case events <- inv:
			events = nil
		case <-inv.ended:
			e.maxMemoryMB = max(e.maxMemoryMB, residentPeakMB(e.proc.Pid()))
			return *e.api.answerOf(inv)
		case <-e.proc.Dead():
			if answer := e.api.answerOf(inv); answer != nil {
				return *answer
			}
			return exited(inv.id, exitReason(e.proc))
		case <-timeout:
			e.maxMemoryMB = max(e.maxMemoryMB, residentPeakMB(e.proc.Pid()))
			e.kill()
			return timedOut(inv.id, e.cfg.Timeout)
		}
	}
}

func (e *environment) alive() bool {
	select {
	case <-e.proc.Dead():
		return false
	default:
		return true
	}
}

// kill ends the process group at once and waits until it is reaped.
func (e *environment) kill() { e.proc.Kill() }

// killUnless kills after that long unless over is closed first.
func (e *environment) killUnless(over <-chan struct{}, after time.Duration) {
	timer := time.NewTimer(after)
	defer timer.Stop()
	select {
	case <-over:
	case <-timer.C:
		e.kill()
	}
}

// close frees what a dead environment still holds.
func (e *environment) close() {
	e.kill()
	e.api.close()
}

// shutdown ends an environment that runs no event, as Lambda does.
func (e *environment) shutdown() {
	if e.api.hasExtension() {
		e.proc.Stop(shutdownGrace)
	}
	e.close()
}

// exitReason is how the process ended, without the end of its output: that is
// in the log. nil for status 0.
func exitReason(p *process.Process) error {
	err := p.Err()
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	return err
}

// environ is the environment of the process: what Lambda sets, then the
// function's own variables, which win (on this machine they carry the region
// and the credentials too), then the address that is never theirs.
// https://docs.aws.amazon.com/lambda/latest/dg/configuration-envvars.html
func (c *Config) environ(apiAddr, logStream string) []string {
	root := filepath.Dir(c.Bootstrap)
	vars := map[string]string{
		"PATH":                            "/usr/local/bin:/usr/bin/:/bin:/opt/bin",
		"LD_LIBRARY_PATH":                 "/lib64:/usr/lib64:/var/runtime:/var/runtime/lib:/var/task:/var/task/lib:/opt/lib",
		"LANG":                            "en_US.UTF-8",
		"TZ":                              ":UTC",
		"LAMBDA_TASK_ROOT":                root,
		"LAMBDA_RUNTIME_DIR":              "/var/runtime",
		"AWS_REGION":                      c.Region,
		"AWS_DEFAULT_REGION":              c.Region,
		"AWS_LAMBDA_FUNCTION_NAME":        c.Name,
		"AWS_LAMBDA_FUNCTION_VERSION":     "$LATEST",
		"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": strconv.Itoa(c.MemoryMB),
		"AWS_LAMBDA_INITIALIZATION_TYPE":  "on-demand",
		"AWS_LAMBDA_LOG_GROUP_NAME":       "/aws/lambda/" + c.Name,
		"AWS_LAMBDA_LOG_STREAM_NAME":      logStream,
		"_HANDLER":                        "bootstrap",
	}
	maps.Copy(vars, c.Env)
	vars["AWS_LAMBDA_RUNTIME_API"] = apiAddr
	out := make([]string, 0, len(vars))
	for _, name := range slices.SortedFunc(maps.Keys(vars), cmp.Compare) {
		out = append(out, name+"="+vars[name])
	}
	return out
}
