package postgres_test

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/postgres"
)

// O13: the payload is what PostgreSQL prints, byte by byte; nothing is parsed.
func TestO13PayloadBytes(t *testing.T) {
	for _, c := range []struct{ sqlType, literal, want string }{
		{"jsonb", `'{"b": null, "a": [], "n": [1, {"x": []}, "é\u0000"]}'`, ""}, // refused by PostgreSQL
		{"jsonb", `'{"b":null,  "a": [], "n": [1, {"x": []}, "é", 1.0, 1e3, {}]}'`, `{"a": [], "b": null, "n": [1, {"x": []}, "é", 1.0, 1000, {}]}`},
		{"jsonb", `'[]'`, `[]`},
		{"jsonb", `'null'`, `null`},
		{"jsonb", `'""'`, `""`},
		{"json", `'{"b":null,  "a": [],"a":1e3, "c":"\u00e9"}'`, `{"b":null,  "a": [],"a":1e3, "c":"\u00e9"}`},
		{"text", `'no json at all: ü' || chr(10)`, "no json at all: ü\n"},
		{"text", `''`, ""},
		{"varchar(20)", `'x '`, "x "},
		{"bytea", `'\x00ff5c78'::bytea`, "\x00\xff\\x"},
		{"bytea", `''::bytea`, ""},
	} {
		d := migrated(t, shared)
		d.exec("ALTER TABLE outbox ALTER COLUMN payload TYPE " + c.sqlType + " USING NULL")
		insert := "INSERT INTO outbox (aggregatetype, type, payload) VALUES ('a', 'b', " + c.literal + "), ('a', 'b', NULL)"
		if c.want == "" && c.sqlType == "jsonb" {
			_, err := d.Exec(t.Context(), insert)
			require.Error(t, err)
			continue
		}
		d.exec(insert)
		table := d.table(postgres.Config{})
		require.NoError(t, table.Check(t.Context()))
		found := rows(t, table, "", snapshot(t, table).Text)
		require.Len(t, found, 2)
		require.Equal(t, []byte(c.want), found[0].Payload, "%s %s", c.sqlType, c.literal)
		require.Nil(t, found[1].Payload)
	}
}

// O15: timestamps of every unit are milliseconds; what has none is 0.
func TestO15Timestamps(t *testing.T) {
	for _, c := range []struct {
		sqlType string
		unit    postgres.Unit
		values  map[string]int64
	}{
		{"timestamptz", "", map[string]int64{
			"'2026-03-29 01:59:59.999999+01'": 1774745999999, "'2026-03-29 03:00:00+02'": 1774746000000, "'1970-01-01 00:00:00.001Z'": 1,
			"'2262-01-01 00:00:00.123456Z'": 9214646400123, "'infinity'": 0, "'-infinity'": 0, "NULL": 0,
		}},
		{"timestamp", "", map[string]int64{"'2026-03-29 01:00:00.5'": 1774746000500, "NULL": 0}},
		{"timestamptz(0)", "", map[string]int64{"'2026-03-29 03:00:00+02'": 1774746000000}},
		{"bigint", "", map[string]int64{"1774746000123": 1774746000123, "NULL": 0}},
		{"bigint", postgres.Milliseconds, map[string]int64{"1774746000123": 1774746000123}},
		{"integer", postgres.Seconds, map[string]int64{"1774746000": 1774746000000}},
		{"bigint", postgres.Microseconds, map[string]int64{"1774746000123999": 1774746000123}},
		{"bigint", postgres.Nanoseconds, map[string]int64{"1774746000123999999": 1774746000123}},
	} {
		for literal, want := range c.values {
			d := migrated(t, shared)
			d.exec("ALTER TABLE outbox ADD COLUMN at " + c.sqlType)
			d.exec("INSERT INTO outbox (aggregatetype, type, at) VALUES ('a', 'b', " + literal + ")")
			d.exec("SET TimeZone = 'America/New_York'")
			table := d.table(postgres.Config{Columns: postgres.Columns{Timestamp: "at", TimestampUnit: c.unit}})
			require.NoError(t, table.Check(t.Context()))
			found := rows(t, table, "", snapshot(t, table).Text)
			require.Len(t, found, 1)
			require.Equal(t, want, found[0].Timestamp, "%s %s %s", c.sqlType, c.unit, literal)
		}
	}
}

