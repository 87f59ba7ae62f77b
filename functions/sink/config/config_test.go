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

	"oncehouse/functions/sink/config"
	"oncehouse/shared/delivery"
	"oncehouse/shared/rowbinary"
	"oncehouse/shared/settings"
)

const secret = "arn:aws:secretsmanager:eu-west-1:111122223333:secret:clickhouse-AbCdEf:password"

// least is an environment with what is required, and no more.
func least(more ...string) map[string]string {
	environ := map[string]string{
		"ONCEHOUSE_PIPELINE": "clicks", "ONCEHOUSE_TOPIC": "clicks", "ONCEHOUSE_LEDGER_TABLE": "oncehouse-ledger",
		"ONCEHOUSE_DEAD_LETTER_QUEUE_URL": "https://sqs.eu-west-1.amazonaws.com/111122223333/clicks-letters",
		"ONCEHOUSE_FUNCTION_TIMEOUT":      "2m",
		"ONCEHOUSE_CLICKHOUSE_URL":        "https://clickhouse.example.com:8443", "ONCEHOUSE_CLICKHOUSE_TABLE": "clicks",
		"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "256", "PATH": "/bin",
	}
	maps.Copy(environ, settings.Environ(more))
	return environ
}

func TestTheLeastIsEnough(t *testing.T) {
	cfg, err := config.Parse(least())
	require.NoError(t, err)
	want := delivery.DefaultRules()
	require.Equal(t, want, cfg.Rules(), "the defaults are delivery's own")
	require.Equal(t, int64(256<<20), cfg.MemoryBytes)
	require.NoError(t, cfg.Target().Validate())
	require.Equal(t, rowbinary.StandardProvenance(), cfg.Rows().Provenance)
	require.Equal(t, slog.LevelInfo, cfg.LogLevel.Level())
}

func TestSettingsArriveWhereTheyBelong(t *testing.T) {
	cfg, err := config.Parse(least(
		"ONCEHOUSE_CLICKHOUSE_URL=http://a:8123,http://b:8123", "ONCEHOUSE_CLICKHOUSE_PASSWORD=s3cret",
		"ONCEHOUSE_CHUNK_BYTES=8 MiB", "ONCEHOUSE_INSERT_TIMEOUT=5s", "ONCEHOUSE_GUARANTEE=at-most-once",
		"ONCEHOUSE_TOMBSTONES=delete", "ONCEHOUSE_DELETE_MARKER_COLUMN=gone", "ONCEHOUSE_DELETE_KEY_COLUMNS=a,b",
		"ONCEHOUSE_POISON_SHARE=0.25", "ONCEHOUSE_REPORT_BATCH_ITEM_FAILURES=true", "ONCEHOUSE_LOG_LEVEL=warn"))
	require.NoError(t, err)
	require.Equal(t, []string{"http://a:8123", "http://b:8123"}, cfg.Target().Endpoints)
	require.Equal(t, "s3cret", string(cfg.Target().Password))
	require.Equal(t, 8<<20, cfg.Rules().ChunkLimit.Bytes)
	require.Equal(t, 5*time.Second, cfg.Rules().InsertTimeout)
	require.Equal(t, delivery.AtMostOnce, cfg.Target().Rules.Guarantee)
	require.Equal(t, rowbinary.Delete{Marker: "gone", KeyColumns: []string{"a", "b"}, KeyFormat: rowbinary.KeyText}, cfg.Rows().Delete)
	require.InDelta(t, 0.25, cfg.Rules().PoisonShare, 0)
	require.True(t, cfg.PartialBatch)
	require.Equal(t, slog.LevelWarn, cfg.LogLevel.Level())
}

