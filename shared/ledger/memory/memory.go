// Package memory is a delivery.Ledger inside the process, for tests. It keeps
// the same promises as the real one (both pass ledgertest) and breaks them on
// request:
//
//	l := memory.New()
//	l.Control(func(c memory.Call) memory.Fault {
//		if c.Op == memory.Write && c.Entry.Intent != nil {
//			return memory.LoseAnswer // it lands, and the caller does not know
//		}
//		return memory.Pass
//	})
//
// The function given to Control is called outside the ledger's lock and may use
// the ledger itself: to let another writer in just before a write, it writes.
package memory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"oncehouse/shared/delivery"
	"oncehouse/shared/ledger"
)

// ErrInjected is the error of a call that a Fault made fail, except Conflict.
var ErrInjected = errors.New("injected ledger fault")

// Op is what a call does.
type Op int

// The calls of a ledger.
const (
	Load Op = iota + 1
	Write
)

// Call is one call as the control function sees it.
type Call struct {
	Op   Op
	Lane delivery.Lane
	// Entry is what a Write would store; the zero Entry for a Load.
	Entry delivery.Entry
	// Seq counts the calls of the ledger from 1.
	Seq int
}

// Fault is what happens to one call.
type Fault int

// The faults. To the caller FailBefore and LoseAnswer look the same: that is
// the point.
const (
	// Pass lets the call through.
	Pass Fault = iota
	// FailBefore fails the call with ErrInjected; nothing was stored.
	FailBefore
	// LoseAnswer does the call and fails it with ErrInjected all the same. A
	// write whose condition fails is lost in the same way.
	LoseAnswer
	// Conflict fails a write with delivery.ErrConflict and stores nothing: a
	// writer that another instance already undid. A Load passes.
	Conflict
)

// Ledger is a ledger in memory. Its methods are safe for concurrent use. Use New.
type Ledger struct {
	mu      sync.Mutex
	entries map[string]delivery.Entry
	control func(Call) Fault
	calls   int
}

var _ delivery.Ledger = (*Ledger)(nil)

// New returns an empty ledger.
func New() *Ledger { return &Ledger{entries: map[string]delivery.Entry{}} }

// Control has fn decide on every further call; nil lets all of them pass.
func (l *Ledger) Control(fn func(Call) Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.control = fn
}

// Seed stores entry as it is, whatever is there and whatever its version: the
// state a test starts from.
func (l *Ledger) Seed(lane delivery.Lane, entry delivery.Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries[lane.Key()] = clone(entry)
}

// Load implements delivery.Ledger.
func (l *Ledger) Load(ctx context.Context, lane delivery.Lane) (delivery.Entry, error) {
	if err := ctx.Err(); err != nil {
		return delivery.Entry{}, fmt.Errorf("read ledger entry of lane %s: %w", lane.Key(), err)
	}
	fault := l.decide(Call{Op: Load, Lane: lane})
	if fault == FailBefore || fault == LoseAnswer {
		return delivery.Entry{}, fmt.Errorf("read ledger entry of lane %s: %w", lane.Key(), ErrInjected)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return clone(l.entries[lane.Key()]), nil
}

// Write implements delivery.Ledger.
func (l *Ledger) Write(ctx context.Context, lane delivery.Lane, entry delivery.Entry) error {
	if err := ledger.Check(lane, entry); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("write ledger entry of lane %s: %w", lane.Key(), err)
	}
	entry = clone(entry)
	fault := l.decide(Call{Op: Write, Lane: lane, Entry: clone(entry)})
	switch fault {
	case FailBefore:
		return fmt.Errorf("write ledger entry of lane %s: %w", lane.Key(), ErrInjected)
	case Conflict:
		return fmt.Errorf("write ledger entry of lane %s at version %d: %w", lane.Key(), entry.Version, delivery.ErrConflict)
	}
	err := l.swap(lane, entry)
	if fault == LoseAnswer {
		return fmt.Errorf("write ledger entry of lane %s: answer lost: %w", lane.Key(), ErrInjected)
	}
	return err
}

func (l *Ledger) swap(lane delivery.Lane, entry delivery.Entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if found := l.entries[lane.Key()].Version; found != entry.Version-1 {
		return fmt.Errorf("write ledger entry of lane %s at version %d, found %d: %w",
			lane.Key(), entry.Version, found, delivery.ErrConflict)
	}
	l.entries[lane.Key()] = entry
	return nil
}

// decide asks the control function, outside the lock.
func (l *Ledger) decide(c Call) Fault {
	l.mu.Lock()
	l.calls++
	c.Seq = l.calls
	control := l.control
	l.mu.Unlock()
	if control == nil {
		return Pass
	}
	return control(c)
}

// clone returns an entry that shares no memory with e, in the form in which it
// comes back from a real ledger: times in UTC, empty collections nil.
func clone(e delivery.Entry) delivery.Entry {
	e.Skipped = cloneSlice(e.Skipped)
	e.Samples = cloneSlice(e.Samples)
	e.Positions = cloneMap(e.Positions)
	e.Deadline, e.HeldUntil = clean(e.Deadline), clean(e.HeldUntil)
	if e.Intent != nil {
		in := *e.Intent
		in.Offsets = cloneSlice(in.Offsets)
		in.Settled = cloneSlice(in.Settled)
		in.Letters = cloneSlice(in.Letters)
		for i := range in.Letters {
			in.Letters[i].Message = ledger.Clean(in.Letters[i].Message)
		}
		in.Send.Offsets = cloneSlice(in.Send.Offsets)
		in.Positions = cloneMap(in.Positions)
		in.Created = clean(in.Created)
		if in.Last != nil {
			last := *in.Last
			in.Last = &last
		}
		e.Intent = &in
	}
	if e.Recreation != nil {
		r := *e.Recreation
		r.Since = clean(r.Since)
		e.Recreation = &r
	}
	return e
}

func clean(t time.Time) time.Time { return t.Round(0).UTC() }

func cloneSlice[S ~[]E, E any](s S) S {
	if len(s) == 0 {
		return nil
	}
	return slices.Clone(s)
}

func cloneMap[M ~map[K]V, K comparable, V any](m M) M {
	if len(m) == 0 {
		return nil
	}
	return maps.Clone(m)
}
