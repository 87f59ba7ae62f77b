package outbox_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/kafka"
	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/memory"
	"oncehouse/shared/outbox/outboxtest"
)

var (
	simSeeds = flag.Uint64("sim.seeds", 150, "how many random schedules TestSimulation runs per kind")
	simFrom  = flag.Uint64("sim.from", 1, "the first seed")
)

// TestSimulation runs competing pollers against random schedules: writers whose
// transactions overlap, roll back and commit late, rows deleted at any time,
// partitions added, limits changed, effects that fail or whose answers are lost,
// pollers stopped and killed between any two effects, a database that crashes.
// What comes out is read by a sink that sees aborted records, and by a consumer
// that does not. Nothing may be lost, doubled or out of order.
func TestSimulation(t *testing.T) {
	for name, shape := range simShapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sum tally
			for seed := *simFrom; seed < *simFrom+*simSeeds; seed++ {
				s := newSimulation(seed, shape)
				got, err := s.run(t)
				require.NoError(t, err, "seed %d\n%s", seed, s.trace.String())
				require.False(t, got.bad(), "seed %d: %s\n%s", seed, got, s.trace.String())
				sum.add(got)
			}
			t.Logf("%s", sum)
			require.Positive(t, sum.rows)
			require.Positive(t, sum.aborted, "some aborted records must have been seen")
		})
	}
}

// TestSimulationControls turns the protocol's parts off, one at a time: the same
// simulation must find out.
func TestSimulationControls(t *testing.T) {
	for name, control := range simControls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sum tally
			seed := uint64(1)
			for ; !control.missed(sum) && seed <= 3000; seed++ {
				s := newSimulation(seed, control.shape)
				got, err := s.run(t)
				require.NoError(t, err, "seed %d\n%s", seed, s.trace.String())
				sum.add(got)
			}
			t.Logf("%d seeds: %s", seed-1, sum)
			require.True(t, control.missed(sum), "nothing went wrong in %s", sum)
		})
	}
}

var simShapes = map[string]func(*simulation){
	"one shard":                  func(*simulation) {},
	"two shards":                 func(s *simulation) { s.shards = 2 },
	"two shards become three":    func(s *simulation) { s.shards, s.moveTo = 2, 3 },
	"three shards become one":    func(s *simulation) { s.shards, s.moveTo = 3, 1 },
	"shards are divided anew":    func(s *simulation) { s.shards, s.moveTo, s.moveBy = 2, 2, "customer" },
	"batches of one record":      func(s *simulation) { s.batchRows = 1 },
	"dead letters":               func(s *simulation) { s.rules.DeadLetters, s.app.Oversize = "dead", true },
	"the database crashes":       crashing,
	"the cursor moves when idle": func(s *simulation) { s.rules.Keep = 1 },
}

var simControls = map[string]struct {
	shape  func(*simulation)
	missed func(tally) bool
}{
	"no plan": {
		func(s *simulation) { s.wrapLog = func(l *memory.Log) outbox.Log { return noPlan{l} } },
		func(sum tally) bool { return sum.sink.Lost+sum.sink.Doubled > 0 },
	},
	"counters as positions": {
		func(s *simulation) { s.wrapLog = func(l *memory.Log) outbox.Log { return &counters{Log: l, s: s} } },
		func(sum tally) bool { return sum.sink.Lost > 0 },
	},
	"producing on after a failed record": {
		func(s *simulation) { s.careless, s.batchRows = true, 1 },
		func(sum tally) bool { return sum.sink.Lost > 0 && sum.committed.Lost > 0 },
	},
	"a cursor of seq": {
		func(s *simulation) { s.wrapTable = func(t *memory.Table) outbox.Table { return seqCursor{t} } },
		func(sum tally) bool { return sum.committed.Lost > 0 },
	},
	"a cursor of (xid, seq) below the oldest transaction": {
		func(s *simulation) { s.wrapTable = func(t *memory.Table) outbox.Table { return xidCursor{t} } },
		func(sum tally) bool { return sum.committed.Misordered > 0 },
	},
	"a snapshot that is not flushed": {
		func(s *simulation) {
			crashing(s)
			s.wrapTable = func(t *memory.Table) outbox.Table { return unflushed{t} }
		},
		func(sum tally) bool { return sum.committed.Lost > 0 },
	},
}

// crashing lets the database crash, and windows end at every moment.
func crashing(s *simulation) { s.crashes, s.rules.Keep = true, 1 }

const simTopic = "outbox.event.order"

