package kafkalog_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
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
	"oncehouse/shared/kafka"
	"oncehouse/shared/kafkacluster"
	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/kafkalog"
	"oncehouse/shared/outbox/logtest"
	"oncehouse/shared/outbox/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a broker as the conformance suite wants it. Its topics bear the name of
// its outbox: an Apache Kafka serves many of them.
type world struct {
	broker broker.Broker
	outbox string
	wire   *wire
	// cluster is the embedded broker; nil is one that keeps a topic's rules itself.
	cluster *kfake.Cluster
}

func newWorld(t testing.TB, b broker.Broker, outbox string) *world {
	t.Helper()
	w := &world{broker: b, outbox: outbox, wire: &wire{over: make(chan struct{})}}
	t.Cleanup(func() { close(w.wire.over) })
	require.NoError(t, broker.CreateTopics(t.Context(), b, broker.Topic{Name: w.Topic(), Partitions: logtest.Partitions}))
	return w
}

func (w *world) Topic() string { return "outbox.event." + w.outbox }

func (w *world) client(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append(opts, kgo.SeedBrokers(w.broker.Addrs()...))...)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

func (w *world) config() kafkalog.Config {
	return kafkalog.Config{
		Cluster: kafkacluster.Cluster{Brokers: w.broker.Addrs()}, Outbox: w.outbox, Shard: outbox.Shard{Of: 1}, Create: true,
	}
}

func (w *world) Log(t *testing.T) outbox.Log {
	t.Helper()
	c := w.config()
	c.Options = []kgo.Opt{kgo.Dialer(w.wire.dial)}
	l, err := kafkalog.New(c)
	require.NoError(t, err)
	return &cuttable{Log: l, wire: w.wire}
}

func (w *world) Grow(t *testing.T) {
	t.Helper()
	admin := kadm.NewClient(w.client(t))
	_, err := admin.UpdatePartitions(t.Context(), logtest.Partitions+1, w.Topic())
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		topics, err := admin.ListTopics(t.Context(), w.Topic())
		return err == nil && len(topics[w.Topic()].Partitions) == logtest.Partitions+1
	}, 10*time.Second, 10*time.Millisecond)
}

func (w *world) Restrict(t *testing.T) {
	t.Helper()
	admin := kadm.NewClient(w.client(t))
	rules := map[string]string{
		"cleanup.policy": "compact", "message.timestamp.before.max.ms": "86400000", "message.timestamp.after.max.ms": "3600000",
	}
	var alter []kadm.AlterConfig
	for name, value := range rules {
		alter = append(alter, kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: &value})
	}
	_, err := admin.AlterTopicConfigs(t.Context(), alter, w.Topic())
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		found, err := admin.DescribeTopicConfigs(t.Context(), w.Topic())
		require.NoError(t, err)
		known := 0
		for _, c := range found[0].Configs {
			if rules[c.Key] != "" && rules[c.Key] == c.MaybeValue() {
				known++
			}
		}
		return known == len(rules)
	}, 10*time.Second, 10*time.Millisecond)
	if w.cluster != nil {
		for _, err := range []*kerr.Error{kerr.InvalidTimestamp, kerr.InvalidRecord} {
			w.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: w.Topic(), Partitions: []int32{0}, Err: err})
		}
	}
}

func (w *world) Break(_ *testing.T, after bool) {
	if after {
		w.wire.next.Store(cutAfter)
	} else {
		w.wire.next.Store(cutBefore)
	}
}

func (w *world) Truncate(t *testing.T) {
	t.Helper()
	admin := kadm.NewClient(w.client(t))
	topic := "oncehouse.outbox." + w.outbox
	ends, err := admin.ListEndOffsets(t.Context(), topic)
	require.NoError(t, err)
	policy := "compact,delete" // Kafka deletes records of no other topics
	_, err = admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "cleanup.policy", Value: &policy}}, topic)
	require.NoError(t, err)
	answer, err := admin.DeleteRecords(t.Context(), ends.Offsets())
	require.NoError(t, err)
	require.NoError(t, answer.Error())
}

// Records reads to the end of the partition as it is now.
func (w *world) Records(t *testing.T, partition int32, committed bool) []kafka.Record {
	t.Helper()
	return readTopic(t, w, w.Topic(), partition, committed)
}

