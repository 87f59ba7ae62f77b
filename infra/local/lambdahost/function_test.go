package lambdahost

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"oncehouse/infra/local/process"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		if path, err := buildBootstrap(); err == nil {
			_ = os.RemoveAll(filepath.Dir(path))
		}
		os.Exit(status)
	}))
}

// buildBootstrap compiles testdata/bootstrap once, as a function is built.
var buildBootstrap = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "lambdahost")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "bootstrap")
	cmd := exec.Command("go", "build", "-tags", "lambda.norpc", "-trimpath", "-o", path, "./testdata/bootstrap")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the bootstrap: %w: %s", err, out)
	}
	return path, nil
})

func newFunction(t *testing.T, change func(*Config)) (*Function, *process.Output) {
	t.Helper()
	bootstrap, err := buildBootstrap()
	require.NoError(t, err)
	log := &process.Output{}
	cfg := Config{Name: "commands", Bootstrap: bootstrap, Timeout: time.Minute, Log: log}
	if change != nil {
		change(&cfg)
	}
	f, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(f.Close)
	return f, log
}

func invoke(t *testing.T, f *Function, event string) Result {
	t.Helper()
	r, err := f.Invoke(t.Context(), []byte(event))
	require.NoError(t, err)
	return r
}

type who struct {
	Pid   int
	Calls int
	Env   []string
}

func whoIs(t *testing.T, f *Function) who {
	t.Helper()
	var w who
	require.NoError(t, json.Unmarshal(invoke(t, f, `{"do":"who"}`).Payload, &w))
	return w
}

func gone(pid int) bool { return syscall.Kill(pid, 0) == syscall.ESRCH }

func TestInvokeColdAndWarm(t *testing.T) {
	f, log := newFunction(t, func(c *Config) { c.MemoryMB = 512 })
	cold := invoke(t, f, `{"do":"echo","text":"a"}`)
	require.JSONEq(t, `{"do":"echo","text":"a"}`, string(cold.Payload))
	require.Empty(t, cold.FunctionError)
	require.True(t, cold.Cold)
	require.Positive(t, cold.InitDuration)
	require.Positive(t, cold.Duration)
	require.Positive(t, cold.MaxMemoryUsedMB)

	warm := invoke(t, f, `{"do":"echo"}`)
	require.False(t, warm.Cold)
	require.Zero(t, warm.InitDuration)
	require.NotEqual(t, cold.RequestID, warm.RequestID)

	for _, line := range []string{
		`START RequestId: ` + cold.RequestID + ` Version: \$LATEST`,
		`END RequestId: ` + cold.RequestID,
		`REPORT RequestId: ` + cold.RequestID + `\tDuration: [\d.]+ ms\tBilled Duration: \d+ ms\tMemory Size: 512 MB\tMax Memory Used: \d+ MB\tInit Duration: [\d.]+ ms\t`,
		`REPORT RequestId: ` + warm.RequestID + `\tDuration: [\d.]+ ms\tBilled Duration: \d+ ms\tMemory Size: 512 MB\tMax Memory Used: \d+ MB\t`,
	} {
		require.Regexp(t, "(?m)^"+line+"$", log.String())
	}
}

func TestEnvironmentVariables(t *testing.T) {
	t.Setenv("OF_THE_HOST", "must not leak")
	f, _ := newFunction(t, func(c *Config) {
		c.Env = map[string]string{"TZ": "Asia/Tokyo", "OWN": "a=b", "AWS_LAMBDA_RUNTIME_API": "not yours"}
	})
	env := whoIs(t, f).Env
	for _, want := range []string{
		"TZ=Asia/Tokyo", "OWN=a=b", "AWS_LAMBDA_FUNCTION_NAME=commands", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE=128",
		"AWS_REGION=us-east-1", "AWS_LAMBDA_INITIALIZATION_TYPE=on-demand", "_HANDLER=bootstrap", "LANG=en_US.UTF-8",
	} {
		require.Contains(t, env, want)
	}
	require.NotContains(t, strings.Join(env, "\n"), "OF_THE_HOST")
}

