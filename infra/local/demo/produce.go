package demo

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

// producer writes the click stream into a topic and keeps what the broker
// answered.
type producer struct {
	brokers    []string
	topic      string
	partitions int32
	generator  clickstream.Generator
	// done counts acknowledged records.
	done atomic.Int64

	mu    sync.Mutex
	index [][]int64
	err   error
}

// produce writes records 0..n-1, keyed by user as a site would, and returns the
// index of each by partition and offset. Error: the broker refused one, or does
// not hold exactly what it acknowledged.
func (p *producer) produce(ctx context.Context, n int64) ([][]int64, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(p.brokers...), kgo.DefaultProduceTopic(p.topic),
		kgo.MaxBufferedRecords(50_000), kgo.ProducerLinger(5*time.Millisecond),
		kgo.ProducerBatchCompression(kgo.Lz4Compression()),
	)
	if err != nil {
		return nil, fmt.Errorf("configure the producer: %w", err)
	}
	defer client.Close()
	p.index = make([][]int64, p.partitions)
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		client.Produce(ctx, p.record(i), func(r *kgo.Record, err error) { p.acknowledged(i, r, err) })
	}
	if err := client.Flush(ctx); err != nil {
		return nil, fmt.Errorf("produce into %s: %w", p.topic, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return nil, fmt.Errorf("produce into %s: %w", p.topic, p.err)
	}
	return p.index, p.compare(ctx, kadm.NewClient(client))
}

func (p *producer) record(i int64) *kgo.Record {
	r := p.generator.Record(i)
	out := &kgo.Record{Key: r.Key, Value: r.Value, Timestamp: time.UnixMilli(r.Timestamp), Headers: make([]kgo.RecordHeader, len(r.Headers))}
	for k, h := range r.Headers {
		out.Headers[k] = kgo.RecordHeader{Key: string(h.Key), Value: h.Value}
	}
	return out
}

// acknowledged keeps a record's offset. The client calls it in the order of a
// partition's offsets, one at a time.
func (p *producer) acknowledged(i int64, r *kgo.Record, err error) {
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
func (p *producer) compare(ctx context.Context, admin *kadm.Client) error {
	ends, err := admin.ListEndOffsets(ctx, p.topic)
	if err != nil {
		return fmt.Errorf("ask for the end of %s: %w", p.topic, err)
	}
	for partition, index := range p.index {
		end, ok := ends.Lookup(p.topic, int32(partition))
		if !ok || end.Err != nil || end.Offset != int64(len(index)) {
			return fmt.Errorf("%s-%d ends at %d (%w), and %d records of it were acknowledged", p.topic, partition, end.Offset, end.Err, len(index))
		}
	}
	return nil
}
