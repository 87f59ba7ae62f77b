package clickhouse_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/engine"
	"oncehouse/infra/local/engine/enginetest"
	"oncehouse/shared/clickhouse"
	"oncehouse/shared/clickhouse/targettest"
	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	"oncehouse/shared/rowbinary"
)

// provenance columns as most tests declare them.
const provenance = "_topic LowCardinality(String), _partition Int32, _offset Int64"

// server is an engine without tables, for a test and its subtests.
type server struct{ *enginetest.Server }

// shared is the engine of all tests that leave it running.
var shared enginetest.Shared

func TestMain(m *testing.M) {
	code := m.Run()
	shared.Close()
	os.Exit(code)
}

func run(t testing.TB) server { return server{shared.Run(t)} }

// table creates a table by DDL behind "CREATE TABLE t".
func (s server) table(t *testing.T, name, rest string) {
	t.Helper()
	s.Exec(t, "DROP TABLE IF EXISTS `"+name+"` SYNC", "CREATE TABLE `"+name+"` "+rest)
}

func (s server) config(table string) clickhouse.Config {
	return clickhouse.Config{
		Endpoints: []string{s.URL()}, Database: "default", Table: table, User: "default",
		Rows:   rowbinary.Options{Provenance: rowbinary.StandardProvenance()},
		Rules:  delivery.DefaultRules(),
		Logger: slog.New(slog.DiscardHandler),
	}
}

func open(t testing.TB, config clickhouse.Config) *clickhouse.Target {
	t.Helper()
	target, err := clickhouse.New(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, target.Close()) })
	return target
}

// ready is a target after its Preflight.
func (s server) ready(t testing.TB, table string) *clickhouse.Target {
	t.Helper()
	target := open(t, s.config(table))
	_, err := target.Preflight(t.Context())
	require.NoError(t, err)
	return target
}

// column reads one column of integers.
func column(t *testing.T, s server, sql string) []int64 {
	t.Helper()
	rows, err := s.Open(t).Query(t.Context(), sql)
	require.NoError(t, err)
	var out []int64
	for rows.Next() {
		var n int64
		require.NoError(t, rows.Scan(&n))
		out = append(out, n)
	}
	require.NoError(t, rows.Err())
	return out
}

func (s server) offsets(table string) func(*testing.T, delivery.Lane) []int64 {
	return func(t *testing.T, lane delivery.Lane) []int64 {
		return column(t, s, fmt.Sprintf("SELECT toInt64(_offset) FROM `%s` WHERE _topic = '%s' AND _partition = %d ORDER BY 1", table, lane.Topic, lane.Partition))
	}
}

func TestTargetSuite(t *testing.T) {
	s := run(t)
	for name, c := range map[string]struct {
		ddl         string
		compression clickhouse.Compression
		dedup       bool
		table       string
	}{
		"plain":       {ddl: "(" + provenance + ", v String) ENGINE = MergeTree ORDER BY _offset"},
		"window":      {ddl: "(" + provenance + ", v String) ENGINE = MergeTree ORDER BY _offset SETTINGS non_replicated_deduplication_window = 1000", dedup: true},
		"gzip":        {ddl: "(" + provenance + ", v String) ENGINE = MergeTree ORDER BY _offset", compression: clickhouse.CompressionGzip},
		"quoted name": {ddl: "(" + provenance + ", v String) ENGINE = MergeTree ORDER BY _offset", table: "su'i te"},
	} {
		t.Run(name, func(t *testing.T) {
			targettest.Run(t, func(t *testing.T) targettest.Fixture {
				name := cmp.Or(c.table, "suite")
				s.table(t, name, c.ddl)
				config := s.config(name)
				config.Compression = c.compression
				return targettest.Fixture{Target: open(t, config), Stored: s.offsets(name), Deduplicates: c.dedup}
			})
		})
	}
}

