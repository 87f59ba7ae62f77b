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
	"oncehouse/shared/outbox/logtest"
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
