package postgres_test

import (
	"flag"
	"fmt"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/postgres"
)

var backlog = flag.Int("backlog", 300_000, "rows of the backlog that BenchmarkBacklog reads")

// O17: a backlog is read in memory that does not grow with it, in rows and in
// what they hold uncompressed.
func TestO17BoundedMemory(t *testing.T) {
	for name, c := range map[string]struct {
		rows, most int
		fill       func(d *database, n int)
	}{
		"many rows": {150_000, 48 << 20, func(d *database, n int) { d.fill(n, 1000, 30) }},
		"large rows that are small on disk": {100, 96 << 20, func(d *database, n int) {
			d.exec(`INSERT INTO outbox (aggregatetype, type, payload) SELECT 'order', 'created', to_jsonb(repeat('x', 3000000)) FROM generate_series(1, $1)`, n)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			d := migrated(t, shared)
			c.fill(d, c.rows)
			table := d.table(postgres.Config{})
			to := snapshot(t, table).Text
			bytes, peak, last := 0, uint64(0), int64(0)
			for row, err := range table.Rows(t.Context(), outbox.Window{To: to}, 0) {
				require.NoError(t, err)
				require.Equal(t, last+1, row.Seq)
				last = row.Seq
				bytes += len(row.Payload)
				peak = max(peak, liveHeap())
			}
			require.Equal(t, int64(c.rows), last)
			require.Greater(t, bytes, 2*c.most, "a backlog that would not fit")
			t.Logf("%d MB read, at most %d MB in use", bytes>>20, peak>>20)
			require.Less(t, peak, uint64(c.most))
		})
	}
}

// liveHeap is what the last garbage collection left in use, in bytes.
func liveHeap() uint64 {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	return live[0].Value.Uint64()
}

// BenchmarkBacklog reads a backlog of rows of 1 kB: in pages, as Rows does; from
// one query, which keeps a transaction open all the way; and by a LIMIT in a loop.
//
//	go test -run - -bench Backlog -benchtime 3x -backlog 10000000 -timeout 1h
func BenchmarkBacklog(b *testing.B) {
	d := migrated(b, shared)
	d.fill(*backlog, 1000, 30)
	d.exec("VACUUM ANALYZE outbox")
	table := d.table(postgres.Config{})
	to := snapshot(b, table).Text
	reader := d.connect()
	exec(b, reader, "SET plan_cache_mode = force_generic_plan; SET jit = off; SET work_mem = '32MB'")
	for name, read := range map[string]func(first func()) int{
		"pages": func(first func()) (n int) {
			for _, err := range table.Rows(b.Context(), outbox.Window{To: to}, 0) {
				require.NoError(b, err)
				first()
				n++
			}
			return n
		},
		"one-query": func(first func()) (n int) {
			n, _ = readPlainly(b, reader, to, 0, *backlog, first)
			return n
		},
		"limit": func(first func()) (n int) {
			const limit, pages = 1000, 3 // of many: each looks at all that is left
			for last, page := int64(0), 0; page < pages; page++ {
				var got int
				got, last = readPlainly(b, reader, to, last, limit, first)
				n += got
			}
			return n
		},
	} {
		b.Run(name, func(b *testing.B) {
			var until time.Duration
			var peak uint64
			total := 0
			for b.Loop() {
				begun, seen := time.Now(), false
				total += read(func() {
					peak = max(peak, liveHeap())
					if !seen {
						seen, until = true, until+time.Since(begun)
					}
				})
			}
			b.ReportMetric(float64(total)/b.Elapsed().Seconds(), "rows/s")
			b.ReportMetric(until.Seconds()/float64(b.N), "s-to-first-row")
			b.ReportMetric(float64(peak>>20), "MB-in-use")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// readPlainly reads rows of the window from the beginning to a snapshot with one
// query, as plain code would.
func readPlainly(b *testing.B, conn *pgx.Conn, to string, after int64, limit int, first func()) (n int, last int64) {
	b.Helper()
	found, err := conn.Query(b.Context(), `SELECT seq, id::text, aggregatetype, aggregateid, type, payload::text FROM outbox
		WHERE xid >= '1' AND xid < pg_snapshot_xmax($1) AND pg_visible_in_snapshot(xid, $1) AND seq > $2 ORDER BY seq LIMIT $3`, to, after, limit)
	require.NoError(b, err)
	var id, aggregateType, kind string
	var aggregateID *string
	var payload []byte
	_, err = pgx.ForEachRow(found, []any{&last, &id, &aggregateType, &aggregateID, &kind, &payload}, func() error {
		first()
		n++
		return nil
	})
	require.NoError(b, err)
	return n, last
}

// BenchmarkWindow is what one look costs with 400k published rows in the table:
// a snapshot, its rows (ten, or none), and the wait for the disk.
func BenchmarkWindow(b *testing.B) {
	d := migrated(b, shared)
	d.fill(400_000, 1000, 30)
	table := d.table(postgres.Config{})
	from := snapshot(b, table).Text
	require.Empty(b, seqs(b, table, from, from)) // connects
	for _, n := range []int{0, 10} {
		b.Run(fmt.Sprintf("%d-rows", n), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				if n > 0 {
					d.fill(n, n, 30)
				}
				b.StartTimer()
				s := snapshot(b, table)
				for _, err := range table.Rows(b.Context(), outbox.Window{From: from, To: s.Text}, 0) {
					require.NoError(b, err)
				}
				require.NoError(b, table.Flushed(b.Context(), s))
				from = s.Text
			}
		})
	}
}
