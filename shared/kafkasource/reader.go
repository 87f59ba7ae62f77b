package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncehouse/shared/kafka"
	"oncehouse/shared/offsets"
)

// reader is one Fetch under way: plain fetch requests rather than a consumer,
// because a consumer says nothing about offsets that hold no record, and the end
// of the wanted range may be one of them.
type reader struct {
	client  *kgo.Client
	tp      kafka.TopicPartition
	of      offsets.Set
	offset  int64 // the next one to ask for
	topicID [16]byte
	leader  int32
	records []kafka.Record
}

var errNoProgress = errors.New("the broker returns no record below its high watermark")

func (r *reader) run(ctx context.Context) error {
	failures, located := 0, false
	for {
		done, err := false, error(nil)
		if !located {
			err = r.findLeader(ctx)
		}
		if err == nil {
			done, err = r.step(ctx)
		}
		if done {
			return nil
		}
		if located = err == nil; located {
			failures = 0
			continue
		}
		failures++
		again := errors.Is(err, errNoProgress) || kerr.IsRetriable(err)
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

func (r *reader) findLeader(ctx context.Context) error {
	t, err := metadata(ctx, r.client, r.tp.Topic)
	if err != nil {
		return err
	}
	for _, p := range t.Partitions {
		if p.Partition != r.tp.Partition {
			continue
		}
		if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
			return err
		}
		r.topicID, r.leader = t.TopicID, p.Leader
		return nil
	}
	return fmt.Errorf("the topic has %d partitions: %w", len(t.Partitions), kerr.UnknownTopicOrPartition)
}

// step asks once. It is done when nothing wanted is left to be had.
func (r *reader) step(ctx context.Context) (done bool, err error) {
	answer, err := r.ask(ctx)
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
		return false, errNoProgress
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

func (r *reader) ask(ctx context.Context) (*kmsg.FetchResponseTopicPartition, error) {
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes = maxWaitMillis, 1, maxFetchBytes
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID = r.tp.Topic, r.topicID
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes = r.tp.Partition, r.offset, maxFetchBytes
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	answered, err := r.client.Broker(int(r.leader)).RetriableRequest(ctx, req)
	if err != nil {
		return nil, err
	}
	resp, ok := answered.(*kmsg.FetchResponse)
	if !ok {
		return nil, fmt.Errorf("fetch answered with a %T", answered)
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return nil, errNoProgress
	}
	return &resp.Topics[0].Partitions[0], nil
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
