package mapping

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"oncehouse/infra/local/broker"
	"oncehouse/infra/local/lambdahost"
	"oncehouse/shared/kafka"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const topic = "clicks-a"

// bench is a broker with one topic, and a client that produces.
type bench struct {
	t      *testing.T
	broker broker.Broker
	// cluster takes faults; nil for a real broker.
	cluster *kfake.Cluster
	client  *kgo.Client
	admin   *kadm.Client
}

func newBench(t *testing.T, partitions int32) *bench {
	t.Helper()
	b, err := broker.Embedded(broker.EmbeddedConfig{})
	require.NoError(t, err)
	t.Cleanup(b.Close)
	bench := newBenchOn(t, b, partitions)
	bench.cluster = b.Cluster()
	return bench
}

func newBenchOn(t *testing.T, b broker.Broker, partitions int32) *bench {
	t.Helper()
	require.NoError(t, broker.CreateTopics(t.Context(), b, broker.Topic{Name: topic, Partitions: partitions}))
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Addrs()...), kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return &bench{t: t, broker: b, client: client, admin: kadm.NewClient(client)}
}

// produce appends n records to a partition; their values are the offsets.
func (b *bench) produce(partition int32, first, n int) {
	b.t.Helper()
	records := make([]*kgo.Record, n)
	for i := range records {
		records[i] = &kgo.Record{Partition: partition, Value: fmt.Append(nil, first+i)}
	}
	require.NoError(b.t, b.client.ProduceSync(b.t.Context(), records...).FirstErr())
}

// committed is what the group has committed of a partition; -1 for nothing.
func (b *bench) committed(partition int32) int64 {
	b.t.Helper()
	offsets, err := b.admin.FetchOffsetsForTopics(b.t.Context(), "group", topic)
	require.NoError(b.t, err)
	o, ok := offsets.Lookup(topic, partition)
	require.True(b.t, ok)
	return o.At
}

func (b *bench) start(function Function, change func(*Config)) *Mapping {
	b.t.Helper()
	cfg := Config{
		Brokers: b.broker.Addrs(), Topic: topic, Group: "group", Function: function,
		BatchSize: 10, Backoff: time.Millisecond, MaxBackoff: 4 * time.Millisecond,
	}
	if change != nil {
		change(&cfg)
	}
	m, err := Start(b.t.Context(), cfg)
	require.NoError(b.t, err)
	b.t.Cleanup(m.Stop)
	return m
}

func drain(t *testing.T, m *Mapping) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, m.Drained(ctx))
}

// seen is an event as a function decodes it.
type seen struct {
	Records map[string][]struct {
		Offset int64
		Value  *string
	}
}

// offsets are those of one partition.
func (s seen) offsets(partition int) []int64 {
	var out []int64
	for _, r := range s.Records[fmt.Sprintf("%s-%d", topic, partition)] {
		out = append(out, r.Offset)
	}
	return out
}

// has reports whether the event holds that offset of partition 0.
func (s seen) has(offset int64) bool {
	return slices.Contains(s.offsets(0), offset)
}

// fake is a function of a few lines that remembers its events.
type fake struct {
	mu     sync.Mutex
	events []seen
	sizes  []int
	// handle gets the number of the invocation, from 1, and the event.
	handle func(n int, ev seen) (string, error)
}

var errThrottled = errors.New("throttled")

// Invoke leaves when ctx ends, and the function goes on, as a real one does.
func (f *fake) Invoke(ctx context.Context, payload []byte) (lambdahost.Result, error) {
	type outcome struct {
		lambdahost.Result
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		result, err := f.run(payload)
		done <- outcome{result, err}
	}()
	select {
	case o := <-done:
		return o.Result, o.err
	case <-ctx.Done():
		return lambdahost.Result{}, ctx.Err()
	}
}

