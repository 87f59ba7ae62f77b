package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	local "oncehouse/infra/local/postgres"
	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/postgres"
)

// lazy are settings under which PostgreSQL flushes nothing by itself that it
// need not: what a test sees lost does not depend on its luck.
func lazy() map[string]string {
	return map[string]string{"fsync": "off", "wal_level": "minimal", "max_wal_senders": "0", "wal_writer_delay": "10s", "bgwriter_delay": "10s", "autovacuum": "off"}
}

// TestCrashes has a server of each kind for all that looks at what a crash leaves.
func TestCrashes(t *testing.T) {
	found, err := local.FindAll(root)
	require.NoError(t, err)
	for _, installation := range found {
		server := start(t, local.Options{Installation: installation, Settings: lazy()})
		for name, test := range map[string]func(*testing.T, *local.Server){
			"O31 a transaction id is handed out again":                 testTransactionIDHandedOutAgain,
			"the wait under an open transaction":                       testFlushedUnderAnOpenTransaction,
			"an asynchronous commit is flushed before it is published": testAsynchronousCommit,
			"the wait without the privilege to flush":                  testFlushedWithoutThePrivilege,
			"the wait across a crash":                                  testFlushedAcrossACrash,
		} {
			t.Run(installation.String()+" "+name, func(t *testing.T) { test(t, server) })
		}
	}
}

// O31: the server crashes right after a rollback, and hands out its transaction
// id again. Without the wait the row that gets it is lost.
func testTransactionIDHandedOutAgain(t *testing.T, server *local.Server) {
	const rounds = 2
	require.Positive(t, lostToCrashes(t, server, rounds, func(*postgres.Table, outbox.Snapshot) {}), "without the wait")
	require.Zero(t, lostToCrashes(t, server, rounds, func(table *postgres.Table, s outbox.Snapshot) {
		require.NoError(t, table.Flushed(t.Context(), s))
	}))
}

// lostToCrashes is how many rows are in no window, of as many as there are rounds.
func lostToCrashes(t *testing.T, server *local.Server, rounds int, wait func(*postgres.Table, outbox.Snapshot)) (lost int) {
	t.Helper()
	d := migrated(t, server)
	for range rounds {
		table := d.table(postgres.Config{})
		conn := d.connect()
		insert(t, conn, "committed") // what comes before is on disk
		exec(t, conn, "BEGIN")
		insert(t, conn, "rolled back")
		used := query[string](t, conn, "SELECT pg_current_xact_id()::text")
		exec(t, conn, "ROLLBACK")
		s1 := snapshot(t, table)
		wait(table, s1)
		server.Crash()
		require.NoError(t, server.Restart(t.Context()))

		conn = d.connect()
		seq := insert(t, conn, "after the crash")
		xid := query[string](t, conn, "SELECT xid::text FROM outbox WHERE seq = $1", seq)
		table.Close()
		table = d.table(postgres.Config{})
		found := seqs(t, table, s1.Text, snapshot(t, table).Text)
		if len(found) == 0 {
			require.Equal(t, used, xid)
			lost++
			continue
		}
		require.Equal(t, []int64{seq}, found)
	}
	return lost
}

// PostgreSQL's writer does not flush the last page while an open transaction is
// the last one that wrote to it: left alone, the wait would last as long as that
// transaction, related or not.
func testFlushedUnderAnOpenTransaction(t *testing.T, server *local.Server) {
	d := migrated(t, server)
	table := d.table(postgres.Config{})
	require.NoError(t, table.Check(t.Context()))
	d.exec("BEGIN")
	insert(t, d.Conn, "open")
	s := snapshot(t, table)
	require.False(t, flushedUpTo(t, d, s), "the premise: the log is not flushed by itself")
	require.NoError(t, table.Flushed(t.Context(), s))
	require.True(t, flushedUpTo(t, d, s))
	d.exec("COMMIT")
}

func flushedUpTo(t *testing.T, d *database, s outbox.Snapshot) bool {
	t.Helper()
	return query[bool](t, d.connect(), "SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint >= $1", int64(s.LSN))
}

