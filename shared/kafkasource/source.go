// Package kafkasource is the delivery.Source that reads records again from
// Kafka, by offset:
//
//	source := kafkasource.New(kafkacluster.Cluster{
//		Brokers: []string{"b-1.example:9098"},
//		TLS:     &tls.Config{},
//		SASL:    kafkacluster.IAM(awsConfig.Credentials),
//	})
//	records, err := source.Fetch(ctx, tp, offsets.Between(10, 19))
//
// It takes part in no consumer group and commits nothing: it asks the leader of
// the one partition for the offsets, as a debugger would. Reads are uncommitted,
// because nobody says which isolation the event source mapping has; records of
// aborted transactions are records like any other here.
//
// It is rarely needed (a batch that holds only part of an open intent, a lane
// whose topic may be another), so New connects to nothing and no connection is
// kept between calls: a function that was frozen would wake up with dead ones.
package kafkasource

import (
	"context"
	"encoding/base64"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	"oncehouse/shared/kafkacluster"
	"oncehouse/shared/kafkapartition"
	"oncehouse/shared/offsets"
)

// ReasonSource is the reason of every error of this package.
const ReasonSource delivery.Reason = "Source"

const (
	// maxFetchBytes bounds an answer.
	maxFetchBytes = 8 << 20
	// requestRetries of one request: a second or two, not kgo's half minute.
	requestRetries = 4
	// maxFailures in a row (a leader that moves, an answer without progress).
	maxFailures = 10
)

// Source is a delivery.Source. Its methods are safe for concurrent use. Use New.
type Source struct {
	options []kgo.Opt
}

var _ delivery.Source = (*Source)(nil)

// New returns a source. It does no I/O.
func New(cluster kafkacluster.Cluster) *Source {
	return &Source{options: append(cluster.Options(), kgo.RequestRetries(requestRetries))}
}

// TopicID implements delivery.Source: the id as Kafka's own tools print it, ""
// from a broker that has none (before 2.8).
func (s *Source) TopicID(ctx context.Context, topic string) (string, error) {
	client, err := kgo.NewClient(s.options...)
	if err != nil {
		return "", explain(err, "connect to kafka")
	}
	defer client.Close()
	t, err := kafkapartition.Topic(ctx, client, topic)
	if err != nil {
		return "", explain(err, fmt.Sprintf("read the id of topic %s", topic))
	}
	if t.TopicID == ([16]byte{}) {
		return "", nil
	}
	return base64.RawURLEncoding.EncodeToString(t.TopicID[:]), nil
}

// Fetch implements delivery.Source. It reads up to the last of the offsets or
// the end of the partition.
func (s *Source) Fetch(ctx context.Context, tp kafka.TopicPartition, of offsets.Set) ([]kafka.Record, error) {
	if len(of) == 0 {
		return nil, nil
	}
	client, err := kgo.NewClient(s.options...)
	if err != nil {
		return nil, explain(err, "connect to kafka")
	}
	defer client.Close()
	r := reader{client: client, tp: tp, of: of, offset: of.First()}
	if err := r.run(ctx); err != nil {
		return nil, explain(err, fmt.Sprintf("fetch offsets %d-%d of %s, at %d", of.First(), of.Last(), tp, r.offset))
	}
	return r.records, nil
}