func (f *fake) run(payload []byte) (lambdahost.Result, error) {
	var ev seen
	if err := json.Unmarshal(payload, &ev); err != nil {
		return lambdahost.Result{}, err
	}
	f.mu.Lock()
	f.events = append(f.events, ev)
	f.sizes = append(f.sizes, len(payload))
	n := len(f.events)
	f.mu.Unlock()
	result := lambdahost.Result{RequestID: fmt.Sprint("request-", n)}
	if f.handle == nil {
		return result, nil
	}
	answer, failed := f.handle(n, ev)
	if errors.Is(failed, errThrottled) {
		return lambdahost.Result{}, failed
	}
	result.Payload = []byte(answer)
	if failed != nil {
		result.FunctionError, result.ErrorMessage = "Unhandled", failed.Error()
	}
	return result, nil
}

func (f *fake) seen() []seen {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.events)
}

// batches are the offsets of each event of a partition that has any.
func (f *fake) batches(partition int) [][]int64 {
	var out [][]int64
	for _, ev := range f.seen() {
		if o := ev.offsets(partition); len(o) > 0 {
			out = append(out, o)
		}
	}
	return out
}

func upTo(first, last int64) []int64 {
	var out []int64
	for o := first; o <= last; o++ {
		out = append(out, o)
	}
	return out
}

var errFailed = errors.New("failed")

func TestDeliversEachRecordOnceInOrder(t *testing.T) {
	b := newBench(t, 4)
	for p := range int32(4) {
		b.produce(p, 0, 105)
	}
	f := &fake{}
	m := b.start(f, func(c *Config) { c.Pollers = 2 })
	drain(t, m)
	several := false
	for p := range 4 {
		require.Equal(t, upTo(0, 104), slices.Concat(f.batches(p)...))
		require.EqualValues(t, 105, b.committed(int32(p)))
	}
	for _, ev := range f.seen() {
		n := 0
		for _, records := range ev.Records {
			n += len(records)
		}
		require.LessOrEqual(t, n, 10)
		several = several || len(ev.Records) > 1
		require.False(t, (len(ev.offsets(0)) > 0 || len(ev.offsets(2)) > 0) && (len(ev.offsets(1)) > 0 || len(ev.offsets(3)) > 0), "two pollers' records in one event")
	}
	require.True(t, several, "no event had records of several partitions")
	got := m.Metrics()
	require.EqualValues(t, 420, got.PolledEventCount)
	require.EqualValues(t, 420, got.InvokedEventCount)
	require.Zero(t, got.FailedInvokeEventCount)
	require.Zero(t, got.OffsetLag)
	require.Equal(t, []int32{0, 1, 2, 3}, m.Assigned())
}

func TestFailureRetriesTheSameBatchAndHoldsTheOffset(t *testing.T) {
	b := newBench(t, 1)
	b.produce(0, 0, 25)
	f := &fake{}
	f.handle = func(n int, _ seen) (string, error) {
		switch n {
		case 2, 3:
			if at := b.committed(0); at != 10 {
				t.Errorf("committed %d while 10..19 are unsettled", at)
			}
			return "", errFailed
		case 4:
			return "", errThrottled
		}
		return "", nil
	}
	m := b.start(f, nil)
	drain(t, m)
	require.Equal(t, [][]int64{upTo(0, 9), upTo(10, 19), upTo(10, 19), upTo(10, 19), upTo(10, 19), upTo(20, 24)}, f.batches(0))
	got := m.Metrics()
	require.EqualValues(t, 6, got.Invocations)
	require.EqualValues(t, 30, got.FailedInvokeEventCount)
	require.EqualValues(t, 1, got.InvokeErrorCount)
}

func failuresOf(offsets ...int64) string {
	var items []string
	for _, o := range offsets {
		items = append(items, fmt.Sprintf(`{"itemIdentifier":{"partition":"%s-0","offset":%d}}`, topic, o))
	}
	return `{"batchItemFailures":[` + strings.Join(items, ",") + `]}`
}

