package kafkalog_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/broker"
	"oncehouse/shared/outbox/logtest"
)

// TestLog is the conformance suite on the embedded broker, which does not keep
// all rules of Apache Kafka's transactions: the integration suite runs it there.
func TestLog(t *testing.T) {
	logtest.Run(t, func(t *testing.T) logtest.World {
		b, err := broker.Embedded(broker.EmbeddedConfig{})
		require.NoError(t, err)
		t.Cleanup(b.Close)
		return newWorld(t, b, "orders")
	})
}

// TestChaos lets pollers compete and crash on the embedded broker.
func TestChaos(t *testing.T) {
	b, err := broker.Embedded(broker.EmbeddedConfig{})
	require.NoError(t, err)
	defer b.Close()
	runChaos(t, b, "orders", 30)
}