// D18: a chunk that touches more table partitions than the server's default
// allows is stored, and is still one block: one part for each partition.
func TestManyTablePartitions(t *testing.T) {
	s := run(t)
	s.table(t, "wide", "("+provenance+", v String) ENGINE = MergeTree PARTITION BY _offset % 150 ORDER BY _offset")
	s.Exec(t, "SYSTEM STOP MERGES wide")
	target := s.ready(t, "wide")
	records := manyRecords(30_000, 8)
	insert(t, target, records, "t1")
	require.Equal(t, []int64{150}, column(t, s, "SELECT toInt64(count()) FROM system.parts WHERE table = 'wide' AND active"))
	require.Equal(t, []int64{30_000}, column(t, s, "SELECT toInt64(uniqExact(_offset)) FROM wide"))
}

// withProfile is a way to the server on which a user's profile says otherwise
// wherever a request does not pin a setting.
func withProfile(t *testing.T, s server, profile map[string]string) string {
	t.Helper()
	backend, err := url.Parse(s.URL())
	require.NoError(t, err)
	way := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(backend)
		query := r.In.URL.Query()
		for name, value := range profile {
			if !query.Has(name) && query.Has("query") {
				query.Set(name, value)
			}
		}
		r.Out.URL.RawQuery = query.Encode()
	}})
	t.Cleanup(way.Close)
	return way.URL
}

// One insert is one block, whatever the user's profile says: the number of parts
// of an unpartitioned table shows it.
func TestOneInsertOneBlock(t *testing.T) {
	s := run(t)
	for _, compression := range []clickhouse.Compression{clickhouse.CompressionNone, clickhouse.CompressionGzip} {
		t.Run(string(compression), func(t *testing.T) {
			s.table(t, "blocks", "("+provenance+", v String) ENGINE = MergeTree ORDER BY _offset")
			s.Exec(t, "SYSTEM STOP MERGES blocks")
			config := s.config("blocks")
			config.Endpoints = []string{withProfile(t, s, map[string]string{
				"max_insert_block_size": "1000", "min_insert_block_size_rows": "1000", "min_insert_block_size_bytes": "1000",
				"input_format_max_block_size_bytes": "1000", "max_insert_threads": "4",
			})}
			config.Compression = compression
			target := open(t, config)
			_, err := target.Preflight(t.Context())
			require.NoError(t, err)
			insert(t, target, manyRecords(100_000, 200), "t1")
			insert(t, target, manyRecords(10, 10), "t2")
			require.Equal(t, []int64{10, 100_000}, column(t, s, "SELECT toInt64(rows) FROM system.parts WHERE table = 'blocks' ORDER BY rows"))
		})
	}
}

func manyRecords(n, size int) []kafka.Record {
	value := []byte(`{"v":"` + strings.Repeat("x", size) + `"}`)
	records := make([]kafka.Record, n)
	for i := range records {
		records[i] = kafka.Record{Offset: int64(i), Value: value}
	}
	return records
}

func insert(t *testing.T, target *clickhouse.Target, records []kafka.Record, token string) {
	t.Helper()
	chunk := targettest.Encode(t, target, targettest.Lane(), records)
	require.NoError(t, target.Insert(t.Context(), targettest.Insert(targettest.Lane(), chunk, records, token)))
	chunk.Release()
}

// D26: a column that is added while the function is warm: a chunk encoded before
// it is stored as it was meant, the next Preflight fills the column.
func TestColumnAddedWhileWarm(t *testing.T) {
	s := run(t)
	s.table(t, "warm", "("+provenance+", v String) ENGINE = MergeTree ORDER BY _offset")
	target := s.ready(t, "warm")
	records := []kafka.Record{{Offset: 1, Value: []byte(`{"v":"a","w":"new"}`)}, {Offset: 2, Value: []byte(`{"v":"b"}`)}}
	chunk := targettest.Encode(t, target, targettest.Lane(), records)
	s.Exec(t, "ALTER TABLE warm ADD COLUMN w String DEFAULT 'nothing' FIRST")
	clickhouse.Forget(target) // as if a second had passed
	require.NoError(t, target.Insert(t.Context(), targettest.Insert(targettest.Lane(), chunk, records, "t1")))
	require.Equal(t, []int64{1, 2}, column(t, s, "SELECT _offset FROM warm WHERE w = 'nothing' ORDER BY 1"))

	_, err := target.Preflight(t.Context())
	require.NoError(t, err)
	for i := range records {
		records[i].Offset += 10
	}
	insert(t, target, records, "t2")
	require.Equal(t, []int64{11}, column(t, s, "SELECT _offset FROM warm WHERE w = 'new'"))
	require.Equal(t, []int64{12}, column(t, s, "SELECT _offset FROM warm WHERE w = 'nothing' AND _offset > 10"))
}

