package delivery

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/offsets"
)

// TestFloor: W6. When skipped would need one range too many the oldest goes
// and the floor rises to its end; a record below it is not dropped: the table
// is asked, and what is missing is stored.
func TestFloor(t *testing.T) {
	w := newWorld()
	deliver := func(of offsets.Set) Outcome {
		v := w.start(of, "w"+of.String(), nil)
		for v.step.Op != OpDone {
			w.step(v, fine)
		}
		return v.step.Outcome
	}
	for i := range int64(maxSkipped + 2) {
		require.NoError(t, deliver(offsets.Of(2*i+1)).Err)
	}
	require.Len(t, w.entry.Skipped, maxSkipped)
	require.Equal(t, int64(3), w.entry.Floor, "ranges 0 and 2 are forgotten")

	again := deliver(offsets.Of(1))
	require.NoError(t, again.Err)
	require.Equal(t, int64(1), again.Tally.DuplicatesSuppressed, "found in the table")
	missing := deliver(offsets.Between(0, 2))
	require.NoError(t, missing.Err)
	require.Equal(t, int64(2), missing.Tally.RowsStored, "not found in the table")
	require.NoError(t, w.check(offsets.Between(0, 2*maxSkipped+3)))

	w.traits.Provenance = false
	var e *Error
	require.ErrorAs(t, deliver(offsets.Of(0)).Err, &e)
	require.Equal(t, ReasonOffsetUnproven, e.Reason)

	w.traits.Provenance, w.traits.RowsStay = true, false
	w.rows = map[int64]int{}
	require.ErrorAs(t, deliver(offsets.Of(0)).Err, &e)
	require.Equal(t, ReasonOffsetUnproven, e.Reason, "absence is no proof where rows disappear")
}

// TestLateGapsAreBounded: W6. A late batch with gaps takes single offsets out of
// a skipped range; what it leaves behind is no more than the ledger holds, and
// what is forgotten is looked for.
func TestLateGapsAreBounded(t *testing.T) {
	w := newWorld()
	w.rules.ChunkLimit.Rows = 100
	deliver := func(of offsets.Set) {
		v := w.start(of, "w"+of.String(), nil)
		for v.step.Op != OpDone {
			w.step(v, fine)
		}
		require.NoError(t, v.step.Outcome.Err)
		require.LessOrEqual(t, len(w.entry.Skipped), maxSkipped)
	}
	deliver(offsets.Of(1000))
	var even, all offsets.Set
	for o := int64(0); o < 1000; o += 2 {
		even = even.Append(o)
	}
	deliver(even)
	require.Positive(t, w.entry.Floor)
	all = offsets.Between(0, 1000)
	deliver(all)
	require.NoError(t, w.check(all))
	require.Len(t, w.rows, 1001)
}

// TestSendWindowEndsByTheWallClock: D20. The monotonic clock stands still while
// the machine under a zombie is frozen.
func TestSendWindowEndsByTheWallClock(t *testing.T) {
	w := newWorld()
	w.now = time.Now()
	v := w.start(offsets.Of(0), "A", nil)
	for v.step.Op != OpInsert {
		w.step(v, fine)
	}
	end := v.step.Send.NotAfter
	require.Equal(t, end.Round(0), end, "no monotonic reading")
}

// TestBatchMustAscend: a batch that is not strictly ascending is refused whole.
func TestBatchMustAscend(t *testing.T) {
	w := newWorld()
	batch := w.records(offsets.Of(1, 2))
	batch[1].Offset = 1
	_, step := Start(w.rules, Invocation{Lane: w.lane(), Batch: batch}, w.now)
	var e *Error
	require.ErrorAs(t, step.Outcome.Err, &e)
	require.Equal(t, ReasonOutOfOrder, e.Reason)
}

// TestSchemaFault: a batch of which most records do not fit is a schema fault:
// nothing is announced, stored or lettered.
func TestSchemaFault(t *testing.T) {
	w := newWorld()
	w.poison = offsets.Between(0, 10)
	v := w.start(offsets.Between(0, 19), "A", nil)
	for v.step.Op != OpDone {
		w.step(v, fine)
	}
	var e *Error
	require.ErrorAs(t, v.step.Outcome.Err, &e)
	require.Equal(t, ReasonSchemaFault, e.Reason)
	require.Zero(t, w.entry.Version)
	require.Empty(t, w.letters)
}

// TestSuccessNeedsAFreshEntry: V15. A batch that a remembered entry calls
// settled is not answered with success before the ledger was read.
func TestSuccessNeedsAFreshEntry(t *testing.T) {
	w := newWorld()
	run := func(cached *Entry) Outcome {
		v := w.start(offsets.Of(0), "A", cached)
		for v.step.Op != OpDone {
			w.step(v, fine)
		}
		return v.step.Outcome
	}
	first := run(nil)
	require.NoError(t, first.Err)
	w.advance(10 * time.Minute)
	bumped, err := w.entry.Bump(w.now)
	require.NoError(t, err)
	bumped.Version++
	w.entry, w.rows = bumped, map[int64]int{}

	second := run(&first.Entry)
	require.NoError(t, second.Err)
	require.Equal(t, 1, w.rows[0], "ingested again by the new generation")
}

// TestLedgerTextIsBounded: the messages of very many letters are dropped
// before the entry grows past what a ledger item can hold; the codes stay.
func TestLedgerTextIsBounded(t *testing.T) {
	refused := make([]Refusal, 5000)
	for i := range refused {
		refused[i] = Refusal{Offset: int64(i), Code: "c", Message: "a message of some forty bytes, more or less"}
	}
	bounded := boundText(refused)
	total := 0
	for i, r := range bounded {
		require.Equal(t, refused[i].Code, r.Code)
		total += len(r.Message)
	}
	require.LessOrEqual(t, total, maxLetterText)
	require.NotEmpty(t, bounded[0].Message)
}

// TestRefusalNeedsAFreshEntry: a remembered entry that speaks against the batch
// is read again before anybody is called.
func TestRefusalNeedsAFreshEntry(t *testing.T) {
	w := newWorld()
	w.entry = Entry{Generation: 1, Guarantee: ExactlyOnce, Version: 7, Writer: "rebased"}
	for name, stale := range map[string]Entry{
		"outrun":          {Generation: 1, Guarantee: AtLeastOnce, Version: 6},
		"another server":  {Generation: 1, Guarantee: ExactlyOnce, Version: 6, ServerUUID: "s0"},
		"recreated topic": {Generation: 1, Guarantee: ExactlyOnce, Version: 6, Next: 9, Samples: []Sample{{Offset: 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			v := w.start(offsets.Of(0), name, &stale)
			require.Equal(t, OpLoad, v.step.Op)
		})
	}
	v := w.start(offsets.Of(0), "A", &Entry{Generation: 1, Guarantee: AtLeastOnce, Version: 6})
	for v.step.Op != OpDone {
		w.step(v, fine)
	}
	require.NoError(t, v.step.Outcome.Err)
	require.Equal(t, 1, w.rows[0])
}