func TestProblems(t *testing.T) {
	for _, c := range []struct{ set, want string }{
		{"PIPELINE=", "ONCEHOUSE_PIPELINE is missing: a name of letters"},
		{"PIPELINE=a/b", `ONCEHOUSE_PIPELINE is "a/b": a name of letters`},
		{"PIPELINE=a:b", "a name of letters"},
		{"TOPIC=..", "a Kafka topic of letters, digits and ._-, at most 249 expected"},
		{"CLUSTER=a b", "ONCEHOUSE_CLUSTER is"},
		{"GUARANTEE=exactly_once", `ONCEHOUSE_GUARANTEE is "exactly_once": one of exactly-once, at-least-once, at-most-once expected`},
		{"FUNCTION_TIMEOUT=120", `ONCEHOUSE_FUNCTION_TIMEOUT is "120": a duration such as 1m30s from 5s to 15m expected`},
		{"FUNCTION_TIMEOUT=16m", "from 5s to 15m"},
		{"FUNCTION_TIMEOUT=33s", "ONCEHOUSE_FUNCTION_TIMEOUT is 33s: more than ONCEHOUSE_INSERT_TIMEOUT + ONCEHOUSE_CLOCK_MARGIN + ONCEHOUSE_DEADLINE_MARGIN (33s)"},
		{"INSERT_TIMEOUT=0s", "from 1s to 14m"},
		{"CHUNK_ROWS=1000000", "a whole number from 1 to 999999"},
		{"CHUNK_ROWS=1e5", "a whole number from 1 to 999999"},
		{"CHUNK_BYTES=256MiB", "a number of bytes such as 64MiB from 1KiB to 255MiB"},
		{"CHUNK_BYTES=lots", "a number of bytes"},
		{"POISON_SHARE=0", "from 0.01 to 1"},
		{"POISON_SHARE=NaN", "from 0.01 to 1"},
		{"REPORT_BATCH_ITEM_FAILURES=maybe", "true or false expected"},
		{"CLICKHOUSE_URL=clickhouse:8123", "http://host:port or https://host:port"},
		{"CLICKHOUSE_URL=https://clickhouse", "http://host:port"},
		{"CLICKHOUSE_URL=https://a:1, http://b:1", "http://host:port"},
		{"CLICKHOUSE_URL=https://a:1,http://b:1", "all http or all https"},
		{"CLICKHOUSE_PASSWORD_SECRET=hunter2", "arn:aws:secretsmanager"},
		{"CLICKHOUSE_COMPRESSION=lz4", "one of none, gzip"},
		{"LEDGER_TABLE=", "ONCEHOUSE_LEDGER_TABLE is missing: exactly-once needs a ledger"},
		{"UNKNOWN_FIELDS=collect", "ONCEHOUSE_OVERFLOW_COLUMN goes with"},
		{"FORMAT=raw", "ONCEHOUSE_RAW_KEY_COLUMN or"},
		{"RAW_VALUE_COLUMN=v", "have no meaning"},
		{"TOMBSTONES=delete", "ONCEHOUSE_DELETE_MARKER_COLUMN and"},
		{"LANE_CONCURRENCY=0", "from 1 to 64"},
		{"INSERT_TIMEOOT=3s", "ONCEHOUSE_INSERT_TIMEOOT is not a setting: did you mean ONCEHOUSE_INSERT_TIMEOUT?"},
		{"CLICKHOUSE_TABEL=x", "did you mean ONCEHOUSE_CLICKHOUSE_TABLE?"},
		{"KAFKA_BROKERS=b", "host:port, several with commas expected"},
		{"KAFKA_TLS=true", "ONCEHOUSE_KAFKA_BROKERS is missing"},
		{"KAFKA_USER=u", "ONCEHOUSE_KAFKA_AUTH is none, which takes no user and password"},
		{"XYZZY=1", "ONCEHOUSE_XYZZY is not a setting"},
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

func TestEveryProblemIsNamedAtOnce(t *testing.T) {
	_, err := config.Parse(map[string]string{
		"ONCEHOUSE_GUARANTEE": "twice", "ONCEHOUSE_CHUNK_ROWS": "many", "ONCEHOUSE_REPLAY": "no", "ONCEHOUSE_PIPLINE": "clicks",
	})
	var refused *settings.Error
	require.ErrorAs(t, err, &refused)
	text := err.Error()
	require.NotContains(t, text, "\n", "one line")
	for _, name := range []string{"GUARANTEE", "CHUNK_ROWS", "REPLAY", "PIPLINE", "PIPELINE", "TOPIC", "DEAD_LETTER_QUEUE_URL", "FUNCTION_TIMEOUT", "CLICKHOUSE_URL", "CLICKHOUSE_TABLE"} {
		require.Contains(t, text, "ONCEHOUSE_"+name+" is ", name)
	}
	require.Len(t, refused.Problems, 10)
}

func TestAnEmptyEnvironmentIsNotTheProcesss(t *testing.T) {
	t.Setenv("ONCEHOUSE_TOPIC", "clicks")
	_, err := config.Parse(nil)
	require.ErrorContains(t, err, "ONCEHOUSE_TOPIC is missing")
}

func TestSecretsDoNotShow(t *testing.T) {
	cfg, err := config.Parse(least("ONCEHOUSE_CLICKHOUSE_PASSWORD=s3cret"))
	require.NoError(t, err)
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "config", cfg, "target", cfg.Target())
	asJSON, err := json.Marshal(cfg)
	require.NoError(t, err)
	for _, text := range []string{log.String(), string(asJSON), fmt.Sprintf("%v %+v %#v", *cfg, *cfg, *cfg)} {
		require.NotContains(t, text, "s3cret")
	}

	_, err = config.Parse(least("ONCEHOUSE_CLICKHOUSE_PASSWORD=s3cret", "ONCEHOUSE_CLICKHOUSE_PASSWORD_SECRET="+secret,
		"ONCEHOUSE_CLICKHOUSE_URL=https://user:s3cret@clickhouse:8443", "ONCEHOUSE_CLICKHOUSE_PROXY=s3cret@proxy"))
	require.ErrorContains(t, err, "ONCEHOUSE_CLICKHOUSE_URL is a text that may hold a password")
	require.NotContains(t, err.Error(), "s3cret")
	_, err = config.Parse(least("ONCEHOUSE_CLICKHOUSE_PASSWORD=s3cret", "ONCEHOUSE_CLICKHOUSE_PASSWORD_SECRET="+secret))
	require.ErrorContains(t, err, "one of the two expected")
	require.NotContains(t, err.Error(), "s3cret")
}

func TestSecretsByARN(t *testing.T) {
	cfg, err := config.Parse(least("ONCEHOUSE_CLICKHOUSE_PASSWORD_SECRET=" + secret))
	require.NoError(t, err)
	require.Equal(t, secret, cfg.PasswordSecret.String())
	require.Equal(t, "password", cfg.PasswordSecret.Key)
}

func TestKafka(t *testing.T) {
	for _, c := range []struct{ settings, want string }{
		{"AUTH=iam TLS=true", ""},
		{"AUTH=iam", "ONCEHOUSE_KAFKA_TLS is false: true expected"},
		{"AUTH=scram-sha-512", "either ONCEHOUSE_KAFKA_SECRET or both"},
		{"AUTH=scram-sha-512 USER=u", "either ONCEHOUSE_KAFKA_SECRET or both"},
		{"AUTH=scram-sha-512 USER=u PASSWORD=p", ""},
		{"AUTH=scram-sha-512 USER=u PASSWORD=p SECRET=" + secret, "either ONCEHOUSE_KAFKA_SECRET or both"},
		{"AUTH=plain SECRET=" + secret, ""},
		{"AUTH=kerberos", "one of none, iam, scram-sha-512, scram-sha-256, plain"},
	} {
		settings := []string{"ONCEHOUSE_KAFKA_BROKERS=b-1:9098,b-2:9098"}
		for _, setting := range strings.Fields(c.settings) {
			settings = append(settings, "ONCEHOUSE_KAFKA_"+setting)
		}
		cfg, err := config.Parse(least(settings...))
		if c.want == "" {
			require.NoError(t, err, c.settings)
			require.Equal(t, []string{"b-1:9098", "b-2:9098"}, cfg.Brokers)
			continue
		}
		require.ErrorContains(t, err, c.want, c.settings)
	}
}
