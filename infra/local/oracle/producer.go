package oracle

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncehouse/infra/local/clickstream"
)

// Producer writes the click stream into a topic and keeps what the broker
// answered.
type Producer struct {
	Generator  clickstream.Generator
	Topic      string
	Partitions int32
	// Pick chooses the generator's record for the nth one; nil is n itself.
	// What is picked twice is in the topic twice, under two offsets.
	Pick func(n int64) int64

	client *kgo.Client
	next   int64
	done   atomic.Int64

	mu    sync.Mutex
	index [][]int64
	err   error
}

// Open connects the producer. The topic must be there and be empty.
func (p *Producer) Open(brokers []string) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic(p.Topic),
		kgo.MaxBufferedRecords(50_000), kgo.ProducerLinger(5*time.Millisecond),
		kgo.ProducerBatchCompression(kgo.Lz4Compression()),
	)
	if err != nil {
		return fmt.Errorf("configure the producer: %w", err)
	}
	p.client, p.index = client, make([][]int64, p.Partitions)
	return nil
}

// Close ends the connection.
func (p *Producer) Close() { p.client.Close() }

// Acknowledged is how many records the broker has.
func (p *Producer) Acknowledged() int64 { return p.done.Load() }

// Produce writes the next n records, keyed by user as a site would, and waits
// until the broker has them. Error: it refused one.
func (p *Producer) Produce(ctx context.Context, n int64) error {
	for range n {
		if ctx.Err() != nil {
			break
		}
		i := p.next
		if p.Pick != nil {
			i = p.Pick(p.next)
		}
		p.next++
		p.client.Produce(ctx, p.record(i), func(r *kgo.Record, err error) { p.acknowledged(i, r, err) })
	}
	if err := p.client.Flush(ctx); err != nil {
		return fmt.Errorf("produce into %s: %w", p.Topic, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return fmt.Errorf("produce into %s: %w", p.Topic, p.err)
	}
	return nil
}

// Truth is what was produced. Error: the broker does not hold exactly what it
// acknowledged.
func (p *Producer) Truth(ctx context.Context, pipeline string) (*Truth, error) {
	if err := p.compare(ctx, kadm.NewClient(p.client)); err != nil {
		return nil, err
	}
	return &Truth{Generator: p.Generator, Topic: p.Topic, Pipeline: pipeline, Index: p.index}, nil
}

func (p *Producer) record(i int64) *kgo.Record {
	r := p.Generator.Record(i)
	out := &kgo.Record{Key: r.Key, Value: r.Value, Timestamp: time.UnixMilli(r.Timestamp), Headers: make([]kgo.RecordHeader, len(r.Headers))}
	for k, h := range r.Headers {
		out.Headers[k] = kgo.RecordHeader{Key: string(h.Key), Value: h.Value}
	}
	return out
}

// acknowledged keeps a record's offset. The client calls it in the order of a
// partition's offsets, one at a time.
func (p *Producer) acknowledged(i int64, r *kgo.Record, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && r.Offset != int64(len(p.index[r.Partition])) {
		err = fmt.Errorf("partition %d has a record at offset %d, %d expected: the topic is not ours alone", r.Partition, r.Offset, len(p.index[r.Partition]))
	}
	if err != nil {
		if p.err == nil {
			p.err = err
		}
		return
	}
	p.index[r.Partition] = append(p.index[r.Partition], i)
	p.done.Add(1)
}

// compare holds what was acknowledged against where the partitions end.
func (p *Producer) compare(ctx context.Context, admin *kadm.Client) error {
	ends, err := admin.ListEndOffsets(ctx, p.Topic)
	if err != nil {
		return fmt.Errorf("ask for the end of %s: %w", p.Topic, err)
	}
	for partition, index := range p.index {
		end, ok := ends.Lookup(p.Topic, int32(partition))
		if !ok || end.Err != nil || end.Offset != int64(len(index)) {
			return fmt.Errorf("%s-%d ends at %d (%w), and %d records of it were acknowledged", p.Topic, partition, end.Offset, end.Err, len(index))
		}
	}
	return nil
}
