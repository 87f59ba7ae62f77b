package memory_test

import (
	"context"
	"testing"
	"time"

	"oncehouse/shared/kafka"
	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/logtest"
	"oncehouse/shared/outbox/memory"
)

const topic = "outbox.event.order"

type world struct {
	kafka *memory.Kafka
	next  memory.Fault // of the next transaction's end
}

func (*world) Topic() string { return topic }

func (w *world) Log(*testing.T) outbox.Log {
	l := w.kafka.Log("orders", outbox.Shard{Of: 1})
	l.Effects = func(_ context.Context, name string) memory.Fault {
		if name != "end" {
			return memory.Fine
		}
		fault := w.next
		w.next = memory.Fine
		return fault
	}
	return l
}

func (w *world) Records(_ *testing.T, partition int32, committed bool) []kafka.Record {
	records, _ := w.kafka.Read(topic, partition, 0, committed)
	return records
}

func (w *world) Grow(*testing.T) { w.kafka.Create(topic, logtest.Partitions+1, 1<<20) }

func (w *world) Restrict(*testing.T) {
	w.kafka.Limit(topic, func(t *outbox.Topic) {
		now := time.Now()
		t.Compacted, t.Earliest, t.Latest = true, now.Add(-24*time.Hour).UnixMilli(), now.Add(time.Hour).UnixMilli()
	})
}

func (w *world) Truncate(*testing.T) { w.kafka.Expire("orders", outbox.Shard{Of: 1}) }

func (w *world) Break(_ *testing.T, after bool) {
	w.next = memory.Refused
	if after {
		w.next = memory.Lost
	}
}

func TestLog(t *testing.T) {
	logtest.Run(t, func(*testing.T) logtest.World {
		w := &world{kafka: memory.NewKafka()}
		w.kafka.Create(topic, logtest.Partitions, 1<<20)
		return w
	})
}
