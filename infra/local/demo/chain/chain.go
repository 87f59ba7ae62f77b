// Package chain shows the whole way: from a commit in PostgreSQL to a row in
// ClickHouse, exactly once and in order, while everything on it is killed.
//
//	proof, err := chain.Run(ctx, s, chain.Options{Events: 20_000, Out: os.Stdout})
//
// An order service (infra/local/orders, a process of its own) commits orders and
// their events together; the real poller publishes them; two event source
// mappings hand them to two real sinks, one of them with the records of aborted
// attempts, one without, because nobody says which of the two Lambda does.
//
// What a run came to is decided by PostgreSQL and ClickHouse alone (proof.go):
// every row of the outbox as it was committed against every row of both tables,
// value by value, and for each order in the sequence of its own count.
package chain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"oncehouse/infra/local/broker"
	"oncehouse/infra/local/demo/schedule"
	"oncehouse/infra/local/engine"
	"oncehouse/infra/local/mapping"
	"oncehouse/infra/local/orders"
	"oncehouse/infra/local/stack"
)

// Options of a run.
type Options struct {
	// Root is the repository, for the table's DDL.
	Root string
	// Dir is the stack's directory: the logs are there.
	Dir string
	// Program has the subcommand orders; "" is the program that runs now.
	Program string
	// Events to commit, at least.
	Events int64
	// Rate is the most transactions a second; 0: as many as there can be.
	Rate int
	// Seed of the orders and of the faults.
	Seed uint64
	// Out takes progress and results.
	Out io.Writer
	// Terminal: progress is one line that is written over.
	Terminal bool
}

// stalled is how long a run may stand still before it is proven as it is: much
// longer than any recovery.
const stalled = 2 * time.Minute

// run is one run on its way.
type run struct {
	Options
	stack    *stack.Stack
	outbox   *stack.RunningOutbox
	readers  []*reader
	service  *service
	chaos    *chaos
	begun    time.Time
	template string
}

// reader is one way to read the topic, and the table that it fills.
type reader struct {
	name      string // as it is shown
	table     string
	committed bool
	running   *stack.Running
	stored    int64 // so far
}

// Run runs the chain. Error: the run could not be finished; that it was not exact
// is no error.
func Run(ctx context.Context, s *stack.Stack, options Options) (Proof, error) {
	r := &run{Options: options, stack: s, readers: []*reader{
		{name: "uncommitted", table: "orders_uncommitted"},
		{name: "committed only", table: "orders_committed", committed: true},
	}}
	proof, err := r.run(ctx)
	if err != nil {
		return proof, fmt.Errorf("run the chain: %w", err)
	}
	return proof, nil
}

func (r *run) run(ctx context.Context) (Proof, error) {
	if err := r.prepare(ctx); err != nil {
		return Proof{}, err
	}
	defer broker.DeleteTopics(ctx, r.stack.Broker, append(r.outbox.Outbox.Topics(), "oncehouse.outbox."+r.outbox.Outbox.Name)...)
	r.begun = time.Now()
	if err := r.work(ctx); err != nil {
		return Proof{}, err
	}
	r.say("chain: all is delivered in %.1f s; every committed row of PostgreSQL is being compared with ClickHouse", time.Since(r.begun).Seconds())
	return r.prove(ctx)
}