// Any name that PostgreSQL takes, and columns of any type for headers.
func TestNamesAndExtraColumns(t *testing.T) {
	d := open(t, shared)
	const schema, name = `Sche"ma.x`, `out box"; DROP TABLE outbox; --`
	columns := postgres.Columns{
		ID: "Event ID", AggregateType: `agg"type`, AggregateID: "c0", Type: "size", Payload: "cost", Seq: "select", XID: `x{seq}`, Timestamp: "when",
		Extra: []string{"traceparent", "n", "at", "flag", "doc"},
	}
	d.exec("CREATE SCHEMA " + pgx.Identifier{schema}.Sanitize())
	t.Cleanup(func() {
		_, _ = d.Exec(context.Background(), "DROP SCHEMA "+pgx.Identifier{schema}.Sanitize()+" CASCADE") // the next run makes it again
	})
	table := d.table(postgres.Config{Schema: schema, Table: name, Columns: columns})
	_, err := table.Snapshot(t.Context())
	r := refused(t, err, postgres.ReasonTable)
	_, statements, _ := strings.Cut(r.Remedy, "\n")
	for statement := range strings.SplitSeq(statements, "\n") {
		d.exec(statement)
	}
	quoted := pgx.Identifier{schema, name}.Sanitize()
	d.exec("ALTER TABLE " + quoted + ` ALTER n TYPE int USING 1, ALTER at TYPE timestamptz USING now(), ALTER flag TYPE bool USING true, ALTER doc TYPE jsonb USING NULL`)
	require.NoError(t, table.Check(t.Context()))
	d.exec("INSERT INTO " + quoted + ` ("Event ID", "agg""type", c0, size, cost, "when", traceparent, n, at, flag, doc)
		VALUES ('6F1B9C5E-0000-4000-8000-000000000001', 'Order', 'k', 'created', '[1]', 'epoch', '00-ab', 7, '2026-01-02 03:04:05.6+00', true, NULL)`)
	found := rows(t, table, "", snapshot(t, table).Text)
	require.Len(t, found, 1)
	require.Equal(t, "6f1b9c5e-0000-4000-8000-000000000001", found[0].ID)
	require.Equal(t, "Order", found[0].AggregateType)
	require.Equal(t, "k", *found[0].AggregateID)
	require.Equal(t, "created", found[0].Type)
	require.Equal(t, "[1]", string(found[0].Payload))
	var extra []string
	for _, value := range found[0].Extra[:4] {
		extra = append(extra, *value)
	}
	require.Equal(t, []string{"00-ab", "7", "2026-01-02 03:04:05.6+00", "t"}, extra)
	require.Nil(t, found[0].Extra[4])
}

// O2: a table that was made again is another one, and its seqs start over.
func TestO2OtherTable(t *testing.T) {
	d := migrated(t, shared)
	table := d.table(postgres.Config{})
	insert(t, d.Conn, "a")
	first := snapshot(t, table)
	require.Equal(t, int64(1), first.LastSeq)
	d.exec("DROP TABLE outbox")
	d.exec(postgres.Migration(false))
	second := snapshot(t, table)
	require.NotEqual(t, first.TableOID, second.TableOID)
	require.Equal(t, first.SystemID, second.SystemID)
	require.Zero(t, second.LastSeq)
}

// O7: while its caller hangs on a row, no transaction is open: a migration and a
// DROP wait for nothing, and vacuum is not held back.
func TestO7NoLockWhileTheCallerHangs(t *testing.T) {
	d := migrated(t, shared)
	d.fill(30_000, 1000, 1)
	table := openTable(t, d.server.URL()+"&application_name="+d.schema, postgres.Config{Schema: d.schema})
	s := snapshot(t, table)
	d.exec("SET lock_timeout = '10s'")
	next, stop := iter.Pull2(table.Rows(t.Context(), outbox.Window{To: s.Text}, 0))
	defer stop()
	for n := range int64(30_000) {
		row, err, ok := next()
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, n+1, row.Seq)
		if n%9000 != 0 {
			continue
		}
		// The page ahead is read to its end; then every session is idle.
		require.Eventually(t, func() bool {
			return query[int](t, d.Conn, "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND (state <> 'idle' OR backend_xmin IS NOT NULL)", d.schema) == 0
		}, 10*time.Second, time.Millisecond)
		d.exec("ALTER TABLE outbox ADD COLUMN IF NOT EXISTS note text") // takes the lock of a DROP
	}
	_, _, ok := next()
	require.False(t, ok)
}

