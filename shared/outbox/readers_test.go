package outbox_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/kafka"
	"oncehouse/shared/outbox/memory"
	"oncehouse/shared/outbox/outboxtest"
)

// sink reads partitions piece by piece, aborted records too.
type sink struct {
	*outboxtest.Sink
	next map[kafka.TopicPartition]int64
}

func newSink(k *memory.Kafka) *sink {
	s, err := outboxtest.NewSink(func(tp kafka.TopicPartition) []kafka.Record {
		records, _ := k.Read(tp.Topic, tp.Partition, 0, false)
		return records
	})
	if err != nil {
		panic(err)
	}
	return &sink{Sink: s, next: map[kafka.TopicPartition]int64{}}
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
	require.NoError(t, s.Deliver(t.Context(), tp, batch))
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

// consumer reads committed records only.
type consumer struct {
	next map[kafka.TopicPartition]int64
	rows []outboxtest.Kept
}

func newConsumer() *consumer { return &consumer{next: map[kafka.TopicPartition]int64{}} }

func (c *consumer) read(k *memory.Kafka, tp kafka.TopicPartition) {
	batch, next := k.Read(tp.Topic, tp.Partition, c.next[tp], true)
	for i := range batch {
		c.rows = append(c.rows, outboxtest.Keep(tp, &batch[i]))
	}
	c.next[tp] = next
}

func (c *consumer) readAll(k *memory.Kafka) {
	for tp := range partitions(k) {
		c.read(k, tp)
	}
}

// tally sums up schedules.
type tally struct {
	rows            int
	aborted         int64
	sink, committed outboxtest.Verdict
}

func (t *tally) add(u tally) {
	t.rows += u.rows
	t.aborted += u.aborted
	t.sink.Add(u.sink)
	t.committed.Add(u.committed)
}

func (t tally) bad() bool {
	return t.sink != outboxtest.Verdict{} || t.committed != outboxtest.Verdict{}
}

func (t tally) String() string {
	return fmt.Sprintf("%d rows, %d repeats dropped; uncommitted reader: %+v; committed reader: %+v", t.rows, t.aborted, t.sink, t.committed)
}

// judge compares what the readers kept with what was committed.
func (s *simulation) judge() tally {
	return tally{
		rows: s.app.Rows(), aborted: s.sink.Dropped,
		sink: s.app.Judge(s.sink.Kept()), committed: s.app.Judge(s.committed.rows),
	}
}
