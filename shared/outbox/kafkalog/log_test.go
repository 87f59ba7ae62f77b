package kafkalog_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncehouse/infra/local/broker"
	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/kafkalog"
	"oncehouse/shared/outbox/logtest"
	"oncehouse/shared/outbox/memory"
)

const cursorTopic = "oncehouse.outbox.orders"

// TestLog is the conformance suite on the embedded broker, which does not keep
// all rules of Apache Kafka's transactions: the integration suite runs it there.
func TestLog(t *testing.T) {
	logtest.Run(t, func(t *testing.T) logtest.World {
		w, _ := embedded(t)
		return w
	})
}

// TestChaos lets pollers compete and crash on the embedded broker.
func TestChaos(t *testing.T) {
	b, err := broker.Embedded(broker.EmbeddedConfig{})
	require.NoError(t, err)
	defer b.Close()
	runChaos(t, b, "orders", 30)
}

func embedded(t *testing.T) (*world, *kfake.Cluster) {
	t.Helper()
	b, err := broker.Embedded(broker.EmbeddedConfig{})
	require.NoError(t, err)
	t.Cleanup(b.Close)
	w := newWorld(t, b, "orders")
	w.cluster = b.Cluster()
	return w, w.cluster
}

func opened(t *testing.T, w *world) outbox.Log {
	t.Helper()
	l := w.Log(t)
	t.Cleanup(func() { require.NoError(t, l.Close(context.Background())) })
	_, err := l.Open(t.Context())
	require.NoError(t, err)
	require.NoError(t, l.Commit(t.Context(), outbox.Transaction{Cursor: logtest.CursorAt(1)}))
	return l
}

// With a record, its transaction fails: nothing is sent behind it, and
// nothing is committed.
func TestO20AFailedRecordIsNoSuccess(t *testing.T) {
	w, cluster := embedded(t)
	l := opened(t, w)
	var mu sync.Mutex
	sent := map[string]int{}
	cluster.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
		mu.Lock()
		defer mu.Unlock()
		cluster.KeepControl()
		sent["EndTxn"]++
		return nil, nil, false
	})
	cluster.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		mu.Lock()
		defer mu.Unlock()
		cluster.KeepControl()
		for _, topic := range r.(*kmsg.ProduceRequest).Topics {
			sent[topic.Topic]++
		}
		return nil, nil, false
	})
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: w.Topic(), Partitions: []int32{1}, Err: kerr.PolicyViolation})
	err := l.Commit(t.Context(), outbox.Transaction{
		Plan: logtest.PlanOf(w.Topic(), 2), Records: logtest.RecordsOf(w.Topic(), 2, 9), Cursor: logtest.CursorAt(2),
	})
	require.ErrorIs(t, err, kerr.PolicyViolation)
	require.NotErrorIs(t, err, outbox.ErrFenced)
	mu.Lock()
	require.Zero(t, sent["EndTxn"], "neither committed nor aborted: %v", sent)
	mu.Unlock()
	standing, err := l.Open(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, standing.Cursor.Window)
	require.Equal(t, logtest.PlanOf(w.Topic(), 2), standing.Plan)
	for p := range int32(logtest.Partitions) {
		require.Empty(t, w.Records(t, p, true))
	}
}

