package kafkalog

import (
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncehouse/shared/kafkacluster"
	"oncehouse/shared/outbox"
)

// Config describes the log of one shard. Cluster, Outbox and Shard are required.
type Config struct {
	Cluster kafkacluster.Cluster
	// Outbox names the table's outbox: letters, digits, dot, underscore, dash. The
	// transactional ids are made of it, so that it must be the only one of that
	// name in the cluster.
	Outbox string
	Shard  outbox.Shard
	// CursorTopic is DefaultCursorTopic unless it is given.
	CursorTopic string
	// Create makes the cursor topic if there is none.
	Create bool
	// MinCompactionLag is how long the cleaner must leave plans alone
	// (min.compaction.lag.ms): a week. Negative: whatever the topic has, for
	// clusters where it cannot be set; a plan that was cleaned away is refused.
	MinCompactionLag time.Duration
	// TransactionTimeout is how long the broker lets a transaction stay open when
	// nobody ends it: 15 s, and less where less time remains.
	TransactionTimeout time.Duration
	// Compression is lz4 (the default), zstd, snappy, gzip or none.
	Compression string
	// Options are further ones of the client: a dialer, a logger.
	Options []kgo.Opt
}

const (
	defaultCompactionLag = 7 * 24 * time.Hour
	defaultTimeout       = 15 * time.Second
	minTimeout           = time.Second
	// largestBatch is above every batch: outbox cuts transactions so that each
	// partition's part is within its topic's max.message.bytes.
	largestBatch = 64 << 20
	// largestPlan is above every plan and cursor of some hundred topics: outbox bounds
	// what they list of dead letters. Kafka's default is twice as much.
	largestPlan = 512 << 10
	// topicsFor is how long a description of a topic is good.
	topicsFor = 30 * time.Second
)

var outboxName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// DefaultCursorTopic is the cursor topic of an outbox that names none.
func DefaultCursorTopic(outbox string) string { return "oncehouse.outbox." + outbox }

func (c Config) withDefaults() (Config, error) {
	if c.CursorTopic == "" {
		c.CursorTopic = DefaultCursorTopic(c.Outbox)
	}
	if c.MinCompactionLag == 0 {
		c.MinCompactionLag = defaultCompactionLag
	}
	if c.TransactionTimeout == 0 {
		c.TransactionTimeout = defaultTimeout
	}
	if c.Compression == "" {
		c.Compression = "lz4"
	}
	var problems []error
	if !outboxName.MatchString(c.Outbox) {
		problems = append(problems, fmt.Errorf("outbox %q: 1 to 128 letters, digits, dots, underscores and dashes", c.Outbox))
	}
	if c.Shard.Of < 1 || c.Shard.Index < 0 || c.Shard.Index >= c.Shard.Of {
		problems = append(problems, fmt.Errorf("shard %s: an index from 0, below the number of shards", c.Shard))
	}
	if c.TransactionTimeout < minTimeout {
		problems = append(problems, fmt.Errorf("transaction time-out %s: at least %s", c.TransactionTimeout, minTimeout))
	}
	if _, ok := codec(c.Compression); !ok {
		problems = append(problems, fmt.Errorf("compression %q: lz4, zstd, snappy, gzip or none", c.Compression))
	}
	problems = append(problems, c.Cluster.Validate())
	if err := errors.Join(problems...); err != nil {
		return c, fmt.Errorf("configure the outbox log: %w", err)
	}
	return c, nil
}

func codec(name string) (kgo.CompressionCodec, bool) {
	switch name {
	case "lz4":
		return kgo.Lz4Compression(), true
	case "zstd":
		return kgo.ZstdCompression(), true
	case "snappy":
		return kgo.SnappyCompression(), true
	case "gzip":
		return kgo.GzipCompression(), true
	case "none":
		return kgo.NoCompression(), true
	}
	return kgo.CompressionCodec{}, false
}

// transactionalID belongs to the cursor partition: two outboxes, or two shards,
// never share one, and a shard keeps it when its function does not.
func (c Config) transactionalID() string {
	return fmt.Sprintf("oncehouse-outbox-%s-%d", c.Outbox, c.Shard.Index)
}

// plain are the options of a client that writes nothing.
func (c Config) plain() []kgo.Opt {
	// A leader that moved, or a topic just made, is looked up again soon.
	return append(append(c.Cluster.Options(), kgo.MetadataMinAge(250*time.Millisecond)), c.Options...)
}

// producer are the options of the client that writes.
func (c Config) producer(timeout time.Duration) []kgo.Opt {
	compression, _ := codec(c.Compression) // checked by New
	return append(c.plain(),
		kgo.TransactionalID(c.transactionalID()),
		kgo.TransactionTimeout(timeout),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ManualFlushing(),
		kgo.MaxBufferedRecords(1<<30), // a transaction is bounded already
		kgo.ProducerBatchMaxBytes(largestBatch),
		kgo.ProducerBatchCompression(compression),
		// Before Kafka 4 the broker still completes the last transaction when the
		// next one begins: a few milliseconds, which 20 would make more of.
		kgo.ConcurrentTransactionsBackoff(5*time.Millisecond),
	)
}