func TestPartialAnswerResumesAtTheLowestFailure(t *testing.T) {
	b := newBench(t, 1)
	b.produce(0, 0, 10)
	f := &fake{}
	f.handle = func(n int, _ seen) (string, error) {
		switch n {
		case 1:
			return failuresOf(8, 4), nil
		case 2:
			if at := b.committed(0); at != 4 {
				t.Errorf("committed %d, 0..3 are settled", at)
			}
			return failuresOf(99), nil // unknown: all of it failed
		}
		return `{"batchItemFailures":null}`, nil
	}
	m := b.start(f, func(c *Config) { c.ReportBatchItemFailures = true })
	drain(t, m)
	require.Equal(t, [][]int64{upTo(0, 9), upTo(4, 9), upTo(4, 9)}, f.batches(0))

	// Without the setting the answer is not read.
	b = newBench(t, 1)
	b.produce(0, 0, 10)
	f = &fake{handle: func(int, seen) (string, error) { return failuresOf(4), nil }}
	drain(t, b.start(f, nil))
	require.Len(t, f.seen(), 1)
}

// letters is a destination.
type letters struct {
	mu     sync.Mutex
	sent   []string
	refuse int
}

func (l *letters) Send(_ context.Context, metadata []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refuse > 0 {
		l.refuse--
		return errors.New("no such queue")
	}
	l.sent = append(l.sent, string(metadata))
	return nil
}

func ptr(n int) *int { return &n }

func TestBisectFindsThePoison(t *testing.T) {
	b := newBench(t, 2)
	b.produce(0, 0, 10)
	f := &fake{handle: func(_ int, ev seen) (string, error) {
		if ev.has(6) {
			return "", errFailed
		}
		return "", nil
	}}
	l := &letters{}
	m := b.start(f, func(c *Config) {
		c.BisectBatchOnFunctionError, c.MaximumRetryAttempts, c.OnFailure = true, ptr(1), l
	})
	drain(t, m)
	require.Equal(t, [][]int64{
		upTo(0, 9), upTo(0, 4), upTo(5, 9), upTo(5, 6), {5}, {6}, {6}, upTo(7, 9),
	}, f.batches(0))
	require.Len(t, l.sent, 1)
	require.Contains(t, l.sent[0], `"firstRecordOffset":"6","lastRecordOffset":"6"`)
	require.EqualValues(t, 1, m.Metrics().DroppedEventCount)
}

func TestExhaustedRetriesGoToTheDestination(t *testing.T) {
	for _, tt := range []struct {
		name    string
		retries *int
		want    int // invocations of the failing event
	}{
		{"two retries", ptr(2), 3},
		{"none", ptr(0), 1},
		{"infinite with a destination is ten", nil, 11},
		{"infinite by number, too", ptr(Infinite), 11},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, 1)
			b.produce(0, 0, 15)
			f := &fake{handle: func(_ int, ev seen) (string, error) {
				if ev.has(3) {
					return "", errFailed
				}
				return "", nil
			}}
			l := &letters{refuse: 2}
			m := b.start(f, func(c *Config) {
				c.MaximumRetryAttempts, c.OnFailure = tt.retries, l
				c.FunctionARN, c.EventSourceARN = "arn:f", "arn:c"
			})
			drain(t, m)
			require.Len(t, f.batches(0), tt.want+1)
			require.Len(t, l.sent, 1)
			var got map[string]any
			require.NoError(t, json.Unmarshal([]byte(l.sent[0]), &got))
			info := got["KafkaBatchInfo"].(map[string]any)["recordsInfo"].(map[string]any)[topic+"-0"].(map[string]any)
			stamp := `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`
			for _, moment := range []any{got["timestamp"], info["firstRecordTimestamp"], info["lastRecordTimestamp"]} {
				require.Regexp(t, stamp, moment)
			}
			got["timestamp"], info["firstRecordTimestamp"], info["lastRecordTimestamp"] = "", "", ""
			text, err := json.Marshal(got)
			require.NoError(t, err)
			require.JSONEq(t, fmt.Sprintf(`{
				"requestContext": {"requestId": "request-%d", "functionArn": "arn:f", "condition": "RetryAttemptsExhausted", "approximateInvokeCount": %d},
				"responseContext": {"statusCode": 200, "executedVersion": "$LATEST", "functionError": "Unhandled"},
				"version": "1.0", "timestamp": "",
				"KafkaBatchInfo": {"batchSize": 10, "eventSourceArn": "arn:c", "bootstrapServers": %q, "payloadSize": %d,
					"recordsInfo": {"clicks-a-0": {"firstRecordOffset": "0", "lastRecordOffset": "9", "firstRecordTimestamp": "", "lastRecordTimestamp": ""}}}}`,
				tt.want, tt.want, b.broker.Addrs()[0], f.sizes[0]), string(text))
			require.EqualValues(t, 10, m.Metrics().OnFailureDestinationDeliveredEventCount)
		})
	}
}

