package handler_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"oncehouse/infra/local/clickstream"
	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	"oncehouse/shared/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const success = `{"batchItemFailures":[]}`

func TestAllLanesAreDeliveredAndRepeatsSuppressed(t *testing.T) {
	w := newWorld(t)
	payload := event(lane(0, 10, 12, 11), lane(3, 5, 5))
	answer, failure := w.invoke(t, time.Minute, payload)
	require.Nil(t, failure)
	require.JSONEq(t, success, answer)
	require.Equal(t, map[int32]string{0: "10,12", 3: "5"}, w.table.stored())
	require.Equal(t, map[metrics.Name]float64{
		metrics.RecordsReceived: 4, metrics.RowsStored: 3, metrics.DeadLetters: 1, metrics.BatchBytes: 23, metrics.ColdStart: 1,
	}, w.sums(t))

	lines := w.lines(t)
	require.Len(t, lines, 2)
	token, _ := lines[0]["token"].(string)
	require.True(t, strings.HasPrefix(token, "oncehouse:clicks:"+cluster+":clicks:0:1:10-12:"), token)
	delete(lines[0], "token")
	require.Equal(t, map[string]any{
		"level": "INFO", "msg": "lane settled", "request_id": "r-1", "topic": "clicks", "partition": 0.0,
		"first_offset": 10.0, "last_offset": 12.0, "records": 3.0, "settled": 3.0, "stored": 2.0, "suppressed": 0.0,
		"aborted_suppressed": 0.0, "dead_letters": 1.0, "tombstones": 0.0, "unknown_fields": 0.0, "batch_bytes": 16.0,
		"replays": 0.0, "probes": 0.0, "conflicts": 0.0, "generation": 1.0, "next": 13.0,
	}, lines[0])
	require.NotContains(t, w.log.String(), "secret payload", "no value of a record is logged")
	require.NotContains(t, w.metrics.String(), "secret payload")

	answer, failure = w.invoke(t, time.Minute, payload)
	require.Nil(t, failure)
	require.JSONEq(t, success, answer)
	require.Equal(t, map[metrics.Name]float64{metrics.RecordsReceived: 4, metrics.DuplicatesSuppressed: 4}, w.sums(t))
	require.Equal(t, map[int32]string{0: "10,12", 3: "5"}, w.table.stored())
}

// I2: no success is answered for an unsettled record.
func TestI2OneFailedLaneFailsTheInvocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.table.before = on(1, errDoubt)
		_, failure := w.invoke(t, time.Minute, event(lane(0, 1, 2), lane(1, 7, 9)))
		require.Equal(t, "InDoubt", failure.Type)
		require.Contains(t, failure.Message, "1 of 2 lanes failed (clicks-1): InDoubt: insert offsets 7-9")
		require.False(t, failure.ShouldExit)
		require.Equal(t, map[int32]string{0: "1-2"}, w.table.stored())
		sums := w.sums(t)
		delete(sums, metrics.BatchBytes) // it tried until the time was over
		require.Equal(t, map[metrics.Name]float64{
			metrics.RecordsReceived: 5, metrics.RowsStored: 2, metrics.LanesBlocked: 1, metrics.InDoubt: 1, metrics.ColdStart: 1,
		}, sums)
		failed := w.lines(t)[1]
		require.Equal(t, "ERROR", failed["level"])
		require.Equal(t, "lane failed", failed["msg"])
		require.Equal(t, "in_doubt", failed["kind"])
		require.Equal(t, "InDoubt", failed["reason"])
		require.NotContains(t, failed["error"], "remedy:")
	})
}

func TestEveryFailedLaneIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.table.before = func(_ context.Context, in delivery.Insert) error {
			switch in.Lane.Partition {
			case 0:
				return errDoubt
			case 2:
				return &delivery.Error{Kind: delivery.Fatal, Reason: delivery.ReasonTarget, Message: "a constraint", Remedy: "drop it"}
			}
			return nil
		}
		_, failure := w.invoke(t, time.Minute, event(lane(0, 1, 2), lane(1, 1, 2), lane(2, 1, 2)))
		require.Equal(t, "Target", failure.Type, "the fatal one: it needs a person")
		require.Contains(t, failure.Message, "2 of 3 lanes failed: clicks-0: InDoubt:")
		require.Contains(t, failure.Message, "; clicks-2: Target: insert offsets 1-2: a constraint; remedy: drop it")
	})
}

