package handler

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/aws/aws-lambda-go/lambda/messages"

	"oncehouse/shared/delivery"
)

// noFailures is the answer that says that all is settled, in words: the mapping
// reads an empty one the same way, but nobody should have to know that.
var noFailures = []byte(`{"batchItemFailures":[]}`)

// invocationError is an invocation that failed.
type invocationError struct {
	// Failed are the lanes that did, of Lanes.
	Failed []laneError
	Lanes  int
	panics bool
}

// laneError is why one lane failed.
type laneError struct {
	Lane delivery.Lane
	Err  *delivery.Error
}

// Error names every failed lane, and a cause that all of them share just once.
func (f *invocationError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d lanes failed", len(f.Failed), f.Lanes)
	if f.shared() {
		names := make([]string, len(f.Failed))
		for i, l := range f.Failed {
			names[i] = l.Lane.String()
		}
		fmt.Fprintf(&b, " (%s): %s", strings.Join(names, ", "), f.Failed[0].Err)
		return b.String()
	}
	for i, l := range f.Failed {
		separator := "; "
		if i == 0 {
			separator = ": "
		}
		fmt.Fprintf(&b, "%s%s: %s", separator, l.Lane, l.Err)
	}
	return b.String()
}

func (f *invocationError) shared() bool {
	for _, l := range f.Failed {
		if l.Err.Error() != f.Failed[0].Err.Error() {
			return false
		}
	}
	return true
}

// Unwrap are the errors of the lanes.
func (f *invocationError) Unwrap() []error {
	all := make([]error, len(f.Failed))
	for i, l := range f.Failed {
		all[i] = l.Err
	}
	return all
}

// worst is the error that a person should look at first.
func (f *invocationError) worst() *delivery.Error {
	worst := f.Failed[0].Err
	for _, l := range f.Failed {
		if rank(l.Err.Kind) > rank(worst.Kind) {
			worst = l.Err
		}
	}
	return worst
}

func rank(k delivery.Kind) int {
	switch k {
	case delivery.Fatal:
		return 4
	case delivery.InDoubt:
		return 3
	case delivery.Fenced:
		return 2
	case delivery.Retryable:
		return 1
	default: // Poison never fails a lane
		return 0
	}
}

// answer is success only when every lane is settled. Of several lanes, those
// that failed can be named to the mapping, so that the others pass. When none
// passed there is nothing to gain by that, and an error is seen by Lambda's own
// metric; after a panic the process should not live on.
func (h *Handler) answer(results []result) ([]byte, error) {
	f := &invocationError{Lanes: len(results)}
	progress := false
	for i := range results {
		r := &results[i]
		if r.report.Err != nil {
			f.Failed = append(f.Failed, laneError{r.lane, asError(r.report.Err)})
		}
		f.panics = f.panics || r.panic != ""
		progress = progress || r.report.Err == nil || r.report.Settled > 0
	}
	switch {
	case len(f.Failed) == 0:
		return noFailures, nil
	case h.config.PartialBatch && progress && !f.panics:
		return partialAnswer(results), nil
	}
	return nil, f
}

// partialAnswer names, for each failed lane, every offset from its first
// unsettled one to the end of its batch: whether the mapping holds back the
// offsets behind a failed one is not documented.
func partialAnswer(results []result) []byte {
	out := []byte(`{"batchItemFailures":[`)
	first := true
	for i := range results {
		r := &results[i]
		if r.report.Err == nil {
			continue
		}
		partition := strconv.Quote(r.lane.String()) // a topic's name needs no escape
		// A lane that failed has a record that is not settled, whatever it counts.
		settled := min(r.report.Settled, len(r.records)-1)
		for j := settled; j < len(r.records); j++ {
			if !first {
				out = append(out, ',')
			}
			first = false
			out = append(append(out, `{"itemIdentifier":{"partition":`...), partition...)
			out = append(strconv.AppendInt(append(out, `,"offset":`...), r.records[j].Offset, 10), `}}`...)
		}
	}
	return append(out, `]}`...)
}

// asLambdaError gives an error the type that Lambda shows as errorType: the
// reason, which is a heading of the runbook.
func asLambdaError(err error) error {
	if err == nil {
		return nil
	}
	out := messages.InvokeResponse_Error{Message: err.Error()}
	var f *invocationError
	if errors.As(err, &f) {
		out.Type, out.ShouldExit = string(f.worst().Reason), f.panics
	} else {
		e := asError(err)
		out.Type, out.ShouldExit = string(e.Reason), e.Reason == ReasonPanic
	}
	return out // bare: the runtime looks at the type of the error, not into it
}

// marshal is for answers that always marshal.
func marshal(v any) ([]byte, error) {
	out, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("write the answer: %w", err)
	}
	return out, nil
}