func TestRecordsTooOldAreGivenUp(t *testing.T) {
	b := newBench(t, 1)
	old := time.Now().Add(-time.Hour)
	for i := range 4 {
		r := &kgo.Record{Timestamp: time.Now()}
		if i < 3 {
			r.Timestamp = old
		}
		require.NoError(t, b.client.ProduceSync(t.Context(), r).FirstErr())
	}
	f, l := &fake{}, &letters{}
	m := b.start(f, func(c *Config) { c.MaximumRecordAge, c.OnFailure = time.Minute, l })
	drain(t, m)
	require.Equal(t, []int64{3}, slices.Concat(f.batches(0)...))
	require.NotEmpty(t, l.sent)
	require.Contains(t, l.sent[0], `"condition":"RecordAgeExceeded"`)
	require.Contains(t, l.sent[0], `"responseContext":null`)
	require.EqualValues(t, 3, m.Metrics().DroppedEventCount)
}

func TestPayloadLimit(t *testing.T) {
	b := newBench(t, 2)
	big := strings.Repeat("x", 700_000) // five fit into 6 MB after base64, with both partitions
	for i := range 12 {
		require.NoError(t, b.client.ProduceSync(t.Context(), &kgo.Record{Partition: int32(i % 2), Value: []byte(big)}).FirstErr())
	}
	f, l := &fake{}, &letters{}
	m := b.start(f, func(c *Config) { c.BatchSize, c.OnFailure = 1000, l })
	drain(t, m)
	require.Empty(t, l.sent)
	require.Greater(t, slices.Max(f.sizes), MaxPayloadBytes/2)
	require.LessOrEqual(t, slices.Max(f.sizes), MaxPayloadBytes)
	require.Equal(t, upTo(0, 5), slices.Concat(f.batches(0)...))
	require.Equal(t, upTo(0, 5), slices.Concat(f.batches(1)...))
	m.Stop()

	// A record that no event can hold is given up; the next one comes.
	f = &fake{}
	m = b.start(f, func(c *Config) { c.PayloadLimit, c.OnFailure = 1000, l })
	require.NoError(t, b.client.ProduceSync(t.Context(), &kgo.Record{Value: []byte(big)}, &kgo.Record{Value: []byte("small")}).FirstErr())
	drain(t, m)
	require.Equal(t, [][]int64{{7}}, f.batches(0))
	require.Len(t, l.sent, 1)
	require.Contains(t, l.sent[0], `"condition":"MaximumPayloadSizeExceeded"`)
	require.Contains(t, l.sent[0], `"approximateInvokeCount":0`)
}

func TestBatchingWindowWaitsForAFullBatch(t *testing.T) {
	b := newBench(t, 1)
	f := &fake{}
	m := b.start(f, func(c *Config) { c.MaximumBatchingWindow = MaxBatchingWindow })
	for i := range 10 {
		b.produce(0, i, 1)
	}
	drain(t, m)
	require.Equal(t, [][]int64{upTo(0, 9)}, f.batches(0))

	m.Stop()
	b.produce(0, 10, 1)
	f = &fake{}
	drain(t, b.start(f, func(c *Config) { c.MaximumBatchingWindow = 20 * time.Millisecond }))
	require.Equal(t, [][]int64{{10}}, f.batches(0), "the window is over")
}

// A partition waits for its batch, the others do not wait for it.
func TestPartitionsAreIndependent(t *testing.T) {
	b := newBench(t, 2)
	gate := make(chan struct{})
	entered := make(chan struct{})
	f := &fake{}
	f.handle = func(_ int, ev seen) (string, error) {
		if ev.has(0) {
			close(entered)
			<-gate
		}
		return "", nil
	}
	done := make(chan Delivery, 100)
	m := b.start(f, func(c *Config) { c.OnDelivery = func(d Delivery) { done <- d } })
	b.produce(0, 0, 1)
	<-entered
	b.produce(0, 1, 20)
	b.produce(1, 0, 20)
	for n := 0; n < 20; {
		d := <-done
		require.EqualValues(t, 1, d.Batches[0].Partition)
		require.Equal(t, 1, d.Attempt)
		n += d.Settled[0]
	}
	require.Equal(t, [][]int64{{0}}, f.batches(0), "it waits")
	require.EqualValues(t, -1, b.committed(0))
	close(gate)
	drain(t, m)
	require.Equal(t, upTo(0, 20), slices.Concat(f.batches(0)...))
}

