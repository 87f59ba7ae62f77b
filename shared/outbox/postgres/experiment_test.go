package postgres_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/postgres"
)

// What poll returns: events in the order in which they would be published.
type published struct {
	aggregate string
	version   int64 // of the aggregate, which its row lock hands out
}

// cursor is a way to tell what is new.
type cursor interface {
	poll(ctx context.Context) ([]published, error)
}

// The concurrency experiment: 16 writers with row locks and rollbacks, and one
// poller for each way to keep a cursor. The well-known ones must fail here, or the
// experiment would prove nothing.
func TestCursors(t *testing.T) {
	d := migrated(t, shared)
	d.exec("CREATE TABLE orders (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0)")
	d.exec("INSERT INTO orders SELECT generate_series(1, 20)")
	d.exec("CREATE TABLE visits (at timestamptz DEFAULT now())")

	table := d.table(postgres.Config{})
	require.NoError(t, table.Check(t.Context()))
	cursors := map[string]cursor{
		"seq":            &seqCursor{conn: d.connect(), where: "seq > $1"},
		"seq below xmin": &seqCursor{conn: d.connect(), where: "seq > $1 AND xid < pg_snapshot_xmin(pg_current_snapshot())"},
		"(xid, seq)":     &xidCursor{conn: d.connect()},
		"snapshots":      &snapshotCursor{table: table},
	}
	seen := map[string][]published{}
	var mu sync.Mutex
	written := make(chan struct{})
	var pollers sync.WaitGroup
	for name, c := range cursors {
		pollers.Go(func() {
			for over := false; !over; {
				select {
				case <-written:
					over = true // and once more, to see the end
				default:
				}
				found, err := c.poll(t.Context())
				if !assertNoError(t, err) {
					return
				}
				mu.Lock()
				seen[name] = append(seen[name], found...)
				mu.Unlock()
			}
		})
	}
	var writers sync.WaitGroup
	for n := range uint64(16) {
		w := writer{conn: d.connect(), random: rand.New(rand.NewPCG(n, 0))}
		writers.Go(func() {
			for range 150 {
				if !assertNoError(t, w.transaction(t.Context())) {
					return
				}
			}
		})
	}
	writers.Wait()
	close(written)
	pollers.Wait()
	require.False(t, t.Failed())

	committed := d.committed()
	faults := map[string]faults{}
	for name := range cursors {
		faults[name] = compare(committed, seen[name])
		t.Logf("%-15s %+v of %d", name, faults[name], len(committed))
	}
	require.Positive(t, faults["seq"].lost)
	require.Positive(t, faults["seq below xmin"].lost)
	require.Positive(t, faults["(xid, seq)"].misordered)
	require.Zero(t, faults["snapshots"])
}

func assertNoError(t *testing.T, err error) bool {
	if err != nil {
		t.Error(err)
	}
	return err == nil
}

// writer is a session of an order service.
type writer struct {
	conn   *pgx.Conn
	random *rand.Rand
}

// transaction changes one or two orders and says so in the outbox. Some get their
// id before they lock an order, some roll back, wholly or to a savepoint.
func (w *writer) transaction(ctx context.Context) error {
	var script []string
	if w.random.IntN(2) == 0 {
		script = append(script, "INSERT INTO visits DEFAULT VALUES")
	}
	const change = `WITH o AS (UPDATE orders SET version = version + 1 WHERE id = %d RETURNING id, version)
		INSERT INTO outbox (aggregatetype, aggregateid, type, payload) SELECT 'order', id::text, 'changed', to_jsonb(version) FROM o`
	first := 1 + w.random.IntN(10)
	script = append(script, fmt.Sprintf(change, first))
	if w.random.IntN(3) == 0 {
		script = append(script, "SAVEPOINT s", fmt.Sprintf(change, 10+first)) // in the order of ids: no deadlock
		if w.random.IntN(2) == 0 {
			script = append(script, "ROLLBACK TO s")
		}
	}
	if w.random.IntN(6) == 0 {
		script = append(script, "ROLLBACK")
	} else {
		script = append(script, "COMMIT")
	}
	for _, statement := range append([]string{"BEGIN"}, script...) {
		if _, err := w.conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

func (d *database) committed() []published {
	d.t.Helper()
	rows, err := d.Query(d.t.Context(), "SELECT aggregateid, payload::bigint FROM outbox ORDER BY seq")
	require.NoError(d.t, err)
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p published, err error) {
		return p, row.Scan(&p.aggregate, &p.version)
	})
	require.NoError(d.t, err)
	return found
}

type faults struct{ lost, duplicated, misordered int }

// compare counts what is missing, what came twice, and what came after a later
// event of its aggregate.
func compare(committed, seen []published) faults {
	var f faults
	times := map[published]int{}
	last := map[string]int64{}
	for _, p := range seen {
		if times[p]++; times[p] > 1 {
			f.duplicated++
		}
		if p.version < last[p.aggregate] {
			f.misordered++
		}
		last[p.aggregate] = max(last[p.aggregate], p.version)
	}
	for _, p := range committed {
		if times[p] == 0 {
			f.lost++
		}
	}
	return f
}

// seqCursor is the highest seq seen.
type seqCursor struct {
	conn  *pgx.Conn
	where string
	seq   int64
}

func (c *seqCursor) poll(ctx context.Context) (found []published, err error) {
	rows, err := c.conn.Query(ctx, "SELECT aggregateid, payload::bigint, seq FROM outbox WHERE "+c.where+" ORDER BY seq", c.seq)
	if err != nil {
		return nil, err
	}
	var p published
	_, err = pgx.ForEachRow(rows, []any{&p.aggregate, &p.version, &c.seq}, func() error {
		found = append(found, p)
		return nil
	})
	return found, err
}

// xidCursor is the last (xid, seq) below the oldest running transaction.
type xidCursor struct {
	conn *pgx.Conn
	xid  string
	seq  int64
}

func (c *xidCursor) poll(ctx context.Context) (found []published, err error) {
	if c.xid == "" {
		c.xid = "1"
	}
	rows, err := c.conn.Query(ctx, `SELECT aggregateid, payload::bigint, xid::text, seq FROM outbox
		WHERE (xid, seq) > ($1::xid8, $2::bigint) AND xid < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY outbox.xid, seq`, c.xid, c.seq)
	if err != nil {
		return nil, err
	}
	var p published
	_, err = pgx.ForEachRow(rows, []any{&p.aggregate, &p.version, &c.xid, &c.seq}, func() error {
		found = append(found, p)
		return nil
	})
	return found, err
}

// snapshotCursor is ours.
type snapshotCursor struct {
	table *postgres.Table
	from  string
}

func (c *snapshotCursor) poll(ctx context.Context) (found []published, err error) {
	s, err := c.table.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	for row, err := range c.table.Rows(ctx, outbox.Window{From: c.from, To: s.Text}, 0) {
		if err != nil {
			return nil, err
		}
		version, err := strconv.ParseInt(strings.TrimSpace(string(row.Payload)), 10, 64)
		if err != nil {
			return nil, err
		}
		found = append(found, published{*row.AggregateID, version})
	}
	c.from = s.Text
	return found, c.table.Flushed(ctx, s)
}