// A transaction that the broker has ended is no fence: the poller goes on.
func TestO22ATransactionThatTimesOut(t *testing.T) {
	w, _ := embedded(t)
	c := w.config()
	c.TransactionTimeout = time.Second
	c.Options = []kgo.Opt{kgo.Dialer(w.wire.dial)}
	l, err := kafkalog.New(c)
	require.NoError(t, err)
	db := memory.NewDatabase()
	for i := range 10 {
		tx := db.Begin()
		tx.Insert(outbox.Row{ID: fmt.Sprint(i), AggregateType: "orders", Payload: []byte("x")})
		tx.Commit()
	}
	router, err := outbox.NewRouter(outbox.Routing{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	looks := 0
	poller, err := outbox.NewPoller(outbox.Shard{Of: 1}, db.Table(outbox.Shard{Of: 1}), l, router, outbox.Rules{
		Initialise: outbox.FromNow,
		Wait: func(context.Context, time.Duration) {
			switch looks++; looks {
			case 1:
				tx := db.Begin()
				tx.Insert(outbox.Row{ID: "slow", AggregateType: "orders", Payload: []byte("x")})
				tx.Commit()
				w.wire.hold.Store(int64(1500 * time.Millisecond))
			case 4:
				cancel()
			}
		},
	})
	require.NoError(t, err)
	tally, err := poller.Run(ctx, time.Now().Add(time.Minute))
	require.NoError(t, err)
	require.EqualValues(t, 1, tally.Rows)
	require.EqualValues(t, 1, tally.Reopened)
	require.Zero(t, tally.Fenced)
	count := 0
	for p := range int32(logtest.Partitions) {
		count += len(w.Records(t, p, true))
	}
	require.Equal(t, 1, count)
}

// The rows of a partition are one batch, stored whole or not at all. A topic that
// the client does not know yet begins with one record, and waits for its answer.
func TestO33APartitionGetsOneBatch(t *testing.T) {
	w, cluster := embedded(t)
	l := opened(t, w)
	var mu sync.Mutex
	var batches [][]int32 // records of each batch of the topic, by partition
	var unread []error
	topics, err := kadm.NewClient(w.client(t)).ListTopics(t.Context(), w.Topic())
	require.NoError(t, err)
	id := topics[w.Topic()].ID
	cluster.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		mu.Lock()
		defer mu.Unlock()
		cluster.KeepControl()
		for _, topic := range r.(*kmsg.ProduceRequest).Topics {
			if topic.Topic != w.Topic() && topic.TopicID != id {
				continue
			}
			for _, p := range topic.Partitions {
				var b kmsg.RecordBatch
				if err := b.ReadFrom(p.Records); err != nil { // not the test's goroutine
					unread = append(unread, err)
				}
				batches = append(batches, []int32{p.Partition, b.NumRecords})
			}
		}
		return nil, nil, false
	})
	commit := func(window int64) [][]int32 {
		mu.Lock()
		batches = nil
		mu.Unlock()
		records := logtest.RecordsOf(w.Topic(), window, 3000)
		for i := range records {
			records[i].Value = append(records[i].Value, make([]byte, 600)...)
		}
		require.NoError(t, l.Commit(t.Context(), outbox.Transaction{Records: records, Cursor: logtest.CursorAt(window)}))
		mu.Lock()
		defer mu.Unlock()
		require.Empty(t, unread)
		return batches
	}
	first := commit(2)
	require.Equal(t, []int32{0, 1}, first[0])
	require.ElementsMatch(t, [][]int32{{0, 1}, {0, 999}, {1, 1000}, {2, 1000}}, first)
	for window := int64(3); window < 6; window++ {
		require.ElementsMatch(t, [][]int32{{0, 1000}, {1, 1000}, {2, 1000}}, commit(window))
	}
}

func TestCursorTopic(t *testing.T) {
	for problem, c := range map[string]struct {
		topic  broker.Topic
		shards int
	}{
		"does not exist": {broker.Topic{}, 1},
		"has 1 partitions for 2 shards": {
			broker.Topic{Name: cursorTopic, Partitions: 1, Config: map[string]string{"cleanup.policy": "compact", "min.compaction.lag.ms": "604800000"}}, 2,
		},
		"has cleanup.policy=compact,delete: it would forget the cursor": {
			broker.Topic{Name: cursorTopic, Partitions: 1, Config: map[string]string{"cleanup.policy": "compact,delete", "min.compaction.lag.ms": "604800000"}}, 1,
		},
		"has max.message.bytes=1000: plans of up to 524288 would not fit": {
			broker.Topic{Name: cursorTopic, Partitions: 1, Config: map[string]string{"cleanup.policy": "compact", "min.compaction.lag.ms": "604800000", "max.message.bytes": "1000"}}, 1,
		},
		"has min.compaction.lag.ms=": {
			broker.Topic{Name: cursorTopic, Partitions: 1, Config: map[string]string{"cleanup.policy": "compact"}}, 1,
		},
	} {
		t.Run(problem, func(t *testing.T) {
			w, _ := embedded(t)
			if c.topic.Name != "" {
				require.NoError(t, broker.CreateTopics(t.Context(), w.broker, c.topic))
			}
			config := w.config()
			config.Create, config.Shard.Of = false, c.shards
			l, err := kafkalog.New(config)
			require.NoError(t, err)
			_, err = l.Open(t.Context())
			var refusal *outbox.Refusal
			require.ErrorAs(t, err, &refusal)
			require.Equal(t, kafkalog.ReasonCursorTopic, refusal.Reason)
			require.ErrorContains(t, err, problem)
			require.Contains(t, refusal.Remedy, fmt.Sprintf("%d partitions, cleanup.policy=compact, min.compaction.lag.ms=604800000", c.shards))
		})
	}
	t.Run("a lag that cannot be set is left alone", func(t *testing.T) {
		w, _ := embedded(t)
		require.NoError(t, broker.CreateTopics(t.Context(), w.broker, broker.Topic{Name: cursorTopic, Partitions: 1, Config: map[string]string{"cleanup.policy": "compact"}}))
		config := w.config()
		config.Create, config.MinCompactionLag = false, -1
		l, err := kafkalog.New(config)
		require.NoError(t, err)
		_, err = l.Open(t.Context())
		require.NoError(t, err)
		require.NoError(t, l.Close(t.Context()))
	})
	t.Run("is created as it must be", func(t *testing.T) {
		w, _ := embedded(t)
		config := w.config()
		config.Shard.Of = 3
		l, err := kafkalog.New(config)
		require.NoError(t, err)
		_, err = l.Open(t.Context())
		require.NoError(t, err)
		require.NoError(t, l.Close(t.Context()))
		config.Create = false
		l, err = kafkalog.New(config)
		require.NoError(t, err)
		_, err = l.Open(t.Context())
		require.NoError(t, err)
		require.NoError(t, l.Close(t.Context()))
		topics, err := kadm.NewClient(w.client(t)).ListTopics(t.Context(), cursorTopic)
		require.NoError(t, err)
		require.Len(t, topics[cursorTopic].Partitions, 3)
	})
}

