// Package memory has an outbox table and a Kafka in memory, for tests: they keep
// the rules that the poller rests on (snapshots, transaction ids that a crash
// hands out again, epochs, transactions whose aborted records stay readable) and
// can be made to fail before and after each effect.
//
//	db, kafka := memory.NewDatabase(), memory.NewKafka()
//	kafka.Create("outbox.event.order", 3, 1<<20)
//	poller, err := outbox.NewPoller(shard, db.Table(shard), kafka.Log("orders", shard), router, outbox.Rules{})
//	tx := db.Begin()
//	tx.Insert(outbox.Row{ID: "1", AggregateType: "order", AggregateID: &id, Payload: payload})
//	tx.Commit()
package memory

import (
	"context"
	"errors"
)

// Fault is how an effect goes.
type Fault int

// The faults. Of Lost, the effect is applied and its answer does not come.
const (
	Fine Fault = iota
	Refused
	Lost
)

// ErrFault is what a faulty effect returns.
var ErrFault = errors.New("injected fault")

// Effects is asked before each effect of a table or a log. It may block, which
// is how a test interleaves pollers, and it may end the goroutine, which is a
// crash. nil is no faults.
type Effects func(ctx context.Context, name string) Fault

// perform applies an effect as the fault wants it.
func (e Effects) perform(ctx context.Context, name string, apply func() error) error {
	fault := Fine
	if e != nil {
		fault = e(ctx, name)
	}
	if fault == Refused {
		return ErrFault
	}
	if err := apply(); err != nil {
		return err
	}
	if fault == Lost {
		return ErrFault
	}
	return ctx.Err()
}