func TestACauseThatAllShareIsSaidOnce(t *testing.T) {
	w := newWorld(t)
	w.table.preflight = errDown
	_, failure := w.invoke(t, time.Minute, event(lane(0, 1, 2), lane(1, 1, 2)))
	require.Equal(t, "Target", failure.Type)
	require.Equal(t, 1, strings.Count(failure.Message, "is unreachable"))
	require.Empty(t, w.table.stored())
	require.Equal(t, map[metrics.Name]float64{metrics.RecordsReceived: 4, metrics.LanesBlocked: 2, metrics.ColdStart: 1}, w.sums(t))
	for _, line := range w.lines(t) {
		require.Equal(t, "retryable", line["kind"])
	}
	require.Empty(t, w.letters.Held(), "an outage is not poison")
}

type failures struct {
	BatchItemFailures []struct {
		ItemIdentifier struct {
			Partition string
			Offset    int64
		}
	}
}

func TestPartialAnswerNamesEveryUnsettledOffset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "ONCEHOUSE_REPORT_BATCH_ITEM_FAILURES=true", "ONCEHOUSE_CHUNK_ROWS=2")
		w.table.before = func(_ context.Context, in delivery.Insert) error {
			if in.Lane.Partition == 1 && in.First >= 9 { // its second chunk
				return errDoubt
			}
			return nil
		}
		gap := lane(1, 7, 12)
		gap.Records = append(gap.Records[:4], gap.Records[5]) // 11 is not there
		answer, failure := w.invoke(t, time.Minute, event(lane(0, 1, 2), gap))
		require.Nil(t, failure)
		var parsed failures
		require.NoError(t, json.Unmarshal([]byte(answer), &parsed))
		var named []int64
		for _, f := range parsed.BatchItemFailures {
			require.Equal(t, "clicks-1", f.ItemIdentifier.Partition)
			named = append(named, f.ItemIdentifier.Offset)
		}
		require.Equal(t, []int64{9, 10, 12}, named)
		require.Equal(t, map[int32]string{0: "1-2", 1: "7-8"}, w.table.stored())
		require.InDelta(t, 1, w.sums(t)[metrics.InDoubt], 0)

		w.table.before = nil
		answer, failure = w.invoke(t, time.Minute, event(gap))
		require.Nil(t, failure)
		require.JSONEq(t, success, answer)
		require.Equal(t, "7-10,12", w.table.stored()[1])
	})
}

// Nothing passed: an error says so to Lambda's own metric, and is safe where the
// mapping was not told to read answers.
func TestPartialAnswerIsAnErrorWhenNothingPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "ONCEHOUSE_REPORT_BATCH_ITEM_FAILURES=true")
		w.table.before = func(context.Context, delivery.Insert) error { return errDoubt }
		_, failure := w.invoke(t, time.Minute, event(lane(0, 1, 2), lane(1, 7, 9)))
		require.Equal(t, "InDoubt", failure.Type)
		require.Contains(t, failure.Message, "2 of 2 lanes failed")
	})
}

func TestAPanicIsNeverSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, partial := range []string{"true", "false"} {
			w := newWorld(t, "ONCEHOUSE_REPORT_BATCH_ITEM_FAILURES="+partial)
			w.table.before = func(_ context.Context, in delivery.Insert) error {
				if in.Lane.Partition == 1 {
					panic("slice out of range")
				}
				return nil
			}
			_, failure := w.invoke(t, time.Minute, event(lane(0, 1, 2), lane(1, 7, 9)))
			require.Equal(t, "Panic", failure.Type)
			require.Contains(t, failure.Message, "slice out of range")
			require.True(t, failure.ShouldExit, "the process is in a state that nobody knows")
			require.Contains(t, w.lines(t)[1]["stack"], "handler_test.TestAPanicIsNeverSuccess")
			require.Equal(t, map[int32]string{0: "1-2"}, w.table.stored())
		}
	})
}

func TestEventsThatAreRefusedWhole(t *testing.T) {
	selfManaged := clickstream.Mapping{BootstrapServers: "b:9092"}.Payload(nil, lane(0, 1, 2))
	other := lane(1, 1, 2)
	other.Topic = "orders"
	for _, c := range []struct {
		name     string
		payload  []byte
		kind     string
		contains string
	}{
		{"not JSON", []byte("null"), "Event", "a JSON object expected"},
		{"not Kafka's", []byte(`{"Records":[]}`), "Event", "it has no eventSource"},
		{"cut short", event(lane(0, 1, 2))[:200], "Event", "cut short"},
		{"another topic", event(lane(0, 1, 2), other), "Event", `the event is of topic "orders", and pipeline clicks reads "clicks"`},
		{"no cluster", selfManaged, "Configuration", "set ONCEHOUSE_CLUSTER"},
		{"empty", nil, "Event", "cut short"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			_, failure := w.invoke(t, time.Minute, c.payload)
			require.Equal(t, c.kind, failure.Type)
			require.Contains(t, failure.Message, c.contains)
			require.Empty(t, w.table.stored())
			require.InDelta(t, 1, w.sums(t)[metrics.EventsRefused], 0)
		})
	}
}

