package main

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/lambdahost"
	"oncehouse/infra/local/mapping"
	"oncehouse/infra/local/scheduler"
	"oncehouse/shared/kafka"
)

// batches are of the partitions 0, 1 and so on, three records each.
func batches(settled ...int) mapping.Delivery {
	d := mapping.Delivery{Settled: settled}
	for i := range settled {
		d.Batches = append(d.Batches, mapping.Batch{TopicPartition: kafka.TopicPartition{Topic: "clicks", Partition: int32(i)}, Count: 3})
	}
	return d
}

func failed(reason, message string) lambdahost.Result {
	return lambdahost.Result{FunctionError: "Unhandled", ErrorType: reason, ErrorMessage: message}
}

// A failure is told once, and again when the reason is another one or stays for
// long; duplicates and the end of the stack are not told.
func TestWatchTellsWhyAFunctionFails(t *testing.T) {
	var out bytes.Buffer
	w := newWatch(&out, "sink-clicks", time.Hour)
	broken, notRun, closed, duplicate := batches(0), batches(0), batches(0), batches(0)
	broken.Result = failed("Target", "no table\nclicks")
	notRun.Err = errors.New("the function cannot be started")
	closed.Err = lambdahost.ErrClosed
	duplicate.Result, duplicate.Duplicate, duplicate.Settled = failed("Panic", "a duplicate"), true, nil
	for _, d := range []mapping.Delivery{batches(3), broken, broken, batches(3, 2), batches(3, 2), notRun, closed, duplicate} {
		w.delivered(d)
	}
	require.Equal(t, "sink-clicks: no table clicks\n"+
		"sink-clicks: some partitions are held back, and the others go on: the function's log says why\n"+
		"sink-clicks: the function cannot be started\n", out.String())

	out.Reset()
	w.every = 0
	w.delivered(broken)
	w.delivered(broken)
	require.Equal(t, 2, bytes.Count(out.Bytes(), []byte("\n")), "a failure that stays is told again")
}

// That a function works again is told once, when every partition that failed has
// been delivered: until then the success of the others is none.
func TestWatchTellsThatAFunctionWorksAgain(t *testing.T) {
	var out bytes.Buffer
	w := newWatch(&out, "sink-clicks", time.Hour)
	for _, d := range []mapping.Delivery{batches(3, 0), batches(3), batches(3)} {
		w.delivered(d)
	}
	require.Equal(t, 1, bytes.Count(out.Bytes(), []byte("\n")), "partition 1 is held back")
	out.Reset()
	for range 2 {
		w.delivered(batches(3, 3))
	}
	require.Equal(t, "sink-clicks: works again\n", out.String())

	out.Reset()
	w = newWatch(&out, "outbox-orders", time.Hour)
	refused := scheduler.Invocation{Event: []byte(`{"shard":0}`), Result: failed("MissingTopic", "no topic")}
	for _, i := range []scheduler.Invocation{refused, refused, {Event: refused.Event, Err: errors.New("busy")}, {Event: refused.Event}, refused} {
		w.invoked(i)
	}
	require.Equal(t, "outbox-orders: no topic\noutbox-orders: works again\noutbox-orders: no topic\n", out.String())
}
