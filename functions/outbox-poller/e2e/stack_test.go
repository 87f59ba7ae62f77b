// Package e2e runs the outbox poller as Lambda runs it: the real binary behind the
// real Runtime API, against a real PostgreSQL and a broker.
package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncehouse/infra/build/artifact"
	"oncehouse/infra/local/broker"
	"oncehouse/infra/local/lambdahost"
	"oncehouse/infra/local/postgres"
	"oncehouse/infra/local/process"
	table "oncehouse/shared/outbox/postgres"
)

const (
	root       = "../../.."
	partitions = 3
	// timeout of one invocation: it polls for two of its three seconds.
	timeout = 3 * time.Second
)

// stack is what all outboxes of the tests share.
type stack struct {
	bootstrap string
	database  *postgres.Server
	broker    *broker.EmbeddedBroker
}

// start builds the binary and starts the servers; they end with the test.
func start(t *testing.T) *stack {
	t.Helper()
	s := &stack{bootstrap: filepath.Join(t.TempDir(), "bootstrap")}
	require.NoError(t, artifact.Compile(t.Context(), artifact.Source{
		Root: root, Function: "outbox-poller", Arch: runtime.GOARCH, OS: runtime.GOOS, Stamp: artifact.Stamp{Version: "1.2.3-e2e", Commit: "abc123"},
	}, s.bootstrap))
	var err error
	s.database, err = postgres.Start(t.Context(), postgres.Options{Root: root, Settings: map[string]string{"max_wal_senders": "4", "wal_level": "replica"}})
	require.NoError(t, err)
	t.Cleanup(s.database.Close)
	s.broker, err = broker.Embedded(broker.EmbeddedConfig{})
	require.NoError(t, err)
	t.Cleanup(s.broker.Close)
	return s
}

// outbox is one table in a schema of its own, and the function that polls it.
type outbox struct {
	*lambdahost.Function
	t     *testing.T
	stack *stack
	name  string
	conn  *pgx.Conn
	log   *process.Output
}

// outbox makes a table, its topics and the function. Settings are NAME=value
// without ONCEHOUSE_; an empty value takes one away.
func (s *stack) outbox(t *testing.T, name string, settings ...string) *outbox {
	t.Helper()
	o := &outbox{t: t, stack: s, name: name}
	o.connect()
	o.exec("CREATE SCHEMA " + name + "; SET search_path = " + name)
	o.exec(table.Migration(false))
	require.NoError(t, broker.CreateTopics(t.Context(), s.broker, broker.Topic{Name: o.topic(), Partitions: partitions}))
	o.deploy(settings...)
	return o
}

func (o *outbox) topic() string { return o.name + ".order" }

// deploy makes the function, another one than before if there was one.
func (o *outbox) deploy(settings ...string) {
	o.t.Helper()
	if o.Function != nil {
		o.Close()
	}
	database, err := url.Parse(o.stack.database.URL())
	require.NoError(o.t, err)
	env := map[string]string{
		"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_REGION": "us-east-1",
		"ONCEHOUSE_OUTBOX": o.name, "ONCEHOUSE_SCHEMA": o.name, "ONCEHOUSE_TOPIC_TEMPLATE": o.name + ".${routedByValue}",
		"ONCEHOUSE_CREATE_CURSOR_TOPIC": "true", "ONCEHOUSE_KAFKA_BROKERS": strings.Join(o.stack.broker.Addrs(), ","),
		"ONCEHOUSE_DATABASE_HOST": database.Hostname(), "ONCEHOUSE_DATABASE_PORT": database.Port(), "ONCEHOUSE_DATABASE_NAME": "postgres",
		"ONCEHOUSE_DATABASE_USER": "postgres", "ONCEHOUSE_DATABASE_TLS": "disable",
		"ONCEHOUSE_DEADLINE_MARGIN": "100ms", "ONCEHOUSE_RESERVE": "800ms", "ONCEHOUSE_CURSOR_INTERVAL": "1s", "ONCEHOUSE_TRANSACTION_ROWS": "40",
	}
	for _, setting := range settings {
		name, value, _ := strings.Cut(setting, "=")
		if env["ONCEHOUSE_"+name] = value; value == "" {
			delete(env, "ONCEHOUSE_"+name)
		}
	}
	o.log = &process.Output{}
	o.Function, err = lambdahost.New(lambdahost.Config{
		Name: "outbox-" + o.name, Bootstrap: o.stack.bootstrap, Timeout: timeout, Concurrency: 3, Env: env, Log: o.log, InitTimeout: time.Minute,
	})
	require.NoError(o.t, err)
	o.t.Cleanup(o.Close)
	log := o.log
	o.t.Cleanup(func() {
		if o.t.Failed() {
			text := log.String()
			o.t.Log(text[max(0, len(text)-6000):])
		}
	})
}

func (o *outbox) connect() {
	o.t.Helper()
	conn, err := pgx.Connect(o.t.Context(), o.stack.database.URL())
	require.NoError(o.t, err)
	o.conn = conn
	o.t.Cleanup(func() { _ = conn.Close(context.Background()) }) // the server may be gone
}

func (o *outbox) exec(sql string, args ...any) {
	o.t.Helper()
	_, err := o.conn.Exec(o.t.Context(), sql, args...)
	require.NoError(o.t, err)
}

