package delivery

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/offsets"
)

// deliver runs one invocation; fault gives the error of the n-th step of a kind,
// nil to let the world perform it.
func (w *world) deliver(of offsets.Set, fault func(op Op, n int) error) Outcome {
	v := w.start(of, "A", nil)
	for v.step.Op != OpDone {
		if err := fault(v.step.Op, v.count[v.step.Op]+1); err != nil {
			v.count[v.step.Op]++
			v.step = v.m.Next(Answer{Now: w.now, Err: err})
			continue
		}
		w.step(v, fine)
	}
	return v.step.Outcome
}

// A ledger that cannot be used is no other invocation: the error says what is
// wrong with it, with the kind and the remedy that the adapter knows.
func TestLedgerFaultsKeepTheirCause(t *testing.T) {
	noTable := &Error{Kind: Fatal, Reason: ReasonLedger, Message: "write it", Remedy: "create the table"}
	throttled := &Error{Kind: InDoubt, Reason: ReasonLedger, Message: "write it", Remedy: "raise the capacity"}
	plain := errors.New("connection reset")
	for name, c := range map[string]struct {
		op     Op
		from   int // the first such step that fails
		err    error
		kind   Kind
		remedy string
		tries  int
	}{
		"read, no table":       {OpLoad, 1, noTable, Fatal, "create the table", 1},
		"read, no answer":      {OpLoad, 1, plain, Retryable, "", 1},
		"write, no table":      {OpWrite, 1, noTable, Fatal, "create the table", 1},
		"write, throttled":     {OpWrite, 1, throttled, InDoubt, "raise the capacity", 3},
		"write, no answer":     {OpWrite, 1, plain, InDoubt, "", 3},
		"write, somebody else": {OpWrite, 1, ErrConflict, Fenced, "", 3},
	} {
		t.Run(name, func(t *testing.T) {
			w, tries := newWorld(), 0
			out := w.deliver(offsets.Between(0, 9), func(op Op, n int) error {
				if op != c.op || n < c.from {
					return nil
				}
				tries++
				return c.err
			})
			var e *Error
			require.ErrorAs(t, out.Err, &e)
			require.Equal(t, c.kind, e.Kind, e)
			require.Equal(t, c.remedy, e.Remedy)
			require.Equal(t, c.tries, tries)
			require.Empty(t, w.rows, "nothing is sent that was not announced")
			if c.kind != Fenced {
				require.Equal(t, ReasonLedger, e.Reason)
				require.Zero(t, out.Tally.Conflicts)
			}
		})
	}
}

// A write whose answer is lost and that cannot be read back may have landed.
func TestALostWriteThatCannotBeReadBackIsInDoubt(t *testing.T) {
	w := newWorld()
	out := w.deliver(offsets.Between(0, 9), func(op Op, n int) error {
		if op == OpWrite || op == OpLoad && n > 1 {
			return errors.New("connection reset")
		}
		return nil
	})
	var e *Error
	require.ErrorAs(t, out.Err, &e)
	require.Equal(t, InDoubt, e.Kind)
	require.Equal(t, ReasonLedger, e.Reason)
}

// At-most-once gives rows up only after it has sent them: what there is no time
// left for is not written off, but comes again.
func TestAtMostOnceWritesNothingOffThatItCannotSend(t *testing.T) {
	for name, slow := range map[string]Op{"the insert before it": OpInsert, "its encoding": OpEncode} {
		t.Run("behind "+name, func(t *testing.T) {
			w := newWorld()
			w.rules.Guarantee, w.rules.ChunkLimit.Rows = AtMostOnce, 5
			v := w.start(offsets.Between(0, 9), "A", nil)
			for v.step.Op != OpDone {
				a := w.perform(v, fine)
				if v.step.Op == slow {
					w.advance(55 * time.Second)
				}
				a.Now = w.now
				v.step = v.m.Next(a)
			}
			out := v.step.Outcome
			var e *Error
			require.ErrorAs(t, out.Err, &e)
			require.Equal(t, ReasonOutOfTime, e.Reason)
			require.Zero(t, out.Tally.Lost)
			require.NoError(t, out.Lost)
			require.Equal(t, int64(len(w.rows)), w.entry.Next, "next passes what was sent")
			require.Equal(t, len(w.rows), out.Settled)
		})
	}
}

// Offsets that Kafka cannot have are refused, not counted as settled long ago
// (a negative one is below every next) nor passed by a next that overflows.
func TestOffsetsThatKafkaCannotHave(t *testing.T) {
	for _, offset := range []int64{-1, math.MinInt64, math.MaxInt64} {
		w := newWorld()
		batch := w.records(offsets.Of(1))
		batch[0].Offset = offset
		_, step := Start(w.rules, Invocation{Lane: w.lane(), Batch: batch}, w.now)
		var e *Error
		require.ErrorAs(t, step.Outcome.Err, &e)
		require.Equal(t, ReasonOutOfOrder, e.Reason)
	}
}