// A cursor topic is of one outbox: another one would take its cursor for its own,
// and pass over what it never published.
func TestCursorTopicOfAnotherOutbox(t *testing.T) {
	w, _ := embedded(t)
	opened(t, w)
	config := w.config()
	config.Outbox, config.CursorTopic = "bills", cursorTopic
	other, err := kafkalog.New(config)
	require.NoError(t, err)
	_, err = other.Open(t.Context())
	var refusal *outbox.Refusal
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, kafkalog.ReasonCursorForeign, refusal.Reason)
	require.ErrorContains(t, err, `"orders"`)
	_, err = other.Cursor(t.Context())
	require.ErrorAs(t, err, &refusal)
}

// Neither an aggregate type nor a dead letter may lead there.
func TestCursorTopicTakesNoRows(t *testing.T) {
	w, _ := embedded(t)
	_, err := opened(t, w).Topics(t.Context(), []string{w.Topic(), cursorTopic})
	var refusal *outbox.Refusal
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, kafkalog.ReasonCursorForeign, refusal.Reason)
}

// Cursor looks, and disturbs nobody.
func TestCursor(t *testing.T) {
	w, _ := embedded(t)
	l := opened(t, w)
	reader, err := kafkalog.New(w.config())
	require.NoError(t, err)
	cursor, err := reader.Cursor(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, cursor.Window)
	require.NoError(t, l.Commit(t.Context(), outbox.Transaction{Records: logtest.RecordsOf(w.Topic(), 2, 3), Cursor: logtest.CursorAt(2)}))
	cursor, err = reader.Cursor(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, cursor.Window)
}

// Partitions are those of Kafka's default partitioner, as franz-go has it.
func TestPartitionsAreKafkasOwn(t *testing.T) {
	w, _ := embedded(t)
	db := memory.NewDatabase()
	tx := db.Begin()
	keys := []string{"", "a", "ab", "abc", "abcd", "order-4711", "ü", "018f3c5e-0000-7000-8000-000000000001"}
	for i, key := range keys {
		tx.Insert(outbox.Row{ID: fmt.Sprint(i), AggregateType: "orders", AggregateID: &key, Payload: []byte(key)})
	}
	tx.Commit()
	router, err := outbox.NewRouter(outbox.Routing{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	poller, err := outbox.NewPoller(outbox.Shard{Of: 1}, db.Table(outbox.Shard{Of: 1}), w.Log(t), router, outbox.Rules{
		Initialise: outbox.FromBeginning, Wait: func(context.Context, time.Duration) { cancel() },
	})
	require.NoError(t, err)
	_, err = poller.Run(ctx, time.Now().Add(time.Minute))
	require.NoError(t, err)
	partitioner := kgo.StickyKeyPartitioner(nil).ForTopic(w.Topic())
	found := 0
	for p := range int32(logtest.Partitions) {
		for _, r := range w.Records(t, p, true) {
			require.EqualValues(t, p, partitioner.Partition(&kgo.Record{Key: r.Key}, logtest.Partitions), "%q", r.Key)
			found++
		}
	}
	require.Equal(t, len(keys), found)
}
