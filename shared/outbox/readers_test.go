package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	ledger "oncehouse/shared/ledger/memory"
	"oncehouse/shared/offsets"
	"oncehouse/shared/outbox/memory"
)

// stored is what a reader kept of a record.
type stored struct {
	tp  kafka.TopicPartition
	id  string
	key string
}

func keep(tp kafka.TopicPartition, r *kafka.Record) stored {
	id, _ := r.FindHeader("id")
	return stored{tp, string(id), string(r.Key)}
}

// sink is a reader that sees aborted records, with the real machinery of the
// sink's deliveries: a ledger entry a partition, and its drop rule.
type sink struct {
	engine *delivery.Engine
	target *target
	next   map[kafka.TopicPartition]int64
	tally  delivery.Tally
}

func newSink(k *memory.Kafka) *sink {
	target := &target{}
	ports := delivery.Ports{Ledger: ledger.New(), Target: target, Source: source{k}}
	engine, err := delivery.NewEngine(delivery.DefaultRules(), ports)
	if err != nil {
		panic(err)
	}
	return &sink{engine: engine, target: target, next: map[kafka.TopicPartition]int64{}}
}

// read delivers up to n records, from a little before where the last delivery
// ended.
func (s *sink) read(t *testing.T, k *memory.Kafka, tp kafka.TopicPartition, n, back int) {
	t.Helper()
	batch, _ := k.Read(tp.Topic, tp.Partition, max(0, s.next[tp]-int64(back)), false)
	if len(batch) == 0 {
		return
	}
	batch = batch[:min(n, len(batch))]
	traits, err := s.engine.Preflight(t.Context())
	require.NoError(t, err)
	lane := delivery.Lane{Pipeline: "p", Cluster: "c", TopicPartition: tp}
	report := s.engine.Deliver(t.Context(), traits, lane, batch, time.Now().Add(2*time.Minute))
	require.NoError(t, report.Err)
	s.tally.AbortedDuplicatesSuppressed += report.Tally.AbortedDuplicatesSuppressed
	s.next[tp] = max(s.next[tp], batch[len(batch)-1].Offset+1)
}

func (s *sink) readAll(t *testing.T, k *memory.Kafka) {
	t.Helper()
	for tp := range partitions(k) {
		for {
			batch, next := k.Read(tp.Topic, tp.Partition, s.next[tp], false)
			if len(batch) == 0 {
				s.next[tp] = next
				break
			}
			s.read(t, k, tp, len(batch), 0)
		}
	}
}

func partitions(k *memory.Kafka) map[kafka.TopicPartition]bool {
	all := map[kafka.TopicPartition]bool{}
	for _, topic := range []string{simTopic, "dead"} {
		for p := range k.Partitions(topic) {
			all[kafka.TopicPartition{Topic: topic, Partition: int32(p)}] = true
		}
	}
	return all
}

// target is a table without faults.
type target struct{ rows []stored }

func (*target) Preflight(context.Context) (delivery.Traits, error) {
	return delivery.Traits{Provenance: true, RowsStay: true, ServerUUID: "s"}, nil
}

func (*target) Encode(_ delivery.Lane, records []kafka.Record, _ delivery.Limit) (*delivery.Chunk, error) {
	return &delivery.Chunk{Consumed: len(records), Rows: len(records), Payload: records}, nil
}

func (t *target) Insert(_ context.Context, in delivery.Insert) error {
	for _, r := range in.Chunk.Payload.([]kafka.Record) {
		t.rows = append(t.rows, keep(in.Lane.TopicPartition, &r))
	}
	return nil
}

func (*target) Probe(context.Context, delivery.Lane, offsets.Set) (offsets.Set, error) {
	return nil, nil
}

// source reads again what the sink asks for.
type source struct{ kafka *memory.Kafka }

func (s source) Fetch(_ context.Context, tp kafka.TopicPartition, of offsets.Set) ([]kafka.Record, error) {
	records, _ := s.kafka.Read(tp.Topic, tp.Partition, 0, false)
	return slices.DeleteFunc(records, func(r kafka.Record) bool { return !of.Contains(r.Offset) }), nil
}

func (source) TopicID(context.Context, string) (string, error) { return "the same", nil }

// consumer reads committed records only.
type consumer struct {
	next map[kafka.TopicPartition]int64
	rows []stored
}

func newConsumer() *consumer { return &consumer{next: map[kafka.TopicPartition]int64{}} }

func (c *consumer) read(k *memory.Kafka, tp kafka.TopicPartition) {
	batch, next := k.Read(tp.Topic, tp.Partition, c.next[tp], true)
	for i := range batch {
		c.rows = append(c.rows, keep(tp, &batch[i]))
	}
	c.next[tp] = next
}

func (c *consumer) readAll(k *memory.Kafka) {
	for tp := range partitions(k) {
		c.read(k, tp)
	}
}

// verdicts over what a reader kept.
type faults struct{ lost, doubled, misordered int }

type tally struct {
	rows            int
	aborted         int64
	sink, committed faults
}

func (t *tally) add(u tally) {
	t.rows += u.rows
	t.aborted += u.aborted
	for _, f := range []struct{ to, from *faults }{{&t.sink, &u.sink}, {&t.committed, &u.committed}} {
		f.to.lost += f.from.lost
		f.to.doubled += f.from.doubled
		f.to.misordered += f.from.misordered
	}
}

func (t tally) bad() int {
	return t.sink.lost + t.sink.doubled + t.sink.misordered + t.committed.lost + t.committed.doubled + t.committed.misordered
}

func (t tally) String() string {
	return fmt.Sprintf("%d rows, %d repeats dropped; uncommitted reader: %+v; committed reader: %+v", t.rows, t.aborted, t.sink, t.committed)
}

// judge compares what the readers kept with what was committed.
func (s *simulation) judge() tally {
	return tally{
		rows: len(s.rows), aborted: s.sink.tally.AbortedDuplicatesSuppressed,
		sink: s.compare(s.sink.target.rows), committed: s.compare(s.committed.rows),
	}
}

func (s *simulation) compare(rows []stored) (f faults) {
	count := map[string]int{}
	type place struct {
		tp  kafka.TopicPartition
		key string
	}
	last := map[place]int64{}
	for _, r := range rows {
		count[r.id]++
		if !s.rows[r.id] {
			f.doubled++ // rolled back, and yet published
		}
		p := place{r.tp, r.key}
		if s.seqs[r.id] < last[p] {
			f.misordered++
			s.log("%s is misordered", r.id)
		}
		last[p] = max(last[p], s.seqs[r.id])
	}
	for id := range s.rows {
		switch n := count[id]; {
		case n == 0 && !s.deleted[id]:
			f.lost++
			s.log("%s is lost", id)
		case n > 1:
			f.doubled += n - 1
			s.log("%s is doubled", id)
		}
	}
	return f
}
