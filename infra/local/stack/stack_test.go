package stack

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

const root = "../../.."

// program is what serves the engine, built once.
var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "oncehouse-stack-")
	if err == nil {
		program = filepath.Join(dir, "oncehouse-local")
		err = exec.Command("go", "build", "-o", program, "..").Run()
	}
	if err != nil {
		panic(err)
	}
	status := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(status)
}

func startForTest(t *testing.T) *Stack {
	t.Helper()
	s, err := Start(t.Context(), Options{Root: root, Dir: t.TempDir(), Program: program})
	require.NoError(t, err)
	t.Cleanup(s.Stop)
	return s
}

// A stack says what it started; after Stop no goroutine, process or port of it
// is left.
func TestStopLeavesNothing(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	var status bytes.Buffer
	dir := t.TempDir()
	s, err := Start(t.Context(), Options{Root: root, Dir: dir, Program: program, Status: &status})
	require.NoError(t, err)
	r, err := s.StartPipeline(t.Context(), Pipeline{Topic: "clicks"}, nil)
	require.NoError(t, err)
	require.Equal(t, "clicks", r.Pipeline.Table)
	for _, name := range []string{"sink", "kafka", "clickhouse", "dynamodb", "sqs", "lambda", "sink-clicks"} {
		require.Regexp(t, `(?m)^`+regexp.QuoteMeta(name)+` +ready in +[0-9.]+ s +\S`, status.String())
		require.FileExists(t, filepath.Join(dir, "log", name+".log"))
	}
	require.Regexp(t, `(?m)^logs +`+regexp.QuoteMeta(filepath.Join(dir, "log"))+`$`, status.String())
	engine, dynamo := s.Engine.Dead(), s.DynamoDB.Dead()
	urls := []string{s.Engine.URL(), s.DynamoDB.Endpoint(), s.LetterQueueURL(), s.LambdaURL(), "tcp://" + s.Bootstrap()}
	s.Stop()
	s.Stop()
	<-engine
	<-dynamo
	for _, address := range urls {
		u, err := url.Parse(address)
		require.NoError(t, err)
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", u.Host)
		require.NoError(t, err, address)
		require.NoError(t, listener.Close())
	}
	http.DefaultClient.CloseIdleConnections()
	goleak.VerifyNone(t, leaks)
}

// What was started before a part fails is ended again.
func TestFailedStartLeavesNothing(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	dir := t.TempDir()
	_, err := Start(t.Context(), Options{Root: root, Dir: dir, Program: "/bin/false"})
	require.ErrorContains(t, err, "clickhouse engine did not come up")
	s, err := Start(t.Context(), Options{Root: root, Dir: dir, Program: program})
	require.NoError(t, err, "the directory is free again")
	s.Stop()
	goleak.VerifyNone(t, leaks)
}

// A first build takes as long as network and machine need: only what comes after
// it has a time in which to come up.
func TestBuildMayTakeLonger(t *testing.T) {
	var status bytes.Buffer
	s := &Stack{options: Options{Root: root, Dir: t.TempDir(), Program: program, Status: &status}}
	t.Cleanup(s.Stop)
	require.ErrorContains(t, s.start(t.Context(), time.Nanosecond), "clickhouse engine did not come up")
	require.Regexp(t, `(?m)^sink +ready`, status.String())
}

// A part that fails on a full disk has words of its own for it, or none.
func TestFullDiskIsExplained(t *testing.T) {
	err := errors.New("produce: UNKNOWN_SERVER_ERROR")
	require.EqualError(t, explain(err, "/data", 3<<20),
		"the disk is full: /data has 3 MB free: free some space or choose another --dir (produce: UNKNOWN_SERVER_ERROR)")
	require.Equal(t, err, explain(err, "/data", minFree))
	require.NoError(t, explain(nil, "/data", 0))
	full := &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}
	require.Equal(t, error(full), explain(full, "/data", 0), "it says so itself")
}
