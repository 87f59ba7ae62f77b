package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"oncehouse/infra/local/lambdahost"
	"oncehouse/infra/local/mapping"
)

// watch prints why a function fails: at once when the reason is a new one, and
// from time to time as long as it stays. Everything else is in its log.
type watch struct {
	out  io.Writer
	name string
	// every is the time between two lines of one reason.
	every time.Duration

	mu     sync.Mutex
	reason string
	told   time.Time
}

// delivered looks at an invocation.
func (w *watch) delivered(d mapping.Delivery) {
	reason, text := failure(d)
	if reason == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if reason == w.reason && time.Since(w.told) < w.every {
		return
	}
	w.reason, w.told = reason, time.Now()
	// A line that cannot be written is no reason to end what runs.
	_, _ = fmt.Fprintf(w.out, "sink-%s: %s\n", w.name, strings.Join(strings.Fields(text), " "))
}

// failure is why an invocation failed, "" when it did not.
func failure(d mapping.Delivery) (reason, text string) {
	records := 0
	for _, b := range d.Batches {
		records += b.Count
	}
	switch {
	case d.Duplicate, errors.Is(d.Err, lambdahost.ErrClosed):
		return "", ""
	case d.Err != nil:
		return "not run", d.Err.Error()
	case d.Result.FunctionError != "":
		return cmp.Or(d.Result.ErrorType, d.Result.FunctionError), cmp.Or(d.Result.ErrorMessage, d.Result.ErrorType)
	case d.Settled < records:
		return "held back", "some partitions are held back, and the others go on: the function's log says why"
	}
	return "", ""
}
