package schedule_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/demo/schedule"
)

func TestFaultsComeEvenlyByProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var progress atomic.Int64
		var at []int64
		broken := errors.New("the third")
		fault := func(context.Context) error {
			if at = append(at, progress.Load()); len(at) == 3 {
				return broken
			}
			return nil
		}
		done := make(chan error, 1)
		go func() { done <- schedule.Perform(t.Context(), &progress, 100, []schedule.Fault{fault, fault, fault}) }()
		for _, now := range []int64{24, 25, 60, 75} {
			synctest.Wait()
			progress.Store(now)
			time.Sleep(10 * time.Millisecond) // of the test's own clock
		}
		require.ErrorIs(t, <-done, broken)
		require.Equal(t, []int64{25, 60, 75}, at)
	})
}

func TestAFaultThatFailsEndsIt(t *testing.T) {
	var progress atomic.Int64
	broken := errors.New("broken")
	fail := func(context.Context) error { return broken }
	require.ErrorIs(t, schedule.Perform(t.Context(), &progress, 0, []schedule.Fault{fail, fail}), broken)
	ctx, cancel := context.WithCancel(t.Context())
	cancelling := func(context.Context) error { cancel(); return broken }
	require.NoError(t, schedule.Perform(ctx, &progress, 0, []schedule.Fault{cancelling, fail}), "it is over")
}