// What would make other rows of a chunk, or put them elsewhere, stops it.
func TestTableChangedBeforeInsert(t *testing.T) {
	s := run(t)
	for name, change := range map[string][]string{
		"type":     {"ALTER TABLE torn MODIFY COLUMN n Int64"},
		"dropped":  {"ALTER TABLE torn DROP COLUMN n"},
		"computed": {"ALTER TABLE torn MODIFY COLUMN n Int32 MATERIALIZED 1"},
		"engine":   {"DROP TABLE torn SYNC", "CREATE TABLE torn (" + provenance + ", v String, n Int32) ENGINE = ReplacingMergeTree ORDER BY v"},
		"same DDL": {"DROP TABLE torn SYNC", "CREATE TABLE torn (" + provenance + ", v String, n Int32) ENGINE = MergeTree ORDER BY _offset"},
		"view":     {"CREATE MATERIALIZED VIEW tornview ENGINE = MergeTree ORDER BY v AS SELECT v FROM torn"},
	} {
		t.Run(name, func(t *testing.T) {
			s.Exec(t, "DROP DATABASE IF EXISTS d SYNC", "CREATE DATABASE d")
			s.execIn(t, "d", "CREATE TABLE torn ("+provenance+", v String, n Int32) ENGINE = MergeTree ORDER BY _offset")
			config := s.config("torn")
			config.Database = "d"
			target := open(t, config)
			_, err := target.Preflight(t.Context())
			require.NoError(t, err)
			records := []kafka.Record{{Offset: 1, Value: []byte(`{"v":"a","n":7}`)}}
			chunk := targettest.Encode(t, target, targettest.Lane(), records)
			for _, statement := range change {
				s.execIn(t, "d", statement)
			}
			clickhouse.Forget(target) // as if a second had passed
			err = target.Insert(t.Context(), targettest.Insert(targettest.Lane(), chunk, records, "t1"))
			require.Equal(t, delivery.Retryable, delivery.KindOf(err), err)
			require.ErrorContains(t, err, "nothing was sent")
			require.Empty(t, column(t, s, "SELECT _offset FROM d.torn"))
		})
	}
}

func TestPreflightTraits(t *testing.T) {
	s := run(t)
	for name, c := range map[string]struct {
		ddl  string
		want delivery.Traits
	}{
		"plain":     {"(" + provenance + ", v String) ENGINE = MergeTree ORDER BY _offset", delivery.Traits{Provenance: true, RowsStay: true}},
		"replacing": {"(" + provenance + ", v String) ENGINE = ReplacingMergeTree(_offset) ORDER BY v", delivery.Traits{Provenance: true, ResendHarmless: true}},
		"replacing by time": {"(" + provenance + ", v String) ENGINE = ReplacingMergeTree(_partition) ORDER BY v",
			delivery.Traits{Provenance: true}},
		"summing": {"(" + provenance + ", v String) ENGINE = SummingMergeTree ORDER BY _offset", delivery.Traits{Provenance: true}},
		"ttl":     {"(" + provenance + ", v String, d DateTime DEFAULT now()) ENGINE = MergeTree ORDER BY _offset TTL d + INTERVAL 1 DAY", delivery.Traits{Provenance: true}},
		"ttl that only moves": {"(" + provenance + ", v String, d DateTime DEFAULT now()) ENGINE = MergeTree ORDER BY _offset TTL d + INTERVAL 1 DAY TO DISK 'default'",
			delivery.Traits{Provenance: true, RowsStay: true}},
		"ttl of the offset": {"(_topic String, _partition Int32, _offset Int64 TTL d + INTERVAL 1 DAY, v String, d DateTime DEFAULT now()) ENGINE = MergeTree ORDER BY v", delivery.Traits{Provenance: true}},
	} {
		t.Run(name, func(t *testing.T) {
			s.table(t, "traits", c.ddl)
			target := open(t, s.config("traits"))
			for range 2 {
				got, err := target.Preflight(t.Context())
				require.NoError(t, err)
				require.NotEmpty(t, got.ServerUUID)
				got.ServerUUID = ""
				require.Equal(t, c.want, got)
			}
		})
	}
}

