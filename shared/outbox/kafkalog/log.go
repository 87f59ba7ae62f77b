package kafkalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncehouse/shared/outbox"
)

// Keys of the records in the cursor partition; compaction keeps the last of each.
const (
	keyCursor = "cursor"
	keyPlan   = "plan"
)

// headerOutbox has the name of the outbox that a plan or cursor is of.
const headerOutbox = "oncehouse-outbox"

// Log is an outbox.Log. It is not safe for concurrent use. Use New.
type Log struct {
	config Config
	client *kgo.Client // nil: not open
	dirty  bool        // a transaction may be open
	ready  bool        // the cursor topic was found right
	// timeout is the transaction's, of this client.
	timeout time.Duration
	loaded  map[string]bool // topics that the client has written to
	topics  map[string]described
	slab    slab
}

var _ outbox.Log = (*Log)(nil)

// New returns a log. It does no I/O.
func New(c Config) (*Log, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := kgo.ValidateOpts(c.producer(c.TransactionTimeout)...); err != nil {
		return nil, fmt.Errorf("configure the outbox log: %w", err)
	}
	return &Log{config: c}, nil
}

// Open implements outbox.Log.
func (l *Log) Open(ctx context.Context) (outbox.Standing, error) {
	l.drop()
	standing, err := l.open(ctx)
	if err != nil {
		l.drop()
		return outbox.Standing{}, l.explain(err, time.Time{})
	}
	return standing, nil
}

func (l *Log) open(ctx context.Context) (outbox.Standing, error) {
	l.timeout = l.config.TransactionTimeout
	if end, ok := ctx.Deadline(); ok { // nobody may be left to end it
		l.timeout = max(minTimeout, min(l.timeout, time.Until(end)))
	}
	if !l.ready {
		if err := l.checkTopic(ctx); err != nil {
			return outbox.Standing{}, err
		}
		l.ready = true
	}
	client, err := kgo.NewClient(l.config.producer(l.timeout)...)
	if err != nil {
		return outbox.Standing{}, fmt.Errorf("connect to Kafka: %w", err)
	}
	l.client, l.loaded, l.topics = client, map[string]bool{}, map[string]described{}
	if err := fence(ctx, client); err != nil {
		return outbox.Standing{}, err
	}
	l.dirty = false
	return l.read(ctx)
}

// fence has the broker end what older pollers of the shard left open, and refuse
// what they still send.
func fence(ctx context.Context, client *kgo.Client) error {
	if _, _, err := client.ProducerID(ctx); err != nil {
		return fmt.Errorf("fence older pollers (InitProducerID): %w", err)
	}
	return nil
}

// drop closes the client. Whatever it has begun stays open until the next fence.
func (l *Log) drop() {
	if l.client != nil {
		l.client.Close()
		l.client = nil
		l.slab = slab{} // the client's promises may still be on their way through it
	}
}

// Close implements outbox.Log.
func (l *Log) Close(ctx context.Context) error {
	l.drop()
	if !l.dirty {
		return nil
	}
	client, err := kgo.NewClient(l.config.producer(minTimeout)...)
	if err != nil {
		return fmt.Errorf("connect to Kafka: %w", err)
	}
	defer client.Close()
	if err := fence(ctx, client); err != nil {
		return l.explain(err, time.Time{})
	}
	l.dirty = false
	return nil
}

// Commit implements outbox.Log.
func (l *Log) Commit(ctx context.Context, t outbox.Transaction) error {
	if l.client == nil {
		return errors.New("the log is not open")
	}
	begun := time.Now()
	l.dirty = true
	ctx, cancel := context.WithTimeout(ctx, l.timeout) // after that the broker ends it
	defer cancel()
	if err := l.commit(ctx, t); err != nil {
		l.drop()
		err = l.explain(err, begun)
		// What a fenced poller left open, the other one has ended; to fence it in
		// turn would leave nobody at work.
		l.dirty = !errors.Is(err, outbox.ErrFenced)
		return err
	}
	l.dirty = false
	return nil
}

