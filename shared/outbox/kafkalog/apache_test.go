//go:build integration

package kafkalog_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/broker"
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