// O16: an UPDATE or DELETE publishes nothing again; what a row holds when its
// window is read is what is published.
func TestO16UpdateAndDelete(t *testing.T) {
	d := migrated(t, shared)
	table := d.table(postgres.Config{})
	first, second := insert(t, d.Conn, "a"), insert(t, d.Conn, "a")
	s1 := snapshot(t, table)
	require.Equal(t, []int64{first, second}, seqs(t, table, "", s1.Text))
	d.exec("UPDATE outbox SET payload = '[2]' WHERE seq = $1", first)
	d.exec("DELETE FROM outbox WHERE seq = $1", second)
	s2 := snapshot(t, table)
	require.Empty(t, seqs(t, table, s1.Text, s2.Text))
	found := rows(t, table, "", s2.Text)
	require.Len(t, found, 1)
	require.Equal(t, "[2]", string(found[0].Payload))
}

// O8: the order is that of seq, whatever clocks say.
func TestO8ClocksDoNotMatter(t *testing.T) {
	d := migrated(t, shared)
	table := d.table(postgres.Config{Columns: postgres.Columns{Timestamp: "created_at"}})
	for _, at := range []string{"2026-01-03", "2026-01-01", "2026-01-01", "1999-01-01", "2040-01-01"} {
		d.exec("INSERT INTO outbox (aggregatetype, aggregateid, type, created_at) VALUES ('a', '1', $1, $1::text::timestamptz)", at)
	}
	var types []string
	for _, row := range rows(t, table, "", snapshot(t, table).Text) {
		types = append(types, row.Type)
	}
	require.Equal(t, []string{"2026-01-03", "2026-01-01", "2026-01-01", "1999-01-01", "2040-01-01"}, types)
}

// O26: the table is altered while statements are prepared for what it was.
func TestO26AlteredWhileWarm(t *testing.T) {
	d := migrated(t, shared)
	table := d.table(postgres.Config{Columns: postgres.Columns{Extra: []string{"aggregateid"}}})
	from := ""
	for _, c := range []struct{ alter, payload, want string }{
		{"", `'{"a":1}'`, `{"a": 1}`},
		{"ALTER TABLE outbox ALTER COLUMN payload TYPE json", `'{"a":1}'`, `{"a":1}`},
		{"ALTER TABLE outbox ALTER COLUMN payload TYPE bytea USING payload::text::bytea", `'\x0102'`, "\x01\x02"},
		{"ALTER TABLE outbox ALTER COLUMN payload TYPE text USING 'was bytes'", `'\x0102'`, `\x0102`},
		{"ALTER TABLE outbox ADD COLUMN more text", `'x'`, `x`},
		{"ALTER TABLE outbox DROP COLUMN payload; ALTER TABLE outbox ADD COLUMN payload bytea", `'\x03'`, "\x03"},
		{"ALTER TABLE outbox ALTER COLUMN aggregateid TYPE bigint USING aggregateid::bigint", `'\x04'`, "\x04"},
	} {
		if c.alter != "" {
			d.exec(c.alter)
		}
		d.exec("INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('a', '7', 'b', " + c.payload + ")")
		to := snapshot(t, table).Text
		found := rows(t, table, from, to)
		require.Len(t, found, 1, c.alter)
		require.Equal(t, c.want, string(found[0].Payload), c.alter)
		require.Equal(t, "7", *found[0].Extra[0], c.alter)
		from = to
	}
	d.exec("ALTER TABLE outbox RENAME COLUMN payload TO body")
	for _, err := range table.Rows(t.Context(), outbox.Window{From: from, To: snapshot(t, table).Text}, 0) {
		require.ErrorContains(t, err, "column payload")
	}
	_ = refused(t, table.Check(t.Context()), postgres.ReasonTable)
}

// O29: a transaction that is open or prepared delays its own rows, and no others.
func TestO29LongAndPreparedTransactions(t *testing.T) {
	d := migrated(t, shared)
	table := d.table(postgres.Config{})
	unrelated := d.connect()
	exec(t, unrelated, "BEGIN")
	exec(t, unrelated, "SELECT pg_current_xact_id()")
	related := d.connect()
	exec(t, related, "BEGIN")
	late := insert(t, related, "late")
	exec(t, related, "PREPARE TRANSACTION '"+d.schema+"'")

	from := ""
	for range 3 {
		want := []int64{insert(t, d.Conn, "a"), insert(t, d.Conn, "a")}
		to := snapshot(t, table).Text
		require.Equal(t, want, seqs(t, table, from, to))
		from = to
	}
	exec(t, related, "COMMIT PREPARED '"+d.schema+"'")
	require.Equal(t, []int64{late}, seqs(t, table, from, snapshot(t, table).Text))
	exec(t, unrelated, "ROLLBACK")
}