func TestMaxConcurrency(t *testing.T) {
	b := newBench(t, 8)
	for p := range int32(8) {
		b.produce(p, 0, 30)
	}
	var running, most atomic.Int64
	f := &fake{handle: func(int, seen) (string, error) {
		n := running.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		running.Add(-1)
		return "", nil
	}}
	m := b.start(f, func(c *Config) { c.Pollers, c.MaxConcurrency = 8, 2 })
	drain(t, m)
	require.LessOrEqual(t, most.Load(), int64(2))
}

// Offsets of transaction markers are part of the position, aborted records are
// delivered unless the mapping reads committed ones only.
func TestTransactions(t *testing.T) {
	for _, readCommitted := range []bool{false, true} {
		t.Run(fmt.Sprint("read committed ", readCommitted), func(t *testing.T) {
			b := newBench(t, 1)
			tx, err := kgo.NewClient(kgo.SeedBrokers(b.broker.Addrs()...), kgo.DefaultProduceTopic(topic), kgo.TransactionalID("tx"))
			require.NoError(t, err)
			defer tx.Close()
			for _, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit, kgo.TryAbort} {
				require.NoError(t, tx.BeginTransaction())
				require.NoError(t, tx.ProduceSync(t.Context(), kgo.StringRecord("a"), kgo.StringRecord("b")).FirstErr())
				require.NoError(t, tx.EndTransaction(t.Context(), end))
			}
			f := &fake{}
			m := b.start(f, func(c *Config) { c.ReadCommitted = readCommitted })
			drain(t, m)
			want := []int64{0, 1, 3, 4, 6, 7, 9, 10}
			if readCommitted {
				want = []int64{0, 1, 6, 7}
			}
			require.Equal(t, want, slices.Concat(f.batches(0)...))
			require.EqualValues(t, 12, b.committed(0))
		})
	}
}

func TestStartingPosition(t *testing.T) {
	b := newBench(t, 1)
	start := time.UnixMilli(1_700_000_000_000)
	for i := range 5 {
		r := &kgo.Record{Timestamp: start.Add(time.Duration(i) * time.Second)}
		require.NoError(t, b.client.ProduceSync(t.Context(), r).FirstErr())
	}
	f := &fake{}
	m := b.start(f, func(c *Config) { c.StartingTimestamp = start.Add(2500 * time.Millisecond) })
	drain(t, m)
	require.Equal(t, []int64{3, 4}, slices.Concat(f.batches(0)...))
}

func TestStopAndRestartRereadsWhatWasNotCommitted(t *testing.T) {
	b := newBench(t, 1)
	b.produce(0, 0, 30)
	entered := make(chan struct{})
	f := &fake{}
	ctx, leave := context.WithCancel(t.Context())
	f.handle = func(n int, _ seen) (string, error) {
		if n == 2 {
			close(entered)
			<-ctx.Done() // it did its work, and nobody hears of it
		}
		return "", nil
	}
	m := b.start(f, nil)
	<-entered
	go func() { defer leave(); <-m.ctx.Done() }()
	m.Stop()
	require.EqualValues(t, 10, b.committed(0))
	require.ErrorIs(t, m.Redeliver(t.Context(), 0, 1), ErrStopped)

	again := &fake{}
	m = b.start(again, func(c *Config) { c.BatchSize = 7 })
	drain(t, m)
	require.Equal(t, [][]int64{upTo(10, 16), upTo(17, 23), upTo(24, 29)}, again.batches(0))
}

