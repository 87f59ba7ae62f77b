package handler_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/lambda/messages"
	"github.com/aws/aws-lambda-go/lambdacontext"
	"github.com/stretchr/testify/require"

	"oncehouse/functions/sink/config"
	"oncehouse/functions/sink/handler"
	"oncehouse/infra/local/clickstream"
	"oncehouse/shared/clickhouse/targettest"
	"oncehouse/shared/deadletter"
	letters "oncehouse/shared/deadletter/memory"
	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	"oncehouse/shared/ledger/memory"
	"oncehouse/shared/metrics"
	"oncehouse/shared/metrics/metricstest"
	"oncehouse/shared/offsets"
	"oncehouse/shared/settings"
)

const (
	arn     = "arn:aws:kafka:eu-west-1:111122223333:cluster/clickstream/0c5f2a4e-8f0b-4f8b-9d0e-6f1d1a2b3c4d-2"
	cluster = "clickstream/0c5f2a4e-8f0b-4f8b-9d0e-6f1d1a2b3c4d-2"
)

// table is a Replicated table in memory, whose tokens it never forgets. A value
// that is no JSON does not fit. It passes the suite of the real one.
type table struct {
	mu     sync.Mutex
	rows   map[kafka.TopicPartition][]int64 // offsets, ascending, each as often as it is there
	tokens map[string]bool

	preflight error
	// mended takes every value.
	mended bool
	// before is called before an insert; its error is the insert's, and nothing
	// is stored.
	before func(ctx context.Context, in delivery.Insert) error
	// after is called behind one: its error is the answer of what was stored.
	after func(ctx context.Context, in delivery.Insert) error
	// forgets all tokens: a window of 0.
	forgets bool
	// looking is called before the table is looked into.
	looking func()
}

func newTable() *table {
	return &table{rows: map[kafka.TopicPartition][]int64{}, tokens: map[string]bool{}}
}

func TestTableSuite(t *testing.T) {
	targettest.Run(t, func(*testing.T) targettest.Fixture {
		fake := newTable()
		return targettest.Fixture{Target: fake, Deduplicates: true, Stored: func(_ *testing.T, lane delivery.Lane) []int64 {
			return fake.rows[lane.TopicPartition]
		}}
	})
}

func (t *table) Preflight(context.Context) (delivery.Traits, error) {
	return delivery.Traits{TokensTrusted: true, Provenance: true, RowsStay: true}, t.preflight
}

func (t *table) Encode(_ delivery.Lane, records []kafka.Record, limit delivery.Limit) (*delivery.Chunk, error) {
	chunk := &delivery.Chunk{}
	var rows []int64
	for i, r := range records {
		if chunk.Rows == limit.Rows || chunk.Bytes >= limit.Bytes {
			break
		}
		chunk.Consumed++
		switch {
		case r.Value == nil:
			chunk.Skipped = append(chunk.Skipped, i)
		case !t.mended && !json.Valid(r.Value):
			chunk.Refused = append(chunk.Refused, delivery.Refusal{Offset: r.Offset, Code: "not_json", Message: "it is bad"})
		default:
			rows = append(rows, r.Offset)
			chunk.Rows++
			chunk.Bytes += len(r.Value)
		}
	}
	chunk.Payload = rows
	return chunk, nil
}

func (t *table) Insert(ctx context.Context, in delivery.Insert) error {
	switch {
	case in.Chunk.Rows == 0:
		return &delivery.Error{Kind: delivery.Fatal, Reason: delivery.ReasonTarget, Message: "the chunk is empty"}
	case time.Now().After(in.NotAfter):
		return &delivery.Error{Kind: delivery.Retryable, Reason: delivery.ReasonOutOfTime, Message: "nothing was sent"}
	}
	if t.before != nil {
		if err := t.before(ctx, in); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.tokens[in.Token] {
		return nil
	}
	if in.Token != "" && !t.forgets {
		t.tokens[in.Token] = true
	}
	t.put(in.Lane, in.Chunk.Payload.([]int64)...)
	if t.after != nil {
		return t.after(ctx, in)
	}
	return nil
}

func (t *table) put(lane delivery.Lane, of ...int64) {
	rows := slices.Concat(t.rows[lane.TopicPartition], of)
	slices.Sort(rows)
	t.rows[lane.TopicPartition] = rows
}

func (t *table) Probe(_ context.Context, lane delivery.Lane, of offsets.Set) (offsets.Set, error) {
	t.look()
	t.mu.Lock()
	defer t.mu.Unlock()
	return set(t.rows[lane.TopicPartition]).Intersect(of), nil
}

func (t *table) look() {
	if t.looking != nil {
		t.looking()
	}
}

func (t *table) Highest(_ context.Context, lane delivery.Lane) (int64, error) {
	t.look()
	t.mu.Lock()
	defer t.mu.Unlock()
	if rows := t.rows[lane.TopicPartition]; len(rows) > 0 {
		return rows[len(rows)-1], nil
	}
	return -1, nil
}

func set(rows []int64) offsets.Set { return offsets.Of(slices.Compact(slices.Clone(rows))...) }

// stored is what the table has, as text by partition.
func (t *table) stored() map[int32]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[int32]string{}
	for tp, rows := range t.rows {
		once := set(rows)
		out[tp.Partition] = once.String()
		if n := int64(len(rows)) - once.Len(); n > 0 {
			out[tp.Partition] += fmt.Sprintf(" and %d rows too many", n)
		}
	}
	return out
}

// world is a handler and all that it works with.
type world struct {
	*handler.Handler
	table   *table
	ledger  *memory.Ledger
	letters *letters.Letters
	queue   *returning // of letters
	log     bytes.Buffer
	metrics bytes.Buffer
}