// prepare starts what the stack does not have yet, up to the order service.
func (r *run) prepare(ctx context.Context) error {
	if err := r.stack.StartPostgres(ctx); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, r.stack.Postgres.URL())
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	if err := errors.Join(orders.Prepare(ctx, conn), conn.Close(ctx)); err != nil {
		return err
	}
	// No other run has the names, wherever the broker is.
	name := fmt.Sprintf("demo-%x", time.Now().UnixMilli())
	r.chaos = newChaos(r)
	outbox := stack.Outbox{
		Name: name, Template: name + ".${routedByValue}", Partitions: 6, Fast: true, Timeout: 10 * time.Second,
		Settings: map[string]string{"DEADLINE_MARGIN": "200ms", "RESERVE": "1s", "TRANSACTION_ROWS": "500"},
	}
	r.template = outbox.Template
	if r.outbox, err = r.stack.StartOutbox(ctx, outbox, r.chaos.polled); err != nil {
		return err
	}
	for _, reader := range r.readers {
		if err := r.startReader(ctx, reader, outbox.Topics()[0]); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) startReader(ctx context.Context, reader *reader, topic string) error {
	err := engine.CreateTable(ctx, r.stack.Engine.URL(), filepath.Join(r.Root, "events", "orders.sql"), reader.table, "")
	if err != nil {
		return err
	}
	reader.running, err = r.stack.StartPipeline(ctx, stack.Pipeline{
		Name: reader.table, Topic: topic, Partitions: 6, Table: reader.table,
		BatchSize: 2000, Concurrency: 2, Timeout: 15 * time.Second,
		// After a kill a lane is undecided for the sum of the three.
		Settings: map[string]string{"INSERT_TIMEOUT": "2s", "SEND_WINDOW": "1s", "CLOCK_MARGIN": "200ms"},
	}, func(cfg *mapping.Config) {
		cfg.ReadCommitted, cfg.OnDelivery = reader.committed, r.chaos.delivered
	})
	return err
}

// work has the service commit, and everything killed, until all is stored.
func (r *run) work(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.service = r.startService(ctx)
	broken := make(chan error, 1)
	go func() { broken <- schedule.Perform(ctx, &r.chaos.committed, r.Events, r.chaos.schedule()) }()
	if err := r.drain(ctx, broken); err != nil {
		return err
	}
	cancel()
	r.outbox.Scheduler.Stop()
	within, done := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer done()
	errs := []error{r.outbox.Function.Shutdown(within)}
	for _, reader := range r.readers { // zombies may still be at work: they are part of the result
		errs = append(errs, reader.running.Mapping.Shutdown(within), reader.running.Function.Shutdown(within))
	}
	return errors.Join(errs...)
}

// drain waits until the service is done, the schedule performed, and everything
// stored, or until nothing moves any more.
func (r *run) drain(ctx context.Context, broken <-chan error) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	moved, shown, last := time.Now(), time.Now(), int64(-1)
	serving := true
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-broken:
			if err != nil {
				return err
			}
			broken = nil
		case err := <-r.service.done:
			if err != nil {
				return err
			}
			serving = false
		case <-tick.C:
		}
		sum := r.look(ctx)
		if time.Since(shown) >= time.Second {
			shown = time.Now()
			r.progress()
		}
		if sum != last {
			moved, last = time.Now(), sum
		}
		if time.Since(moved) > stalled {
			r.say("chain: nothing moved for %s; the poller's last error: %s; the sinks': %s", stalled, r.chaos.pollerError(), r.chaos.sinkError())
			return nil // the proof says what is missing
		}
		if !serving && broken == nil && r.stored() {
			r.endProgress()
			return nil
		}
	}
}

// look counts what is committed and stored, and returns a number that changes
// when anything does. What does not answer was just killed.
func (r *run) look(ctx context.Context) int64 {
	within, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	r.chaos.committed.Store(max(r.countCommitted(within), r.chaos.committed.Load()))
	sum := r.chaos.committed.Load() + r.chaos.kills()
	for _, reader := range r.readers {
		if n, err := engine.Count(within, r.stack.Engine.URL(), reader.table); err == nil {
			reader.stored = n
		}
		sum += reader.stored
	}
	return sum
}

// stored reports whether every table has as many rows as are committed.
func (r *run) stored() bool {
	for _, reader := range r.readers {
		if reader.stored < r.chaos.committed.Load() {
			return false
		}
	}
	return true
}

// countCommitted is -1 where the database does not answer.
func (r *run) countCommitted(ctx context.Context) int64 {
	conn, err := pgx.Connect(ctx, r.stack.Postgres.URL())
	if err != nil {
		return -1
	}
	defer func() { _ = conn.Close(ctx) }()
	n, err := orders.Committed(ctx, conn)
	if err != nil {
		return -1
	}
	return n
}

// embedded is the broker in this process, nil for another one.
func (r *run) embedded() *broker.EmbeddedBroker {
	b, _ := r.stack.Broker.(*broker.EmbeddedBroker)
	return b
}

func newRandom(seed uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a schedule, not a secret
}
