package kafkalog_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncehouse/infra/local/broker"
	"oncehouse/shared/kafka"
	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/kafkalog"
	"oncehouse/shared/outbox/logtest"
	"oncehouse/shared/outbox/memory"
	"oncehouse/shared/outbox/outboxtest"
)

// chaos lets pollers compete for a shard while an application writes, rows are
// deleted and partitions added. Each poller's connections are cut before or after
// a request of any kind, and some of the cuts are the poller's end: it is gone
// without having closed anything.
type chaos struct {
	*world
	db     *memory.Database
	router *outbox.Router
	rules  outbox.Rules

	grown                                 atomic.Bool
	runs, crashes, cuts, fenced, reopened atomic.Int64
}

func runChaos(t *testing.T, b broker.Broker, name string, runs int64) {
	t.Helper()
	router, err := outbox.NewRouter(outbox.Routing{Placement: "type:header:eventType"})
	require.NoError(t, err)
	c := &chaos{
		world: newWorld(t, b, name), db: memory.NewDatabase(), router: router,
		rules: outbox.Rules{Rows: 7, Reserve: 200 * time.Millisecond, Initialise: outbox.FromBeginning, Poll: time.Millisecond},
	}
	app := outboxtest.NewApplication(c.db, rand.New(rand.NewPCG(1, 2)))
	app.AggregateType = name
	written := make(chan struct{})
	var pollers sync.WaitGroup
	for i := range 2 {
		pollers.Go(func() { c.compete(t, uint64(i), written) })
	}
	for step := 0; c.runs.Load() < runs && !t.Failed(); step++ { // a poller that fails ends
		app.Step()
		switch {
		case step%50 == 0:
			app.Delete()
		case c.runs.Load() == runs/2 && !c.grown.Swap(true):
			c.Grow(t)
		case step%5 == 0:
			time.Sleep(time.Millisecond) // the pollers need something to wait for
		}
	}
	app.Finish()
	close(written)
	pollers.Wait()
	c.finish(t)
	c.judge(t, app)
}

// compete runs one poller after the other until everything is written.
func (c *chaos) compete(t *testing.T, seed uint64, written <-chan struct{}) {
	rng := rand.New(rand.NewPCG(seed, 3))
	for {
		select {
		case <-written:
			return
		default:
		}
		c.runs.Add(1)
		w := &wire{after: int64(10 + rng.IntN(120)), deadly: rng.IntN(2) == 0, answered: rng.IntN(2) == 0}
		config := c.config()
		config.Options = []kgo.Opt{kgo.Dialer(w.dial)}
		log, err := kafkalog.New(config)
		require.NoError(t, err)
		poller, err := outbox.NewPoller(outbox.Shard{Of: 1}, c.db.Table(outbox.Shard{Of: 1}), &cuttable{Log: log, wire: w}, c.router, c.rules)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		w.onDeath(cancel)
		tally, err := poller.Run(ctx, time.Now().Add(time.Duration(500+rng.IntN(2500))*time.Millisecond))
		cancel()
		var refusal *outbox.Refusal
		if err != nil {
			require.NotErrorAs(t, err, &refusal)
		}
		c.fenced.Add(tally.Fenced)
		c.reopened.Add(tally.Reopened)
		if w.dead.Load() {
			c.crashes.Add(1)
		}
		c.cuts.Add(w.cuts.Load())
		time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond) // let the other one work
	}
}

// finish publishes what is left.
func (c *chaos) finish(t *testing.T) {
	t.Helper()
	idle := 0
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rules := c.rules
	rules.Wait = func(context.Context, time.Duration) {
		if idle++; idle == 3 {
			cancel()
		}
	}
	poller, err := outbox.NewPoller(outbox.Shard{Of: 1}, c.db.Table(outbox.Shard{Of: 1}), c.Log(t), c.router, rules)
	require.NoError(t, err)
	_, err = poller.Run(ctx, time.Now().Add(time.Minute))
	require.NoError(t, err)
}

func (c *chaos) judge(t *testing.T, app *outboxtest.Application) {
	t.Helper()
	rng := rand.New(rand.NewPCG(5, 6))
	all := map[kafka.TopicPartition][]kafka.Record{}
	var committed []outboxtest.Kept
	seen := 0
	for p := range int32(logtest.Partitions + 1) {
		tp := kafka.TopicPartition{Topic: c.Topic(), Partition: p}
		all[tp] = c.Records(t, p, false)
		seen += len(all[tp])
		records := c.Records(t, p, true)
		for i := range records {
			committed = append(committed, outboxtest.Keep(tp, &records[i]))
		}
	}
	sink, err := outboxtest.NewSink(func(tp kafka.TopicPartition) []kafka.Record { return all[tp] })
	require.NoError(t, err)
	for tp, records := range all {
		for len(records) > 0 {
			n := min(len(records), 1+rng.IntN(20))
			require.NoError(t, sink.Deliver(t.Context(), tp, records[:n]))
			records = records[n:]
		}
	}
	t.Logf("%d rows; %d runs, %d crashes, %d cuts, %d fenced, %d reopened; %d records seen, %d repeats dropped",
		app.Rows(), c.runs.Load(), c.crashes.Load(), c.cuts.Load(), c.fenced.Load(), c.reopened.Load(), seen, sink.Dropped)
	require.Equal(t, outboxtest.Verdict{}, app.Judge(sink.Kept()), "a sink that sees aborted records")
	require.Equal(t, outboxtest.Verdict{}, app.Judge(committed), "a consumer that does not")
	require.Positive(t, c.crashes.Load())
	require.Positive(t, c.fenced.Load())
	require.Positive(t, sink.Dropped, "of %d records none was aborted and seen", seen)
}