// O30: savepoints and subtransactions: exactly what was committed.
func TestO30Savepoints(t *testing.T) {
	d := migrated(t, shared)
	table := d.table(postgres.Config{})
	from := snapshot(t, table).Text
	var kept []int64
	d.exec("BEGIN")
	kept = append(kept, insert(t, d.Conn, "a"))
	d.exec("SAVEPOINT one")
	insert(t, d.Conn, "rolled back")
	d.exec("SAVEPOINT two")
	insert(t, d.Conn, "rolled back")
	d.exec("RELEASE two")
	d.exec("ROLLBACK TO one")
	kept = append(kept, insert(t, d.Conn, "a"))
	d.exec("SAVEPOINT three")
	kept = append(kept, insert(t, d.Conn, "a"))
	d.exec("RELEASE three")
	middle := snapshot(t, table).Text
	require.Empty(t, seqs(t, table, from, middle))
	d.exec("DO $$ BEGIN FOR i IN 1..200 LOOP BEGIN INSERT INTO outbox (aggregatetype, type) VALUES ('a', 'b'); IF i % 2 = 0 THEN RAISE EXCEPTION 'x'; END IF; EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END $$") // more than a snapshot holds
	middle = snapshot(t, table).Text
	d.exec("COMMIT")
	found := seqs(t, table, middle, snapshot(t, table).Text)
	require.Len(t, found, 103)
	require.Equal(t, kept, found[:3])
}

// A statement that takes too long ends, and says so.
func TestStatementTimeout(t *testing.T) {
	d := migrated(t, shared)
	insert(t, d.Conn, "a")
	table := d.table(postgres.Config{StatementTimeout: time.Minute, LockTimeout: 50 * time.Millisecond})
	s := snapshot(t, table)
	d.exec("BEGIN")
	d.exec("LOCK TABLE outbox")
	var failure error
	for _, err := range table.Rows(t.Context(), outbox.Window{To: s.Text}, 0) {
		failure = err
	}
	require.ErrorContains(t, failure, "lock timeout")
	d.exec("COMMIT")
	require.Len(t, seqs(t, table, "", s.Text), 1)
}

// With 400k published rows in the table, what is new is found by the index.
func TestIndexIsUsed(t *testing.T) {
	d := migrated(t, shared)
	d.fill(400_000, 1000, 1)
	d.exec("ANALYZE outbox")
	table := d.table(postgres.Config{})
	open := d.connect()
	exec(t, open, "BEGIN")
	late := insert(t, open, "late")
	from := snapshot(t, table).Text
	exec(t, open, "COMMIT")
	seq := insert(t, d.Conn, "a")
	to := snapshot(t, table).Text

	reader := d.connect()
	for _, setting := range postgres.Session(postgres.Config{}) {
		exec(t, reader, "SELECT set_config($1, $2, false)", setting[0], setting[1])
	}
	chart, page := postgres.Statements(t, reader, postgres.Config{Schema: d.schema})
	exec(t, reader, "PREPARE chart(pg_snapshot, pg_snapshot, bigint) AS "+chart)
	exec(t, reader, "PREPARE page(pg_snapshot,pg_snapshot,bigint,bigint,xid8,xid8,bigint) AS "+page)
	for statement, looks := range map[string]int{
		fmt.Sprintf("EXECUTE chart('%s', '%s', 0)", from, to): 2,
		fmt.Sprintf("EXECUTE page('%s', '%s', 0, %d, '%s', '%s', 1000)", from, to, seq, strings.Split(from, ":")[1], strings.Split(to, ":")[1]): 4,
	} {
		plan := strings.Join((&database{Conn: reader, t: t}).strings("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, BUFFERS) "+statement), "\n")
		require.NotContains(t, plan, "Seq Scan", plan)
		require.Equal(t, looks, strings.Count(plan, "outbox_xid_seq"), plan)
		require.Equal(t, looks, strings.Count(plan, "Index Cond: ((xid"), plan)
		// It looks at no other row than the two.
		require.NotContains(t, plan, "Rows Removed", plan)
	}
	require.Equal(t, []int64{late, seq}, seqs(t, table, from, to))
}
