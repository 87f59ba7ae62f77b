// Package demo shows what the guarantees are worth: it produces a click stream,
// runs it through the local stack while it kills the function and the engine
// and cuts batches anew, and then counts.
//
//	proofs, err := demo.Run(ctx, s, demo.Options{Records: 1_000_000, Out: os.Stdout})
//
// What a run came to is decided by package oracle, which does not ask the sink.
//
// All guarantees meet the same faults (faults.go). Exactly-once has to come out
// exact; that at-least-once doubles and at-most-once loses is not arranged, but
// it is what their orders of steps do when they are interrupted there.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"time"

	"oncehouse/infra/local/broker"
	"oncehouse/infra/local/clickstream"
	"oncehouse/infra/local/demo/schedule"
	"oncehouse/infra/local/engine"
	"oncehouse/infra/local/engine/faults"
	"oncehouse/infra/local/mapping"
	"oncehouse/infra/local/oracle"
	"oncehouse/infra/local/stack"
	"oncehouse/shared/delivery"
)

// Options of a demo.
type Options struct {
	// Root is the repository, for the table's DDL.
	Root string
	// Dir is the stack's directory, as it is shown.
	Dir string
	// Records in all: 8 in 10 exactly once, the rest half and half.
	Records int64
	// Seed of the stream and of the faults.
	Seed uint64
	// Out takes progress and results.
	Out io.Writer
	// Terminal: progress is one line that is written over.
	Terminal bool
}

// events is about how many there are at least in a run, so that small runs too
// have one for each fault.
const events = 60

// stalled is how long a run may stand still: much longer than any recovery.
const stalled = time.Minute

// run is one guarantee on its way.
type run struct {
	Options
	stack     *stack.Stack
	guarantee delivery.Guarantee
	pipeline  stack.Pipeline
	records   int64
	producer  *oracle.Producer
	chaos     *chaos
	begun     time.Time
}

// Run runs all guarantees, one after the other, and returns what each came to.
// Error: a run could not be finished; that it was not exact is no error.
func Run(ctx context.Context, s *stack.Stack, options Options) ([]Proof, error) {
	var proofs []Proof
	for _, part := range []struct {
		guarantee delivery.Guarantee
		tenths    int64
	}{{delivery.ExactlyOnce, 8}, {delivery.AtLeastOnce, 1}, {delivery.AtMostOnce, 1}} {
		r := newRun(s, options, part.guarantee, options.Records*part.tenths/10)
		proof, err := r.run(ctx)
		if err != nil {
			return proofs, fmt.Errorf("run %s: %w", part.guarantee, err)
		}
		proofs = append(proofs, proof)
	}
	printTable(options.Out, proofs)
	return proofs, showQuery(ctx, options.Out, s.Engine.URL(), options.Dir)
}

func newRun(s *stack.Stack, options Options, guarantee delivery.Guarantee, records int64) *run {
	name := strings.ReplaceAll(string(guarantee), "-", "_")
	generator := clickstream.Generator{Seed: options.Seed, Size: 300, PoisonEvery: 1000, TombstoneEvery: 500}
	p := stack.Pipeline{
		// No other run has the topic, wherever the broker is.
		Name: name, Topic: fmt.Sprintf("demo-%s-%x", guarantee, time.Now().UnixMilli()), Partitions: 12,
		Table: "clicks_" + name, Guarantee: guarantee,
		BatchSize:   int(min(max(records/events, 50), mapping.MaxBatchSize)),
		Concurrency: 3, Timeout: 15 * time.Second,
		// Short times make recovery quick to watch: after a kill a lane is
		// undecided for send window + insert timeout + clock margin.
		Settings: map[string]string{"INSERT_TIMEOUT": "3s", "SEND_WINDOW": "1s", "CLOCK_MARGIN": "200ms"},
	}
	return &run{
		Options: options, stack: s, guarantee: guarantee, records: records, pipeline: p,
		producer: &oracle.Producer{Generator: generator, Topic: p.Topic, Partitions: p.Partitions},
	}
}

