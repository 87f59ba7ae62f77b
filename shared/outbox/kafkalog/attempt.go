package kafkalog

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncehouse/shared/outbox"
)

// attempt is one transaction under way. It keeps every promise in sight: the
// client would commit a transaction whose records failed (O20).
type attempt struct {
	client *kgo.Client

	mu sync.Mutex
	// id and epoch are of the first record: all others must have them too, or the
	// client got itself another epoch and the broker aborted what was before.
	id    int64
	epoch int16
	known bool
	err   error
}

// produce sends records and waits until all are acknowledged.
func (a *attempt) produce(ctx context.Context, records ...*kgo.Record) error {
	if len(records) == 0 {
		return nil
	}
	var promised sync.WaitGroup
	promised.Add(len(records))
	promise := func(r *kgo.Record, err error) {
		a.settle(r, err)
		promised.Done()
	}
	for _, r := range records {
		a.client.Produce(ctx, r, promise)
	}
	if err := a.client.Flush(ctx); err != nil {
		return a.failed(err)
	}
	promised.Wait() // they are all called: nothing is buffered any more
	return a.failed(nil)
}

func (a *attempt) settle(r *kgo.Record, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.err != nil:
	case err != nil:
		a.err = fmt.Errorf("%s-%d: %w", r.Topic, r.Partition, err)
	case !a.known:
		a.id, a.epoch, a.known = r.ProducerID, r.ProducerEpoch, true
	case a.id != r.ProducerID || a.epoch != r.ProducerEpoch:
		a.err = fmt.Errorf("the producer changed within the transaction: id %d epoch %d, then id %d epoch %d", a.id, a.epoch, r.ProducerID, r.ProducerEpoch)
	}
}

func (a *attempt) failed(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return a.err
	}
	return err
}

// slab is the memory of a transaction's records, used again by the next one.
type slab struct {
	records  []kgo.Record
	pointers []*kgo.Record
	headers  []kgo.RecordHeader
}

// fill makes the client's records of the outbox's.
func (s *slab) fill(rows []outbox.Record) []*kgo.Record {
	count := 0
	for i := range rows {
		count += len(rows[i].Headers)
	}
	if cap(s.records) < len(rows) {
		s.records, s.pointers = make([]kgo.Record, len(rows)), make([]*kgo.Record, len(rows))
	}
	if cap(s.headers) < count {
		s.headers = make([]kgo.RecordHeader, count)
	}
	records, pointers, headers := s.records[:len(rows)], s.pointers[:len(rows)], s.headers[:count]
	now := time.Now()
	for i := range rows {
		row := &rows[i]
		n := len(row.Headers)
		for j := range row.Headers {
			headers[j] = kgo.RecordHeader{Key: row.Headers[j].Key, Value: row.Headers[j].Value}
		}
		at := now
		if row.Timestamp > 0 {
			at = time.UnixMilli(row.Timestamp)
		}
		records[i] = kgo.Record{
			Topic: row.Topic, Partition: row.Partition, Key: row.Key, Value: row.Value,
			Headers: headers[:n:n], Timestamp: at,
		}
		pointers[i] = &records[i]
		headers = headers[n:]
	}
	return pointers
}
