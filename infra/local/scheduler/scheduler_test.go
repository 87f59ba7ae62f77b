package scheduler

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/lambdahost"
)

// function takes some time and fails now and then.
type function struct {
	takes time.Duration
	fails func(n int) bool
	begun time.Time

	mu    sync.Mutex
	calls []time.Duration
}

func (f *function) Invoke(ctx context.Context, payload []byte) (lambdahost.Result, error) {
	f.mu.Lock()
	f.calls = append(f.calls, time.Since(f.begun))
	n := len(f.calls)
	f.mu.Unlock()
	select {
	case <-time.After(f.takes):
	case <-ctx.Done():
		return lambdahost.Result{}, ctx.Err()
	}
	if f.fails != nil && f.fails(n) {
		return lambdahost.Result{}, lambdahost.ErrThrottled
	}
	return lambdahost.Result{Payload: payload}, nil
}

func run(t *testing.T, f *function, config Config, during time.Duration) (ended []Invocation) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		f.begun = time.Now()
		config.Function = f
		var mu sync.Mutex
		config.OnInvocation = func(i Invocation) {
			mu.Lock()
			defer mu.Unlock()
			ended = append(ended, i)
		}
		s := Start(config)
		time.Sleep(during)
		synctest.Wait()
		s.Stop()
	})
	return ended
}

func TestRate(t *testing.T) {
	f := &function{takes: 90 * time.Second}
	ended := run(t, f, Config{Events: [][]byte{[]byte(`{"shard":0}`)}}, 3*time.Minute)
	require.Equal(t, []time.Duration{0, time.Minute, 2 * time.Minute, 3 * time.Minute}, f.calls, "it does not wait for the one before")
	require.Len(t, ended, 2)
	require.Equal(t, `{"shard":0}`, string(ended[0].Result.Payload))
	require.False(t, ended[0].Failed())
}

func TestFast(t *testing.T) {
	f := &function{takes: 10 * time.Second, fails: func(n int) bool { return n == 2 }}
	ended := run(t, f, Config{Events: [][]byte{nil}, Fast: true, Pause: time.Second}, 32*time.Second)
	require.Equal(t, []time.Duration{0, 10 * time.Second, 21 * time.Second, 31 * time.Second}, f.calls, "a pause only after a failure")
	require.Len(t, ended, 3, "the one that Stop left is not told")
	require.True(t, errors.Is(ended[1].Err, lambdahost.ErrThrottled) && ended[1].Failed())
}

func TestEveryEventHasItsSchedule(t *testing.T) {
	f := &function{}
	ended := run(t, f, Config{Events: [][]byte{[]byte("a"), []byte("b")}, Rate: time.Hour}, time.Minute)
	require.Len(t, ended, 2)
	require.ElementsMatch(t, []string{"a", "b"}, []string{string(ended[0].Event), string(ended[1].Event)})
}
