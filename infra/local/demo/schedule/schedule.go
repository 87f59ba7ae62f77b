// Package schedule spreads faults over a run by its progress, not by the clock:
// they come at the same places on a slow machine and on a fast one.
package schedule

import (
	"context"
	"sync/atomic"
	"time"
)

// Fault is one thing that goes wrong.
type Fault func(ctx context.Context) error

// Perform performs faults one after the other, evenly over total of progress, and
// ends with the last or with ctx. Error: the first of a fault, unless ctx is over.
func Perform(ctx context.Context, progress *atomic.Int64, total int64, faults []Fault) error {
	for i, fault := range faults {
		if !reached(ctx, progress, total*int64(i+1)/int64(len(faults)+1)) {
			return nil
		}
		if err := fault(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// reached waits for a progress; false when ctx ended first.
func reached(ctx context.Context, progress *atomic.Int64, mark int64) bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for progress.Load() < mark {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return ctx.Err() == nil
}
