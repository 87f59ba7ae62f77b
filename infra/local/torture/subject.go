package torture

import (
	"context"
	"fmt"
	"time"

	"oncehouse/infra/local/oracle"
	"oncehouse/infra/local/stack"
	"oncehouse/shared/delivery"
)

// Subject is one way for records into a table, made of processes that can be
// killed. Its methods are called by one goroutine, Feed and Progress by others.
type Subject interface {
	// Feed puts n more records where the way begins.
	Feed(ctx context.Context, n int64) error
	// Progress says how far things are.
	Progress(ctx context.Context) (Progress, error)
	// Spares reports whether the subject lacks the part that a moment is of.
	Spares(m Moment) bool
	// Strike performs a step and repairs what it broke; it returns how many
	// processes it killed.
	Strike(ctx context.Context, step Step) (killed int, err error)
	// Finish ends the processes in order, when everything is settled, and
	// counts.
	Finish(ctx context.Context) (Outcome, error)
	// Stop ends everything at once. It may be called after Finish.
	Stop()
}

// Progress in records; Rows counts those of the table.
type Progress struct{ Produced, Settled, Rows int64 }

// Outcome is what a subject came to.
type Outcome struct {
	oracle.Count
	// Misordered are rows before one that must come before them, where there is
	// an order to keep.
	Misordered int64
	// Repeats is how many records are equal to one before them.
	Repeats int64
	// Problems are some of what is wrong, for people.
	Problems []string
}

// The subjects' names.
const (
	ExactlyOnce = string(delivery.ExactlyOnce)
	AtLeastOnce = string(delivery.AtLeastOnce)
	AtMostOnce  = string(delivery.AtMostOnce)
	Naive       = "naive-token"
	KafkaTable  = "kafka-table-engine"
	// PostgresChain begins at a commit in PostgreSQL and ends in exactly-once.
	PostgresChain = "postgres-chain"
)

// entry is a subject that can be had.
type entry struct {
	name string
	open func(ctx context.Context, l *lab) (Subject, error)
}

// subjects are all there are, in the order of the run.
func subjects() []entry {
	return []entry{
		{ExactlyOnce, ours(delivery.ExactlyOnce)},
		{AtLeastOnce, ours(delivery.AtLeastOnce)},
		{AtMostOnce, ours(delivery.AtMostOnce)},
		{Naive, openNaive},
		{KafkaTable, openKafkaTable},
		{PostgresChain, openPostgres},
	}
}

// Names are the subjects' names.
func Names() []string {
	var names []string
	for _, e := range subjects() {
		names = append(names, e.name)
	}
	return names
}

// lab is what the subjects share.
type lab struct {
	Options
	stack *stack.Stack
}

// say prints one line. Output that cannot be written does not change a result.
func (o *Options) say(format string, args ...any) {
	_, _ = fmt.Fprintf(o.Out, format+"\n", args...)
}

// wait sleeps unless ctx ends first, and reports whether it did not.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