func TestPreflightRefusals(t *testing.T) {
	s := run(t)
	for name, c := range map[string]struct {
		setup  []string
		change func(*clickhouse.Config)
		want   []string // parts of the one message
	}{
		"no provenance": {
			setup: []string{"CREATE TABLE r (v String) ENGINE = MergeTree ORDER BY v"},
			want:  []string{"without the provenance columns", "ALTER TABLE `d`.`r` ADD COLUMN `_topic` LowCardinality(String), ADD COLUMN `_partition` Int32, ADD COLUMN `_offset` Int64"},
		},
		"one provenance column short": {
			setup: []string{"CREATE TABLE r (_topic String, _offset Int64, v String) ENGINE = MergeTree ORDER BY v"},
			want:  []string{"without the provenance columns", "ALTER TABLE `d`.`r` ADD COLUMN `_partition` Int32; or"},
		},
		"provenance of the wrong type": {
			setup: []string{"CREATE TABLE r (_topic String, _partition Int32, _offset Int32, v String) ENGINE = MergeTree ORDER BY v"},
			want:  []string{"provenance column `_offset`", "is Int32, Int64 expected", "MODIFY COLUMN `_offset` Int64"},
		},
		"all at once": {
			setup: []string{"CREATE TABLE r (_topic String, v String, a AggregateFunction(sum, UInt64)) ENGINE = MergeTree ORDER BY v"},
			want:  []string{"(1)", "provenance columns", "(2)", "AggregateFunction"},
		},
		"replay by token without a window": {
			setup:  []string{"CREATE TABLE r (" + provenance + ", v String) ENGINE = MergeTree ORDER BY v"},
			change: func(c *clickhouse.Config) { c.Rules.Replay = delivery.ReplayToken },
			want:   []string{`replay "token"`, "MODIFY SETTING non_replicated_deduplication_window = 1000"},
		},
		"view below a plain table": {
			setup: []string{"CREATE TABLE r (" + provenance + ", v String) ENGINE = MergeTree ORDER BY v",
				"CREATE TABLE sums (v String, n UInt64) ENGINE = SummingMergeTree ORDER BY v",
				"CREATE MATERIALIZED VIEW mv TO sums AS SELECT v, count() AS n FROM r GROUP BY v"},
			want: []string{"view `d`.`mv`", "reads from a plain MergeTree", "DROP VIEW `d`.`mv`", "accept incomplete views by name"},
		},
		"chain of views": {
			setup: []string{"CREATE TABLE r (" + provenance + ", v String) ENGINE = MergeTree ORDER BY v",
				"CREATE MATERIALIZED VIEW mv ENGINE = MergeTree ORDER BY v AS SELECT v FROM r",
				"CREATE TABLE sums (v String, n UInt64) ENGINE = SummingMergeTree ORDER BY v",
				"CREATE MATERIALIZED VIEW mv2 TO sums AS SELECT v, count() AS n FROM `.inner_id.INNER` GROUP BY v"},
			want: []string{"(1) view `d`.`mv`", "(2) view `d`.`mv2`: its target `d`.`sums` is a plain SummingMergeTree"},
		},
		"null without views": {
			setup: []string{"CREATE TABLE r (" + provenance + ", v String) ENGINE = Null"},
			want:  []string{"engine Null", "every record would vanish"},
		},
		"null into a plain view": {
			setup: []string{"CREATE TABLE r (" + provenance + ", v String) ENGINE = Null",
				"CREATE MATERIALIZED VIEW mv ENGINE = MergeTree ORDER BY v AS SELECT v FROM r"},
			change: func(c *clickhouse.Config) { c.Rules.AcceptIncompleteViews = true },
			want:   []string{"view `d`.`mv` on the Null table", "plain MergeTree, whose tokens are not to be trusted"},
		},
		"buffer":     {setup: []string{"CREATE TABLE b (v String) ENGINE = MergeTree ORDER BY v", "CREATE TABLE r AS b ENGINE = Buffer(d, b, 1, 1, 1, 1, 1, 1, 1)"}, want: []string{"engine Buffer", "before the rows are on disk"}},
		"memory":     {setup: []string{"CREATE TABLE r (v String) ENGINE = Memory"}, want: []string{"engine Memory", "gone when the server restarts"}},
		"log":        {setup: []string{"CREATE TABLE r (v String) ENGINE = Log"}, want: []string{"engine Log", "half its rows"}},
		"striped":    {setup: []string{"CREATE TABLE r (v String) ENGINE = StripeLog"}, want: []string{"engine StripeLog"}},
		"merge":      {setup: []string{"CREATE TABLE r (v String) ENGINE = Merge('d', 'x')"}, want: []string{"engine Merge", "only reads"}},
		"set":        {setup: []string{"CREATE TABLE r (v String) ENGINE = Set"}, want: []string{"engine Set", "insert_deduplication_token"}},
		"view":       {setup: []string{"CREATE VIEW r AS SELECT 1 AS v"}, want: []string{"engine View", "stores nothing"}},
		"mat view":   {setup: []string{"CREATE TABLE b (v String) ENGINE = MergeTree ORDER BY v", "CREATE MATERIALIZED VIEW r ENGINE = MergeTree ORDER BY v AS SELECT v FROM b"}, want: []string{"engine MaterializedView", "source table"}},
		"dictionary": {setup: []string{"CREATE TABLE b (k UInt64, v String) ENGINE = MergeTree ORDER BY k", "CREATE DICTIONARY r (k UInt64, v String) PRIMARY KEY k SOURCE(CLICKHOUSE(TABLE 'b')) LAYOUT(FLAT()) LIFETIME(0)"}, want: []string{"engine Dictionary", "takes no inserts"}},
		"two endpoints": {
			setup:  []string{"CREATE TABLE r (" + provenance + ", v String) ENGINE = MergeTree ORDER BY v"},
			change: func(c *clickhouse.Config) { c.Endpoints = append(c.Endpoints, c.Endpoints[0]) },
			want:   []string{"lives on one server, and 2 endpoints"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s.Exec(t, "DROP DATABASE IF EXISTS d SYNC", "CREATE DATABASE d")
			for _, statement := range c.setup {
				if strings.Contains(statement, "INNER") {
					inner := text(t, s, "SELECT toString(uuid) FROM system.tables WHERE name = 'mv'")
					statement = strings.ReplaceAll(statement, "INNER", inner)
				}
				s.execIn(t, "d", statement)
			}
			config := s.config("r")
			config.Database = "d"
			if c.change != nil {
				c.change(&config)
			}
			_, err := open(t, config).Preflight(t.Context())
			require.Equal(t, delivery.Fatal, delivery.KindOf(err), err)
			for _, part := range c.want {
				require.ErrorContains(t, err, part)
			}
		})
	}
}