func TestShutdownSettlesWhatIsUnderWay(t *testing.T) {
	b := newBench(t, 1)
	b.produce(0, 0, 30)
	entered, gate := make(chan struct{}), make(chan struct{})
	f := &fake{handle: func(n int, _ seen) (string, error) {
		if n == 1 {
			close(entered)
			<-gate
		}
		return "", nil
	}}
	m := b.start(f, nil)
	<-entered
	over := make(chan error, 1)
	go func() { over <- m.Shutdown(t.Context()) }()
	require.Eventually(t, func() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.draining }, 10*time.Second, time.Millisecond)
	close(gate)
	require.NoError(t, <-over)
	require.EqualValues(t, 10, b.committed(0))
	require.Len(t, f.seen(), 1)
}

func TestRecutChangesTheBoundariesOfARetry(t *testing.T) {
	b := newBench(t, 1)
	b.produce(0, 0, 30)
	f := &fake{handle: func(n int, _ seen) (string, error) {
		if n == 2 || n == 3 {
			return "", errFailed
		}
		return "", nil
	}}
	var asked []Redelivery
	m := b.start(f, func(c *Config) {
		c.BatchSize = 12
		c.Recut = func(r Redelivery) int {
			asked = append(asked, r)
			return []int{5, 8}[len(asked)-1]
		}
	})
	drain(t, m)
	require.Equal(t, [][]int64{upTo(0, 11), upTo(12, 23), upTo(12, 16), upTo(12, 19), upTo(20, 29)}, f.batches(0))
	require.Equal(t, 12, asked[0].Count)
	require.Equal(t, 1, asked[0].Attempt)
	require.Equal(t, 5, asked[1].Count)
	require.Equal(t, 2, asked[1].Attempt)
}

func TestRedeliverRewindsAndMakesAZombie(t *testing.T) {
	t.Run("that succeeds", func(t *testing.T) { redeliverUnder(t, nil) })
	t.Run("that fails and is not tried again", func(t *testing.T) { redeliverUnder(t, errFailed) })
}

// redeliverUnder rewinds under an invocation that ends with outcome.
func redeliverUnder(t *testing.T, outcome error) {
	t.Helper()
	b := newBench(t, 1)
	b.produce(0, 0, 20)
	entered := []chan struct{}{1: nil, 2: make(chan struct{}), 3: make(chan struct{})}
	gate := []chan struct{}{1: nil, 2: make(chan struct{}), 3: make(chan struct{})}
	f := &fake{handle: func(n int, _ seen) (string, error) {
		if n == 2 || n == 3 {
			close(entered[n])
			<-gate[n]
		}
		if n == 2 {
			return "", outcome
		}
		return "", nil
	}}
	var asked []Redelivery // by the polling goroutine only: never for a zombie
	m := b.start(f, func(c *Config) {
		c.Recut = func(r Redelivery) int { asked = append(asked, r); return 7 }
	})
	<-entered[2]
	require.ErrorContains(t, m.Redeliver(t.Context(), 5, 1), "not assigned")
	require.NoError(t, m.Redeliver(t.Context(), 0, 4))
	<-entered[3]
	close(gate[2]) // the zombie ends while 6..12 are under way again
	require.Eventually(t, func() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.running == 1 }, 10*time.Second, time.Millisecond)
	require.EqualValues(t, 10, b.committed(0), "its outcome counts for nothing")
	close(gate[3])
	drain(t, m)
	require.Equal(t, [][]int64{upTo(0, 9), upTo(10, 19), upTo(6, 12), upTo(13, 19)}, f.batches(0))
	m.Stop()
	require.Len(t, asked, 1)
	require.Equal(t, Batch{asked[0].TopicPartition, 6, 9, 4}, asked[0].Batch)
}

