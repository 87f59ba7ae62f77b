package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncehouse/infra/local/lambdahost"
)

// A poller that stood still in the middle of a transaction, and goes on when its
// successor has committed, adds nothing and breaks nothing (O3, O22).
func (s *stack) testFrozen(t *testing.T) {
	o := s.outbox(t, "frozen")
	o.initialise()
	thawed := 0 // in time: the others Lambda has ended meanwhile
	for _, moment := range []struct {
		key kmsg.Key
		n   int // Produce: plan, rows of a partition, ..., cursor
	}{{kmsg.Produce, 1}, {kmsg.Produce, 2}, {kmsg.Produce, 4}, {kmsg.EndTxn, 1}, {kmsg.EndTxn, 2}} {
		what := fmt.Sprintf("%s %d", moment.key.Name(), moment.n)
		o.insert(60)
		frozen := make(chan int, 1)
		s.at(moment.key, moment.n, false, func() {
			pid, ok := o.Freeze()
			require.True(t, ok, what)
			frozen <- pid
		})
		first := make(chan lambdahost.Result, 1)
		go func() {
			result, _ := o.Invoke(t.Context(), []byte(`{"shard":0}`))
			first <- result
		}()
		var pid int
		select {
		case pid = <-frozen:
		case <-time.After(10 * time.Second):
			require.Fail(t, "the request never came", what)
		}
		o.insert(20)
		second := make(chan lambdahost.Result, 1)
		go func() {
			result, _ := o.Invoke(t.Context(), []byte(`{"shard":0}`))
			second <- result
		}()
		require.Eventually(t, func() bool { return len(o.published()) == o.committed() }, 20*time.Second, time.Millisecond, what)
		o.Thaw(pid)
		o.insert(20)
		if result := <-first; result.ErrorType == "" {
			require.Contains(t, string(result.Payload), `"fenced":true`, what)
			thawed++
		}
		<-second
		o.drain()
		o.requireExact()
	}
	require.Positive(t, thawed)
}