// execIn runs a statement whose unqualified names belong to the database.
func (s server) execIn(t *testing.T, database, statement string) {
	t.Helper()
	options := s.Options()
	options.Auth.Database = database
	conn, err := ch.Open(options)
	require.NoError(t, err)
	require.NoError(t, conn.Exec(t.Context(), statement), statement)
	require.NoError(t, conn.Close())
}

func text(t *testing.T, s server, sql string) string {
	t.Helper()
	var out string
	require.NoError(t, s.Open(t).QueryRow(t.Context(), sql).Scan(&out))
	return out
}

// What exactly-once refuses is accepted where a view may be incomplete by name,
// and where nothing is promised that needs it.
func TestPreflightAccepts(t *testing.T) {
	s := run(t)
	s.Exec(t, "CREATE TABLE r ("+provenance+", v String) ENGINE = MergeTree ORDER BY v",
		"CREATE MATERIALIZED VIEW mv ENGINE = MergeTree ORDER BY v AS SELECT v FROM r",
		"CREATE TABLE bare (v String) ENGINE = MergeTree ORDER BY v")
	config := s.config("r")
	config.Rules.AcceptIncompleteViews = true
	traits, err := open(t, config).Preflight(t.Context())
	require.NoError(t, err)
	require.True(t, traits.Views)
	for _, g := range []delivery.Guarantee{delivery.AtLeastOnce, delivery.AtMostOnce} {
		config = s.config("bare")
		config.Rules.Guarantee = g
		traits, err = open(t, config).Preflight(t.Context())
		require.NoError(t, err)
		require.False(t, traits.Provenance)
	}
}