func (r *run) run(ctx context.Context) (Proof, error) {
	if err := engine.CreateTable(ctx, r.stack.Engine.URL(), filepath.Join(r.Root, "events", "clicks.sql"), r.pipeline.Table, ""); err != nil {
		return Proof{}, err
	}
	proxy, err := faults.New(ctx, r.stack.Engine.Addr())
	if err != nil {
		return Proof{}, err
	}
	defer func() { _ = proxy.Close() }()
	r.pipeline.Settings["CLICKHOUSE_URL"] = "http://" + proxy.Addr()
	r.chaos = &chaos{
		engine: r.stack.Engine, proxy: proxy, environments: r.pipeline.Environments(), batchSize: r.pipeline.BatchSize,
		random: rand.New(rand.NewPCG(r.Seed, uint64(len(r.guarantee)))), //nolint:gosec // a schedule, not a secret
	}
	running, err := r.stack.StartPipeline(ctx, r.pipeline, func(cfg *mapping.Config) {
		cfg.Recut, cfg.OnDelivery = r.chaos.recut, r.chaos.delivered
	})
	if err != nil {
		return Proof{}, err
	}
	defer broker.DeleteTopics(ctx, r.stack.Broker, r.pipeline.Topic)
	defer running.Stop()
	r.chaos.function, r.chaos.mapping = running.Function, running.Mapping
	r.begun = time.Now()
	if err := r.producer.Open(r.stack.Broker.Addrs()); err != nil {
		return Proof{}, err
	}
	defer r.producer.Close()
	if err := r.deliver(ctx, running); err != nil {
		return Proof{}, err
	}
	return r.prove(ctx, time.Since(r.begun))
}

// deliver produces and delivers everything, under faults.
func (r *run) deliver(ctx context.Context, running *stack.Running) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	broken := make(chan error, 1)
	go func() { broken <- schedule.Perform(ctx, &r.chaos.settled, r.records, r.chaos.schedule()) }()
	stopProgress := r.showProgress(ctx)
	defer stopProgress()
	if err := r.producer.Produce(ctx, r.records); err != nil {
		return err
	}
	if err := r.drain(ctx, running.Mapping, broken); err != nil {
		return err
	}
	cancel()
	// Zombies may still be at work: they are part of the result.
	within, done := context.WithTimeout(context.WithoutCancel(ctx), 2*r.pipeline.Timeout)
	defer done()
	return errors.Join(running.Mapping.Shutdown(within), running.Function.Shutdown(within))
}

// drain waits until everything is delivered. Error: the schedule could not be
// performed, or nothing moves any more.
func (r *run) drain(ctx context.Context, m *mapping.Mapping, broken <-chan error) error {
	drained := make(chan error, 1)
	go func() { drained <- m.Drained(ctx) }()
	tick := time.NewTicker(stalled)
	defer tick.Stop()
	last := int64(-1)
	for {
		select {
		case err := <-broken: // the schedule is over
			if err != nil {
				return err
			}
			broken = nil
		case err := <-drained:
			return err
		case <-tick.C:
			settled := r.chaos.settled.Load()
			if settled == last {
				return fmt.Errorf("nothing moved for %s; the function's last error: %s", stalled, r.chaos.lastErrorText())
			}
			last = settled
		}
	}
}

// prove looks at what there is.
func (r *run) prove(ctx context.Context, took time.Duration) (Proof, error) {
	r.say("%s: all is delivered in %.1f s; every row and every dead letter is being compared with what was produced", r.guarantee, took.Seconds())
	truth, err := r.producer.Truth(ctx, r.pipeline.Name)
	if err != nil {
		return Proof{}, err
	}
	c := oracle.NewChecker(truth)
	rows, err := engine.Query(ctx, r.stack.Engine.URL(), fmt.Sprintf(oracle.RowQuery, r.pipeline.Table))
	if err != nil {
		return Proof{}, err
	}
	defer func() { _ = rows.Close() }()
	if err := c.Rows(rows); err != nil {
		return Proof{}, err
	}
	letters, err := r.stack.ReceiveLetters(ctx)
	if err != nil {
		return Proof{}, err
	}
	for _, body := range letters {
		c.Letter(body)
	}
	p := Proof{
		Guarantee: r.guarantee, Count: c.Finish(), Kills: r.chaos.kills.Load(), Recuts: r.chaos.recuts.Load(),
		Seconds: math.Round(took.Seconds()*100) / 100,
	}
	for _, problem := range c.Problems {
		r.say("  e.g. %s", problem)
	}
	return p, nil
}
