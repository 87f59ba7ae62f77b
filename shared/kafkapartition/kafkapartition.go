// Package kafkapartition reads one partition by offset, by plain requests to its
// leader:
//
//	p, err := kafkapartition.Locate(ctx, client, "clicks", 3)
//	answer, err := p.Ask(ctx, 100, 8<<20) // for kgo.ProcessFetchPartition
//
// A consumer would not do: it says nothing of offsets that hold no record, and
// waits for the record of one that never had any.
package kafkapartition

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ErrNoProgress is an answer that brings a reader no further.
var ErrNoProgress = errors.New("the broker returns no record below its high watermark")

// maxWaitMillis is how long a broker may wait for bytes that it says it has
// (those of tiered storage come late).
const maxWaitMillis = 500

// Partition is a partition at the leader that it had when it was located.
type Partition struct {
	client    *kgo.Client
	topic     string
	topicID   [16]byte
	partition int32
	leader    int32
}

// Locate finds a partition's leader. Error: Kafka's own (kerr) of the topic or of
// the partition, wrapped; one that does not exist is kerr.UnknownTopicOrPartition.
func Locate(ctx context.Context, client *kgo.Client, topic string, partition int32) (*Partition, error) {
	t, err := Topic(ctx, client, topic)
	if err != nil {
		return nil, err
	}
	for _, p := range t.Partitions {
		if p.Partition != partition {
			continue
		}
		if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
			return nil, err
		}
		return &Partition{client: client, topic: topic, topicID: t.TopicID, partition: partition, leader: p.Leader}, nil
	}
	return nil, fmt.Errorf("the topic has %d partitions: %w", len(t.Partitions), kerr.UnknownTopicOrPartition)
}

// Topic returns what the cluster says of a topic; it creates none.
func Topic(ctx context.Context, client *kgo.Client, topic string) (*kmsg.MetadataResponseTopic, error) {
	req := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = &topic
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 {
		return nil, fmt.Errorf("metadata of %d topics for one", len(resp.Topics))
	}
	return &resp.Topics[0], kerr.ErrorForCode(resp.Topics[0].ErrorCode)
}

// Ask returns what the leader has from an offset on, up to maxBytes; a larger
// record batch still comes whole. The answer's own error is the caller's.
func (p *Partition) Ask(ctx context.Context, offset int64, maxBytes int32) (*kmsg.FetchResponseTopicPartition, error) {
	partition := kmsg.NewFetchRequestTopicPartition()
	partition.Partition, partition.FetchOffset, partition.PartitionMaxBytes = p.partition, offset, maxBytes
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic, topic.TopicID, topic.Partitions = p.topic, p.topicID, append(topic.Partitions, partition)
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.Topics = maxWaitMillis, 1, maxBytes, append(req.Topics, topic)
	answer, err := p.client.Broker(int(p.leader)).RetriableRequest(ctx, req)
	if err != nil {
		return nil, err
	}
	resp, ok := answer.(*kmsg.FetchResponse)
	if !ok {
		return nil, fmt.Errorf("fetch answered with a %T", answer)
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return nil, ErrNoProgress
	}
	return &resp.Topics[0].Partitions[0], nil
}