// A partition that waits does not fill the memory, and goes on afterwards.
func TestFetchingPausesForAPartitionThatWaits(t *testing.T) {
	b := newBench(t, 2)
	gate, entered := make(chan struct{}), make(chan struct{})
	f := &fake{handle: func(_ int, ev seen) (string, error) {
		if ev.has(0) {
			close(entered)
			<-gate
		}
		return "", nil
	}}
	m := b.start(f, func(c *Config) { c.Pollers = 2 })
	b.produce(0, 0, 1)
	<-entered
	state := func(of func(*partition) bool) func() bool {
		return func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			return of(m.partitions[kafka.TopicPartition{Topic: topic, Partition: 0}])
		}
	}
	b.produce(0, 1, 1500)
	require.Eventually(t, state(func(p *partition) bool { return p.paused }), 10*time.Second, time.Millisecond)
	b.produce(0, 1501, 1500)
	b.produce(1, 0, 100)
	require.Eventually(t, func() bool { return b.committed(1) == 100 }, 10*time.Second, time.Millisecond)
	require.True(t, state(func(p *partition) bool { return len(p.queue) <= 1501 })(), "it was polled on")
	close(gate)
	drain(t, m)
	require.Equal(t, upTo(0, 3000), slices.Concat(f.batches(0)...))
}

func TestDuplicateOverlaps(t *testing.T) {
	b := newBench(t, 1)
	b.produce(0, 0, 10)
	both := make(chan struct{})
	f := &fake{handle: func(n int, _ seen) (string, error) {
		if n == 2 {
			close(both)
		}
		<-both // neither ends before the other began
		return "", nil
	}}
	var duplicates atomic.Int64
	m := b.start(f, func(c *Config) {
		c.Duplicate = func([]Batch) bool { return true }
		c.OnDelivery = func(d Delivery) {
			if d.Duplicate {
				duplicates.Add(1)
			}
		}
	})
	drain(t, m)
	require.NoError(t, m.Shutdown(t.Context()))
	require.Equal(t, [][]int64{upTo(0, 9), upTo(0, 9)}, f.batches(0))
	require.EqualValues(t, 1, duplicates.Load())
	require.EqualValues(t, 1, m.Metrics().Invocations)
}

func TestFailedCommitIsMadeGood(t *testing.T) {
	b := newBench(t, 1)
	b.produce(0, 0, 10)
	var failed atomic.Int64
	b.cluster.ControlKey(int16(kmsg.OffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		if failed.Add(1) > 2 {
			return nil, nil, false
		}
		commit := req.(*kmsg.OffsetCommitRequest)
		resp := commit.ResponseKind().(*kmsg.OffsetCommitResponse)
		topic := kmsg.NewOffsetCommitResponseTopic()
		topic.Topic = commit.Topics[0].Topic
		p := kmsg.NewOffsetCommitResponseTopicPartition()
		p.ErrorCode = kerr.InvalidCommitOffsetSize.Code
		topic.Partitions = append(topic.Partitions, p)
		resp.Topics = append(resp.Topics, topic)
		return resp, nil, true
	})
	f := &fake{}
	m := b.start(f, nil)
	drain(t, m)
	require.Len(t, f.seen(), 1, "a commit that failed redelivers nothing by itself")
	require.EqualValues(t, 2, m.Metrics().CommitErrorCount)
}

func TestTwoMappingsShareTheGroup(t *testing.T) {
	b := newBench(t, 6)
	f := &fake{}
	first := b.start(f, nil)
	require.Eventually(t, func() bool { return len(first.Assigned()) == 6 }, 20*time.Second, time.Millisecond)
	second := b.start(f, nil)
	require.Eventually(t, func() bool { return len(first.Assigned()) == 3 && len(second.Assigned()) == 3 }, 20*time.Second, time.Millisecond)
	for p := range int32(6) {
		b.produce(p, 0, 25)
	}
	drain(t, first)
	for p := range 6 {
		require.Equal(t, upTo(0, 24), slices.Concat(f.batches(p)...))
	}
}

