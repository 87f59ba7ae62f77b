package kafkalog_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/broker"
	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/kafkalog"
	"oncehouse/shared/outbox/memory"
)

// BenchmarkPoller publishes rows of 1 kB in transactions of 1000, from a table in
// memory to the embedded broker.
func BenchmarkPoller(b *testing.B) {
	for _, partitions := range []int32{1, 6} {
		for _, compression := range []string{"lz4", "none"} {
			b.Run(fmt.Sprintf("partitions=%d/%s", partitions, compression), func(b *testing.B) {
				benchmarkPoller(b, partitions, compression)
			})
		}
	}
}

func benchmarkPoller(b *testing.B, partitions int32, compression string) {
	kafka, err := broker.Embedded(broker.EmbeddedConfig{})
	require.NoError(b, err)
	defer kafka.Close()
	require.NoError(b, broker.CreateTopics(b.Context(), kafka, broker.Topic{Name: "outbox.event.order", Partitions: partitions}))
	w := &world{broker: kafka, outbox: "bench"}
	c := w.config()
	c.Compression = compression
	log, err := kafkalog.New(c)
	require.NoError(b, err)
	router, err := outbox.NewRouter(outbox.Routing{Placement: "type:header:eventType"})
	require.NoError(b, err)

	const rows = 1000
	db := memory.NewDatabase()
	tx := db.Begin()
	for i := range rows * b.N {
		aggregate := fmt.Sprintf("order-%d", i%5000)
		tx.Insert(outbox.Row{
			ID: fmt.Sprintf("018f3c5e-0000-7000-8000-%012d", i), AggregateType: "order", AggregateID: &aggregate,
			Type: "OrderChanged", Payload: payload(i), Timestamp: 1774748700123,
		})
	}
	tx.Commit()
	var slowest, sum time.Duration
	done := 0
	stop := make(chan struct{})
	poller, err := outbox.NewPoller(outbox.Shard{Of: 1}, db.Table(outbox.Shard{Of: 1}), log, router, outbox.Rules{
		Initialise: outbox.FromBeginning, Rows: rows,
		Observe: func(c outbox.Commit) {
			sum += c.Took
			slowest = max(slowest, c.Took)
			if done += c.Rows; done == rows*b.N {
				close(stop)
			}
		},
	})
	require.NoError(b, err)
	ctx, cancel := contextUntil(b, stop)
	defer cancel()
	b.ReportAllocs()
	b.ResetTimer()
	tally, err := poller.Run(ctx, time.Now().Add(time.Hour))
	b.StopTimer()
	require.NoError(b, err)
	require.EqualValues(b, rows*b.N, tally.Rows)
	b.ReportMetric(float64(rows*b.N)/b.Elapsed().Seconds(), "rows/s")
	b.ReportMetric(float64(sum.Milliseconds())/float64(tally.Transactions), "ms/transaction")
	b.ReportMetric(float64(slowest.Milliseconds()), "ms/slowest")
	b.ReportMetric(float64(tally.Reopened), "reopened")
}

// payload is 1 kB of JSON that compresses about as events do.
func payload(i int) []byte {
	text := fmt.Appendf(nil, `{"order":%d,"state":"changed","lines":[`, i)
	for line := 0; len(text) < 980; line++ {
		text = fmt.Appendf(text, `{"sku":"%08x","n":%d},`, (i*31+line)*2654435761%(1<<32), line)
	}
	return append(text[:len(text)-1], `]}`...)
}

// BenchmarkLatency is the time from a row's commit to the commit of its Kafka
// transaction, at 200 rows a second, while the poller polls.
func BenchmarkLatency(b *testing.B) {
	kafka, err := broker.Embedded(broker.EmbeddedConfig{})
	require.NoError(b, err)
	defer kafka.Close()
	w := newWorld(b, kafka, "order")
	log, err := kafkalog.New(w.config())
	require.NoError(b, err)
	router, err := outbox.NewRouter(outbox.Routing{})
	require.NoError(b, err)
	db := memory.NewDatabase()
	var lags []time.Duration
	seen := 0
	stop := make(chan struct{})
	poller, err := outbox.NewPoller(outbox.Shard{Of: 1}, db.Table(outbox.Shard{Of: 1}), log, router, outbox.Rules{
		Initialise: outbox.FromBeginning,
		Observe: func(c outbox.Commit) {
			lags = append(lags, c.Lag)
			if seen += c.Rows; seen == b.N {
				close(stop)
			}
		},
	})
	require.NoError(b, err)
	ctx, cancel := contextUntil(b, stop)
	defer cancel()
	ready := make(chan struct{})
	go func() {
		defer close(ready)
		for i := range b.N {
			time.Sleep(5 * time.Millisecond)
			key := fmt.Sprint(i % 50)
			tx := db.Begin()
			tx.Insert(outbox.Row{ID: fmt.Sprint(i), AggregateType: "order", AggregateID: &key, Payload: payload(i), Timestamp: time.Now().UnixMilli()})
			tx.Commit()
		}
	}()
	b.ResetTimer()
	tally, err := poller.Run(ctx, time.Now().Add(time.Hour))
	b.StopTimer()
	<-ready
	b.ReportMetric(float64(tally.Reopened), "reopened")
	require.NoError(b, err)
	slices.Sort(lags)
	b.ReportMetric(float64(lags[len(lags)/2].Microseconds())/1000, "ms/median")
	b.ReportMetric(float64(lags[len(lags)*99/100].Microseconds())/1000, "ms/p99")
}
