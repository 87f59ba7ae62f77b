package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/postgres"
)

// cursorAt is the cursor of a poller that has published everything up to a snapshot.
func cursorAt(s outbox.Snapshot) outbox.Cursor {
	return outbox.Cursor{Shards: 1, Done: s.Text, Identity: s.Identity}
}

// calendar is a database whose outbox has partitions of four days, of the day on
// which the test began, and of the next: midnight may pass while it runs.
type calendar struct {
	*database
	today time.Time
}

func partitions(t *testing.T) (*calendar, *postgres.Table) {
	t.Helper()
	d := &calendar{open(t, shared), time.Now().UTC().Truncate(24 * time.Hour)}
	today := d.today.Format("date '2006-01-02'")
	d.exec(strings.NewReplacer("current_date - 1", today+" - 4", "current_date + 40", today+" + 1").Replace(postgres.Migration(true)))
	table := d.table(postgres.Config{Columns: postgres.Columns{Timestamp: "created_at"}})
	require.NoError(t, table.Check(t.Context()))
	return d, table
}

// insertOld inserts an event that many days ago, as a transaction that began then would.
func (d *calendar) insertOld(days int) { d.insertOldBy(d.database, days) }

func (d *calendar) insertOldBy(writer *database, days int) {
	d.t.Helper()
	writer.exec("INSERT INTO outbox (aggregatetype, type, created_at) VALUES ('a', 'b', $1)", d.today.AddDate(0, 0, -days))
}

func (d *calendar) partition(days int) string {
	return fmt.Sprintf(`"%s"."outbox_%s"`, d.schema, d.today.AddDate(0, 0, -days).Format("20060102"))
}

// keep is a retention that keeps the partitions of today and so many days before.
func (d *calendar) keep(days int) postgres.Retention {
	return postgres.Retention{Partitions: true, Keep: time.Since(d.today.AddDate(0, 0, -days))}
}

func retain(t *testing.T, table *postgres.Table, r postgres.Retention, cursors ...outbox.Cursor) postgres.Retained {
	t.Helper()
	done, err := table.Retain(t.Context(), r, cursors...)
	require.NoError(t, err)
	return done
}

// Whole partitions go once their rows are published and old; none that may still
// be written to.
func TestPartitionsAreDropped(t *testing.T) {
	d, table := partitions(t)
	s1 := snapshot(t, table)
	d.insertOld(3)
	d.insertOld(0)
	s2 := snapshot(t, table)

	done := retain(t, table, d.keep(1), cursorAt(s1))
	require.Equal(t, []string{d.partition(4), d.partition(2)}, done.Dropped)
	require.Equal(t, []string{d.partition(3)}, done.Unpublished)
	require.Equal(t, d.today.AddDate(0, 0, 2), done.Until.UTC())
	require.Len(t, seqs(t, table, s1.Text, s2.Text), 2)

	done = retain(t, table, d.keep(1), cursorAt(s2))
	require.Equal(t, []string{d.partition(3)}, done.Dropped)
	require.Empty(t, done.Unpublished)
	require.Equal(t, []string{d.partition(1)}, retain(t, table, d.keep(0), cursorAt(s2)).Dropped)
	require.Len(t, seqs(t, table, "", s2.Text), 1)
	require.NoError(t, table.Check(t.Context()))
}

// Of several shards the one that is behind decides.
func TestRetentionNeedsTheCursorOfEveryShard(t *testing.T) {
	d, table := partitions(t)
	s1 := snapshot(t, table)
	d.insertOld(3)
	s2 := snapshot(t, table)
	shard := func(n int, s outbox.Snapshot) outbox.Cursor {
		return outbox.Cursor{Shard: n, Shards: 2, Done: s.Text, Identity: s.Identity}
	}
	other := shard(1, s2)
	other.TableOID++
	for _, cursors := range [][]outbox.Cursor{{}, {shard(0, s2)}, {shard(0, s2), shard(0, s2)}, {shard(0, s2), cursorAt(s2)}, {shard(0, s2), other}} {
		_, err := table.Retain(t.Context(), d.keep(1), cursors...)
		require.ErrorContains(t, err, "cursor")
	}
	foreign := cursorAt(s2)
	foreign.Timeline++
	_, err := table.Retain(t.Context(), d.keep(1), foreign)
	require.ErrorContains(t, err, "another table or server")
	require.Equal(t, []string{d.partition(3)}, retain(t, table, d.keep(1), shard(0, s2), shard(1, s1)).Unpublished)
	require.Equal(t, []string{d.partition(3)}, retain(t, table, d.keep(1), shard(0, s2), shard(1, s2)).Dropped)
}

// A window that is planned or partly published is not published.
func TestRetentionKeepsAnOpenWindow(t *testing.T) {
	d, table := partitions(t)
	s1 := snapshot(t, table)
	d.insertOld(3)
	s2 := snapshot(t, table)
	c := cursorAt(s1)
	c.Open, c.Seq, c.LastSeq = &outbox.Plan{Window: outbox.Window{From: s1.Text, To: s2.Text}}, 1, 1
	require.Equal(t, []string{d.partition(3)}, retain(t, table, d.keep(1), c).Unpublished)
	c.Done = ""
	require.Empty(t, retain(t, table, d.keep(1), c).Dropped)
}