// A commit with synchronous_commit off is visible before it is on disk: what is
// published of it must not be lost to a crash.
func testAsynchronousCommit(t *testing.T, server *local.Server) {
	d := migrated(t, server)
	table := d.table(postgres.Config{})
	require.NoError(t, table.Check(t.Context()))
	d.exec("SET synchronous_commit = off")
	seq := insert(t, d.Conn, "a")
	s := snapshot(t, table)
	require.Equal(t, []int64{seq}, seqs(t, table, "", s.Text))
	require.NoError(t, table.Flushed(t.Context(), s))
	server.Crash()
	require.NoError(t, server.Restart(t.Context()))
	require.Equal(t, 1, query[int](t, d.connect(), "SELECT count(*) FROM outbox WHERE seq = $1", seq))
}

// A role from which the function was revoked waits for PostgreSQL's writer, and
// no longer than its context.
func testFlushedWithoutThePrivilege(t *testing.T, server *local.Server) {
	d := migrated(t, server)
	for _, signature := range d.strings("SELECT oid::regprocedure::text FROM pg_proc WHERE proname = 'pg_logical_emit_message'") {
		d.exec("REVOKE EXECUTE ON FUNCTION " + signature + " FROM PUBLIC")
		defer d.exec("GRANT EXECUTE ON FUNCTION " + signature + " TO PUBLIC")
	}
	table := d.tableAs("poller", postgres.Config{})
	d.exec("BEGIN")
	insert(t, d.Conn, "open")
	s := snapshot(t, table)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, table.Flushed(ctx, s), context.DeadlineExceeded)
	d.exec("COMMIT")
	require.NoError(t, table.Flushed(t.Context(), snapshot(t, table)))
}

// O25: a standby is refused; promoted, it is another history of the same table,
// from the first moment on.
func TestO25Standby(t *testing.T) {
	primary := start(t, local.Options{})
	d := migrated(t, primary)
	seq := insert(t, d.Conn, "a")
	before := snapshot(t, d.table(postgres.Config{}))

	server, err := primary.Standby(t.Context(), local.Options{Settings: settings()})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	table := openTable(t, server.URL(), postgres.Config{Schema: d.schema})
	_ = refused(t, table.Check(t.Context()), postgres.ReasonReplica)
	_, err = table.Snapshot(t.Context())
	_ = refused(t, err, postgres.ReasonReplica)
	for _, err := range table.Rows(t.Context(), outbox.Window{To: before.Text}, 0) {
		_ = refused(t, err, postgres.ReasonReplica)
	}

	standby := &database{t: t, server: server, schema: d.schema}
	exec(t, standby.connect(), "SELECT pg_promote()")
	after := snapshot(t, table)
	promoted := before.Identity
	promoted.Timeline++
	require.Equal(t, promoted, after.Identity)
	require.Equal(t, []int64{seq}, seqs(t, table, "", after.Text))
	require.Error(t, table.Flushed(t.Context(), before))
}

// The server crashed between a snapshot and the wait: its log grows over the
// place where the snapshot stood, with other records. That is no flush.
func testFlushedAcrossACrash(t *testing.T, server *local.Server) {
	d := migrated(t, server)
	table := d.table(postgres.Config{})
	d.exec("BEGIN")
	insert(t, d.Conn, "rolled back")
	d.exec("ROLLBACK")
	s := snapshot(t, table)
	server.Crash()
	require.NoError(t, server.Restart(t.Context()))
	d.Conn = d.connect()
	d.fill(100, 100, 30)
	require.True(t, flushedUpTo(t, d, s), "the premise: the log has passed the place")
	require.Error(t, table.Flushed(t.Context(), s))
	require.Error(t, table.Flushed(t.Context(), s))
	s = snapshot(t, table)
	require.NoError(t, table.Flushed(t.Context(), s))
	require.Len(t, seqs(t, table, "", s.Text), 100)
}