// The ways not to reach the table each say which, settle nothing, and may work
// the next time.
func TestPreflightCannotReachTheTable(t *testing.T) {
	s := server{enginetest.RunWith(t, engine.Options{User: "sink", Password: "right"})}
	s.table(t, "there", "("+provenance+", v String) ENGINE = MergeTree ORDER BY v")
	good := s.config("there")
	good.User, good.Password = "sink", "right"
	_, err := open(t, good).Preflight(t.Context())
	require.NoError(t, err)
	for name, c := range map[string]struct {
		change func(*clickhouse.Config)
		want   []string
	}{
		"password": {func(c *clickhouse.Config) { c.Password = "wrong-secret" }, []string{`refuses user "sink" or its password`, "remedy"}},
		"table":    {func(c *clickhouse.Config) { c.Table = "gone" }, []string{"no table `default`.`gone`", "CREATE TABLE"}},
		"database": {func(c *clickhouse.Config) { c.Database = "gone" }, []string{"no database `gone`", "CREATE DATABASE `gone`"}},
		"port":     {func(c *clickhouse.Config) { c.Endpoints = []string{"http://127.0.0.1:1"} }, []string{"127.0.0.1:1", "unreachable"}},
		"name":     {func(c *clickhouse.Config) { c.Endpoints = []string{"http://nowhere.invalid:8123"} }, []string{"nowhere.invalid:8123"}},
		"tls":      {func(c *clickhouse.Config) { c.Endpoints = []string{strings.Replace(s.URL(), "http:", "https:", 1)} }, []string{"does not speak TLS"}},
	} {
		t.Run(name, func(t *testing.T) {
			config := good
			c.change(&config)
			_, err := open(t, config).Preflight(t.Context())
			require.Equal(t, delivery.Retryable, delivery.KindOf(err), err)
			for _, part := range c.want {
				require.ErrorContains(t, err, part)
			}
			require.NotContains(t, err.Error(), "wrong-secret")
			require.NotContains(t, err.Error(), "\n")
		})
	}
}

// A zone of the host that is not the server's changes no value and no plan.
func TestHostTimeZone(t *testing.T) {
	s := run(t)
	s.table(t, "zone", "("+provenance+", v String, at DateTime) ENGINE = MergeTree ORDER BY _offset")
	t.Setenv("TZ", "America/St_Johns")
	before := time.Local
	zone, err := time.LoadLocation(os.Getenv("TZ")) //nolint:forbidigo // set above; this is what the runtime does at start
	require.NoError(t, err)
	time.Local = zone
	t.Cleanup(func() { time.Local = before })
	target := s.ready(t, "zone")
	insert(t, target, []kafka.Record{{Offset: 1, Value: []byte(`{"v":"a","at":"2024-07-01 12:00:00"}`)}}, "t1")
	require.Equal(t, []int64{1}, column(t, s, "SELECT _offset FROM zone WHERE toString(at) = '2024-07-01 12:00:00'"))
}

