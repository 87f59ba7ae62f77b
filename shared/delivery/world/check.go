package world

import (
	"errors"
	"fmt"
	"maps"

	"oncehouse/shared/delivery"
	"oncehouse/shared/offsets"
)

// Check returns the first invariant that does not hold, nil when all do. What a
// single step can break (I3, I4, I5, I8, an answer without its records) is seen
// when it happens; what a state can be (I1, I2, I7) is looked at here.
func (w *World) Check() error {
	if w.broken != nil || w.Rules.Guarantee == delivery.AtLeastOnce {
		return w.broken
	}
	perPosition := map[Row]bool{}
	for o, n := range w.Table.Rows {
		if n > 1 {
			return fmt.Errorf("I1: offset %d is stored %d times", o, n)
		}
		if w.Letters[o] != "" {
			return fmt.Errorf("I1: offset %d is stored and lettered", o)
		}
		if p, ok := w.Positions[o]; ok {
			if perPosition[p] {
				return fmt.Errorf("I1: outbox position %v is stored twice", p)
			}
			perPosition[p] = true
		}
	}
	if w.Rules.Guarantee != delivery.ExactlyOnce || w.Entry.Generation <= w.emptied {
		return nil
	}
	for o := range w.seen.All() {
		if o >= w.Entry.Floor && o < w.Entry.Next && !w.Entry.Skipped.Contains(o) && !w.settled(o) {
			return fmt.Errorf("I2, I7: offset %d counts as settled and is nowhere", o)
		}
	}
	return nil
}

// settled: the record is in the table, or its row of the outbox is, or it is a
// dead letter, or it needs no row.
func (w *World) settled(o int64) bool {
	if w.Table.Rows[o] > 0 || w.Letters[o] != "" || w.Nulls.Contains(o) {
		return true
	}
	p, ok := w.Positions[o]
	if !ok {
		return false
	}
	for stored := range w.Table.Rows {
		if q, ok := w.Positions[stored]; ok && q == p {
			return true
		}
	}
	return false
}

func (w *World) violate(err error) {
	if w.broken == nil {
		w.broken = err
	}
}

// checkAnswer: no success is answered for an unsettled record; with partial
// responses a batch that fails answers it for its leading ones.
func (w *World) checkAnswer(v *Invocation) {
	if v.Step.Op != delivery.OpDone || v.epoch != w.epoch || w.Rules.Guarantee == delivery.AtMostOnce {
		return
	}
	left := v.Step.Outcome.Settled
	if v.Step.Outcome.Err == nil && int64(left) != v.Batch.Len() {
		w.violate(fmt.Errorf("I2: success was answered for %d records of %s", left, v.Batch))
	}
	for o := range v.Batch.All() {
		if left--; left < 0 {
			return
		}
		if !w.settled(o) {
			w.violate(fmt.Errorf("I2: success was answered for offset %d, and it is nowhere", o))
			return
		}
	}
}

// checkHold: no generation begins over a hold, and none is let go of.
func (w *World) checkHold(before, after delivery.Entry) {
	over := w.Now.After(before.HeldUntil.Add(-w.Rules.ClockMargin)) // as some clock has it
	switch {
	case after.Generation != before.Generation && !over:
		w.violate(fmt.Errorf("I1: generation %d began while letters of the one before are redriven", after.Generation))
	case after.Generation == before.Generation && after.HeldUntil.Before(before.HeldUntil):
		w.violate(errors.New("I1: a write let go of a lane that is held"))
	}
}

// checkWrite: what one conditional write may make of an entry.
func (w *World) checkWrite(before, after delivery.Entry) {
	if after.Generation != before.Generation {
		if before.Intent != nil {
			w.violate(fmt.Errorf("I4: generation %d began over the intent %s", after.Generation, before.Intent.Offsets))
		}
		return
	}
	if after.Next < before.Next {
		w.violate(fmt.Errorf("I3: next went from %d to %d", before.Next, after.Next))
	}
	if before.Intent == nil {
		return
	}
	switch {
	case after.Intent == nil && after.Next <= before.Intent.Through:
		w.violate(fmt.Errorf("I4: intent %s left without being settled", before.Intent.Offsets))
	case after.Intent != nil && !before.Intent.Offsets.Equal(after.Intent.Offsets):
		w.violate(fmt.Errorf("I4: intent %s became %s", before.Intent.Offsets, after.Intent.Offsets))
	}
}

// checkOrder: a row becomes visible while its chunk is the announced one. As
// chunks are announced in offset order, rows become visible in it.
func (w *World) checkOrder(o int64) {
	in := w.Entry.Intent
	if w.Rules.Guarantee == delivery.ExactlyOnce && w.Table.Rows[o] == 1 && (in == nil || !in.Offsets.Contains(o)) {
		w.violate(fmt.Errorf("I8: offset %d landed when no intent that holds it was open", o))
	}
}

// sent is every token ever sent and its record set. Clones of a world share it:
// a token names one set in all their futures (I5).
type sent struct{ of map[string]string }

func (s *sent) note(token string, of offsets.Set) error {
	if token == "" {
		return nil
	}
	set, ok := s.of[token]
	if !ok {
		s.of[token] = of.String()
		return nil
	}
	if set != of.String() {
		return fmt.Errorf("I5: token %s sent for %s and for %s", token, set, of)
	}
	return nil
}

// Sent is the record set of every token that was ever sent.
func (w *World) Sent() map[string]string { return maps.Clone(w.sent.of) }
