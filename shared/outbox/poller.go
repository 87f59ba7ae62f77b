package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Rules are how a poller works. Zero fields take the defaults.
type Rules struct {
	// Rows and Bytes bound one transaction; 1000 and 8 MiB.
	Rows  int
	Bytes int
	// Poll is the wait after a look that found nothing; 20 ms.
	Poll time.Duration
	// Keep is how often the cursor is written while there are no rows: what is
	// behind it may be removed from the table; 30 s.
	Keep time.Duration
	// Reserve is how long before its end a run begins no more transactions; half
	// of it is for the last one, half for leaving none open; 4 s.
	Reserve time.Duration
	// Initialise makes a shard without a cursor start there; "" refuses it.
	Initialise Origin
	// DeadLetters is the topic of rows that cannot be published; "" halts the
	// shard at the first of them.
	DeadLetters string
	// Wait waits between two looks. nil is a timer; a wake-up by NOTIFY can take
	// its place.
	Wait func(ctx context.Context, d time.Duration)
	// Observe is told of every transaction that holds rows; nil is nobody.
	Observe func(Commit)
}

// Origin is where a cursor starts.
type Origin string

// The origins. FromCursor keeps the position of the present cursor: rows that an
// open plan may have shown are published again.
const (
	FromBeginning Origin = "beginning"
	FromNow       Origin = "now"
	FromCursor    Origin = "cursor"
)

func (r Rules) withDefaults() Rules {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&r.Poll, 20*time.Millisecond)
	set(&r.Keep, 30*time.Second)
	set(&r.Reserve, 4*time.Second)
	if r.Rows == 0 {
		r.Rows = 1000
	}
	if r.Bytes == 0 {
		r.Bytes = 8 << 20
	}
	if r.Wait == nil {
		r.Wait = wait
	}
	return r
}

func (r Rules) validate() error {
	switch {
	case r.Rows < 1 || r.Bytes < 1:
		return fmt.Errorf("a transaction of %d rows and %d bytes: both must be positive", r.Rows, r.Bytes)
	case r.Poll < 0 || r.Keep < 0 || r.Reserve < 0:
		return errors.New("poll, keep and reserve must not be negative")
	case r.Initialise != "" && r.Initialise != FromBeginning && r.Initialise != FromNow:
		return fmt.Errorf("initialise from %q: %s or %s", r.Initialise, FromBeginning, FromNow)
	}
	if r.DeadLetters != "" {
		if err := legalTopic(r.DeadLetters); err != nil {
			return fmt.Errorf("dead-letter topic %q: %w", r.DeadLetters, err)
		}
	}
	return nil
}

// Shard is one part of the aggregates.
type Shard struct {
	Index int // from 0
	Of    int
	// By is the column that the rows are divided by. One shard has them all: there,
	// it means nothing.
	By string
}

func (s Shard) String() string { return fmt.Sprintf("%d of %d", s.Index, s.Of) }

// by is what a cursor remembers of By.
func (s Shard) by() string {
	if s.Of == 1 {
		return ""
	}
	return s.By
}

// Poller publishes the rows of one shard. It is not safe for concurrent use;
// any number of pollers may compete for a shard, in any process.
type Poller struct {
	shard  Shard
	table  Table
	log    Log
	router *Router
	rules  Rules
	tally  Tally
	// waiting is since when the oldest row that was read is unpublished.
	waiting time.Time
	// seqs are the last values of the sequence, at the first look and now.
	seqs [2]int64
}

// NewPoller returns a poller.
func NewPoller(shard Shard, table Table, log Log, router *Router, rules Rules) (*Poller, error) {
	if shard.Of < 1 || shard.Index < 0 || shard.Index >= shard.Of {
		return nil, fmt.Errorf("shard %s: an index from 0, below the number of shards", shard)
	}
	if shard.Of > 1 && shard.By == "" {
		return nil, fmt.Errorf("shard %s: by which column are the rows divided?", shard)
	}
	rules = rules.withDefaults()
	if err := rules.validate(); err != nil {
		return nil, err
	}
	return &Poller{shard: shard, table: table, log: log, router: router, rules: rules}, nil
}

// Run publishes until the given moment, or until ctx is done; at its return no
// transaction is open. A poller that was fenced returns nil: another one works.
// A *Refusal stands until a person has decided. Any other error is one that
// outlasted the run; the next run goes on where this one stopped.
func (p *Poller) Run(ctx context.Context, until time.Time) (Tally, error) {
	p.tally, p.waiting, p.seqs = Tally{}, time.Time{}, [2]int64{-1, -1}
	work, cancel := context.WithDeadline(ctx, until.Add(-p.rules.Reserve))
	defer cancel()
	err := p.run(work, until)

	closing, cancelClose := context.WithDeadline(context.WithoutCancel(ctx), until)
	defer cancelClose()
	closeErr := p.log.Close(closing)

	if !p.waiting.IsZero() {
		p.tally.Lag = time.Since(p.waiting)
	}
	if p.shard.Of == 1 && p.tally.Rows == 0 && p.waiting.IsZero() {
		p.tally.SilentSeqs = p.seqs[1] - p.seqs[0]
	}
	var refusal *Refusal
	switch {
	case errors.Is(err, ErrFenced):
		p.tally.Fenced = 1
		return p.tally, nil // what it left open, the other one has ended
	case errors.As(err, &refusal):
		p.tally.Halted = 1
	}
	if closeErr != nil && !errors.Is(closeErr, ErrFenced) {
		err = errors.Join(err, fmt.Errorf("leave no transaction open: %w", closeErr))
	}
	return p.tally, err
}

// run holds one session after the other: any error but a refusal and a fence
// leaves it open whether the transaction was committed, and the log says.
func (p *Poller) run(ctx context.Context, until time.Time) error {
	if err := p.table.Check(ctx); err != nil {
		return fmt.Errorf("check the table: %w", err)
	}
	const shortest, longest = 100 * time.Millisecond, 5 * time.Second
	pause := shortest
	for {
		s := &session{Poller: p, commitBy: until.Add(-p.rules.Reserve / 2)}
		err := s.run(ctx)
		var refusal *Refusal
		switch {
		case err == nil, errors.Is(err, ErrFenced), errors.As(err, &refusal):
			return err
		case ctx.Err() != nil && s.worked && !s.committing:
			return nil // the end of the run cut a look short
		case ctx.Err() != nil:
			return err
		case s.worked:
			pause = shortest
		}
		p.rules.Wait(ctx, pause)
		pause = min(2*pause, longest)
		if ctx.Err() != nil {
			return err
		}
		p.tally.Reopened++
	}
}

// wait waits for a time or for ctx to be done.
func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