// insert commits n rows, of ten orders in turn.
func (o *outbox) insert(n int) {
	o.t.Helper()
	o.exec("INSERT INTO outbox (aggregatetype, aggregateid, type, payload) SELECT 'order', 'order-' || i % 10, 'Placed', jsonb_build_object('n', i) FROM generate_series(1, $1) i", n)
}

// call invokes the function, whatever comes of it.
func (o *outbox) call(payload string) lambdahost.Result {
	o.t.Helper()
	result, err := o.Invoke(o.t.Context(), []byte(payload))
	require.NoError(o.t, err)
	return result
}

// poll invokes the function and wants success.
func (o *outbox) poll() string {
	o.t.Helper()
	result := o.call(`{"shard":0}`)
	require.Empty(o.t, result.FunctionError, "%s: %s", result.ErrorType, result.ErrorMessage)
	return string(result.Payload)
}

// fail invokes the function and wants an error of that type.
func (o *outbox) fail(errorType string) lambdahost.Result {
	o.t.Helper()
	result := o.call(`{"shard":0}`)
	require.Equal(o.t, errorType, result.ErrorType, "%s%s", result.ErrorMessage, result.Payload)
	return result
}

func (o *outbox) initialise() {
	o.t.Helper()
	result := o.call(`{"oncehouse":{"action":"initialise","from":"beginning"}}`)
	require.Empty(o.t, result.FunctionError, "%s: %s", result.ErrorType, result.ErrorMessage)
}

// drain polls until everything that is committed is published, as the schedule
// would: a busy machine may need more than one run.
func (o *outbox) drain() {
	o.t.Helper()
	for range 20 {
		if len(o.published()) == o.committed() {
			return
		}
		result := o.call(`{"shard":0}`)
		if result.FunctionError != "" {
			o.t.Logf("polled again after %s: %s", result.ErrorType, result.ErrorMessage)
		}
	}
}

func (o *outbox) committed() (n int) {
	o.t.Helper()
	require.NoError(o.t, o.conn.QueryRow(o.t.Context(), "SELECT count(*) FROM outbox").Scan(&n))
	return n
}

// published are the committed records of the topic, by partition and offset.
func (o *outbox) published() []*kgo.Record { return o.read(o.topic(), kgo.ReadCommitted()) }

// seen are all records, those of aborted attempts included.
func (o *outbox) seen() []*kgo.Record { return o.read(o.topic(), kgo.ReadUncommitted()) }

func (o *outbox) read(topic string, isolation kgo.IsolationLevel) (all []*kgo.Record) {
	o.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(o.stack.broker.Addrs()...), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(isolation),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.KeepControlRecords())
	require.NoError(o.t, err)
	defer client.Close()
	admin := kadm.NewClient(client)
	ends, err := admin.ListCommittedOffsets(o.t.Context(), topic)
	require.NoError(o.t, err)
	left := map[int32]int64{}
	ends.Each(func(e kadm.ListedOffset) {
		if e.Offset > 0 {
			left[e.Partition] = e.Offset
		}
	})
	ctx, cancel := context.WithTimeout(o.t.Context(), 30*time.Second)
	defer cancel()
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		require.NoError(o.t, ctx.Err(), "read %s: partitions %v are left", topic, left)
		fetches.EachRecord(func(r *kgo.Record) {
			if end, ok := left[r.Partition]; ok && r.Offset >= end-1 { // the last is a marker
				delete(left, r.Partition)
			}
			if !r.Attrs.IsControl() {
				all = append(all, r)
			}
		})
	}
	return all
}

// requireExact wants each committed row once, with its values, and the rows of
// each order in the order of seq.
func (o *outbox) requireExact() {
	o.t.Helper()
	rows, err := o.conn.Query(o.t.Context(), "SELECT id::text, aggregateid, payload::text FROM outbox ORDER BY seq")
	require.NoError(o.t, err)
	want := map[string][]string{}
	var id, key, payload string
	_, err = pgx.ForEachRow(rows, []any{&id, &key, &payload}, func() error {
		want[key] = append(want[key], id+" "+payload)
		return nil
	})
	require.NoError(o.t, err)
	got := map[string][]string{}
	for _, r := range o.published() {
		got[string(r.Key)] = append(got[string(r.Key)], header(r, "id")+" "+string(r.Value))
	}
	require.Equal(o.t, want, got)
}

func header(r *kgo.Record, key string) string {
	for _, h := range r.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

// at has act done once, at the n-th request of that kind from now on; swallow
// keeps the request from the broker, else it is performed after act.
func (s *stack) at(key kmsg.Key, n int, swallow bool, act func()) {
	seen := 0
	s.broker.Cluster().ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
		if seen++; seen != n {
			return nil, nil, false
		}
		s.broker.Cluster().DropControl()
		act()
		if swallow {
			return nil, errors.New("the connection is cut"), true
		}
		return nil, nil, false
	})
}

// entries are the log lines with that message.
func (o *outbox) entries(message string) (all []map[string]any) {
	o.t.Helper()
	for line := range strings.Lines(o.log.String()) {
		var entry map[string]any
		if json.Unmarshal([]byte(line), &entry) == nil && entry["msg"] == message {
			all = append(all, entry)
		}
	}
	return all
}