func TestConfigProblemsAreReportedTogether(t *testing.T) {
	_, err := Start(t.Context(), Config{BatchSize: 10_001, MaximumBatchingWindow: time.Hour, PayloadLimit: 7 << 20, MaximumRetryAttempts: ptr(-2), MaxConcurrency: -1})
	for _, want := range []string{"no brokers", "topic is missing", "group is missing", "function is missing", "batch size is 10001", "batching window is 1h0m0s", "payload limit is 7340032", "retry attempts", "concurrency is -1"} {
		require.ErrorContains(t, err, want)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = Start(ctx, Config{Brokers: []string{"127.0.0.1:1"}, Topic: "t", Group: "g", Function: &fake{}})
	require.ErrorContains(t, err, "connect to 127.0.0.1:1")
}

func TestDrainedSaysWhatIsMissing(t *testing.T) {
	b := newBench(t, 2)
	b.produce(0, 0, 10)
	m := b.start(&fake{handle: func(int, seen) (string, error) { return "", errFailed }}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.ErrorContains(t, m.Drained(ctx), "10 offsets to go")
}

// settledSets is what functions settled, by partition.
type settledSets struct {
	mu  sync.Mutex
	set map[int32]map[int64]bool
}

func (s *settledSets) add(partition int32, offsets []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.set[partition] == nil {
		s.set[partition] = map[int64]bool{}
	}
	for _, o := range offsets {
		s.set[partition][o] = true
	}
}

// unsettledBelow are the offsets below at that nobody settled.
func (s *settledSets) unsettledBelow(partition int32, at int64) []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(upTo(0, at-1), func(o int64) bool { return s.set[partition][o] })
}

// Whatever fails, is cut anew, comes twice or is stopped: no commit is ever
// above an unsettled record, and in the end all are settled.
func TestNoCommitAboveAnUnsettledRecord(t *testing.T) {
	const partitions, records = 3, 400
	b := newBench(t, partitions)
	settled := &settledSets{set: map[int32]map[int64]bool{}}
	b.cluster.ControlKey(int16(kmsg.OffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		for _, tp := range req.(*kmsg.OffsetCommitRequest).Topics {
			for _, p := range tp.Partitions {
				if missing := settled.unsettledBelow(p.Partition, p.Offset); len(missing) > 0 {
					t.Errorf("commit of partition %d at %d above unsettled %v", p.Partition, p.Offset, missing)
				}
			}
		}
		return nil, nil, false
	})
	for p := range int32(partitions) {
		b.produce(p, 0, records)
	}
	f := &fake{handle: func(n int, ev seen) (string, error) {
		failing := map[string]int64{}
		switch n % 5 {
		case 1:
			return "", errFailed
		case 2:
			return "", errThrottled
		case 3: // the first partition, by name, fails from its third record on
			name := slices.Min(slices.Collect(maps.Keys(ev.Records)))
			if r := ev.Records[name]; len(r) > 2 {
				failing[name] = r[2].Offset
			}
		}
		for p := range partitions {
			offsets := ev.offsets(p)
			name := fmt.Sprintf("%s-%d", topic, p)
			if at, ok := failing[name]; ok {
				offsets = slices.DeleteFunc(offsets, func(o int64) bool { return o >= at })
			}
			settled.add(int32(p), offsets)
		}
		var items []string
		for name, at := range failing {
			items = append(items, fmt.Sprintf(`{"itemIdentifier":{"partition":%q,"offset":%d}}`, name, at))
		}
		return `{"batchItemFailures":[` + strings.Join(items, ",") + `]}`, nil
	}}
	var recuts, duplicates atomic.Int64
	stopAfter := make(chan struct{}, 1000)
	start := func(bisect bool) *Mapping {
		return b.start(f, func(c *Config) {
			c.BatchSize, c.Pollers, c.ReportBatchItemFailures, c.BisectBatchOnFunctionError = 17, 2, true, bisect
			c.Recut = func(r Redelivery) int { return 1 + int(recuts.Add(1))%(r.Count+5) }
			c.Duplicate = func([]Batch) bool { return duplicates.Add(1)%7 == 0 }
			c.OnDelivery = func(Delivery) { stopAfter <- struct{}{} }
		})
	}
	for round := range 3 {
		m := start(round%2 == 1)
		for range 12 {
			<-stopAfter
		}
		for p := range int32(partitions) {
			if err := m.Redeliver(t.Context(), p, int64(9*round)); err != nil {
				require.ErrorContains(t, err, "partition", "nothing settled yet, or not assigned")
			}
		}
		for range 6 {
			<-stopAfter
		}
		m.Stop()
	}
	m := start(true)
	drain(t, m)
	for p := range int32(partitions) {
		require.Empty(t, settled.unsettledBelow(p, records))
		require.EqualValues(t, records, b.committed(p))
	}
	require.Positive(t, recuts.Load())
}
