package engine_test

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"oncehouse/infra/local/engine"
	"oncehouse/infra/local/engine/enginetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// waitFor polls what happens at once on an idle machine.
func waitFor(t *testing.T, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for !condition() {
		select {
		case <-ctx.Done():
			require.FailNow(t, "it did not happen")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// driverOptions are every way the driver compresses.
func driverOptions(srv *enginetest.Server) map[string]*clickhouse.Options {
	out := map[string]*clickhouse.Options{}
	for name, c := range map[string]*clickhouse.Compression{
		"none": nil,
		"lz4":  {Method: clickhouse.CompressionLZ4}, "zstd": {Method: clickhouse.CompressionZSTD},
		"gzip": {Method: clickhouse.CompressionGZIP, Level: 3}, "deflate": {Method: clickhouse.CompressionDeflate, Level: 3},
		"br": {Method: clickhouse.CompressionBrotli, Level: 3},
	} {
		opts := srv.Options()
		opts.Compression = c
		opts.Settings = clickhouse.Settings{"enable_http_compression": 1, "wait_end_of_query": 1}
		out[name] = opts
	}
	return out
}

func TestDriver(t *testing.T) {
	srv := enginetest.Run(t)
	for name, opts := range driverOptions(srv) {
		t.Run(name, func(t *testing.T) {
			conn, err := clickhouse.Open(opts)
			require.NoError(t, err)
			defer func() { require.NoError(t, conn.Close()) }()
			roundTrip(t, conn)
		})
	}
}

func roundTrip(t *testing.T, conn clickhouse.Conn) {
	ctx := t.Context()
	require.NoError(t, conn.Ping(ctx))
	version, err := conn.ServerVersion()
	require.NoError(t, err)
	require.Equal(t, uint64(26), version.Version.Major)
	require.NoError(t, conn.Exec(ctx, "CREATE OR REPLACE TABLE t (a UInt64, s Nullable(String), l LowCardinality(String) DEFAULT concat('a', toString(a)), m Map(String, UInt8), at DateTime64(3, 'UTC') DEFAULT '2026-01-02 03:04:05.678') ENGINE = MergeTree ORDER BY a"))
	batch, err := conn.PrepareBatch(ctx, "INSERT INTO t (a, s, m)")
	require.NoError(t, err)
	for i := range 1000 {
		require.NoError(t, batch.Append(uint64(i), nil, map[string]uint8{"k": uint8(i)}))
	}
	require.NoError(t, batch.Send())
	// a = 1000 with everything else absent; RowBinaryWithDefaults
	require.NoError(t, conn.InsertFormat(ctx, "RowBinaryWithDefaults", "INSERT INTO t (a, s, l)", strings.NewReader("\x00\xe8\x03\x00\x00\x00\x00\x00\x00\x00\x00\x02\n;\x01")))

	var n, sum uint64
	require.NoError(t, conn.QueryRow(ctx, "SELECT count(), sum(a) FROM t WHERE a < {top:UInt64}", clickhouse.Named("top", "1000")).Scan(&n, &sum))
	require.Equal(t, []uint64{1000, 499500}, []uint64{n, sum})
	require.NoError(t, conn.QueryRow(ctx, "SELECT count() FROM t WHERE a = ?", 1000).Scan(&n))
	require.Equal(t, uint64(1), n)

	rows, err := conn.Query(ctx, "SELECT a, s, l, m, at FROM t ORDER BY a DESC LIMIT 2")
	require.NoError(t, err)
	var got []string
	for rows.Next() {
		var a uint64
		var s *string
		var l string
		var m map[string]uint8
		var at time.Time
		require.NoError(t, rows.Scan(&a, &s, &l, &m, &at))
		if s == nil {
			s = new("NULL")
		}
		got = append(got, fmt.Sprintf("%d %q %s %v %s", a, *s, l, m, at.Format(time.RFC3339Nano)))
	}
	require.NoError(t, rows.Err())
	require.NoError(t, rows.Close())
	require.Equal(t, []string{`1000 "\n;" a1000 map[] 2026-01-02T03:04:05.678Z`, `999 "NULL" a999 map[k:231] 2026-01-02T03:04:05.678Z`}, got)

	ex := (*clickhouse.Exception)(nil)
	require.ErrorAs(t, conn.Exec(ctx, "SELECT * FROM missing"), &ex)
	require.Equal(t, int32(60), ex.Code)
	require.Equal(t, "UNKNOWN_TABLE", ex.CodeName)
	_, err = conn.Query(ctx, "SELECT missing")
	require.ErrorAs(t, err, &ex)
	require.Equal(t, int32(47), ex.Code)
}

func TestTokenDeduplicates(t *testing.T) {
	srv := enginetest.Run(t)
	conn := srv.Open(t)
	srv.Exec(t, "CREATE TABLE t (a UInt32) ENGINE = MergeTree ORDER BY a SETTINGS non_replicated_deduplication_window = 100",
		"CREATE TABLE views (a UInt32) ENGINE = MergeTree ORDER BY a SETTINGS non_replicated_deduplication_window = 100",
		"CREATE MATERIALIZED VIEW v TO views AS SELECT a FROM t")
	insert := func(token string, from int) {
		var rows strings.Builder
		for i := range 1000 {
			fmt.Fprintln(&rows, from+i)
		}
		ctx := clickhouse.Context(t.Context(), clickhouse.WithQueryID(token), clickhouse.WithSettings(clickhouse.Settings{
			"insert_deduplication_token": token, "insert_deduplicate": 1, "async_insert": 0, "wait_for_async_insert": 1,
			"wait_end_of_query": 1, "max_execution_time": 30, "deduplicate_blocks_in_dependent_materialized_views": 1,
			"max_partitions_per_insert_block": 0, "max_insert_block_size": 10_000_000, "min_insert_block_size_rows": 10_000_000,
			"min_insert_block_size_bytes": 1 << 30, "input_format_parallel_parsing": 0, "input_format_binary_read_json_as_string": 1,
			"log_comment": "oncehouse",
		}))
		require.NoError(t, conn.InsertFormat(ctx, "TSV", "INSERT INTO t", strings.NewReader(rows.String())))
	}
	counts := func() string { return ok(t, srv, "SELECT (SELECT count() FROM t), (SELECT count() FROM views)") }
	insert("one", 0)
	insert("one", 0)
	require.Equal(t, "1000\t1000\n", counts())
	insert("one", 5000) // the token decides, not the rows
	require.Equal(t, "1000\t1000\n", counts())
	insert("two", 0)
	require.Equal(t, "2000\t2000\n", counts())
	srv.Kill()
	srv.Restart(t)
	insert("two", 0)
	require.Equal(t, "2000\t2000\n", counts(), "the token did not outlive the process")
}

// TestInsertBlocks: the settings that hold an insert together act on it.
func TestInsertBlocks(t *testing.T) {
	srv := enginetest.Run(t)
	ok(t, srv, "CREATE TABLE t (a UInt32, p UInt32 DEFAULT a % 150) ENGINE = MergeTree PARTITION BY if(a < 1000000, 0, p) ORDER BY a SETTINGS max_parts_to_merge_at_once = 1")
	ok(t, srv, "SYSTEM STOP MERGES t")
	rows := func(from, n int) string {
		var out strings.Builder
		for i := range n {
			fmt.Fprintln(&out, from+i)
		}
		return out.String()
	}
	parts := func() string {
		return ok(t, srv, "SELECT count() FROM system.parts WHERE table = 't' AND active")
	}
	ok(t, srv, rows(0, 5000), "query=INSERT INTO t (a) FORMAT TSV", "max_insert_block_size=1000", "min_insert_block_size_rows=1000", "min_insert_block_size_bytes=0")
	require.Equal(t, "5\n", parts())
	ok(t, srv, rows(5000, 5000), "query=INSERT INTO t (a) FORMAT TSV", "max_insert_block_size=1000000", "min_insert_block_size_rows=1000000", "min_insert_block_size_bytes=1000000000")
	require.Equal(t, "6\n", parts())
	r := post(t, srv, rows(1_000_000, 300), "query=INSERT INTO t (a) FORMAT TSV", "max_partitions_per_insert_block=100")
	require.Equal(t, "252", r.header.Get("X-ClickHouse-Exception-Code"), r.body)
	ok(t, srv, rows(1_000_000, 300), "query=INSERT INTO t (a) FORMAT TSV", "max_partitions_per_insert_block=0")
	require.Equal(t, "156\n", parts())
	require.Equal(t, "10300\n", ok(t, srv, "SELECT count() FROM t"))
}

func TestInsertSettings(t *testing.T) {
	srv := enginetest.Run(t)
	for name, value := range map[string]string{"insert_deduplication_token": "x", "insert_deduplicate": "0", "async_insert": "0",
		"max_execution_time": "7", "max_insert_block_size": "77", "min_insert_block_size_rows": "78", "min_insert_block_size_bytes": "79",
		"deduplicate_blocks_in_dependent_materialized_views": "1", "max_partitions_per_insert_block": "80", "log_comment": "y",
		"input_format_binary_read_json_as_string": "1", "input_format_parallel_parsing": "0", "insert_quorum": "0", "deduplicate_insert": "enable"} {
		require.Equal(t, value+"\n", ok(t, srv, "SELECT value FROM system.settings WHERE name = '"+name+"'", name+"="+value), name)
	}
	ok(t, srv, "CREATE TABLE j (j JSON) ENGINE = MergeTree ORDER BY tuple()")
	ok(t, srv, "\x08{\"a\": 1}", "query=INSERT INTO j FORMAT RowBinary", "input_format_binary_read_json_as_string=1")
	require.Equal(t, "1\n", ok(t, srv, "SELECT j.a FROM j"))
}

func TestKillAndRestart(t *testing.T) {
	srv := enginetest.Run(t)
	ok(t, srv, "CREATE TABLE t (a UInt32) ENGINE = MergeTree ORDER BY a")
	id, addr, pid := ok(t, srv, "SELECT serverUUID()"), srv.Addr(), srv.Pid()
	for i := range 20 {
		ok(t, srv, fmt.Sprint(i), "query=INSERT INTO t FORMAT TSV")
	}
	srv.Kill()
	<-srv.Dead()
	require.FileExists(t, filepath.Join(srv.Data(), "status"), "the engine was closed, not killed")
	require.ErrorContains(t, srv.Err(), "signal: killed")
	_, err := send(t, srv, http.MethodGet, nil, nil, "query=SELECT 1")
	require.Error(t, err)
	srv.Restart(t)
	require.NotEqual(t, pid, srv.Pid())
	require.Equal(t, addr, srv.Addr())
	require.Equal(t, "20\t190\n", ok(t, srv, "SELECT count(), sum(a) FROM t"))
	require.Equal(t, id, ok(t, srv, "SELECT serverUUID()"), "another identity on the same data")
	require.NotEqual(t, id, ok(t, enginetest.Run(t), "SELECT serverUUID()"))
}

// TestKillDuringInserts: what was acknowledged is there after kill -9, and the
// one insert that was not is there whole or not at all.
func TestKillDuringInserts(t *testing.T) {
	srv := enginetest.Run(t)
	ok(t, srv, "CREATE TABLE t (a UInt32) ENGINE = MergeTree ORDER BY a")
	block := strings.Repeat("7\n", 100)
	stored := 0
	for round := range 3 {
		acknowledged := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				r, err := send(t, srv, http.MethodPost, strings.NewReader(block), nil, "query=INSERT INTO t FORMAT TSV")
				if err != nil || r.status != http.StatusOK {
					return
				}
				acknowledged <- struct{}{}
			}
		}()
		for range 10 + 7*round {
			<-acknowledged
			stored += len(block) / 2
		}
		srv.Kill()
		select {
		case <-acknowledged: // answered before the kill
			stored += len(block) / 2
			<-done
		case <-done:
		}
		srv.Restart(t)
		got := ok(t, srv, "SELECT count() FROM t")
		require.Contains(t, []string{fmt.Sprintln(stored), fmt.Sprintln(stored + len(block)/2)}, got)
		_, err := fmt.Sscan(got, &stored)
		require.NoError(t, err)
	}
}

// TestKillQuery: an operator finds a query by its id in log_comment.
func TestKillQuery(t *testing.T) {
	srv := enginetest.Run(t)
	done := make(chan sent, 1)
	go func() {
		reply, err := send(t, srv, http.MethodPost, strings.NewReader("SELECT sleepEachRow(0.1) FROM numbers(10000) SETTINGS max_block_size = 1 FORMAT Null"), nil, "query_id=endless")
		done <- sent{reply, err}
	}()
	waitFor(t, func() bool {
		return ok(t, srv, "SELECT count() FROM system.processes WHERE Settings['log_comment'] = 'endless'") == "1\n"
	})
	ok(t, srv, "KILL QUERY WHERE Settings['log_comment'] = 'endless'")
	out := <-done
	require.NoError(t, out.err)
	require.Equal(t, "394", out.reply.header.Get("X-ClickHouse-Exception-Code"), out.reply.body)
}

// TestStop: SIGTERM lets a running insert end and refuses new ones.
func TestStop(t *testing.T) {
	srv := enginetest.Run(t)
	ok(t, srv, "CREATE TABLE held (a UInt8) ENGINE = MergeTree ORDER BY a")
	h := hold(t, srv)
	require.NoError(t, syscall.Kill(srv.Pid(), syscall.SIGTERM))
	waitFor(t, func() bool {
		_, err := send(t, srv, http.MethodGet, nil, nil, "query=SELECT 1")
		return err != nil
	})
	require.Equal(t, http.StatusOK, h.release(t).status)
	<-srv.Dead()
	require.NoError(t, srv.Err())
	require.NoFileExists(t, filepath.Join(srv.Data(), "status"), "the engine was not closed")
	srv.Restart(t)
	require.Equal(t, "200000\n", ok(t, srv, "SELECT count() FROM held"))
}

func TestDataDirectoryInUse(t *testing.T) {
	srv := enginetest.Run(t)
	_, err := engine.Start(t.Context(), enginetest.Options(t, engine.Options{Data: srv.Data()}))
	require.ErrorContains(t, err, "open the data directory "+srv.Data()+": another process is using it")
	require.Equal(t, "1\n", ok(t, srv, "SELECT 1"), "the first one suffered")
}

func TestStartErrors(t *testing.T) {
	taken := enginetest.Run(t)
	for name, c := range map[string]struct {
		opts engine.Options
		want string
	}{
		"no library":   {engine.Options{Library: filepath.Join(t.TempDir(), "libchdb.so")}, "load the ClickHouse engine"},
		"no binary":    {engine.Options{Binary: filepath.Join(t.TempDir(), "engine")}, "start clickhouse engine"},
		"taken port":   {engine.Options{Addr: taken.Addr()}, "address already in use"},
		"no directory": {engine.Options{Data: "/dev/null/x"}, "make the data directory"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := engine.Start(t.Context(), enginetest.Options(t, c.opts))
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestParallelQueries(t *testing.T) {
	srv := enginetest.Run(t)
	ok(t, srv, "CREATE TABLE t (w UInt8, a UInt32) ENGINE = MergeTree ORDER BY (w, a)")
	var wg sync.WaitGroup
	problems := make(chan error, 100)
	for w := range 8 {
		wg.Go(func() {
			for i := range 10 {
				r, err := send(t, srv, http.MethodPost, strings.NewReader(fmt.Sprintf("%d\t%d\n", w, i)), nil, "query=INSERT INTO t FORMAT TSV", fmt.Sprintf("log_comment=w%d", w))
				if err != nil || r.status != http.StatusOK {
					problems <- fmt.Errorf("insert: %w %s", err, r.body)
					return
				}
				r, err = send(t, srv, http.MethodPost, strings.NewReader(fmt.Sprintf("SELECT count(), getSetting('log_comment') FROM t WHERE w = %d", w)), nil, fmt.Sprintf("log_comment=w%d", w))
				if want := fmt.Sprintf("%d\tw%d\n", i+1, w); err != nil || r.body != want {
					problems <- fmt.Errorf("select: %w %q, want %q", err, r.body, want)
					return
				}
			}
		})
	}
	wg.Wait()
	close(problems)
	for err := range problems {
		require.NoError(t, err)
	}
	require.Equal(t, "80\n", ok(t, srv, "SELECT count() FROM t"))
}

func TestLargeInsertIsOneBlock(t *testing.T) {
	srv := enginetest.Run(t)
	ok(t, srv, "CREATE TABLE t (s String) ENGINE = MergeTree ORDER BY tuple()")
	row := append(bytes.Repeat([]byte{'x'}, 999), '\n')
	body := io.LimitReader(&repeat{row: row}, 20<<20/1000*1000)
	r := call(t, srv, http.MethodPost, body, nil, "query=INSERT INTO t FORMAT TSV")
	require.Equal(t, http.StatusOK, r.status, r.body)
	require.Equal(t, "20971\t20950029\n", ok(t, srv, "SELECT count(), sum(length(s)) FROM t"))
	require.Equal(t, "1\n", ok(t, srv, "SELECT count() FROM system.parts WHERE table = 't' AND active"))
}

// repeat reads one row for ever.
type repeat struct {
	row []byte
	at  int
}

func (r *repeat) Read(p []byte) (int, error) {
	n := copy(p, r.row[r.at:])
	r.at = (r.at + n) % len(r.row)
	return n, nil
}

func TestTimezoneIsTheProcesss(t *testing.T) {
	srv := enginetest.RunWith(t, engine.Options{Env: append(os.Environ(), "TZ=Asia/Kathmandu")})
	require.Equal(t, "Asia/Kathmandu", post(t, srv, "SELECT 1").header.Get("X-ClickHouse-Timezone"))
	require.Equal(t, "Asia/Kathmandu\n", ok(t, srv, "SELECT timezone()"))
}

// TestBuildNeedsNoCgo keeps the engine's users free of a C compiler.
func TestBuildNeedsNoCgo(t *testing.T) {
	info, err := buildinfo.ReadFile(enginetest.Options(t, engine.Options{}).Binary)
	require.NoError(t, err)
	require.Contains(t, info.Settings, debug.BuildSetting{Key: "CGO_ENABLED", Value: "0"})
}
