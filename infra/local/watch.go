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
	"oncehouse/infra/local/scheduler"
)

// watch prints why a function fails: at once when the reason is a new one, and
// from time to time as long as it stays; and that it works again, once all that
// failed has worked. Everything else is in its log.
type watch struct {
	out      io.Writer
	function string
	// every is the time between two lines of one reason.
	every time.Duration

	mu     sync.Mutex
	reason string // "" while all is well
	told   time.Time
	// failing are the lanes and schedules that failed and have not worked since:
	// the success of one says nothing of another.
	failing map[string]bool
}

func newWatch(out io.Writer, function string, every time.Duration) *watch {
	return &watch{out: out, function: function, every: every, failing: map[string]bool{}}
}

// delivered looks at an invocation of the event source mapping.
func (w *watch) delivered(d mapping.Delivery) {
	if d.Duplicate || errors.Is(d.Err, lambdahost.ErrClosed) {
		return
	}
	failed := map[string]bool{}
	for i, b := range d.Batches {
		failed[b.String()] = d.Settled[i] < b.Count
	}
	switch {
	case d.Err != nil:
		w.tell(failed, "not run", d.Err.Error())
	case d.Result.FunctionError != "":
		w.tell(failed, reasonOf(d.Result), cmp.Or(d.Result.ErrorMessage, d.Result.ErrorType))
	default:
		w.tell(failed, "held back", "some partitions are held back, and the others go on: the function's log says why")
	}
}

// invoked looks at an invocation of the scheduler. One that could not run says
// nothing: the next is a minute away.
func (w *watch) invoked(i scheduler.Invocation) {
	if i.Err == nil {
		w.tell(map[string]bool{string(i.Event): i.Failed()}, reasonOf(i.Result), i.Result.ErrorMessage)
	}
}

func reasonOf(r lambdahost.Result) string { return cmp.Or(r.ErrorType, r.FunctionError) }

// tell learns which lanes or schedules failed, and which did not. If any did,
// text says why.
func (w *watch) tell(failed map[string]bool, reason, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	some := false
	for name, is := range failed {
		some = some || is
		if delete(w.failing, name); is {
			w.failing[name] = true
		}
	}
	switch {
	case some && (reason != w.reason || time.Since(w.told) >= w.every):
		w.reason, w.told = reason, time.Now()
		w.say(text)
	case len(w.failing) == 0 && w.reason != "":
		w.reason = ""
		w.say("works again")
	}
}

// say prints a line. One that cannot be written is no reason to end what runs.
func (w *watch) say(text string) {
	_, _ = fmt.Fprintf(w.out, "%s: %s\n", w.function, strings.Join(strings.Fields(text), " "))
}
