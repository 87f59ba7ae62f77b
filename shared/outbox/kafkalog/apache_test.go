//go:build integration

package kafkalog_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncehouse/infra/local/broker"
	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/kafkalog"
	"oncehouse/shared/outbox/logtest"
	"oncehouse/shared/outbox/memory"
)

// cache is where the repository's other integration tests keep the broker's jars.
var cache = filepath.Join("..", "..", "..", ".cache", "kafka")

// TestApacheLog is the conformance suite on Apache Kafka.
func TestApacheLog(t *testing.T) {
	b := apache(t)
	n := 0
	logtest.Run(t, func(t *testing.T) logtest.World {
		n++
		return newWorld(t, b, fmt.Sprintf("orders-%d", n))
	})
}

// TestApacheChaos lets pollers compete and crash on Apache Kafka.
func TestApacheChaos(t *testing.T) {
	runChaos(t, apache(t), "orders", 60)
}

func apache(t *testing.T) broker.Broker {
	t.Helper()
	b, err := broker.Apache(t.Context(), broker.ApacheConfig{Cache: cache})
	require.NoError(t, err, "run make setup KAFKA=apache")
	t.Cleanup(b.Close)
	return b
}

// TestApacheO11TheBrokerIsKilled kills Apache Kafka in the middle of a backlog.
func TestApacheO11TheBrokerIsKilled(t *testing.T) {
	b, err := broker.Apache(t.Context(), broker.ApacheConfig{Cache: cache, Dir: t.TempDir()})
	require.NoError(t, err, "run make setup KAFKA=apache")
	t.Cleanup(b.Close)
	w := newWorld(t, b, "orders")
	db := filled("orders", 2000)
	restarted := make(chan error, 1)
	rows := 0
	rules := outbox.Rules{Initialise: outbox.FromBeginning, Rows: 50, Observe: func(c outbox.Commit) {
		if rows += c.Rows; rows == 500 {
			b.Kill()
			go func() { restarted <- b.Restart(context.Background()) }()
		}
	}}
	tally := runUntilIdle(t, w, w.config(), db, rules)
	require.NoError(t, <-restarted)
	require.EqualValues(t, 2000, tally.Rows)
	requireOnce(t, w, 2000)
}

// TestApacheO12AMicrosecondIsNoMillisecond has a row that Apache Kafka refuses as it
// comes: one that is stamped more than an hour ahead.
func TestApacheO12AMicrosecondIsNoMillisecond(t *testing.T) {
	w := newWorld(t, apache(t), "orders")
	require.NoError(t, broker.CreateTopics(t.Context(), w.broker, broker.Topic{Name: "dead", Partitions: 1}))
	db, now := memory.NewDatabase(), time.Now()
	tx := db.Begin()
	for i, at := range []int64{now.UnixMilli(), now.UnixMicro(), now.UnixMilli()} {
		tx.Insert(outbox.Row{ID: fmt.Sprint(i), AggregateType: "orders", Payload: []byte("x"), Timestamp: at})
	}
	tx.Commit()
	run := func(deadLetters string) error {
		log, err := kafkalog.New(w.config())
		require.NoError(t, err)
		router, err := outbox.NewRouter(outbox.Routing{})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		poller, err := outbox.NewPoller(w.config().Shard, db.Table(w.config().Shard), log, router, outbox.Rules{
			Initialise: outbox.FromBeginning, DeadLetters: deadLetters, Wait: func(context.Context, time.Duration) { cancel() },
		})
		require.NoError(t, err)
		_, err = poller.Run(ctx, time.Now().Add(time.Minute))
		return err
	}
	var refusal *outbox.Refusal
	require.ErrorAs(t, run(""), &refusal)
	require.Equal(t, outbox.ReasonHalted, refusal.Reason)
	for _, part := range []string{"row 1 (seq 2", w.Topic(), "message.timestamp.after.max.ms", fmt.Sprint(now.UnixMicro())} {
		require.ErrorContains(t, refusal, part)
	}
	require.NoError(t, run("dead"))
	requireOnce(t, w, 2)
	letters := readTopic(t, w, "dead", 0, true)
	require.Len(t, letters, 1)
	require.WithinDuration(t, now, time.UnixMilli(letters[0].Timestamp), time.Minute, "its topic would not take it either")
}

// TestApacheO22ATransactionThatTimesOut has the commit arrive, if ever, when
// Apache Kafka has ended the transaction.
func TestApacheO22ATransactionThatTimesOut(t *testing.T) {
	w := newWorld(t, apache(t), "orders")
	c := w.config()
	c.TransactionTimeout = time.Second
	c.Options = []kgo.Opt{kgo.Dialer(w.wire.dial)}
	db := filled("orders", 10)
	rules := outbox.Rules{Initialise: outbox.FromBeginning, Rows: 5, Observe: func(outbox.Commit) {
		w.wire.hold.CompareAndSwap(0, int64(15*time.Second)) // Kafka looks for such transactions every ten
	}}
	tally := runUntilIdle(t, w, c, db, rules)
	require.EqualValues(t, 1, tally.Reopened)
	require.Zero(t, tally.Fenced)
	requireOnce(t, w, 10)
}