// O27: a late writer still fills the partition: it is not dropped, neither while
// the writer is at it nor before its row is published.
func TestO27LateWriter(t *testing.T) {
	d, table := partitions(t)
	writer := &database{Conn: d.connect(), t: t, schema: d.schema}
	writer.exec("BEGIN")
	d.insertOldBy(writer, 3)
	before := snapshot(t, table)
	r := d.keep(1)
	r.LockTimeout, r.Attempts = 20*time.Millisecond, 2
	done := retain(t, table, r, cursorAt(before))
	require.Contains(t, done.Busy, d.partition(3))
	require.Empty(t, done.Dropped)

	writer.exec("COMMIT")
	done = retain(t, table, r, cursorAt(before))
	require.Equal(t, []string{d.partition(3)}, done.Unpublished)
	after := snapshot(t, table)
	require.Len(t, seqs(t, table, before.Text, after.Text), 1)
	require.Equal(t, []string{d.partition(3)}, retain(t, table, r, cursorAt(after)).Dropped)
}

// A DROP that takes too long under its locks gives up, too: inserts wait behind it.
func TestO28DropUnderLockIsShort(t *testing.T) {
	d, table := partitions(t)
	d.exec(fmt.Sprintf(`
		CREATE FUNCTION linger() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
			IF current_query() LIKE '%%"%s"%%' THEN PERFORM pg_sleep(60); END IF;
		END $$;
		CREATE EVENT TRIGGER linger_%s ON ddl_command_start WHEN TAG IN ('DROP TABLE') EXECUTE FUNCTION linger()`, d.schema, d.schema))
	drop := "DROP EVENT TRIGGER IF EXISTS linger_" + d.schema // it is of the whole database
	t.Cleanup(func() { _, _ = d.Exec(context.Background(), drop) })
	r := d.keep(3)
	r.Attempts = 1
	begun := time.Now()
	done := retain(t, table, r, cursorAt(snapshot(t, table)))
	require.Equal(t, []string{d.partition(4)}, done.Busy)
	require.Empty(t, done.Dropped)
	require.Less(t, time.Since(begun), 30*time.Second)
	d.exec(drop)
	require.Equal(t, []string{d.partition(4)}, retain(t, table, r, cursorAt(snapshot(t, table))).Dropped)
}

// O28: a DROP that has to wait behind a reader gives up, and inserts go on.
func TestO28DropGivesUp(t *testing.T) {
	d, table := partitions(t)
	reader := d.connect()
	exec(t, reader, "BEGIN")
	_ = query[int](t, reader, "SELECT count(*) FROM outbox")
	cursor := cursorAt(snapshot(t, table))
	ended := make(chan error)
	go func() {
		r := d.keep(1)
		r.LockTimeout = 20 * time.Millisecond
		done, err := table.Retain(t.Context(), r, cursor)
		if err == nil && len(done.Busy) != 3 {
			err = fmt.Errorf("%+v", done)
		}
		ended <- err
	}()
	d.exec("SET statement_timeout = '10s'")
	for over := false; !over; {
		insert(t, d.Conn, "a") // beside the reader, whose transaction stays open
		select {
		case err := <-ended:
			require.NoError(t, err)
			over = true
		default:
		}
	}
	exec(t, reader, "COMMIT")
	require.Len(t, retain(t, table, d.keep(1), cursorAt(snapshot(t, table))).Dropped, 3)
}

// Of a plain table a bounded number of rows goes: the oldest, published, old
// enough, and held by nobody.
func TestPlainTableIsEmptied(t *testing.T) {
	d := migrated(t, shared)
	table := d.table(postgres.Config{Columns: postgres.Columns{Timestamp: "created_at"}})
	const old = "INSERT INTO outbox (aggregatetype, type, created_at) SELECT 'a', 'b', now() - interval '2 days' FROM generate_series(1, $1)"
	d.exec(old, 2500)
	young := insert(t, d.Conn, "young")
	published := cursorAt(snapshot(t, table))
	d.exec(old, 3)

	holder := d.connect()
	exec(t, holder, "BEGIN")
	exec(t, holder, "SELECT FROM outbox WHERE seq = 1 FOR UPDATE")
	require.Equal(t, postgres.Retained{Deleted: 1500}, retain(t, table, postgres.Retention{Rows: 1500}, published))
	exec(t, holder, "COMMIT")
	require.Equal(t, int64(1000), retain(t, table, postgres.Retention{}, published).Deleted)
	require.Zero(t, retain(t, table, postgres.Retention{}, published).Deleted)
	left := seqs(t, table, "", snapshot(t, table).Text)
	require.Equal(t, []int64{young, young + 1, young + 2, young + 3}, left)
	require.Equal(t, int64(1), retain(t, table, postgres.Retention{Keep: time.Nanosecond}, published).Deleted)

	all := cursorAt(snapshot(t, table))
	require.Equal(t, int64(3), retain(t, d.table(postgres.Config{}), postgres.Retention{}, all).Deleted, "without a timestamp")
}

func TestRetentionKnowsTheKey(t *testing.T) {
	d := open(t, shared)
	d.exec(`CREATE TABLE outbox (id uuid, aggregatetype text, aggregateid text, type text, payload jsonb, seq bigserial, xid xid8 NOT NULL DEFAULT pg_current_xact_id()) PARTITION BY RANGE (seq);
		CREATE INDEX ON outbox (xid, seq); CREATE TABLE p1 PARTITION OF outbox FOR VALUES FROM (0) TO (1000)`)
	table := d.table(postgres.Config{})
	require.NoError(t, table.Check(t.Context()))
	_, err := table.Retain(t.Context(), postgres.Retention{Partitions: true}, cursorAt(snapshot(t, table)))
	require.ErrorContains(t, err, "timestamptz")
	_, err = table.Retain(t.Context(), postgres.Retention{}, cursorAt(snapshot(t, table)))
	require.ErrorContains(t, err, "this is the other")
}