func newWorld(t *testing.T, more ...string) *world {
	t.Helper()
	w := &world{table: newTable(), ledger: memory.New(), letters: &letters.Letters{}}
	w.queue = &returning{Letters: w.letters}
	return w.environment(t, more...)
}

// environment is another one of the function, beside w.
func (w *world) environment(t *testing.T, more ...string) *world {
	t.Helper()
	w = &world{table: w.table, ledger: w.ledger, letters: w.letters, queue: w.queue}
	environ := map[string]string{
		"ONCEHOUSE_PIPELINE": "clicks", "ONCEHOUSE_TOPIC": "clicks", "ONCEHOUSE_LEDGER_TABLE": "ledger",
		"ONCEHOUSE_DEAD_LETTER_QUEUE_URL": "https://sqs.example.com/q", "ONCEHOUSE_FUNCTION_TIMEOUT": "60s",
		"ONCEHOUSE_CLICKHOUSE_URL": "http://clickhouse:8123", "ONCEHOUSE_CLICKHOUSE_TABLE": "clicks",
	}
	maps.Copy(environ, settings.Environ(more))
	cfg, err := config.Parse(environ)
	require.NoError(t, err)
	w.Handler, err = handler.New(cfg,
		handler.Ports{Ledger: w.ledger, Table: w.table, Letters: w.letters, Queue: w.queue},
		handler.Output{Log: slog.New(slog.NewJSONHandler(&w.log, &slog.HandlerOptions{Level: cfg.LogLevel})), Metrics: &w.metrics})
	require.NoError(t, err)
	return w
}

// returning is a queue that may refuse to take a message back.
type returning struct {
	*letters.Letters
	before func(deadletter.Message) error
}

func (q *returning) Return(ctx context.Context, m deadletter.Message) error {
	if q.before != nil {
		if err := q.before(m); err != nil {
			return err
		}
	}
	return q.Letters.Return(ctx, m)
}

// invoke invokes as Lambda does, with so much time left.
func (w *world) invoke(t *testing.T, left time.Duration, payload []byte) (string, *messages.InvokeResponse_Error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), left)
	defer cancel()
	ctx = lambdacontext.NewContext(ctx, &lambdacontext.LambdaContext{AwsRequestID: "r-1"})
	w.log.Reset()
	w.metrics.Reset()
	answer, err := w.Invoke(ctx, payload)
	if err == nil {
		return string(answer), nil
	}
	require.Empty(t, answer)
	failure, bare := err.(messages.InvokeResponse_Error) //nolint:errorlint // Lambda's runtime does not unwrap either
	require.True(t, bare, "%T", err)
	return "", &failure
}

// lines are the log lines, without what differs from run to run.
func (w *world) lines(t *testing.T) []map[string]any {
	t.Helper()
	var all []map[string]any
	for text := range strings.Lines(w.log.String()) {
		var line map[string]any
		require.NoError(t, json.Unmarshal([]byte(text), &line), text)
		if line["msg"] == "lane settled" {
			require.Contains(t, line, "decode_ms")
			require.Contains(t, line, "preflight_ms")
		}
		for key := range line {
			if key == "time" || strings.HasSuffix(key, "_ms") {
				delete(line, key)
			}
		}
		all = append(all, line)
	}
	slices.SortFunc(all, func(a, b map[string]any) int {
		return strings.Compare(fmt.Sprint(a["partition"]), fmt.Sprint(b["partition"]))
	})
	return all
}

// sums are the metrics of the one EMF line that are not times.
func (w *world) sums(t *testing.T) map[metrics.Name]float64 {
	t.Helper()
	require.Equal(t, 1, strings.Count(w.metrics.String(), "\n"), "one line per invocation")
	out := map[metrics.Name]float64{}
	for name, values := range metricstest.Check(t, w.metrics.Bytes()) {
		if name.Unit() != metrics.Milliseconds && values[0] != 0 {
			out[name] = values[0]
		}
	}
	return out
}

// lane makes the records first..last of a partition; those in bad do not fit.
func lane(partition int32, first, last int64, bad ...int64) kafka.Batch {
	b := kafka.Batch{TopicPartition: kafka.TopicPartition{Topic: "clicks", Partition: partition}}
	for o := first; o <= last; o++ {
		r := kafka.Record{Offset: o, Timestamp: 1_700_000_000_000 + o, Value: fmt.Appendf(nil, `"row %d"`, o)}
		if slices.Contains(bad, o) {
			r.Value = []byte("bad secret payload")
		}
		b.Records = append(b.Records, r)
	}
	return b
}

func event(batches ...kafka.Batch) []byte {
	return clickstream.Mapping{SourceARN: arn, BootstrapServers: "b-1:9098"}.Payload(nil, batches...)
}

// key is the lane of partition 0.
func key() delivery.Lane {
	return delivery.Lane{Pipeline: "clicks", Cluster: cluster, TopicPartition: kafka.TopicPartition{Topic: "clicks"}}
}

// on makes an insert of one partition fail.
func on(partition int32, fail error) func(context.Context, delivery.Insert) error {
	return func(_ context.Context, in delivery.Insert) error {
		if in.Lane.Partition == partition {
			return fail
		}
		return nil
	}
}

var (
	errDoubt = &delivery.Error{Kind: delivery.InDoubt, Reason: delivery.ReasonInDoubt, Message: "the connection broke", Err: errors.New("EOF")}
	errDown  = &delivery.Error{Kind: delivery.Retryable, Reason: delivery.ReasonTarget, Message: "ClickHouse at http://clickhouse:8123 is unreachable: nothing listens there"}
)
