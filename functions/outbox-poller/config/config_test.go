package config_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/functions/outbox-poller/config"
	"oncehouse/shared/kafkacluster"
	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/postgres"
	"oncehouse/shared/settings"
)

const secret = "arn:aws:secretsmanager:eu-west-1:111122223333:secret:orders-AbCdEf"

// least is an environment with what is required, and no more.
func least(more ...string) map[string]string {
	environ := map[string]string{
		"ONCEHOUSE_OUTBOX": "orders", "ONCEHOUSE_CURSOR_TOPIC": "orders-outbox-cursor",
		"ONCEHOUSE_KAFKA_BROKERS":         "b-1:9098,b-2:9098",
		"ONCEHOUSE_DATABASE_SECRET":       secret,
		"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "256", "PATH": "/bin",
	}
	maps.Copy(environ, settings.Environ(more))
	return environ
}

func TestTheLeastIsEnough(t *testing.T) {
	cfg, err := config.Parse(least())
	require.NoError(t, err)
	require.Equal(t, int64(256<<20), cfg.MemoryBytes)
	require.Equal(t, outbox.Shard{Index: 0, Of: 1, By: "aggregateid"}, cfg.Shard(0))
	require.Equal(t, outbox.Rules{Rows: 1000, Bytes: 8 << 20, Poll: 20 * time.Millisecond, Keep: 30 * time.Second, Reserve: 4 * time.Second}, cfg.Rules())
	topic, err := cfg.Router().Topic("Order")
	require.NoError(t, err)
	require.Equal(t, "outbox.event.Order", topic)
	require.Equal(t, slog.LevelInfo, cfg.LogLevel.Level())
}

func TestSettingsArriveWhereTheyBelong(t *testing.T) {
	cfg, err := config.Parse(least("ONCEHOUSE_HEADERS=type:header:eventType,traceparent:header", "ONCEHOUSE_TOPIC_TEMPLATE=${routedByValue}.events",
		"ONCEHOUSE_SHARDS=4", "ONCEHOUSE_AGGREGATE_ID_COLUMN=customer", "ONCEHOUSE_TRANSACTION_BYTES=1MiB", "ONCEHOUSE_DEAD_LETTER_TOPIC=orders-dead", "ONCEHOUSE_SCHEMA=sales", "ONCEHOUSE_TABLE=Outbox"))
	require.NoError(t, err)
	require.Equal(t, []string{"traceparent"}, cfg.Router().Columns())
	topic, err := cfg.Router().Topic("order")
	require.NoError(t, err)
	require.Equal(t, "order.events", topic)
	require.Equal(t, outbox.Shard{Index: 3, Of: 4, By: "customer"}, cfg.Shard(3))
	require.Equal(t, 1<<20, cfg.Rules().Bytes)
	require.Equal(t, "orders-dead", cfg.Rules().DeadLetters)
	table := cfg.TableOf(cfg.Shard(3))
	require.Equal(t, "sales.Outbox", table.Schema+"."+table.Table)
	require.Equal(t, []string{"traceparent"}, table.Columns.Extra)
	require.Equal(t, postgres.Milliseconds, table.Columns.TimestampUnit)
	log := cfg.LogOf(cfg.Shard(3), kafkacluster.Cluster{})
	require.Equal(t, "orders orders-outbox-cursor 3 of 4", log.Outbox+" "+log.CursorTopic+" "+log.Shard.String())
	require.Equal(t, 168*time.Hour, log.MinCompactionLag)
}

