package delivery

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"oncehouse/shared/offsets"
)

// NewEntry is the entry of a lane that the ledger has never seen: everything
// before its first batch will be skipped.
func NewEntry(g Guarantee) Entry { return Entry{Generation: 1, Guarantee: g} }

// settle returns the entry after the whole intent is settled: next passes its
// raw range, what lay between the old next and the range was skipped, and what
// the batch brought of earlier skipped ranges leaves them (I2, I3, I4).
func (e Entry) settle(in Intent) Entry {
	if in.From > e.Next {
		e = e.skip(offsets.Range{First: e.Next, Last: in.From - 1})
	}
	e = e.leaveSkipped(in.Settled)
	e.Next = max(e.Next, in.Through+1)
	if in.Last != nil {
		e.Samples = append(slices.Clone(e.Samples), *in.Last)
		if n := len(e.Samples); n > maxSamples {
			e.Samples = e.Samples[n-maxSamples:]
		}
	}
	e.Positions = movePositions(e.Positions, in.Positions)
	e.Intent = nil
	return e
}

// skip adds a range to the skipped ones.
func (e Entry) skip(r offsets.Range) Entry {
	e.Skipped = e.Skipped.Union(offsets.Set{r})
	return e.boundSkipped()
}

// leaveSkipped takes what is settled out of the skipped ranges. A late batch
// with gaps leaves as many ranges behind as it has gaps.
func (e Entry) leaveSkipped(of offsets.Set) Entry {
	e.Skipped = e.Skipped.Minus(of)
	return e.boundSkipped()
}

// boundSkipped: while there is a range too many the oldest goes, and the floor
// rises to its end: below it, absence is no proof.
func (e Entry) boundSkipped() Entry {
	if n := len(e.Skipped) - maxSkipped; n > 0 {
		e.Floor = max(e.Floor, e.Skipped[n-1].Last+1)
		e.Skipped = e.Skipped[n:]
	}
	return e
}

// extendDeadline returns the entry whose deadline covers a send of this
// invocation. A deadline never goes back: somebody else's send may still land.
func (e Entry) extendDeadline(latest time.Time) Entry {
	if latest.After(e.Deadline) {
		e.Deadline = latest
	}
	return e
}

// Hold returns the entry that begins no new generation before until. A redrive
// writes it before it inserts a letter of the lane, in an insert that lands by then:
// the record would be read again, and stored twice (I1).
func (e Entry) Hold(until time.Time) Entry {
	if until = ceilMillis(until.Round(0)); until.After(e.HeldUntil) {
		e.HeldUntil = until
	}
	return e
}

// Bump begins a new generation: the lane is read again from the start under
// new tokens. Only when nothing can land any more (I1): an open intent, a deadline
// that is not over or letters that are being redriven are an error. What the table
// holds of the lane stays there; unless the caller knows better, it is below Next.
func (e Entry) Bump(now time.Time) (Entry, error) {
	if e.Intent != nil {
		return e, &Error{
			Kind: Fatal, Reason: ReasonIntentOrphaned,
			Message: "a new generation cannot begin while an intent is open: " + e.Intent.describe(),
			Remedy:  "let the pipeline settle the intent (deliver the lane once more), then begin the new generation",
		}
	}
	if !now.After(e.HeldUntil) {
		return e, tooEarly(e.HeldUntil, "a new generation cannot begin while letters of this one are being redriven")
	}
	if !now.After(e.Deadline) {
		return e, tooEarly(e.Deadline, "a new generation cannot begin while an earlier insert may still land")
	}
	e.Generation++
	e.Ghosts = max(e.Ghosts, e.Next)
	e.Next, e.Floor = 0, 0
	e.Skipped, e.Samples, e.Positions, e.Recreation = nil, nil, nil, nil
	e.TopicID, e.HeldUntil = "", time.Time{}
	return e, nil
}

// Rebase makes an entry that another guarantee outran true again: next passes
// the highest stored offset, and of the skipped ranges what is in the table
// leaves them. stored is what a probe of Skipped found. That the highest offset
// is stored says nothing of those below it (a batch may be stored in part), so
// the floor is there, too: what comes again is looked for one by one.
func (e Entry) Rebase(now time.Time, highest int64, stored offsets.Set) (Entry, error) {
	if !now.After(e.Deadline) {
		return e, tooEarly(e.Deadline, "the entry cannot be re-based while an earlier insert may still land")
	}
	if e.Intent != nil && e.Guarantee != AtLeastOnce {
		return e, &Error{
			Kind: Fatal, Reason: ReasonIntentOrphaned,
			Message: "the entry was not outrun by another guarantee, and an intent is open: " + e.Intent.describe(),
			Remedy:  "deliver the lane once more: the intent is finished by itself",
		}
	}
	e.Guarantee = ExactlyOnce
	e.Intent = nil
	e.Next = max(e.Next, highest+1)
	e = e.leaveSkipped(stored)
	e.Floor = e.Next
	return e, nil
}

func tooEarly(until time.Time, message string) error {
	return &Error{Kind: Retryable, Reason: ReasonInDoubt, Until: until, Message: message}
}

// movePositions returns the positions after some of them moved, at most
// maxSources of them: the sources with the lowest windows go first.
func movePositions(positions, moved map[string]Position) map[string]Position {
	if len(moved) == 0 {
		return positions
	}
	all := maps.Clone(positions)
	if all == nil {
		all = make(map[string]Position, len(moved))
	}
	maps.Copy(all, moved)
	if len(all) > maxSources {
		sources := slices.SortedFunc(maps.Keys(all), func(x, y string) int {
			return cmp.Or(cmp.Compare(all[x].Window, all[y].Window), cmp.Compare(x, y))
		})
		for _, s := range sources[:len(sources)-maxSources] {
			delete(all, s)
		}
	}
	return all
}

func (in *Intent) describe() string {
	return "offsets " + in.Offsets.String() + ", attempt " + strconv.Itoa(in.Attempt) + ", token " + in.Token +
		", created " + in.Created.UTC().Format(time.RFC3339Nano)
}