// The deadline is handed over: the server gives up by itself.
func TestDeadlineIsHandedOver(t *testing.T) {
	s := run(t)
	s.table(t, "slow", "("+provenance+", v String, s UInt8 DEFAULT sleepEachRow(0.025)) ENGINE = MergeTree ORDER BY _offset")
	target := s.ready(t, "slow")
	records := manyRecords(100, 1)
	in := targettest.Insert(targettest.Lane(), targettest.Encode(t, target, targettest.Lane(), records), records, "t1")
	in.Timeout = time.Second
	err := target.Insert(t.Context(), in)
	require.Equal(t, delivery.InDoubt, delivery.KindOf(err), err)
	require.Eventually(t, func() bool {
		return column(t, s, "SELECT toInt64(count()) FROM system.processes WHERE query LIKE 'INSERT INTO%'")[0] == 0
	}, 20*time.Second, 50*time.Millisecond, "the server still works on an insert whose caller is gone")
	require.Empty(t, column(t, s, "SELECT _offset FROM slow"))
}

func TestCancelledBeforeSending(t *testing.T) {
	s := run(t)
	s.table(t, "early", "("+provenance+", v String) ENGINE = MergeTree ORDER BY _offset")
	target := s.ready(t, "early")
	records := targettest.Records(1)
	chunk := targettest.Encode(t, target, targettest.Lane(), records)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := target.Insert(ctx, targettest.Insert(targettest.Lane(), chunk, records, "t1"))
	require.Equal(t, delivery.Retryable, delivery.KindOf(err), err)
	require.ErrorContains(t, err, "nothing was sent")
}

// TestJSONColumnKeepsTypes: the server would turn strings that look like times or
// numbers into such, and booleans beside numbers or strings into these, under a
// profile that says so and by itself.
func TestJSONColumnKeepsTypes(t *testing.T) {
	s := run(t)
	s.table(t, "docs", "("+provenance+", doc JSON) ENGINE = MergeTree ORDER BY _offset")
	config := s.config("docs")
	config.Endpoints = []string{withProfile(t, s, map[string]string{
		"input_format_try_infer_dates":                     "1",
		"input_format_try_infer_datetimes":                 "1",
		"input_format_json_try_infer_numbers_from_strings": "1",
		"input_format_json_read_bools_as_numbers":          "1",
		"input_format_json_read_bools_as_strings":          "1",
		"input_format_json_read_numbers_as_strings":        "1",

		"input_format_json_infer_array_of_dynamic_from_array_of_different_types": "0",

		"input_format_json_infer_incomplete_types_as_strings": "0",
		"input_format_try_infer_variants":                     "1",
		"allow_simdjson":                                      "0",
		"json_type_escape_dots_in_keys":                       "1",
	})}
	target := open(t, config)
	_, err := target.Preflight(t.Context())
	require.NoError(t, err)
	const doc = `{"at":"2025-06-21T04:00:00Z","day":"2025-06-21","n":"12","x":1.5,"y":7,"b":[true,1],"s":[true,"x"],"m":[1,"x"],"o":[{"k":1},"x"],"r":[[1],"x"],` +
		`"f":123456789.123456789,"e":[],"v":[true,{},-0.0],"w":["x",{"k":{"l":1}}],"k.l":1}`
	insert(t, target, []kafka.Record{{Offset: 1, Value: []byte(`{"doc":` + doc + `}`)}}, "token")
	require.JSONEq(t, strings.Replace(doc, `"k.l":1`, `"k":{"l":1}`, 1), text(t, s, "SELECT toJSONString(doc) FROM docs"))
}