// simulation is one schedule.
type simulation struct {
	rng    *rand.Rand
	db     *memory.Database
	kafka  *memory.Kafka
	router *outbox.Router
	rules  outbox.Rules
	trace  strings.Builder

	shards, batchRows int
	moveTo            int // the shards that it shall have, 0 for those it has
	by, moveBy        string
	careless, crashes bool
	wrapLog           func(*memory.Log) outbox.Log
	wrapTable         func(*memory.Table) outbox.Table

	pollers []*actor
	mover   *actor
	named   int
	calm    bool // no more faults

	app       *outboxtest.Application
	sink      *sink
	committed *consumer
}

func newSimulation(seed uint64, shape func(*simulation)) *simulation {
	router, err := outbox.NewRouter(outbox.Routing{Placement: "type:header:eventType"})
	if err != nil {
		panic(err)
	}
	s := &simulation{
		rng: rand.New(rand.NewPCG(seed, 11)), db: memory.NewDatabase(), kafka: memory.NewKafka(), router: router,
		shards: 1, by: "aggregateid", moveBy: "aggregateid",
		rules: outbox.Rules{Keep: time.Hour, Initialise: outbox.FromBeginning},
	}
	s.rules.Rows = 1 + s.rng.IntN(4)
	s.app = outboxtest.NewApplication(s.db, s.rng)
	s.app.Trace = &s.trace
	shape(s)
	s.kafka.Create(simTopic, 2, 1000)
	s.kafka.Create("dead", 1, 450)
	s.sink, s.committed = newSink(s.kafka), newConsumer()
	return s
}

func (s *simulation) log(format string, args ...any) { fmt.Fprintf(&s.trace, format+"\n", args...) }

// run plays the schedule and says what is wrong with what came out.
func (s *simulation) run(t *testing.T) (tally, error) {
	defer func() {
		for _, a := range s.pollers {
			s.kill(a)
		}
	}()
	for range 300 {
		s.act(t)
	}
	if err := s.drain(t); err != nil {
		return tally{}, err
	}
	return s.judge(), nil
}

func (s *simulation) act(t *testing.T) {
	switch k := s.rng.IntN(100); {
	case k < 25:
		s.app.Step()
	case k < 27:
		s.app.Delete()
	case k == 27 && s.kafka.Partitions(simTopic) < 5:
		s.log("a partition is added")
		s.kafka.Create(simTopic, s.kafka.Partitions(simTopic)+1, 1000)
	case k == 28 && s.app.Oversize:
		s.kafka.Create(simTopic, 0, []int32{1000, 500}[s.rng.IntN(2)])
	case k == 29 && s.crashes:
		s.app.Crash()
	case k < 34 && len(s.pollers) < 2*s.shards:
		s.start()
	case k == 34 && s.moveTo > 0 && s.mover == nil:
		s.mover = s.startMove()
	case k < 37 && len(s.pollers) > 0:
		a := s.pollers[s.rng.IntN(len(s.pollers))]
		s.log("%s is killed", a.name)
		s.kill(a)
	case k == 37 && len(s.pollers) > 0:
		s.pollers[s.rng.IntN(len(s.pollers))].stop()
	case k < 43:
		s.read(t)
	case len(s.pollers) > 0:
		s.step(s.pollers[s.rng.IntN(len(s.pollers))])
	}
}

// drain ends the faults and lets one poller a shard publish what is left.
func (s *simulation) drain(t *testing.T) error {
	s.log("drain")
	s.calm = true
	s.app.Finish()
	for len(s.pollers) > 0 {
		s.kill(s.pollers[0])
	}
	if s.moveTo > 0 {
		if err := s.drainMove(); err != nil {
			return err
		}
	}
	for shard := range s.shards {
		if err := s.drainShard(shard); err != nil {
			return err
		}
	}
	for range 200 {
		s.read(t)
	}
	s.sink.readAll(t, s.kafka)
	s.committed.readAll(s.kafka)
	return nil
}

// drainShard publishes what is left of a shard.
func (s *simulation) drainShard(shard int) error {
	a := s.startShard(shard)
	for idle := 0; idle < 2; s.step(a) {
		if a.ended {
			return fmt.Errorf("%s stopped: %w", a.name, a.err)
		}
		if a.asks == "wait" {
			idle++
		}
	}
	s.kill(a)
	return nil
}

// drainMove ends the move, or does all of it.
func (s *simulation) drainMove() error {
	for shard := range s.shards {
		var refusal *outbox.Refusal
		err := s.drainShard(shard)
		if errors.As(err, &refusal) && slices.Contains([]string{outbox.ReasonMoving, outbox.ReasonShards, outbox.ReasonShardKey}, refusal.Reason) {
			continue // closed, or moved
		}
		if err != nil {
			return err
		}
	}
	a := s.startMove()
	for s.mover = a; !a.ended; {
		s.step(a)
	}
	if a.err != nil {
		return fmt.Errorf("move to %d shards: %w", s.moveTo, a.err)
	}
	return nil
}