// D22: two clusters with the same topic are two lanes.
func TestD22ClustersAreApart(t *testing.T) {
	w := newWorld(t)
	_, failure := w.invoke(t, time.Minute, event(lane(0, 1, 2)))
	require.Nil(t, failure)
	entry, err := w.ledger.Load(t.Context(), key())
	require.NoError(t, err)
	require.EqualValues(t, 3, entry.Next)

	w = newWorld(t, "ONCEHOUSE_CLUSTER=eu")
	for _, payload := range [][]byte{clickstream.Mapping{BootstrapServers: "b:9092"}.Payload(nil, lane(0, 1, 2)), event(lane(0, 3, 4))} {
		_, failure = w.invoke(t, time.Minute, payload)
		require.Nil(t, failure)
	}
	eu := key()
	eu.Cluster = "eu"
	entry, err = w.ledger.Load(t.Context(), eu)
	require.NoError(t, err)
	require.EqualValues(t, 5, entry.Next, "the setting wins over the ARN")
}

func TestAnEmptyEventIsSuccessInWords(t *testing.T) {
	w := newWorld(t)
	w.table.preflight = errDown // nobody needs the table
	for _, payload := range [][]byte{event(), event(lane(0, 1, 0))} {
		answer, failure := w.invoke(t, time.Minute, payload)
		require.Nil(t, failure)
		require.JSONEq(t, success, answer)
	}
}

func TestLanesGoSideBySideUpToTheBound(t *testing.T) {
	w := newWorld(t, "ONCEHOUSE_LANE_CONCURRENCY=3")
	var now, most atomic.Int32
	var together sync.WaitGroup
	together.Add(3) // the first three wait for one another
	var first atomic.Int32
	w.table.before = func(context.Context, delivery.Insert) error {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		if first.Add(1) <= 3 {
			together.Done()
			together.Wait()
		}
		return nil
	}
	var batches []kafka.Batch
	for p := range int32(9) {
		batches = append(batches, lane(p, 1, 2))
	}
	_, failure := w.invoke(t, time.Minute, event(batches...))
	require.Nil(t, failure)
	require.EqualValues(t, 3, most.Load())
	require.Len(t, w.table.stored(), 9)
}

// Nothing is sent that could not end before the function does.
func TestNearItsEndNothingIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.table.before = func(context.Context, delivery.Insert) error {
			t.Error("sent")
			return nil
		}
		_, failure := w.invoke(t, 20*time.Second, event(lane(0, 1, 2))) // an insert may take 30 s
		require.Equal(t, "OutOfTime", failure.Type)
	})
}

func TestDeliveriesEndBeforeLambdaEndsTheFunction(t *testing.T) {
	w := newWorld(t, "ONCEHOUSE_INSERT_TIMEOUT=1s", "ONCEHOUSE_FUNCTION_TIMEOUT=10s")
	deadline := time.Now().Add(5 * time.Second)
	w.table.before = func(ctx context.Context, in delivery.Insert) error {
		ends, ok := ctx.Deadline()
		require.True(t, ok)
		require.LessOrEqual(t, deadline.Sub(ends), 1100*time.Millisecond)
		require.GreaterOrEqual(t, deadline.Sub(ends), 900*time.Millisecond, "the margin is off")
		require.False(t, in.NotAfter.Add(in.Timeout).After(ends))
		return nil
	}
	_, failure := w.invoke(t, time.Until(deadline), event(lane(0, 1, 2)))
	require.Nil(t, failure)
}

func TestAFunctionTimeoutThatIsNotTheFunctions(t *testing.T) {
	w := newWorld(t, "ONCEHOUSE_FUNCTION_TIMEOUT=40s")
	_, failure := w.invoke(t, time.Minute, event(lane(0, 1, 2)))
	require.Equal(t, "Configuration", failure.Type)
	require.Contains(t, failure.Message, "set ONCEHOUSE_FUNCTION_TIMEOUT to the function's timeout")
	_, err := w.Invoke(t.Context(), event(lane(0, 1, 2)))
	require.ErrorContains(t, err, "no deadline")
}

func TestALevelSilencesLanesThatWentWell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "ONCEHOUSE_LOG_LEVEL=error")
		w.table.before = on(1, errDoubt)
		_, failure := w.invoke(t, time.Minute, event(lane(0, 1, 2), lane(1, 1, 2)))
		require.NotNil(t, failure)
		require.Len(t, w.lines(t), 1)
	})
}