func TestContextOfTheHandler(t *testing.T) {
	f, _ := newFunction(t, func(c *Config) { c.Timeout = 30 * time.Second })
	r := invoke(t, f, `{"do":"context"}`)
	var got struct {
		Deadline, Now int64
		Request, ARN  string
	}
	require.NoError(t, json.Unmarshal(r.Payload, &got))
	require.Equal(t, r.RequestID, got.Request)
	require.Equal(t, f.ARN(), got.ARN)
	require.Greater(t, got.Deadline, got.Now)
	require.LessOrEqual(t, got.Deadline, got.Now+30_000)
}

func TestFunctionErrors(t *testing.T) {
	tests := []struct {
		name, event   string
		wantType      string
		wantMessage   string
		wantProcesses int // 1 when the environment survives the error
	}{
		{"returned error", `{"do":"fail","text":"no table"}`, "errorString", "no table", 1},
		{"panic", `{"do":"panic","text":"at the disco"}`, "string", "at the disco", 2},
		{"exit", `{"do":"exit"}`, TypeExit, "Runtime exited with error: exit status 3", 2},
		{"event that is no JSON", `{"do":`, "wrapError", "parse the command", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, _ := newFunction(t, nil)
			before := whoIs(t, f)
			r := invoke(t, f, tt.event)
			require.Equal(t, "Unhandled", r.FunctionError)
			require.Equal(t, tt.wantType, r.ErrorType)
			require.Contains(t, r.ErrorMessage, tt.wantMessage)
			require.True(t, json.Valid(r.Payload))
			after := whoIs(t, f)
			require.Equal(t, tt.wantProcesses == 1, before.Pid == after.Pid)
		})
	}
}

func TestTimeoutKillsTheProcess(t *testing.T) {
	f, log := newFunction(t, func(c *Config) { c.Timeout = 300 * time.Millisecond })
	before := whoIs(t, f)
	r := invoke(t, f, `{"do":"sleep","ms":60000}`)
	require.Equal(t, TypeTimeout, r.ErrorType)
	require.Contains(t, r.ErrorMessage, "Task timed out after 0.30 seconds")
	require.Contains(t, r.ErrorMessage, r.RequestID)
	require.GreaterOrEqual(t, r.Duration, 300*time.Millisecond)
	require.True(t, gone(before.Pid))
	require.Regexp(t, r.RequestID+` Task timed out after 0\.30 seconds`, log.String())
	require.Regexp(t, `REPORT RequestId: `+r.RequestID+`.*Status: timeout`, log.String())
	require.NotEqual(t, before.Pid, whoIs(t, f).Pid)
}

func TestInitFailures(t *testing.T) {
	t.Run("exit", func(t *testing.T) {
		f, log := newFunction(t, func(c *Config) { c.Env = map[string]string{"INIT": "exit"} })
		r := invoke(t, f, `{"do":"echo"}`)
		require.Equal(t, TypeExit, r.ErrorType)
		require.Contains(t, r.ErrorMessage, "exit status 7")
		require.True(t, r.Cold)
		require.Contains(t, log.String(), "init goes wrong")
	})
	t.Run("hang", func(t *testing.T) {
		f, _ := newFunction(t, func(c *Config) {
			c.Env, c.InitTimeout = map[string]string{"INIT": "hang"}, 200*time.Millisecond
		})
		r := invoke(t, f, `{"do":"echo"}`)
		require.Equal(t, TypeTimeout, r.ErrorType)
	})
	t.Run("not runnable", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "bootstrap")
		require.NoError(t, os.WriteFile(path, []byte("#!/nowhere/at/all\n"), 0o755))
		f, _ := newFunction(t, func(c *Config) { c.Bootstrap = path })
		r := invoke(t, f, `{"do":"echo"}`)
		require.Equal(t, TypeInvalidEntrypoint, r.ErrorType)
	})
}

