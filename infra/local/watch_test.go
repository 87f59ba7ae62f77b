package main

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/lambdahost"
	"oncehouse/infra/local/mapping"
)

// A failure is told once, and again when the reason is another one; success,
// duplicates and the end of the stack are not told.
func TestWatch(t *testing.T) {
	failed := func(reason, message string) mapping.Delivery {
		return mapping.Delivery{Result: lambdahost.Result{FunctionError: "Unhandled", ErrorType: reason, ErrorMessage: message}}
	}
	held := mapping.Delivery{Batches: []mapping.Batch{{Count: 3}, {Count: 2}}, Settled: 4}
	duplicate := failed("Panic", "a duplicate")
	duplicate.Duplicate = true
	var out bytes.Buffer
	w := &watch{out: &out, name: "clicks", every: time.Hour}
	for _, d := range []mapping.Delivery{
		{Batches: []mapping.Batch{{Count: 3}}, Settled: 3},
		failed("Target", "no table\nclicks"), failed("Target", "no table\nclicks"),
		held, held,
		{Err: errors.New("the function cannot be started")},
		{Err: lambdahost.ErrClosed}, duplicate,
	} {
		w.delivered(d)
	}
	require.Equal(t, "sink-clicks: no table clicks\n"+
		"sink-clicks: some partitions are held back, and the others go on: the function's log says why\n"+
		"sink-clicks: the function cannot be started\n", out.String())

	out.Reset()
	w.every = 0
	w.delivered(held)
	w.delivered(held)
	require.Equal(t, 2, bytes.Count(out.Bytes(), []byte("\n")), "a failure that stays is told again")
}