func readTopic(t *testing.T, w *world, topic string, partition int32, committed bool) []kafka.Record {
	t.Helper()
	isolation, admin := kgo.ReadUncommitted(), kadm.NewClient(w.client(t))
	if committed {
		isolation = kgo.ReadCommitted()
	}
	// A broker answers a commit before its markers are in every partition.
	var end kadm.ListedOffset
	require.Eventually(t, func() bool {
		ends, err := admin.ListEndOffsets(t.Context(), topic)
		require.NoError(t, err)
		stable, err := admin.ListCommittedOffsets(t.Context(), topic)
		require.NoError(t, err)
		var ok bool
		end, ok = ends.Lookup(topic, partition)
		require.True(t, ok)
		is, ok := stable.Lookup(topic, partition)
		return ok && (!committed || is.Offset == end.Offset)
	}, time.Minute, 5*time.Millisecond, "a transaction stays open")
	// Markers are kept, so that the last offset comes whatever it holds; aborted
	// records at the very end do not come, but their marker does.
	client := w.client(t, kgo.FetchIsolationLevel(isolation), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var records []kafka.Record
	for next := int64(0); next < end.Offset; {
		fetches := client.PollFetches(ctx)
		require.NoError(t, ctx.Err(), "read %s-%d: at %d of %d", topic, partition, next, end.Offset)
		fetches.EachRecord(func(r *kgo.Record) {
			next = r.Offset + 1
			if r.Attrs.IsControl() || r.Offset >= end.Offset {
				return
			}
			out := kafka.Record{Offset: r.Offset, Timestamp: r.Timestamp.UnixMilli(), Key: r.Key, Value: r.Value}
			for _, h := range r.Headers {
				out.Headers = append(out.Headers, kafka.Header{Key: []byte(h.Key), Value: h.Value})
			}
			records = append(records, out)
		})
	}
	return records
}

// What happens to the next EndTxn.
const (
	cutNot int32 = iota
	cutBefore
	cutAfter
)

// wire is the network between one poller and the brokers. It can be cut at the
// next EndTxn, and once after a number of requests of any kind: before the
// request is sent, or when its answer comes. A deadly cut is the poller's end.
type wire struct {
	next             atomic.Int32
	after            int64 // requests; 0 is never
	deadly, answered bool
	hold             atomic.Int64  // nanoseconds that the next EndTxn takes to be sent
	over             chan struct{} // closed when the test is over

	requests, cuts atomic.Int64
	dead           atomic.Bool

	mu         sync.Mutex
	cut, death func() // called when a connection is cut: whoever waits gives up
}

func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if w.dead.Load() {
		return nil, net.ErrClosed
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, wire: w}, nil
}

func (w *wire) onCut(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = f
}

func (w *wire) onDeath(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.death = f
}

func (w *wire) cutNow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cuts.Add(1)
	if w.deadly {
		w.dead.Store(true)
		w.death()
	}
	if w.cut != nil {
		w.cut()
	}
}

// fate is what happens to a request.
func (w *wire) fate(request []byte) int32 {
	if len(request) < 6 {
		return cutNot
	}
	if w.requests.Add(1) == w.after {
		if w.answered {
			return cutAfter
		}
		return cutBefore
	}
	if binary.BigEndian.Uint16(request[4:]) == uint16(kmsg.EndTxn) {
		if d := time.Duration(w.hold.Swap(0)); d > 0 {
			select {
			case <-time.After(d):
			case <-w.over:
			}
		}
		return w.next.Swap(cutNot)
	}
	return cutNot
}

type conn struct {
	net.Conn
	wire    *wire
	swallow atomic.Bool
}

func (c *conn) Write(b []byte) (int, error) {
	if c.wire.dead.Load() {
		return 0, net.ErrClosed
	}
	switch c.wire.fate(b) {
	case cutBefore:
		c.wire.cutNow()
		_ = c.Close()
		return 0, net.ErrClosed
	case cutAfter:
		c.swallow.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil && n > 0 && c.swallow.Load() {
		c.wire.cutNow()
		_ = c.Close()
		return 0, io.EOF
	}
	if c.wire.dead.Load() {
		return 0, io.EOF
	}
	return n, err
}

// cuttable is a log whose commit ends when its wire is cut, as it does when the
// network stays away.
type cuttable struct {
	outbox.Log
	wire *wire
}

func (c *cuttable) Commit(ctx context.Context, t outbox.Transaction) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.wire.onCut(cancel)
	defer c.wire.onCut(nil)
	return c.Log.Commit(ctx, t)
}

func (c *cuttable) Close(ctx context.Context) error {
	if c.wire.dead.Load() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		cancel() // it is gone, and closes nothing
	}
	return c.Log.Close(ctx)
}

// contextUntil ends when stop is closed.
func contextUntil(t testing.TB, stop <-chan struct{}) (context.Context, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		select {
		case <-stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// filled is a database with rows of one aggregate type.
func filled(aggregateType string, rows int) *memory.Database {
	db := memory.NewDatabase()
	tx := db.Begin()
	for i := range rows {
		key := fmt.Sprint(i % 100)
		tx.Insert(outbox.Row{ID: fmt.Sprint(i), AggregateType: aggregateType, AggregateID: &key, Payload: []byte("x")})
	}
	tx.Commit()
	return db
}

// runUntilIdle runs one poller until it has looked twice and found nothing.
func runUntilIdle(t *testing.T, w *world, c kafkalog.Config, db *memory.Database, rules outbox.Rules) outbox.Tally {
	t.Helper()
	log, err := kafkalog.New(c)
	require.NoError(t, err)
	router, err := outbox.NewRouter(outbox.Routing{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	looks := 0
	rules.Wait = func(_ context.Context, d time.Duration) {
		if d >= 100*time.Millisecond { // after an error
			time.Sleep(d)
		} else if looks++; looks == 2 {
			cancel()
		}
	}
	poller, err := outbox.NewPoller(w.config().Shard, db.Table(w.config().Shard), log, router, rules)
	require.NoError(t, err)
	tally, err := poller.Run(ctx, time.Now().Add(2*time.Minute))
	require.NoError(t, err)
	return tally
}

// requireOnce wants each of the rows once, for who reads committed records.
func requireOnce(t *testing.T, w *world, rows int) {
	t.Helper()
	count := map[string]int{}
	for p := range int32(logtest.Partitions) {
		for _, r := range w.Records(t, p, true) {
			id, _ := r.FindHeader(outbox.HeaderID)
			count[string(id)]++
		}
	}
	require.Len(t, count, rows)
	for id, n := range count {
		require.Equal(t, 1, n, "row %s", id)
	}
}