// A runtime of another make posts to /runtime/init/error; here a shell does.
func TestInitErrorIsWhatTheEventGets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bootstrap")
	script := "#!/bin/bash\n" +
		`body='{"errorType":"Config.Invalid","errorMessage":"no table named"}'` + "\n" +
		`exec 3<>"/dev/tcp/${AWS_LAMBDA_RUNTIME_API/://}"` + "\n" +
		`printf 'POST /2018-06-01/runtime/init/error HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s' ${#body} "$body" >&3` + "\n" +
		"cat <&3 >/dev/null\nexit 1\n"
	require.NoError(t, os.WriteFile(path, []byte(script), 0o755))
	f, _ := newFunction(t, func(c *Config) { c.Bootstrap = path })
	r := invoke(t, f, `{}`)
	require.Equal(t, "Config.Invalid", r.ErrorType)
	require.Equal(t, "no table named", r.ErrorMessage)
	require.Equal(t, "Unhandled", r.FunctionError)
}

func TestSizeLimits(t *testing.T) {
	f, _ := newFunction(t, nil)
	_, err := f.Invoke(t.Context(), make([]byte, MaxRequestBytes+1))
	require.ErrorIs(t, err, ErrTooLarge)

	event := append([]byte(`{"do":"respond","bytes":1,"text":"`), bytes.Repeat([]byte{'x'}, MaxRequestBytes-36)...)
	event = append(event, `"}`...)
	require.Len(t, event, MaxRequestBytes)
	r, err := f.Invoke(t.Context(), event)
	require.NoError(t, err)
	require.Equal(t, "1", string(r.Payload))

	r = invoke(t, f, fmt.Sprintf(`{"do":"respond","bytes":%d}`, MaxResponseBytes))
	require.Empty(t, r.FunctionError)
	require.Len(t, r.Payload, MaxResponseBytes)

	r = invoke(t, f, fmt.Sprintf(`{"do":"respond","bytes":%d}`, MaxResponseBytes+1))
	require.Equal(t, TypeResponseTooLarge, r.ErrorType)
	require.Contains(t, r.ErrorMessage, "6291556 bytes")
}

func TestMaxMemoryUsed(t *testing.T) {
	f, _ := newFunction(t, nil)
	small := invoke(t, f, `{"do":"echo"}`)
	big := invoke(t, f, `{"do":"allocate","bytes":100000000}`)
	require.Less(t, small.MaxMemoryUsedMB, 95)
	require.GreaterOrEqual(t, big.MaxMemoryUsedMB, 95)
}

// deliveries lets a test wait until events are in the hands of a process.
func deliveries(c *Config) <-chan Delivery {
	ch := make(chan Delivery, 16)
	c.OnInvoke = func(d Delivery) { ch <- d }
	return ch
}

type outcome struct {
	Result
	err error
}

func invokeAsync(ctx context.Context, f *Function, event string) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		r, err := f.Invoke(ctx, []byte(event))
		done <- outcome{r, err}
	}()
	return done
}

func TestConcurrencyAndThrottling(t *testing.T) {
	var delivered <-chan Delivery
	f, _ := newFunction(t, func(c *Config) { c.Concurrency = 2; delivered = deliveries(c) })
	gate := filepath.Join(t.TempDir(), "gate")
	event := fmt.Sprintf(`{"do":"wait","text":%q}`, gate)
	first, second := invokeAsync(t.Context(), f, event), invokeAsync(t.Context(), f, event)
	a, b := <-delivered, <-delivered
	require.NotEqual(t, a.Pid, b.Pid)

	_, err := f.Invoke(t.Context(), []byte(`{"do":"echo"}`))
	require.ErrorIs(t, err, ErrThrottled)

	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	for _, done := range []<-chan outcome{first, second} {
		o := <-done
		require.NoError(t, o.err)
		require.Empty(t, o.FunctionError)
	}
	require.Contains(t, []int{a.Pid, b.Pid}, whoIs(t, f).Pid, "an idle environment is reused")
}

