package kafkasource

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncehouse/shared/kafka"
	"oncehouse/shared/kafkapartition"
	"oncehouse/shared/offsets"
)

// reader is one Fetch under way.
type reader struct {
	client  *kgo.Client
	tp      kafka.TopicPartition
	of      offsets.Set
	offset  int64 // the next one to ask for
	records []kafka.Record
}

func (r *reader) run(ctx context.Context) error {
	var at *kafkapartition.Partition // nil: to be located
	for failures := 0; ; {
		done, err := false, error(nil)
		if at == nil {
			at, err = kafkapartition.Locate(ctx, r.client, r.tp.Topic, r.tp.Partition)
		}
		if err == nil {
			done, err = r.step(ctx, at)
		}
		if done {
			return nil
		}
		if err == nil {
			failures = 0
			continue
		}
		at = nil
		failures++
		again := errors.Is(err, kafkapartition.ErrNoProgress) || kerr.IsRetriable(err)
		if !again || failures == maxFailures {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(time.Duration(failures) * 50 * time.Millisecond):
		}
	}
}

// step asks once. It is done when nothing wanted is left to be had.
func (r *reader) step(ctx context.Context, at *kafkapartition.Partition) (done bool, err error) {
	answer, err := at.Ask(ctx, r.offset, maxFetchBytes)
	if err != nil {
		return false, err
	}
	if answer.ErrorCode == kerr.OffsetOutOfRange.Code {
		return r.outOfRange(ctx)
	}
	part, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
		Offset: r.offset, Topic: r.tp.Topic, Partition: r.tp.Partition,
		IsolationLevel: kgo.ReadUncommitted(),
	}, answer, kgo.DefaultDecompressor(), nil)
	if part.Err != nil {
		return false, part.Err
	}
	for _, rec := range part.Records {
		if r.of.Contains(rec.Offset) {
			r.records = append(r.records, record(rec))
		}
	}
	if next == r.offset && next < part.HighWatermark {
		return false, kafkapartition.ErrNoProgress
	}
	r.offset = next
	return !r.jump() || r.offset >= part.HighWatermark, nil
}

// jump moves on to the next wanted offset and reports whether there is one.
func (r *reader) jump() bool {
	for _, wanted := range r.of {
		if r.offset <= wanted.Last {
			r.offset = max(r.offset, wanted.First)
			return true
		}
	}
	return false
}

// outOfRange tells an offset that is gone (go on at the first that is left)
// from one that is not there yet (done).
func (r *reader) outOfRange(ctx context.Context) (done bool, err error) {
	req := kmsg.NewPtrListOffsetsRequest()
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = r.tp.Topic
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Partition, p.Timestamp = r.tp.Partition, -2 // the earliest
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, r.client)
	if err != nil {
		return false, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return false, errors.New("list offsets: no answer for the partition")
	}
	first := resp.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(first.ErrorCode); err != nil {
		return false, err
	}
	if r.offset >= first.Offset {
		return true, nil
	}
	r.offset = first.Offset
	return !r.jump(), nil
}

// record is rec as the event source mapping delivers it, byte for byte: a hash
// compares the two.
func record(rec *kgo.Record) kafka.Record {
	out := kafka.Record{Offset: rec.Offset, Timestamp: rec.Timestamp.UnixMilli(), Key: rec.Key, Value: rec.Value}
	for _, h := range rec.Headers {
		out.Headers = append(out.Headers, kafka.Header{Key: []byte(h.Key), Value: h.Value})
	}
	return out
}
