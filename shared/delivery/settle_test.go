package delivery_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "oncehouse/shared/delivery"
	"oncehouse/shared/delivery/world"
	"oncehouse/shared/offsets"
)

// TestFloor: W6. When skipped would need one range too many the oldest goes
// and the floor rises to its end; a record below it is not dropped: the table
// is asked, and what is missing is stored.
func TestFloor(t *testing.T) {
	w := world.New()
	deliver := func(of offsets.Set) Outcome {
		v := w.Start(of, "w"+of.String(), nil)
		for v.Step.Op != OpDone {
			w.Next(v, world.Fine)
		}
		return v.Step.Outcome
	}
	for i := range int64(MaxSkipped + 2) {
		require.NoError(t, deliver(offsets.Of(2*i+1)).Err)
	}
	require.Len(t, w.Entry.Skipped, MaxSkipped)
	require.Equal(t, int64(3), w.Entry.Floor, "ranges 0 and 2 are forgotten")

	again := deliver(offsets.Of(1))
	require.NoError(t, again.Err)
	require.Equal(t, int64(1), again.Tally.DuplicatesSuppressed, "found in the table")
	missing := deliver(offsets.Between(0, 2))
	require.NoError(t, missing.Err)
	require.Equal(t, int64(2), missing.Tally.RowsStored, "not found in the table")
	require.NoError(t, w.Check())

	w.Traits.Provenance = false
	var e *Error
	require.ErrorAs(t, deliver(offsets.Of(0)).Err, &e)
	require.Equal(t, ReasonOffsetUnproven, e.Reason)

	w.Traits.Provenance, w.Traits.RowsStay = true, false
	w.Table.Rows = map[int64]int{}
	require.ErrorAs(t, deliver(offsets.Of(0)).Err, &e)
	require.Equal(t, ReasonOffsetUnproven, e.Reason, "absence is no proof where rows disappear")
}

// TestLateGapsAreBounded: W6. A late batch with gaps takes single offsets out of
// a skipped range; what it leaves behind is no more than the ledger holds, and
// what is forgotten is looked for.
func TestLateGapsAreBounded(t *testing.T) {
	w := world.New()
	w.Rules.ChunkLimit.Rows = 100
	deliver := func(of offsets.Set) {
		v := w.Start(of, "w"+of.String(), nil)
		for v.Step.Op != OpDone {
			w.Next(v, world.Fine)
		}
		require.NoError(t, v.Step.Outcome.Err)
		require.LessOrEqual(t, len(w.Entry.Skipped), MaxSkipped)
	}
	deliver(offsets.Of(1000))
	var even, all offsets.Set
	for o := int64(0); o < 1000; o += 2 {
		even = even.Append(o)
	}
	deliver(even)
	require.Positive(t, w.Entry.Floor)
	all = offsets.Between(0, 1000)
	deliver(all)
	require.NoError(t, w.Check())
	require.Len(t, w.Table.Rows, 1001)
}

// TestSendWindowEndsByTheWallClock: D20. The monotonic clock stands still while
// the machine under a zombie is frozen.
func TestSendWindowEndsByTheWallClock(t *testing.T) {
	w := world.New()
	w.Now = time.Now()
	v := w.Start(offsets.Of(0), "A", nil)
	for v.Step.Op != OpInsert {
		w.Next(v, world.Fine)
	}
	end := v.Step.Send.NotAfter
	require.Equal(t, end.Round(0), end, "no monotonic reading")
}

// TestBatchMustAscend: a batch that is not strictly ascending is refused whole.
func TestBatchMustAscend(t *testing.T) {
	w := world.New()
	batch := w.Records(offsets.Of(1, 2))
	batch[1].Offset = 1
	_, step := Start(w.Rules, Invocation{Lane: w.Lane(), Batch: batch}, w.Now)
	var e *Error
	require.ErrorAs(t, step.Outcome.Err, &e)
	require.Equal(t, ReasonOutOfOrder, e.Reason)
}

// TestSchemaFault: a batch of which most records do not fit is a schema fault:
// nothing is announced, stored or lettered.
func TestSchemaFault(t *testing.T) {
	w := world.New()
	w.Poison = offsets.Between(0, 10)
	v := w.Start(offsets.Between(0, 19), "A", nil)
	for v.Step.Op != OpDone {
		w.Next(v, world.Fine)
	}
	var e *Error
	require.ErrorAs(t, v.Step.Outcome.Err, &e)
	require.Equal(t, ReasonSchemaFault, e.Reason)
	require.Zero(t, w.Entry.Version)
	require.Empty(t, w.Letters)
}

