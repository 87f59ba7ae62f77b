package handler

import (
	"context"
	"time"

	"oncehouse/shared/outbox"
)

// Retention looks for something to remove this often.
const (
	retentionFirst    = time.Second
	retentionInterval = 10 * time.Second
)

// startRetention removes what is published while the shard is polled, and ends
// with the returned function. It goes by the last committed cursor: what is behind
// its snapshot was published in a transaction that stands. A failure is told and fails
// nothing: the rows are there tomorrow, too.
func (h *Handler) startRetention(ctx context.Context, retain func(context.Context, outbox.Cursor) (Removed, error), log *watchedLog, r *result) (stop func()) {
	if retain == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		wait := retentionFirst
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			wait = retentionInterval
			cursor := log.committed()
			if cursor == nil || cursor.Done == "" {
				continue
			}
			removed, err := retain(ctx, *cursor)
			r.removed.Rows += removed.Rows
			r.removed.Partitions += removed.Partitions
			if !removed.Until.IsZero() {
				r.removed.Until = removed.Until
			}
			switch {
			case err != nil && ctx.Err() == nil:
				r.retain = err
			case removed.More:
				wait = retentionFirst
			}
		}
	}()
	return func() {
		cancel()
		<-over
	}
}
