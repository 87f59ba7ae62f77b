package postgres_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/postgres"
)

// Each fault is named, and what the refusal says to run puts it right.
func TestCheckRemedies(t *testing.T) {
	for name, c := range map[string]struct{ sql, problem string }{
		"no seq":                    {"ALTER TABLE outbox DROP COLUMN seq", "column seq is missing"},
		"no xid":                    {"ALTER TABLE outbox DROP COLUMN xid", "column xid is missing"},
		"no index":                  {"DROP INDEX outbox_xid_seq", "no valid index begins with (xid, seq)"},
		"an index the other way":    {"DROP INDEX outbox_xid_seq; CREATE INDEX ON outbox (seq, xid)", "no valid index begins with (xid, seq)"},
		"a partial index":           {"DROP INDEX outbox_xid_seq; CREATE INDEX ON outbox (xid, seq) WHERE aggregateid IS NOT NULL", "no valid index begins with (xid, seq)"},
		"a sequence with a cache":   {"ALTER TABLE outbox ALTER COLUMN seq SET CACHE 20", "caches 20 values"},
		"a sequence that cycles":    {"ALTER TABLE outbox ALTER COLUMN seq SET CYCLE", "starts again at its end"},
		"a sequence that goes down": {"ALTER TABLE outbox ALTER COLUMN seq SET INCREMENT -1 SET MINVALUE 1 SET MAXVALUE 100 SET START 1", "counts down"},
		"a sequence below one":      {"ALTER TABLE outbox ALTER COLUMN seq SET MINVALUE -5", "may go as low as -5"},
		"seq without a sequence":    {"ALTER TABLE outbox ALTER COLUMN seq DROP IDENTITY", "owns no sequence"},
		"seq is an int":             {"ALTER TABLE outbox ALTER COLUMN seq TYPE int", "column seq is integer, not bigint"},
		"xid without its default":   {"ALTER TABLE outbox ALTER COLUMN xid DROP DEFAULT", "has not the default pg_current_xact_id()"},
		"xid with a constant":       {"ALTER TABLE outbox ALTER COLUMN xid SET DEFAULT '7'", "has not the default pg_current_xact_id()"},
		"xid may be null":           {"ALTER TABLE outbox ALTER COLUMN xid DROP NOT NULL", "xid may be NULL"},
		"payload is an array":       {"ALTER TABLE outbox ALTER COLUMN payload TYPE varchar[] USING NULL", "column payload is character varying[], not jsonb or json or text"},
		"no aggregate type":         {"ALTER TABLE outbox DROP COLUMN aggregatetype", "column aggregatetype is missing"},
		"no timestamp":              {"ALTER TABLE outbox DROP COLUMN created_at", "column created_at is missing"},
		"unlogged":                  {"ALTER TABLE outbox SET UNLOGGED", "a crash empties it"},
		"rows from elsewhere":       {"INSERT INTO outbox (aggregatetype, type, xid) VALUES ('a', 'b', '4000000000000')", "transaction id 4000000000000, which this server has not handed out"},
		"no table":                  {"DROP TABLE outbox", "there is no table"},
	} {
		t.Run(name, func(t *testing.T) {
			d := migrated(t, shared)
			table := d.table(postgres.Config{Columns: postgres.Columns{Timestamp: "created_at"}})
			require.NoError(t, table.Check(t.Context()))
			d.exec(c.sql)
			r := refused(t, table.Check(t.Context()), postgres.ReasonTable)
			require.Contains(t, strings.Join(r.Problems, "; "), c.problem)
			_, statements, _ := strings.Cut(r.Remedy, "\n")
			require.NotEmpty(t, statements)
			for statement := range strings.SplitSeq(statements, "\n") {
				d.exec(statement)
			}
			require.NoError(t, table.Check(t.Context()))
			insert(t, d.Conn, "a")
			require.NotEmpty(t, rows(t, table, "", snapshot(t, table).Text))
		})
	}
}

