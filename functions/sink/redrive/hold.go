package redrive

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"oncehouse/shared/delivery"
)

// A letter is sent under a lane of its own, but its record is the business of the
// lane that it fell out of: when that one is read again from the start, as a new
// generation, the record comes again, too. So before anything of a lane's letters is
// sent, the run holds the lane: it writes into its entry, on condition of the version,
// that no new generation begins before the run is over, by which time all that it
// sent has landed. A generation that began before shows in the entry that is held;
// one that would begin meanwhile is refused (delivery.Entry.Bump).

// entry is what the ledger says of a lane; of one that is held, what it said then:
// neither its generation nor its ghosts change.
func (x *run) entry(ctx context.Context, lane delivery.Lane) (delivery.Entry, error) {
	x.holding.Lock()
	entry, ok := x.held[lane.Key()]
	x.holding.Unlock()
	if ok {
		return entry, nil
	}
	return x.Ports.Ledger.Load(ctx, lane)
}

// hold holds a lane until the run is over, and returns its entry.
func (x *run) hold(ctx context.Context, lane delivery.Lane) (delivery.Entry, error) {
	x.holding.Lock()
	defer x.holding.Unlock()
	if entry, ok := x.held[lane.Key()]; ok {
		return entry, nil
	}
	var failed error
	for !x.over() {
		entry, err := x.Ports.Ledger.Load(ctx, lane)
		if err != nil {
			return entry, err
		}
		// Whoever holds it so long: what was written below shows here, too.
		next := entry.Hold(x.stop)
		if entry.Version > 0 && next.HeldUntil.Equal(entry.HeldUntil) {
			x.held[lane.Key()] = entry
			return entry, nil
		}
		if failed = x.tryHold(ctx, lane, next); delivery.KindOf(failed) == delivery.Fatal {
			return entry, failed
		}
	}
	return delivery.Entry{}, fmt.Errorf("hold lane %s: %w", lane.Key(), cmp.Or(failed, context.DeadlineExceeded))
}

var errBusy = errors.New("an insert of it is under way")

// tryHold writes the entry that holds a lane. A lane that finds its entry changed in
// the midst of an insert has to find out what became of the insert, which may take
// half a minute: so that is waited for.
func (x *run) tryHold(ctx context.Context, lane delivery.Lane, next delivery.Entry) error {
	if next.Intent != nil && !time.Now().After(next.Deadline) {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
		return errBusy
	}
	if next.Version == 0 {
		next = delivery.NewEntry(x.guarantee).Hold(x.stop)
	}
	next.Version++
	next.Writer = rand.Text()
	return x.Ports.Ledger.Write(ctx, lane, next)
}