func (l *Log) commit(ctx context.Context, t outbox.Transaction) error {
	plan, cursor, err := l.control(t)
	if err != nil {
		return err
	}
	if err := l.client.BeginTransaction(); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	a := attempt{client: l.client}
	if plan != nil {
		if err := a.produce(ctx, plan); err != nil {
			return fmt.Errorf("write the plan: %w", err)
		}
	}
	if err := l.produceRows(ctx, &a, t.Records); err != nil {
		return fmt.Errorf("write %d rows: %w", len(t.Records), err)
	}
	if err := a.produce(ctx, cursor); err != nil {
		return fmt.Errorf("write the cursor: %w", err)
	}
	if err := l.client.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return fmt.Errorf("end the transaction: %w", err)
	}
	return nil
}

// control makes the records of the cursor partition.
func (l *Log) control(t outbox.Transaction) (plan, cursor *kgo.Record, err error) {
	encode := func(key string, value any) (*kgo.Record, error) {
		text, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("encode the %s: %w", key, err)
		}
		return &kgo.Record{
			Topic: l.config.CursorTopic, Partition: int32(l.config.Shard.Index), Key: []byte(key), Value: text,
			Headers: []kgo.RecordHeader{{Key: headerOutbox, Value: []byte(l.config.Outbox)}},
		}, nil
	}
	if t.Plan != nil {
		if plan, err = encode(keyPlan, t.Plan); err != nil {
			return nil, nil, err
		}
	}
	cursor, err = encode(keyCursor, t.Cursor)
	return plan, cursor, err
}

// produceRows writes the rows, each partition's as one batch. A topic that the
// client has not written to before is loaded by its first record, alone: while it
// loads, the client would send what it has as soon as it can, in several batches.
func (l *Log) produceRows(ctx context.Context, a *attempt, rows []outbox.Record) error {
	records := l.slab.fill(rows)
	var first []*kgo.Record
	rest := records[:0]
	for _, r := range records {
		if l.loaded[r.Topic] {
			rest = append(rest, r)
			continue
		}
		l.loaded[r.Topic] = true
		first = append(first, r)
	}
	if err := a.produce(ctx, first...); err != nil {
		return err
	}
	return a.produce(ctx, rest...)
}

// fencing errors say that the epoch is an old one.
func fencing(err error) bool {
	return errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch)
}

// refusedRecord is the stop at a record that was planned because its topic would take
// it, and then it did not: the topic was changed, or much time went by. What is
// planned is sent as it is, or not at all.
func refusedRecord(err error, remedy string) error {
	return &outbox.Refusal{Reason: outbox.ReasonHalted, Problems: []string{"the broker refuses a record of a row: " + err.Error()}, Remedy: remedy}
}

// explain makes an error say what it means and what to do.
func (l *Log) explain(err error, begun time.Time) error {
	switch {
	case fencing(err) && !begun.IsZero() && time.Since(begun) >= l.timeout:
		// The broker bumps the epoch, too, when it ends a transaction by itself: this
		// process stood still.
		return fmt.Errorf("the transaction was open for longer than its time-out of %s: %w", l.timeout, err)
	case fencing(err):
		return fmt.Errorf("%w: %w", outbox.ErrFenced, err)
	case errors.Is(err, kerr.InvalidTimestamp):
		return refusedRecord(err, "raise message.timestamp.after.max.ms or message.timestamp.before.max.ms of the topic, or correct the row's timestamp")
	case errors.Is(err, kerr.InvalidRecord):
		return refusedRecord(err, "take compact from the topic's cleanup.policy, if a row has no aggregate id; the broker's log says what else it may be")
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge):
		return &outbox.Refusal{
			Reason: ReasonLimitLowered, Problems: []string{err.Error()},
			Remedy: "raise max.message.bytes of the topic to what it was when the window was begun, until it is finished",
		}
	}
	for _, known := range []struct {
		errs   []error
		remedy string
	}{
		{[]error{kerr.UnknownTopicOrPartition, kerr.UnknownTopicID}, "a topic was deleted, or made again with fewer partitions: create it as it was"},
		{[]error{kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState}, "check the mechanism and the credentials"},
		{
			[]error{kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.TransactionalIDAuthorizationFailed},
			"allow describing and writing the topics, reading the cursor topic, and writing transactions of " + l.config.transactionalID(),
		},
		{[]error{kerr.InvalidTransactionTimeout}, "the transaction time-out is over the broker's transaction.max.timeout.ms"},
	} {
		for _, k := range known.errs {
			if errors.Is(err, k) {
				return fmt.Errorf("%w (%s)", err, known.remedy)
			}
		}
	}
	return err
}
