package kafkalog

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/outbox"
)

// What a topic takes, by the settings of every Kafka since 2.
func TestTopicOf(t *testing.T) {
	const never, hour = "9223372036854775807", 3_600_000
	now := time.UnixMilli(1_800_000_000_000)
	at := func(ms int64) int64 { return now.UnixMilli() + ms }
	for name, c := range map[string]struct {
		settings map[string]string
		want     outbox.Topic
	}{
		"none":    {nil, outbox.Topic{}},
		"Kafka 2": {map[string]string{"message.timestamp.difference.max.ms": never}, outbox.Topic{}},
		"Kafka 3.5, set": {
			map[string]string{"message.timestamp.difference.max.ms": "36000000"},
			outbox.Topic{Earliest: at(-9 * hour), Latest: at(9 * hour)},
		},
		"Kafka 3.6, as it comes": {map[string]string{
			"message.timestamp.before.max.ms": never, "message.timestamp.after.max.ms": never, "message.timestamp.difference.max.ms": never,
		}, outbox.Topic{}},
		"Kafka 3.6, the old one set": {map[string]string{
			"message.timestamp.before.max.ms": never, "message.timestamp.after.max.ms": "36000000", "message.timestamp.difference.max.ms": "3600000",
		}, outbox.Topic{Earliest: at(-hour * 9 / 10), Latest: at(9 * hour)}},
		"Kafka 4, as it comes": {map[string]string{
			"message.timestamp.before.max.ms": never, "message.timestamp.after.max.ms": "3600000", "message.timestamp.type": "CreateTime",
		}, outbox.Topic{Latest: at(hour * 9 / 10)}},
		"a week": {map[string]string{
			"message.timestamp.before.max.ms": "604800000", "message.timestamp.after.max.ms": "604800000",
		}, outbox.Topic{Earliest: at(-167 * hour), Latest: at(167 * hour)}},
		"nothing from the future": {map[string]string{"message.timestamp.after.max.ms": "0"}, outbox.Topic{Latest: at(60_000)}},
		"from the beginning":      {map[string]string{"message.timestamp.before.max.ms": "9223372036854775806"}, outbox.Topic{}},
		"stamped by the broker": {map[string]string{
			"message.timestamp.before.max.ms": "0", "message.timestamp.after.max.ms": "3600000", "message.timestamp.type": "LogAppendTime",
		}, outbox.Topic{}},
		"compacted":       {map[string]string{"cleanup.policy": "compact"}, outbox.Topic{Compacted: true}},
		"compacted, both": {map[string]string{"cleanup.policy": "delete,compact"}, outbox.Topic{Compacted: true}},
	} {
		t.Run(name, func(t *testing.T) {
			settings := map[string]string{"max.message.bytes": "1048588"}
			for k, v := range c.settings {
				settings[k] = v
			}
			c.want.Partitions, c.want.MaxMessageBytes = 3, 1048588
			got, err := topicOf(3, settings, now)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
	_, err := topicOf(3, nil, now)
	require.ErrorContains(t, err, "max.message.bytes")
}
