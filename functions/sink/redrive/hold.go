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

// patience is how long a lane may be at work without a gap before its letters are
// left to another run: those of other lanes wait behind them.
const patience = 10 * time.Second

// hold is a lane that is held, or on the way to it.
type hold struct {
	done  chan struct{} // closed when what follows is known
	entry delivery.Entry
	err   error
}

// entry is what the ledger says of a lane; of one that is held, what it said then:
// neither its generation nor its ghosts change.
func (x *run) entry(ctx context.Context, lane delivery.Lane) (delivery.Entry, error) {
	x.holding.Lock()
	h, ok := x.held[lane.Key()]
	x.holding.Unlock()
	if ok {
		<-h.done
		return h.entry, h.err
	}
	return x.Ports.Ledger.Load(ctx, lane)
}

// hold holds a lane until the run is over, and returns its entry.
func (x *run) hold(ctx context.Context, lane delivery.Lane) (delivery.Entry, error) {
	key := lane.Key()
	x.holding.Lock()
	h, ok := x.held[key]
	if !ok {
		h = &hold{done: make(chan struct{})}
		x.held[key] = h
	}
	x.holding.Unlock()
	if ok {
		<-h.done
		return h.entry, h.err
	}
	h.entry, h.err = x.take(ctx, lane)
	if h.err != nil && !errors.Is(h.err, errBusy) { // the next letter may have better luck
		x.holding.Lock()
		delete(x.held, key)
		x.holding.Unlock()
	}
	close(h.done)
	return h.entry, h.err
}

// take tries to hold a lane while there is time, and while it does not go on and on.
func (x *run) take(ctx context.Context, lane delivery.Lane) (delivery.Entry, error) {
	var failed error
	first, begun := int64(-1), time.Now()
	for !x.over() {
		entry, err := x.Ports.Ledger.Load(ctx, lane)
		if err != nil {
			return entry, err
		}
		// Whoever holds it so long: what was written below shows here, too.
		next := entry.Hold(x.stop)
		if entry.Version > 0 && next.HeldUntil.Equal(entry.HeldUntil) {
			return entry, nil
		}
		if first < 0 {
			first = entry.Version
		}
		if entry.Version != first && time.Since(begun) > patience {
			break
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