// Debezium's table, as its documentation has it, is told all that is missing at
// once, and is read once that was done.
func TestCheckListsEveryProblem(t *testing.T) {
	d := open(t, shared)
	d.exec(`CREATE TABLE outboxevent (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb)`)
	d.exec(`INSERT INTO outboxevent VALUES (gen_random_uuid(), 'order', '1', 'created', '{}'), (gen_random_uuid(), 'order', '1', 'changed', '{}')`)
	table := d.table(postgres.Config{Table: "outboxevent", Columns: postgres.Columns{Extra: []string{"traceparent"}}})
	r := refused(t, table.Check(t.Context()), postgres.ReasonTable)
	require.Equal(t, []string{
		"column traceparent is missing", "column seq is missing", "column xid is missing", "no valid index begins with (xid, seq)",
	}, r.Problems)
	d.exec("ALTER TABLE outboxevent ADD COLUMN traceparent text")
	_, statements, _ := strings.Cut(r.Remedy, "\n")
	for statement := range strings.SplitSeq(statements, "\n") {
		d.exec(statement)
	}
	require.NoError(t, table.Check(t.Context()))
	require.Len(t, rows(t, table, "", snapshot(t, table).Text), 2)
}

// What a role may not see is no empty outbox.
func TestCheckPrivileges(t *testing.T) {
	d := migrated(t, shared)
	table := d.tableAs("poller", postgres.Config{})
	insert(t, d.Conn, "a")
	require.NoError(t, table.Check(t.Context()))
	s := snapshot(t, table)
	require.NoError(t, table.Flushed(t.Context(), s))
	require.Len(t, rows(t, table, "", s.Text), 1)

	d.exec("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY")
	d.exec("REVOKE SELECT ON outbox FROM " + d.schema + "_poller")
	d.exec("REVOKE SELECT ON SEQUENCE outbox_seq_seq FROM " + d.schema + "_poller")
	r := refused(t, table.Check(t.Context()), postgres.ReasonTable)
	require.Len(t, r.Problems, 3)
	for i, part := range []string{"row-level security hides rows", "may not read the table", "may not be read by the role"} {
		require.Contains(t, r.Problems[i], part)
	}
	_, statements, _ := strings.Cut(r.Remedy, "\n")
	for statement := range strings.SplitSeq(statements, "\n") {
		d.exec(statement)
	}
	require.NoError(t, table.Check(t.Context()))
}

func TestViewIsNoTable(t *testing.T) {
	d := migrated(t, shared)
	d.exec("CREATE VIEW shown AS SELECT * FROM outbox")
	r := refused(t, d.table(postgres.Config{Table: "shown"}).Check(t.Context()), postgres.ReasonTable)
	require.Contains(t, r.Problems[0], "is no table")
}

// An index that was not finished, and one that a partition lacks, are none.
func TestInvalidIndex(t *testing.T) {
	d := open(t, shared)
	d.exec(strings.Replace(postgres.Migration(true), "current_date + 40", "current_date + 1", 1))
	table := d.table(postgres.Config{})
	require.NoError(t, table.Check(t.Context()))
	d.exec("DROP INDEX outbox_xid_seq; CREATE INDEX ON ONLY outbox (xid, seq)")
	r := refused(t, table.Check(t.Context()), postgres.ReasonTable)
	require.Equal(t, []string{"no valid index begins with (xid, seq)"}, r.Problems)
	require.NotContains(t, r.Remedy, "CONCURRENTLY")
	_, statements, _ := strings.Cut(r.Remedy, "\n")
	d.exec(statements)
	require.NoError(t, table.Check(t.Context()))
}

func TestConfigNamesEveryProblem(t *testing.T) {
	pool := poolConfig(t, shared.URL())
	_, err := postgres.Open(pool, postgres.Config{
		StatementTimeout: 1, Shard: outbox.Shard{Index: 3, Of: 3}, Columns: postgres.Columns{TimestampUnit: "minutes"},
	})
	for _, part := range []string{"minutes", "time-out", "shard 3 of 3"} {
		require.ErrorContains(t, err, part)
	}
}