func TestProblems(t *testing.T) {
	for _, c := range []struct{ set, want string }{
		{"OUTBOX=", "ONCEHOUSE_OUTBOX is missing"},
		{`TABLE="Outbox"`, "a name as the database has it, without quotes expected"},
		{`ID_COLUMN=a"b`, "a name as the database has it, without quotes expected"},
		{"SHARDS=0", "from 1 to 256"},
		{"TRANSACTION_BYTES=1", "from 64KiB to 256MiB"},
		{"DEAD_LETTER_TOPIC=orders-outbox-cursor", "holds cursors only"},
		{"TOPIC_TEMPLATE=a b", `do not fit together: topic template "a b"`},
		{"HEADERS=type:envelope", "envelope is not supported, header is"},
		{"RETENTION=marks", "one of none, delete, partitions"},
		{"DATABASE_SECRET=hunter2", "arn:aws:secretsmanager"},
		{"DATABASE_PASSWORD=p", "ONCEHOUSE_DATABASE_PASSWORD is set, and so is ONCEHOUSE_DATABASE_SECRET"},
		{"DATABASE_AUTH=iam", "ONCEHOUSE_DATABASE_AUTH is iam, which takes no password"},
		{"DATABASE_TLS=require", "one of verify-full, disable"},
		{"KAFKA_BROKERS=b", "host:port, several with commas expected"},
		{"KAFKA_AUTH=iam", "ONCEHOUSE_KAFKA_TLS is false: true expected"},
		{"SHARD=1", "did you mean ONCEHOUSE_SHARDS?"},
	} {
		t.Run(c.set, func(t *testing.T) {
			_, err := config.Parse(least("ONCEHOUSE_" + c.set))
			var refused *settings.Error
			require.ErrorAs(t, err, &refused)
			require.Len(t, refused.Problems, 1, err)
			require.Contains(t, refused.Problems[0], c.want)
		})
	}
}

func TestDeadLettersIntoTheDefaultCursorTopic(t *testing.T) {
	_, err := config.Parse(least("ONCEHOUSE_CURSOR_TOPIC=", "ONCEHOUSE_DEAD_LETTER_TOPIC=oncehouse.outbox.orders"))
	require.ErrorContains(t, err, "holds cursors only")
}

// A window that was begun with other columns is not finished with these (O34).
func TestColumnsAreInTheRoutingHash(t *testing.T) {
	seen := map[string]bool{}
	for _, set := range []string{"ID_COLUMN", "AGGREGATE_TYPE_COLUMN", "AGGREGATE_ID_COLUMN", "PAYLOAD_COLUMN", "SEQ_COLUMN", "XID_COLUMN", "OUTBOX"} {
		cfg, err := config.Parse(least("ONCEHOUSE_" + set + "=other"))
		require.NoError(t, err)
		require.False(t, seen[cfg.Router().Hash()], set)
		seen[cfg.Router().Hash()] = true
	}
}

func TestEveryProblemIsNamedAtOnce(t *testing.T) {
	_, err := config.Parse(map[string]string{"ONCEHOUSE_SHARDS": "many"})
	var refused *settings.Error
	require.ErrorAs(t, err, &refused)
	for _, name := range []string{"OUTBOX", "KAFKA_BROKERS", "SHARDS"} {
		require.Contains(t, err.Error(), "ONCEHOUSE_"+name+" is ", name)
	}
	require.Len(t, refused.Problems, 3)
	_, err = config.Parse(least("ONCEHOUSE_DATABASE_SECRET="))
	require.ErrorAs(t, err, &refused)
	require.Len(t, refused.Problems, 3, "host, name and user")
}

func TestDatabaseWithoutASecret(t *testing.T) {
	for settings, want := range map[string]string{
		"TLS=disable":             "",
		"PASSWORD=p CA_FILE=a":    "",
		"AUTH=iam":                "",
		"AUTH=iam TLS=disable":    "iam works only by TLS",
		"AUTH=iam PASSWORD=p":     "takes no password",
		"TLS=disable CA_FILE=pem": "ONCEHOUSE_DATABASE_CA_FILE is set",
	} {
		environ := []string{"ONCEHOUSE_DATABASE_SECRET=", "ONCEHOUSE_DATABASE_HOST=h", "ONCEHOUSE_DATABASE_NAME=d", "ONCEHOUSE_DATABASE_USER=u"}
		for _, s := range strings.Fields(settings) {
			environ = append(environ, "ONCEHOUSE_DATABASE_"+s)
		}
		_, err := config.Parse(least(environ...))
		if want == "" {
			require.NoError(t, err, settings)
			continue
		}
		require.ErrorContains(t, err, want, settings)
	}
}

func TestSecretsDoNotShow(t *testing.T) {
	cfg, err := config.Parse(least("ONCEHOUSE_DATABASE_SECRET=", "ONCEHOUSE_DATABASE_HOST=h", "ONCEHOUSE_DATABASE_NAME=d",
		"ONCEHOUSE_DATABASE_USER=u", "ONCEHOUSE_DATABASE_PASSWORD=s3cret"))
	require.NoError(t, err)
	asJSON, err := json.Marshal(cfg)
	require.NoError(t, err)
	require.NotContains(t, string(asJSON)+fmt.Sprintf("%v %+v %#v", *cfg, *cfg, *cfg), "s3cret")
}