func TestCallerLeavesFunctionGoesOn(t *testing.T) {
	var delivered <-chan Delivery
	f, _ := newFunction(t, func(c *Config) { delivered = deliveries(c) })
	gate := filepath.Join(t.TempDir(), "gate")
	ctx, cancel := context.WithCancel(t.Context())
	done := invokeAsync(ctx, f, fmt.Sprintf(`{"do":"wait","text":%q}`, gate))
	d := <-delivered
	cancel()
	require.ErrorIs(t, (<-done).err, context.Canceled)
	_, err := f.Invoke(t.Context(), []byte(`{"do":"echo"}`))
	require.ErrorIs(t, err, ErrThrottled, "its environment is still busy")
	require.False(t, gone(d.Pid))
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	require.NoError(t, f.Shutdown(t.Context()), "the invocation ends by itself")
}

func TestKill(t *testing.T) {
	kills := map[string]func(f *Function, d Delivery) bool{
		"any":    func(f *Function, _ Delivery) bool { return f.KillAny() },
		"by pid": func(f *Function, d Delivery) bool { return f.Kill(d.Pid) },
	}
	for name, kill := range kills {
		t.Run(name, func(t *testing.T) {
			var delivered <-chan Delivery
			f, _ := newFunction(t, func(c *Config) { delivered = deliveries(c) })
			require.False(t, f.KillAny(), "nothing runs yet")
			done := invokeAsync(t.Context(), f, `{"do":"sleep","ms":60000}`)
			d := <-delivered
			require.False(t, f.Kill(os.Getpid()), "not one of its processes")
			require.True(t, kill(f, d))
			o := <-done
			require.NoError(t, o.err)
			require.Equal(t, TypeExit, o.ErrorType)
			require.Contains(t, o.ErrorMessage, "signal: killed")
			require.True(t, gone(d.Pid))
			require.True(t, invoke(t, f, `{"do":"echo"}`).Cold)
		})
	}
}

func TestKillDuringHitsOneInvocation(t *testing.T) {
	f, _ := newFunction(t, nil)
	whoIs(t, f)
	f.KillDuring(time.Millisecond)
	require.Equal(t, TypeExit, invoke(t, f, `{"do":"sleep","ms":60000}`).ErrorType)
	require.Empty(t, invoke(t, f, `{"do":"sleep","ms":20}`).FunctionError)
}

func TestIdleEnvironmentKilled(t *testing.T) {
	f, _ := newFunction(t, nil)
	before := whoIs(t, f)
	require.True(t, f.KillAny())
	require.True(t, gone(before.Pid))
	after := whoIs(t, f)
	require.NotEqual(t, before.Pid, after.Pid)
	require.Equal(t, 1, after.Calls)
}

func TestShutdown(t *testing.T) {
	t.Run("SIGTERM for a function with an extension", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "bye")
		f, _ := newFunction(t, func(c *Config) { c.Env = map[string]string{"SIGTERM_FILE": file} })
		pid := whoIs(t, f).Pid
		require.NoError(t, f.Shutdown(t.Context()))
		require.FileExists(t, file)
		require.True(t, gone(pid))
		_, err := f.Invoke(t.Context(), []byte(`{}`))
		require.ErrorIs(t, err, ErrClosed)
	})
	t.Run("SIGKILL for any other", func(t *testing.T) {
		f, _ := newFunction(t, nil)
		pid := whoIs(t, f).Pid
		require.NoError(t, f.Shutdown(t.Context()))
		require.True(t, gone(pid))
	})
	t.Run("running invocations are killed when the time is over", func(t *testing.T) {
		var delivered <-chan Delivery
		f, _ := newFunction(t, func(c *Config) { delivered = deliveries(c) })
		done := invokeAsync(t.Context(), f, `{"do":"sleep","ms":60000}`)
		d := <-delivered
		over, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, f.Shutdown(over), context.Canceled)
		require.True(t, gone(d.Pid))
		require.Equal(t, TypeExit, (<-done).ErrorType)
	})
}

