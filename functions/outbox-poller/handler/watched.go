package handler

import (
	"context"
	"sync"

	"oncehouse/shared/outbox"
)

// watchedLog knows the cursor that was committed last. Retention goes by it.
type watchedLog struct {
	outbox.Log

	mu     sync.Mutex
	cursor *outbox.Cursor
}

// Open implements outbox.Log.
func (l *watchedLog) Open(ctx context.Context) (outbox.Standing, error) {
	standing, err := l.Log.Open(ctx)
	if err == nil {
		l.set(standing.Cursor)
	}
	return standing, err
}

// Commit implements outbox.Log.
func (l *watchedLog) Commit(ctx context.Context, t outbox.Transaction) error {
	err := l.Log.Commit(ctx, t)
	if err == nil {
		cursor := t.Cursor
		l.set(&cursor)
	}
	return err
}

func (l *watchedLog) set(c *outbox.Cursor) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cursor = c
}

// committed is the cursor, nil before there is one.
func (l *watchedLog) committed() *outbox.Cursor {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cursor
}
