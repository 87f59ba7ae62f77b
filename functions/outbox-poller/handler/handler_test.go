package handler

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-lambda-go/lambda/messages"
	"github.com/stretchr/testify/require"

	"oncehouse/functions/outbox-poller/config"
	"oncehouse/shared/metrics"
	"oncehouse/shared/metrics/metricstest"
	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/memory"
	"oncehouse/shared/settings"
)

// world is a poller with a database and a broker in memory, in a bubble of fake
// time.
type world struct {
	*Handler
	t         *testing.T
	db        *memory.Database
	kafka     *memory.Kafka
	log, emf  bytes.Buffer
	retain    func(context.Context, outbox.Cursor) (Removed, error)
	connected []outbox.Shard
	closed    int
	mu        sync.Mutex
	effects   memory.Effects
}

const topic = "outbox.event.order"

func inBubble(t *testing.T, test func(t *testing.T, w *world), more ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		environ := map[string]string{
			"ONCEHOUSE_OUTBOX": "orders", "ONCEHOUSE_CURSOR_TOPIC": "cursor", "ONCEHOUSE_KAFKA_BROKERS": "b:9092",
			"ONCEHOUSE_DATABASE_HOST": "h", "ONCEHOUSE_DATABASE_NAME": "d", "ONCEHOUSE_DATABASE_USER": "u",
		}
		for name, value := range settings.Environ(more) {
			environ["ONCEHOUSE_"+name] = value
		}
		cfg, err := config.Parse(environ)
		require.NoError(t, err)
		w := &world{t: t, db: memory.NewDatabase(), kafka: memory.NewKafka()}
		w.kafka.Create(topic, 3, 1<<20)
		w.Handler = New(cfg, w.open, Output{Log: slog.New(slog.NewJSONHandler(&w.log, nil)), Metrics: &w.emf})
		test(t, w)
	})
}

func (w *world) open(shard outbox.Shard) (Ports, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.connected = append(w.connected, shard)
	log, table := w.kafka.Log("orders", shard), w.db.Table(shard)
	log.Effects = w.effects
	return Ports{
		Table: table, Log: log, Retain: w.retain,
		Cursor: func(ctx context.Context) (*outbox.Cursor, error) {
			standing, err := log.Open(ctx) // it fences, which no test of inspect minds
			return standing.Cursor, err
		},
		Close: func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.closed++
		},
	}, nil
}

// insert commits rows of some aggregates.
func (w *world) insert(n int, aggregateType string) {
	tx := w.db.Begin()
	for i := range n {
		id := fmt.Sprint(i % 7)
		tx.Insert(outbox.Row{ID: fmt.Sprint("id-", i), AggregateType: aggregateType, AggregateID: &id, Payload: []byte("{}")})
	}
	tx.Commit()
}

// published counts the committed records of the topic.
func (w *world) published() (n int) {
	for p := range int32(3) {
		records, _ := w.kafka.Read(topic, p, 0, true)
		n += len(records)
	}
	return n
}

func (w *world) invoke(payload string, timeout time.Duration) (string, error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), timeout)
	defer cancel()
	answer, err := w.Invoke(ctx, []byte(payload))
	require.Equal(w.t, len(w.connected), w.closed, "what was connected is closed")
	return string(answer), err
}

func (w *world) initialise(shards ...int) {
	w.t.Helper()
	text, err := json.Marshal(map[string]any{"oncehouse": map[string]any{"action": "initialise", "from": "beginning", "shards": shards}})
	require.NoError(w.t, err)
	_, err = w.invoke(string(text), time.Minute)
	require.NoError(w.t, err)
}

// lines are the log lines with that message.
func (w *world) lines(message string) (all []map[string]any) {
	for text := range strings.Lines(w.log.String()) {
		var entry map[string]any
		require.NoError(w.t, json.Unmarshal([]byte(text), &entry))
		if entry["msg"] == message {
			all = append(all, entry)
		}
	}
	return all
}

// metrics are those of the last invocation.
func (w *world) metrics() map[metrics.Name][]float64 {
	all := map[metrics.Name][]float64{}
	for line := range bytes.Lines(w.emf.Bytes()) {
		maps.Copy(all, metricstest.Check(w.t, line))
	}
	w.emf.Reset()
	return all
}

func reasonFor(err error) string {
	var e messages.InvokeResponse_Error
	if errors.As(err, &e) {
		return e.Type
	}
	return ""
}

func TestPollsUntilItsDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.initialise(0)
		w.insert(2500, "order")
		go func() {
			time.Sleep(30 * time.Second)
			w.insert(10, "order")
		}()
		begun := time.Now()
		answer, err := w.invoke(`{"shard":0}`, time.Minute)
		require.NoError(t, err)
		require.JSONEq(t, `{"shards":[{"shard":0,"rows":2510,"transactions":4,"dead_letters":0,"fenced":false,"lag_ms":0}]}`, answer)
		require.Equal(t, 2510, w.published())
		require.InDelta(t, 55, time.Since(begun).Seconds(), 1, "margin and reserve before the deadline")
		m := w.metrics()
		require.Equal(t, []float64{2510}, m[metrics.PublishedRows])
		require.Equal(t, []float64{0}, m[metrics.OutboxFenced])
		require.Equal(t, []float64{0}, m[metrics.ColdStart], "the operator's was the first")
		require.Len(t, m[metrics.TransactionTime], 5, "each, and the slowest once more")
		require.LessOrEqual(t, slices.Max(m[metrics.OutboxLag]), 40.0, "rows wait for a look, not for a minute")
		line := w.lines("shard polled")
		require.Len(t, line, 1)
		require.InDelta(t, 2510, line[0]["last_seq"], 0)
	})
}

func TestEveryMetricIsThere(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.initialise(0)
		_, err := w.invoke(``, time.Minute)
		require.NoError(t, err)
		m := w.metrics()
		for _, name := range metrics.Outbox() {
			want := 1
			if name == metrics.TransactionTime || name == metrics.PartitionsAhead { // there was none, and nothing has told
				want = 0
			}
			require.Len(t, m[name], want, name)
		}
	})
}

func TestShards(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.initialise(0, 1)
		w.insert(100, "order")
		_, err := w.invoke(`{"shards":[0,1]}`, time.Minute)
		require.NoError(t, err)
		require.Equal(t, 100, w.published())
		require.Equal(t, []float64{100}, w.metrics()[metrics.PublishedRows])
		require.Len(t, w.lines("shard polled"), 2)
	}, "SHARDS=2")
}

func TestEvents(t *testing.T) {
	for payload, want := range map[string]string{
		``: "[0]", ` {} `: "[0]", `null`: "[0]", `{"shard":1}`: "[1]", `{"shards":[1,0]}`: "[1 0]", `{"shard":2,"shards":[0]}`: "[0 2]",
		`{"version":"0","id":"x","detail-type":"Scheduled Event","source":"aws.events","detail":{}}`: "[0]",
		`{"oncehouse":{"action":"inspect"}}`:           "[0]",
		`{"oncehouse":{"action":"inspect","shard":2}}`: "[2]",
		`{"shrad":1}`:      "unknown field",
		`{"shard":"1"}`:    "cannot be read",
		`{"shard":3}`:      "below ONCEHOUSE_SHARDS (3)",
		`{"shard":-1}`:     "from 0",
		`{"shards":[1,1]}`: "each once",
		`{} {}`:            "more than one JSON value",
		`{"Records":[]}`:   "unknown field",
		`{"oncehouse":{"action":"inspect","shards":7}}`: "cannot be read",
	} {
		e, err := parseEvent([]byte(payload), 3)
		if err != nil {
			require.Equal(t, ReasonEvent, reasonOf(err), payload)
			require.ErrorContains(t, err, want, payload)
			continue
		}
		require.Equal(t, want, fmt.Sprint(e.shards), payload)
	}
}

// The samples of events/outbox are read as events/README.md says.
func TestSampleEvents(t *testing.T) {
	const dir = "../../../events/outbox"
	want := map[string]string{
		"schedule.json": "[0]", "schedule-two-shards.json": "[0 1]", "rule.json": "[0]",
		"inspect.json": "[0 1] inspect ", "initialise.json": "[0] initialise beginning", "reset.json": "[0] reset cursor", "reshard.json": "[0] reshard ",
		"refused.json": ReasonEvent,
	}
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, len(want))
	for _, file := range files {
		payload, err := os.ReadFile(filepath.Join(dir, file.Name()))
		require.NoError(t, err)
		e, err := parseEvent(payload, 2)
		got := fmt.Sprint(e.shards)
		if err != nil {
			got = reasonOf(err)
		} else if o := e.operation; o != nil {
			require.NoError(t, o.check(), file.Name())
			got += " " + o.Action + " " + string(o.From)
		}
		require.Equal(t, want[file.Name()], got, file.Name())
	}
}

// Two at once: one works, the other leaves with success (O3).
func TestFencedLeavesQuietly(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.initialise(0)
		first := make(chan string)
		go func() {
			answer, err := w.Invoke(within(t, time.Minute), nil)
			if err != nil {
				answer = []byte(err.Error())
			}
			first <- string(answer)
		}()
		time.Sleep(5 * time.Second)
		other := New(w.config, w.open, Output{Log: slog.New(slog.DiscardHandler), Metrics: &bytes.Buffer{}})
		go func() {
			time.Sleep(5 * time.Second) // both are at work, and find rows
			w.insert(10, "order")
		}()
		answer, err := other.Invoke(within(t, time.Minute), nil)
		require.NoError(t, err)
		require.JSONEq(t, `{"shards":[{"shard":0,"rows":10,"transactions":1,"dead_letters":0,"fenced":false,"lag_ms":0}]}`, string(answer))
		require.Contains(t, <-first, `"fenced":true`)
		require.Equal(t, 10, w.published())
		require.Equal(t, []float64{1}, w.metrics()[metrics.OutboxFenced])
	})
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestHaltedIsTold(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.initialise(0)
		w.insert(3, "order")
		w.insert(1, "no such topic")
		w.insert(3, "order")
		_, err := w.invoke(``, time.Minute)
		require.Equal(t, outbox.ReasonHalted, reasonFor(err))
		require.Equal(t, 3, w.published(), "what is before it")
		m := w.metrics()
		require.Equal(t, []float64{1}, m[metrics.OutboxHalted])
		require.Equal(t, []float64{0}, m[metrics.OutboxRefused])
		line := w.lines("shard failed")[0]
		require.Equal(t, outbox.ReasonHalted, line["reason"])
		require.NotEmpty(t, line["remedy"])
	})
}