// actor is a poller that does one effect at a time, when it is told to.
type actor struct {
	name     string
	asks     string // the effect that it waits for
	ended    bool   // by itself, if finished
	finished bool
	err      error
	tally    outbox.Tally
	stop     context.CancelFunc

	turn chan verdict
	out  chan string // the next effect; "" when it has ended
}

type verdict struct {
	fault memory.Fault
	crash bool
}

func (s *simulation) start() { s.startShard(s.rng.IntN(s.shards)) }

func (s *simulation) startShard(index int) *actor {
	a, shard := s.newActor(), outbox.Shard{Index: index, Of: s.shards, By: s.by}
	poller, err := s.poller(a, shard)
	if err != nil {
		panic(err)
	}
	s.log("%s starts on shard %s", a.name, shard)
	return s.launch(a, func(ctx context.Context) error {
		var err error
		a.tally, err = poller.Run(ctx, time.Now().Add(time.Hour))
		return err
	})
}

// startMove starts the move to other shards, or what is left of it.
func (s *simulation) startMove() *actor {
	a := s.newActor()
	s.log("%s moves the outbox to %d shards", a.name, s.moveTo)
	return s.launch(a, func(ctx context.Context) error {
		return outbox.Reshard(ctx, outbox.Shard{Of: s.moveTo, By: s.moveBy}, func(shard outbox.Shard) (*outbox.Poller, error) { return s.poller(a, shard) }, time.Now().Add(time.Hour))
	})
}

func (s *simulation) newActor() *actor {
	s.named++
	return &actor{name: fmt.Sprintf("p%d", s.named), turn: make(chan verdict), out: make(chan string)}
}

func (s *simulation) poller(a *actor, shard outbox.Shard) (*outbox.Poller, error) {
	effects := func(_ context.Context, name string) memory.Fault {
		a.out <- name
		v := <-a.turn
		if v.crash {
			runtime.Goexit()
		}
		return v.fault
	}
	table, log := s.db.Table(shard), s.kafka.Log("orders", shard)
	table.Effects, log.Effects, log.BatchRows, log.Careless = effects, effects, s.batchRows, s.careless
	rules := s.rules
	rules.Wait = func(ctx context.Context, _ time.Duration) { effects(ctx, "wait") }
	var port outbox.Log = log
	if s.wrapLog != nil {
		port = s.wrapLog(log)
	}
	var rows outbox.Table = table
	if s.wrapTable != nil {
		rows = s.wrapTable(table)
	}
	return outbox.NewPoller(shard, rows, port, s.router, rules)
}

// launch runs an actor up to its first effect.
func (s *simulation) launch(a *actor, run func(context.Context) error) *actor {
	ctx, stop := context.WithCancel(context.Background())
	a.stop = stop
	go func() {
		defer func() { a.out <- "" }()
		a.err = run(ctx)
		a.finished = true
	}()
	s.pollers = append(s.pollers, a)
	s.await(a)
	return a
}

// await runs the actor up to its next effect.
func (s *simulation) await(a *actor) {
	if a.asks = <-a.out; a.asks == "" {
		a.ended = true
		a.stop()
		s.log("%s ends: %v %+v", a.name, a.err, a.tally)
		s.pollers = slices.DeleteFunc(s.pollers, func(o *actor) bool { return o == a })
		if a == s.mover {
			s.mover = nil
			if a.finished && a.err == nil {
				s.shards, s.by, s.moveTo = s.moveTo, s.moveBy, 0
			}
		}
	}
}

func (s *simulation) step(a *actor) {
	v := verdict{}
	if !s.calm && a.asks != "wait" {
		switch s.rng.IntN(20) {
		case 0:
			v.fault = memory.Refused
		case 1:
			v.fault = memory.Lost
		}
	}
	s.log("%s %s %v", a.name, a.asks, v.fault)
	a.turn <- v
	s.await(a)
}

func (s *simulation) kill(a *actor) {
	if !a.ended {
		a.turn <- verdict{crash: true}
		s.await(a)
	}
}

func (s *simulation) read(t *testing.T) {
	topic := []string{simTopic, "dead"}[s.rng.IntN(2)]
	n := s.kafka.Partitions(topic)
	tp := kafka.TopicPartition{Topic: topic, Partition: int32(s.rng.IntN(n))}
	s.sink.read(t, s.kafka, tp, 1+s.rng.IntN(6), s.rng.IntN(3))
	s.committed.read(s.kafka, tp)
}
