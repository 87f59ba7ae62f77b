package delivery_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "oncehouse/shared/delivery"
	"oncehouse/shared/delivery/world"
	"oncehouse/shared/offsets"
)

// deliver runs one invocation; fault gives the error of the n-th step of a kind,
// nil to let the world perform it.
func deliver(w *world.World, of offsets.Set, fault func(op Op, n int) error) Outcome {
	v := w.Start(of, "A", nil)
	for v.Step.Op != OpDone {
		if err := fault(v.Step.Op, v.Steps(v.Step.Op)+1); err != nil {
			w.Answer(v, Answer{Err: err})
			continue
		}
		w.Next(v, world.Fine)
	}
	return v.Step.Outcome
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
			w, tries := world.New(), 0
			out := deliver(w, offsets.Between(0, 9), func(op Op, n int) error {
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
			require.Empty(t, w.Table.Rows, "nothing is sent that was not announced")
			if c.kind != Fenced {
				require.Equal(t, ReasonLedger, e.Reason)
				require.Zero(t, out.Tally.Conflicts)
			}
		})
	}
}

// A write whose answer is lost and that cannot be read back may have landed.
func TestALostWriteThatCannotBeReadBackIsInDoubt(t *testing.T) {
	w := world.New()
	out := deliver(w, offsets.Between(0, 9), func(op Op, n int) error {
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
			w := world.New()
			w.Rules.Guarantee, w.Rules.ChunkLimit.Rows = AtMostOnce, 5
			v := w.Start(offsets.Between(0, 9), "A", nil)
			for v.Step.Op != OpDone {
				a := w.Perform(v, world.Fine)
				if v.Step.Op == slow {
					w.Advance(55 * time.Second)
				}
				w.Answer(v, a)
			}
			out := v.Step.Outcome
			var e *Error
			require.ErrorAs(t, out.Err, &e)
			require.Equal(t, ReasonOutOfTime, e.Reason)
			require.Zero(t, out.Tally.Lost)
			require.NoError(t, out.Lost)
			require.Equal(t, int64(len(w.Table.Rows)), w.Entry.Next, "next passes what was sent")
			require.Equal(t, len(w.Table.Rows), out.Settled)
		})
	}
}

// Offsets that Kafka cannot have are refused, not counted as settled long ago
// (a negative one is below every next) nor passed by a next that overflows.
func TestOffsetsThatKafkaCannotHave(t *testing.T) {
	for _, offset := range []int64{-1, math.MinInt64, math.MaxInt64} {
		w := world.New()
		batch := w.Records(offsets.Of(1))
		batch[0].Offset = offset
		_, step := Start(w.Rules, Invocation{Lane: w.Lane(), Batch: batch}, w.Now)
		var e *Error
		require.ErrorAs(t, step.Outcome.Err, &e)
		require.Equal(t, ReasonOutOfOrder, e.Reason)
	}
}
