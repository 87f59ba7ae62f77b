package mapping

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncehouse/infra/local/lambdahost"
	"oncehouse/shared/kafka"
)

// Limits of an event source mapping.
const (
	MaxBatchSize = 10_000
	// MaxPayloadBytes is the largest event.
	MaxPayloadBytes = lambdahost.MaxRequestBytes
	// MaxBatchingWindow is the longest MaximumBatchingWindow.
	MaxBatchingWindow = 300 * time.Second
	// RetriesWithDestination is what infinite retries become when there is an
	// on-failure destination.
	RetriesWithDestination = 10
	// Infinite is the default of MaximumRetryAttempts and MaximumRecordAge.
	Infinite = -1
)

// Function is what the mapping invokes. An error means that the function did
// not run or that nobody knows; what the function did is in the Result.
type Function interface {
	Invoke(ctx context.Context, payload []byte) (lambdahost.Result, error)
}

// Destination takes the metadata of records that were given up, as an SQS
// queue would get it.
type Destination interface {
	Send(ctx context.Context, metadata []byte) error
}

// Config describes a mapping. Zero fields take the defaults named here.
type Config struct {
	// Brokers are bootstrap addresses. Required.
	Brokers []string
	// Options are further ones of the Kafka client: TLS, SASL.
	Options []kgo.Opt
	// Topic and Group (the consumer group). Required.
	Topic, Group string
	// Function is invoked. Required.
	Function Function
	// FunctionARN is named in the destination's metadata.
	FunctionARN string
	// EventSourceARN is the cluster's; "" makes it a self-managed Kafka.
	EventSourceARN string

	// BatchSize is the most records of one event, 1..10000; default 100.
	BatchSize int
	// MaximumBatchingWindow is how long an event may wait for more records,
	// up to 300 s; default 0, none.
	MaximumBatchingWindow time.Duration
	// PayloadLimit is the most bytes of one event; default 6 MB.
	PayloadLimit int
	// Pollers is among how many the partitions are divided; default 1. Records
	// of two pollers never share an event.
	Pollers int
	// MaxConcurrency bounds the invocations at a time; default 0, as many as
	// there are partitions.
	MaxConcurrency int
	// StartingTimestamp is AT_TIMESTAMP; the zero time is TRIM_HORIZON. It
	// counts for partitions without a committed offset.
	StartingTimestamp time.Time
	// ReadCommitted leaves records of aborted and open transactions out.
	ReadCommitted bool
	// OmitNull leaves a null key or value out of the event instead of writing
	// null.
	OmitNull bool

	// MaximumRetryAttempts is how often a failed event is tried again; nil is
	// Infinite.
	MaximumRetryAttempts *int
	// MaximumRecordAge is how old a record may be when it is sent; default 0,
	// infinite.
	MaximumRecordAge time.Duration
	// BisectBatchOnFunctionError cuts a failed event in halves.
	BisectBatchOnFunctionError bool
	// ReportBatchItemFailures reads the function's answer.
	ReportBatchItemFailures bool
	// OnFailure takes what is given up; nil drops it.
	OnFailure Destination
	// Backoff is the pause after a first failure; it doubles up to MaxBackoff.
	// Defaults 100 ms and 10 s.
	Backoff, MaxBackoff time.Duration

	// Recut, when set, is asked for the size of the next batch of a partition
	// before a retry and after Redeliver. It returns a number of records; 0,
	// and for a retry Count too, leaves the boundaries as they are. A larger
	// one than Count takes records that follow, where there are any.
	Recut func(Redelivery) int
	// Duplicate, when set, is asked before each invocation whether the event
	// is delivered twice at the same time. Only the first outcome counts.
	Duplicate func([]Batch) bool
	// OnDelivery is called after each invocation, from several goroutines, and
	// must not block. nil: not called.
	OnDelivery func(Delivery)
	// Log takes warnings; nil discards them.
	Log *slog.Logger
}

// Batch is the part of one event that comes from one partition.
type Batch struct {
	kafka.TopicPartition
	// First and Last are offsets; there may be gaps between them.
	First, Last int64
	Count       int
}

// Redelivery is a batch that is about to be delivered once more.
type Redelivery struct {
	Batch
	// Attempt is how often it failed; 0 after a rewind.
	Attempt int
}

// Delivery is one invocation that ended.
type Delivery struct {
	Batches []Batch
	// Attempt is 1 for the first delivery of the event.
	Attempt int
	// Duplicate marks the one of two that counts for nothing.
	Duplicate bool
	Result    lambdahost.Result
	// Err is set when the function did not run, or when nobody knows.
	Err error
	// Settled is how many records of each batch, from its first on, the answer
	// settled; nil of a duplicate.
	Settled []int
}

func (c *Config) setDefaults() {
	c.BatchSize = cmp.Or(c.BatchSize, 100)
	c.PayloadLimit = cmp.Or(c.PayloadLimit, MaxPayloadBytes)
	c.Pollers = cmp.Or(c.Pollers, 1)
	c.Backoff = cmp.Or(c.Backoff, 100*time.Millisecond)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, 10*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

func (c *Config) validate() error {
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	check(len(c.Brokers) > 0, "no brokers")
	check(c.Topic != "", "topic is missing")
	check(c.Group != "", "group is missing")
	check(c.Function != nil, "function is missing")
	check(c.BatchSize >= 1 && c.BatchSize <= MaxBatchSize, "batch size is %d, must be 1..%d", c.BatchSize, MaxBatchSize)
	check(c.MaximumBatchingWindow >= 0 && c.MaximumBatchingWindow <= MaxBatchingWindow, "batching window is %s, must be 0s..%s", c.MaximumBatchingWindow, MaxBatchingWindow)
	check(c.PayloadLimit > 0 && c.PayloadLimit <= MaxPayloadBytes, "payload limit is %d, must be 1..%d", c.PayloadLimit, MaxPayloadBytes)
	check(c.Pollers > 0, "pollers are %d, must be positive", c.Pollers)
	check(c.MaxConcurrency >= 0, "concurrency is %d, must not be negative", c.MaxConcurrency)
	check(c.MaximumRetryAttempts == nil || (*c.MaximumRetryAttempts >= Infinite && *c.MaximumRetryAttempts <= 10_000), "retry attempts must be -1..10000")
	check(c.MaximumRecordAge >= 0, "record age is %s, must not be negative", c.MaximumRecordAge)
	check(c.Backoff > 0 && c.MaxBackoff >= c.Backoff, "back-off is %s up to %s, must be positive and not descending", c.Backoff, c.MaxBackoff)
	if len(problems) > 0 {
		return fmt.Errorf("configure the mapping of %q: %w", c.Topic, errors.Join(problems...))
	}
	return nil
}

// retries is how often a failed event is tried again: the trap included.
func (c *Config) retries() int {
	n := Infinite
	if c.MaximumRetryAttempts != nil {
		n = *c.MaximumRetryAttempts
	}
	if n == Infinite && c.OnFailure != nil {
		return RetriesWithDestination
	}
	return n
}
