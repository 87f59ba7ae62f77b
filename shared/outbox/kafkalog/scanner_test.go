package kafkalog

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"

	"oncehouse/shared/kafkacluster"
	"oncehouse/shared/outbox"
)

// partition plays a cursor partition: c1 is a cursor of window 1, p2 a plan of
// window 2, + a commit marker, - an abort marker, . an offset that is gone.
func partition(t *testing.T, start int64, what ...string) (outbox.Standing, error) {
	t.Helper()
	s := scanner{from: start, next: start}
	for i, w := range what {
		e := entry{offset: start + int64(i), transactional: true}
		var value any
		switch w[0] {
		case '.':
			continue
		case '+', '-':
			e.marker, e.commit = true, w == "+"
		case 'c':
			e.key, value = []byte(keyCursor), outbox.Cursor{Window: int64(w[1] - '0')}
		case 'p':
			e.key, value = []byte(keyPlan), outbox.Plan{Number: int64(w[1] - '0')}
		case 'x':
			e.transactional = false
		case '?':
			e.key = []byte("?")
		case '!':
			e.key, e.value = []byte(keyCursor), []byte("{")
		}
		if value != nil {
			var err error
			e.value, err = json.Marshal(value)
			require.NoError(t, err)
		}
		if err := s.take(e); err != nil {
			return outbox.Standing{}, err
		}
	}
	end := start + int64(len(what))
	s.skip(end)
	return s.result(extent{start, end})
}

func TestScanner(t *testing.T) {
	for _, c := range []struct {
		what    []string
		window  int64 // of the cursor; 0 for none
		plan    int64 // 0 for none
		refused string
	}{
		{nil, 0, 0, ""},
		{[]string{"c1", "+"}, 1, 0, ""},
		{[]string{"c1", "-"}, 0, 0, ""},
		{[]string{"c1", "+", "p2", "c2", "+"}, 2, 0, ""},
		{[]string{"c1", "+", "p2", "c2", "-"}, 1, 2, ""},
		{[]string{"c1", "+", "p2", "-", "p3", "-"}, 1, 3, ""},
		{[]string{"c1", "+", "p2", "-", "c2", "-"}, 1, 2, ""},
		{[]string{"c1", "+", "p2", "-", "c2", "+"}, 2, 0, ""},
		{[]string{"c1", "+", "p2", "-", "-"}, 1, 2, ""},
		{[]string{"p1", "-", "c1", "+", "+"}, 1, 0, ""},
		{[]string{".", ".", "c1", "+"}, 1, 0, ""},
		{[]string{"c1", "+", "c2", "-", "+"}, 1, 0, ""},
		// A plan may have stood there (O38).
		{[]string{"c1", "+", "."}, 0, 0, outbox.ReasonPlanLost},
		{[]string{"c1", "+", ".", "-"}, 0, 0, outbox.ReasonPlanLost},
		{[]string{"c1", "+", ".", "-", "p2", "-"}, 0, 0, outbox.ReasonPlanLost},
		{[]string{"c1", "+", ".", "-", "c2", "+"}, 2, 0, ""},
		{[]string{"c1", "+", "x"}, 0, 0, ReasonCursorForeign},
		{[]string{"c1", "+", "?"}, 0, 0, ReasonCursorForeign},
		{[]string{"c1", "+", "!"}, 0, 0, ReasonCursorForeign},
	} {
		got, err := partition(t, 0, c.what...)
		if c.refused != "" {
			var refusal *outbox.Refusal
			require.ErrorAs(t, err, &refusal, "%v", c.what)
			require.Equal(t, c.refused, refusal.Reason, "%v", c.what)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.window > 0, got.Cursor != nil, "%v", c.what)
		require.Equal(t, c.plan > 0, got.Plan != nil, "%v", c.what)
		if got.Cursor != nil {
			require.Equal(t, c.window, got.Cursor.Window, "%v", c.what)
		}
		if got.Plan != nil {
			require.Equal(t, c.plan, got.Plan.Number, "%v", c.what)
		}
		require.False(t, got.Expired)
	}
	for _, what := range [][]string{nil, {"c1", "-"}, {"."}} {
		got, err := partition(t, 7, what...)
		require.NoError(t, err)
		require.Equal(t, outbox.Standing{Expired: true}, got)
	}
}