// TestSuccessNeedsAFreshEntry: V15. A batch that a remembered entry calls
// settled is not answered with success before the ledger was read.
func TestSuccessNeedsAFreshEntry(t *testing.T) {
	w := world.New()
	run := func(cached *Entry) Outcome {
		v := w.Start(offsets.Of(0), "A", cached)
		for v.Step.Op != OpDone {
			w.Next(v, world.Fine)
		}
		return v.Step.Outcome
	}
	first := run(nil)
	require.NoError(t, first.Err)
	w.Advance(10 * time.Minute)
	bumped, err := w.Entry.Bump(w.Now)
	require.NoError(t, err)
	bumped.Version++
	w.Entry, w.Table.Rows = bumped, map[int64]int{}

	second := run(&first.Entry)
	require.NoError(t, second.Err)
	require.Equal(t, 1, w.Table.Rows[0], "ingested again by the new generation")
}

// TestLedgerTextIsBounded: the messages of very many letters are dropped
// before the entry grows past what a ledger item can hold; the codes stay.
func TestLedgerTextIsBounded(t *testing.T) {
	refused := make([]Refusal, 5000)
	for i := range refused {
		refused[i] = Refusal{Offset: int64(i), Code: "c", Message: "a message of some forty bytes, more or less"}
	}
	bounded := BoundText(refused)
	total := 0
	for i, r := range bounded {
		require.Equal(t, refused[i].Code, r.Code)
		total += len(r.Message)
	}
	require.LessOrEqual(t, total, MaxLetterText)
	require.NotEmpty(t, bounded[0].Message)
}

// TestRefusalNeedsAFreshEntry: a remembered entry that speaks against the batch
// is read again before anybody is called.
func TestRefusalNeedsAFreshEntry(t *testing.T) {
	w := world.New()
	w.Entry = Entry{Generation: 1, Guarantee: ExactlyOnce, Version: 7, Writer: "rebased"}
	for name, stale := range map[string]Entry{
		"outrun":          {Generation: 1, Guarantee: AtLeastOnce, Version: 6},
		"another server":  {Generation: 1, Guarantee: ExactlyOnce, Version: 6, ServerUUID: "s0"},
		"recreated topic": {Generation: 1, Guarantee: ExactlyOnce, Version: 6, Next: 9, Samples: []Sample{{Offset: 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			v := w.Start(offsets.Of(0), name, &stale)
			require.Equal(t, OpLoad, v.Step.Op)
		})
	}
	v := w.Start(offsets.Of(0), "A", &Entry{Generation: 1, Guarantee: AtLeastOnce, Version: 6})
	for v.Step.Op != OpDone {
		w.Next(v, world.Fine)
	}
	require.NoError(t, v.Step.Outcome.Err)
	require.Equal(t, 1, w.Table.Rows[0])
}

// While letters of a lane are redriven no new generation begins, also where the lane
// would begin it by itself, for a topic that was made again.
func TestALaneThatIsHeld(t *testing.T) {
	w := world.New()
	require.NoError(t, w.Set("recreate=new-generation"))
	deliver := func() error {
		v := w.Start(offsets.Between(0, 4), "A", nil)
		for v.Step.Op != OpDone {
			w.Next(v, world.Fine)
		}
		return v.Step.Outcome.Err
	}
	require.NoError(t, deliver())
	require.NoError(t, w.Do(world.Action{Do: world.Recreate}))
	until := w.Now.Add(10 * time.Minute)
	w.Entry = w.Entry.Hold(until).Hold(until.Add(-time.Minute))
	require.Equal(t, until, w.Entry.HeldUntil, "it is never held for less")
	for range 10 {
		_, err := w.Entry.Bump(w.Now)
		require.ErrorContains(t, err, "letters of this one are being redriven (decidable after")
		require.ErrorContains(t, deliver(), "a new generation is announced")
		w.Advance(time.Minute)
	}
	require.NoError(t, w.Do(world.Action{Do: world.Truncate}))
	w.Advance(time.Millisecond)
	require.NoError(t, deliver())
	require.EqualValues(t, 2, w.Entry.Generation)
	require.Zero(t, w.Entry.HeldUntil)
}