// A frozen process answers when it is thawed. Meanwhile others take the events,
// and it can be killed.
func TestFreeze(t *testing.T) {
	var delivered <-chan Delivery
	f, _ := newFunction(t, func(c *Config) { c.Concurrency, delivered = 2, deliveries(c) })
	_, ok := f.Freeze()
	require.False(t, ok, "nothing to freeze")
	idle := whoIs(t, f).Pid
	<-delivered
	_, ok = f.Freeze()
	require.False(t, ok, "an idle process is no event's")

	gate := filepath.Join(t.TempDir(), "gate")
	waits := fmt.Sprintf(`{"do":"wait","text":%q}`, gate)
	frozen := invokeAsync(t.Context(), f, waits)
	<-delivered
	pid, ok := f.Freeze()
	require.True(t, ok)
	require.Equal(t, idle, pid)
	_, ok = f.Freeze()
	require.False(t, ok, "it is frozen already")
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	other := whoIs(t, f).Pid
	<-delivered
	require.NotEqual(t, idle, other)
	require.Empty(t, frozen)
	f.Thaw(pid)
	require.Empty(t, (<-frozen).ErrorType)

	require.NoError(t, os.Remove(gate))
	frozen = invokeAsync(t.Context(), f, waits)
	<-delivered
	pid, ok = f.Freeze()
	require.True(t, ok)
	require.True(t, f.Kill(pid))
	require.Equal(t, TypeExit, (<-frozen).ErrorType)
	f.Thaw(pid)
}

func TestConfigProblemsAreReportedTogether(t *testing.T) {
	_, err := New(Config{Bootstrap: "testdata", MemoryMB: 1, Timeout: time.Hour})
	require.Error(t, err)
	for _, want := range []string{"name is missing", "memory is 1 MB", "time-out is 1h0m0s", "not an executable file"} {
		require.ErrorContains(t, err, want)
	}
	_, err = New(Config{Name: "x", Bootstrap: "testdata/none"})
	require.ErrorIs(t, err, os.ErrNotExist)
}

// post speaks to the Runtime API as a runtime with a fault would.
func post(t *testing.T, api *runtimeAPI, path, body string) (int, string) {
	t.Helper()
	resp, err := http.Post("http://"+api.addr+path, "application/json", strings.NewReader(body))
	require.NoError(t, err)
	defer func() { require.NoError(t, resp.Body.Close()) }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}

func TestRuntimeAPIRefusesWrongAnswers(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	api, err := serveRuntimeAPI("arn")
	require.NoError(t, err)
	defer api.close()
	inv := &invocation{id: "one", payload: []byte(`1`), delivered: func() {}, ended: make(chan struct{})}
	go func() { api.events <- inv }()
	resp, err := http.Get("http://" + api.addr + "/2018-06-01/runtime/invocation/next")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, "one", resp.Header.Get("Lambda-Runtime-Aws-Request-Id"))
	require.Regexp(t, `^Root=1-[0-9a-f]{8}-[0-9a-f]{24};Parent=[0-9a-f]{16};Sampled=0$`, traceID())

	status, text := post(t, api, "/2018-06-01/runtime/invocation/two/response", `2`)
	require.Equal(t, http.StatusBadRequest, status)
	require.Contains(t, text, "InvalidRequestID")
	resp, err = http.Get("http://" + api.addr + "/2018-06-01/runtime/invocation/next")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusForbidden, resp.StatusCode, "no second event before the answer to the first")

	status, _ = post(t, api, "/2018-06-01/runtime/invocation/one/response", `1`)
	require.Equal(t, http.StatusAccepted, status)
	status, _ = post(t, api, "/2018-06-01/runtime/invocation/one/error", `{}`)
	require.Equal(t, http.StatusForbidden, status)
	require.Equal(t, "1", string(api.answerOf(inv).Payload))
}