// Nothing but the outbox and the cursor partition is in the transactional id:
// another function takes over, another shard or outbox never does (O24).
func TestO24TransactionalIDs(t *testing.T) {
	id := func(name string, shard outbox.Shard) string {
		l, err := New(Config{Cluster: kafkacluster.Cluster{Brokers: []string{"127.0.0.1:1"}}, Outbox: name, Shard: shard})
		require.NoError(t, err)
		return l.config.transactionalID()
	}
	require.Equal(t, "oncehouse-outbox-orders-0", id("orders", outbox.Shard{Of: 1}))
	require.Equal(t, id("orders", outbox.Shard{Of: 1}), id("orders", outbox.Shard{Of: 2}), "it fences the shards of before")
	require.NotEqual(t, id("orders", outbox.Shard{Of: 2}), id("orders", outbox.Shard{Index: 1, Of: 2}))
	require.NotEqual(t, id("orders", outbox.Shard{Of: 1}), id("bills", outbox.Shard{Of: 1}))
}

func TestConfig(t *testing.T) {
	good := Config{Cluster: kafkacluster.Cluster{Brokers: []string{"127.0.0.1:1"}}, Outbox: "orders", Shard: outbox.Shard{Of: 1}}
	for problem, change := range map[string]func(*Config){
		`outbox "a b"`:              func(c *Config) { c.Outbox = "a b" },
		`outbox ""`:                 func(c *Config) { c.Outbox = "" },
		"shard 1 of 1":              func(c *Config) { c.Shard.Index = 1 },
		"transaction time-out 10ms": func(c *Config) { c.TransactionTimeout = 10 * time.Millisecond },
		`compression "lzma"`:        func(c *Config) { c.Compression = "lzma" },
		"no brokers":                func(c *Config) { c.Cluster.Brokers = nil },
	} {
		c := good
		change(&c)
		_, err := New(c)
		require.ErrorContains(t, err, problem)
	}
	for _, compression := range []string{"", "lz4", "zstd", "snappy", "gzip", "none"} {
		c := good
		c.Compression = compression
		_, err := New(c)
		require.NoError(t, err)
	}
}

func TestExplain(t *testing.T) {
	l := Log{timeout: time.Minute}
	for _, old := range []error{kerr.ProducerFenced, kerr.InvalidProducerEpoch} {
		err := fmt.Errorf("end the transaction: %w", old)
		require.ErrorIs(t, l.explain(err, time.Now()), outbox.ErrFenced)
		require.ErrorIs(t, l.explain(err, time.Time{}), outbox.ErrFenced)
		require.NotErrorIs(t, l.explain(err, time.Now().Add(-time.Hour)), outbox.ErrFenced, "the broker ended it (O22)")
	}
	var refusal *outbox.Refusal
	require.ErrorAs(t, l.explain(fmt.Errorf("write: %w", kerr.MessageTooLarge), time.Now()), &refusal)
	require.Equal(t, ReasonLimitLowered, refusal.Reason)
	for err, remedy := range map[error]string{
		kerr.InvalidTimestamp: "message.timestamp.after.max.ms",
		kerr.InvalidRecord:    "has no aggregate id",
	} {
		refusal := &outbox.Refusal{}
		require.ErrorAs(t, l.explain(fmt.Errorf("write: topic-0: %w", err), time.Now()), &refusal)
		require.Equal(t, outbox.ReasonHalted, refusal.Reason)
		require.Contains(t, refusal.Remedy, remedy)
		require.Contains(t, refusal.Problems[0], "topic-0", "it would not fare otherwise in the next run")
	}
	for err, remedy := range map[error]string{
		kerr.UnknownTopicOrPartition:            "create it as it was",
		kerr.TransactionalIDAuthorizationFailed: "writing transactions of oncehouse-outbox-",
		kerr.SaslAuthenticationFailed:           "check the mechanism and the credentials",
		kerr.InvalidTransactionTimeout:          "transaction.max.timeout.ms",
	} {
		explained := l.explain(err, time.Now())
		require.ErrorIs(t, explained, err)
		require.ErrorContains(t, explained, remedy)
		require.NotErrorAs(t, explained, &refusal, "the next run tries again")
	}
}