func TestRefusals(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		_, err := w.invoke(``, time.Minute)
		require.Equal(t, outbox.ReasonNotInitialised, reasonFor(err), "nobody said from where (O10)")
		require.Equal(t, []float64{1}, w.metrics()[metrics.OutboxRefused])
		_, err = w.invoke(``, 4*time.Second)
		require.Equal(t, ReasonConfiguration, reasonFor(err))
		require.ErrorContains(t, err, "give the function a longer timeout")
		_, err = w.Invoke(t.Context(), nil)
		require.ErrorContains(t, err, "this is not Lambda")
	})
}

func TestAFailureIsNoRefusal(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.initialise(0)
		w.effects = func(context.Context, string) memory.Fault { return memory.Refused }
		_, err := w.invoke(``, time.Minute)
		require.Equal(t, ReasonFailed, reasonFor(err))
		m := w.metrics()
		require.Equal(t, []float64{1}, m[metrics.OutboxFailed])
		require.Positive(t, m[metrics.OutboxReopened][0], "it did not give up before its time")
		require.Equal(t, ReasonFailed, w.lines("shard failed")[0]["reason"])
	})
}

func TestAPanicEndsTheProcess(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.effects = func(context.Context, string) memory.Fault { panic("unthinkable") }
		_, err := w.invoke(``, time.Minute)
		var e messages.InvokeResponse_Error
		require.ErrorAs(t, err, &e)
		require.True(t, e.ShouldExit)
		require.Contains(t, w.lines("shard failed")[0]["stack"], "handler_test")
	})
}

// SIGTERM in the middle of a run: it ends at once, and in order.
func TestStop(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.initialise(0)
		w.insert(10, "order")
		ended := make(chan error, 1)
		go func() {
			_, err := w.Invoke(within(t, time.Minute), nil)
			ended <- err
		}()
		time.Sleep(10 * time.Second)
		begun := time.Now()
		w.Stop()
		require.NoError(t, <-ended)
		require.Less(t, time.Since(begun), 400*time.Millisecond, "Lambda gives half a second")
		require.Equal(t, 10, w.published())
	})
}

func TestRetentionGoesByTheCommittedCursor(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.initialise(0)
		var seen []string
		end := time.Now().Add(72 * time.Hour)
		w.retain = func(_ context.Context, own outbox.Cursor) (Removed, error) {
			seen = append(seen, own.Done)
			if len(seen) == 3 {
				return Removed{}, errors.New("lock timeout")
			}
			if len(seen) == 4 { // the last time there is something to look at
				return Removed{Rows: 5, Partitions: 1, Until: end}, nil
			}
			return Removed{Rows: 5, Partitions: 1, More: len(seen) == 1}, nil
		}
		w.insert(10, "order")
		_, err := w.invoke(``, time.Minute)
		require.NoError(t, err, "a failure of retention fails no run")
		require.Greater(t, len(seen), 4)
		for _, done := range seen {
			require.NotEmpty(t, done)
		}
		m := w.metrics()
		require.Equal(t, []float64{float64(5 * (len(seen) - 1))}, m[metrics.RetentionRows])
		require.Equal(t, []float64{float64(len(seen) - 1)}, m[metrics.RetentionPartitions])
		require.Equal(t, []float64{float64(time.Until(end).Milliseconds())}, m[metrics.PartitionsAhead])
		require.Contains(t, w.lines("shard polled")[0]["retention_error"], "lock timeout")
	})
}

func TestSampleKeepsTheSlowest(t *testing.T) {
	var s sample
	for i := range 10_000 {
		s.add(outbox.Commit{Took: time.Duration(i), Lag: time.Duration(10_000 - i)})
	}
	require.Len(t, s.kept, maxSample-1)
	require.Equal(t, time.Duration(9999), s.maxTook)
	require.Equal(t, time.Duration(10_000), s.maxLag)
	late := 0
	for _, c := range s.kept {
		if c.Took >= 5000 {
			late++
		}
	}
	require.InDelta(t, maxSample/2, late, 30, "from the whole run")
}
