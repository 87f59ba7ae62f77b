package delivery

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"oncehouse/shared/kafka"
)

// Ports are what an Engine works through. Source may be nil: then there is no
// route to Kafka, and what only the broker could tell blocks. At-least-once does
// without a Ledger, too.
type Ports struct {
	Ledger  Ledger
	Target  Target
	Source  Source
	Letters Letters
}

// Engine performs the steps that a Machine asks for. It lives as long as the
// function's environment and remembers the entries it has seen: a wrong memory
// costs a failed conditional write, never a record. Safe for concurrent use by
// different lanes.
type Engine struct {
	rules Rules
	ports Ports

	mu      sync.Mutex
	entries map[string]Entry
	marked  map[string]bool
}

// NewEngine returns an engine; the rules must be valid.
func NewEngine(rules Rules, ports Ports) (*Engine, error) {
	if err := rules.Validate(); err != nil {
		return nil, err
	}
	if ports.Ledger == nil && rules.Guarantee != AtLeastOnce {
		return nil, fmt.Errorf("%s needs a ledger", rules.Guarantee)
	}
	return &Engine{rules: rules, ports: ports, entries: map[string]Entry{}, marked: map[string]bool{}}, nil
}

// Preflight checks the table; call it once an invocation, before Deliver.
func (e *Engine) Preflight(ctx context.Context) (Traits, error) {
	t, err := e.ports.Target.Preflight(ctx)
	if err != nil {
		return Traits{}, wrap(err, ReasonTarget, "check the table")
	}
	return t, nil
}

// Report is an Outcome with where the time went.
type Report struct {
	Outcome
	Spent Spent
}

// Spent is the time per kind of step.
type Spent struct {
	Encode, Insert, Ledger, Letters, Kafka, Probe, Wait time.Duration
}

// Deliver settles a batch of one lane. stop is the moment by which the
// invocation must be over, safety margin taken off. The outcome's error is nil
// exactly when every record of the batch is settled (I2).
func (e *Engine) Deliver(ctx context.Context, traits Traits, lane Lane, batch []kafka.Record, stop time.Time) Report {
	key := lane.Key()
	inv := Invocation{
		Lane: lane, Batch: batch, Traits: traits, Writer: rand.Text(), Route: e.ports.Source != nil,
		// The margin is for the letters and the commit behind the last insert:
		// one that cannot be committed any more leaves an intent to wait for.
		LastSend: stop.Add(-e.rules.InsertTimeout - e.rules.ClockMargin),
	}
	e.mu.Lock()
	if cached, ok := e.entries[key]; ok {
		inv.Cached = &cached
	}
	inv.Marked = e.marked[key]
	e.mu.Unlock()

	var report Report
	m, step := Start(e.rules, inv, time.Now())
	for step.Op != OpDone {
		begun := time.Now()
		answer := e.perform(ctx, lane, step)
		answer.Now = time.Now()
		report.Spent.add(step.Op, answer.Now.Sub(begun))
		step = m.Next(answer)
	}
	report.Outcome = step.Outcome

	e.mu.Lock()
	defer e.mu.Unlock()
	if report.Err == nil && report.Loaded && report.Entry.Version > 0 {
		e.entries[key] = report.Entry
	} else {
		delete(e.entries, key)
	}
	if report.Err == nil && e.rules.Guarantee == AtLeastOnce {
		e.marked[key] = true
	}
	return report
}

func (e *Engine) perform(ctx context.Context, lane Lane, step Step) Answer {
	var a Answer
	switch step.Op {
	case OpLoad:
		if e.ports.Ledger != nil { // else no lane was ever seen
			a.Entry, a.Err = e.ports.Ledger.Load(ctx, lane)
		}
	case OpWrite:
		a.Err = e.ports.Ledger.Write(ctx, lane, step.Entry)
	case OpWait:
		a.Err = wait(ctx, step.Until)
	case OpEncode:
		a.Chunk, a.Err = e.ports.Target.Encode(lane, step.Records, step.Limit)
	case OpInsert:
		a.Err = e.ports.Target.Insert(ctx, step.Send)
	case OpProbe:
		a.Offsets, a.Err = e.ports.Target.Probe(ctx, lane, step.Offsets)
	case OpFetch:
		a.Records, a.Err = e.ports.Source.Fetch(ctx, lane.TopicPartition, step.Offsets)
	case OpTopicID:
		a.TopicID, a.Err = e.ports.Source.TopicID(ctx, lane.Topic)
		if a.Err == nil && a.TopicID == "" {
			a.Err = errors.New("the broker gave no topic id")
		}
	case OpLetters:
		a.Err = e.ports.Letters.Send(ctx, step.Letters)
	}
	return a
}

// wait returns at the given moment, or early when the invocation ends: the
// next step then finds that out by itself.
func wait(ctx context.Context, until time.Time) error {
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Spent) add(op Op, d time.Duration) {
	switch op {
	case OpEncode:
		s.Encode += d
	case OpInsert:
		s.Insert += d
	case OpLoad, OpWrite:
		s.Ledger += d
	case OpLetters:
		s.Letters += d
	case OpFetch, OpTopicID:
		s.Kafka += d
	case OpProbe:
		s.Probe += d
	case OpWait:
		s.Wait += d
	}
}
