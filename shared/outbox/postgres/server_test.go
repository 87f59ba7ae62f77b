package postgres_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	local "oncehouse/infra/local/postgres"
	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/postgres"
)

const root = "../../.."

// shared is a server for tests that leave it as it is: each has a schema of its own.
var shared *local.Server

func TestMain(m *testing.M) {
	server, err := local.Start(context.Background(), local.Options{Root: root, Settings: settings()})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	shared = server
	code := m.Run()
	server.Close()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func settings() map[string]string {
	return map[string]string{"fsync": "off", "max_prepared_transactions": "10", "max_connections": "200"}
}

// start starts a server of the test's own.
func start(t testing.TB, options local.Options) *local.Server {
	t.Helper()
	if options.Installation == (local.Installation{}) {
		options.Root = root
	}
	if options.Settings == nil {
		options.Settings = settings()
	}
	server, err := local.Start(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(server.Close)
	return server
}

// database is a schema of a server, and how the test writes to it.
type database struct {
	*pgx.Conn
	t      testing.TB
	server *local.Server
	schema string
}

var schemas atomic.Int64

// open makes a schema.
func open(t testing.TB, server *local.Server) *database {
	t.Helper()
	d := &database{t: t, server: server, schema: fmt.Sprintf("test_%d", schemas.Add(1))}
	d.Conn = d.connect()
	d.exec("CREATE SCHEMA " + d.schema)
	d.exec("SET search_path = " + d.schema)
	return d
}

// migrated is a schema with the outbox table in it.
func migrated(t testing.TB, server *local.Server) *database {
	t.Helper()
	d := open(t, server)
	d.exec(postgres.Migration(false))
	return d
}

// connect opens another session in the schema.
func (d *database) connect() *pgx.Conn {
	d.t.Helper()
	config, err := pgx.ParseConfig(d.server.URL())
	require.NoError(d.t, err)
	config.RuntimeParams["search_path"] = d.schema
	conn, err := pgx.ConnectConfig(d.t.Context(), config)
	require.NoError(d.t, err)
	d.t.Cleanup(func() { _ = conn.Close(context.Background()) }) // the server may be gone
	return conn
}

func (d *database) exec(sql string, args ...any) {
	d.t.Helper()
	exec(d.t, d.Conn, sql, args...)
}

func exec(t testing.TB, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	_, err := conn.Exec(t.Context(), sql, args...)
	require.NoError(t, err, sql)
}

// query is the first column of the first row.
func query[T any](t testing.TB, conn *pgx.Conn, sql string, args ...any) T {
	t.Helper()
	var value T
	require.NoError(t, conn.QueryRow(t.Context(), sql, args...).Scan(&value), sql)
	return value
}

// table opens the outbox table of the schema.
func (d *database) table(c postgres.Config) *postgres.Table {
	d.t.Helper()
	if c.Schema == "" {
		c.Schema = d.schema
	}
	return openTable(d.t, d.server.URL(), c)
}

func openTable(t testing.TB, url string, c postgres.Config) *postgres.Table {
	t.Helper()
	table, err := postgres.Open(poolConfig(t, url), c)
	require.NoError(t, err)
	t.Cleanup(table.Close)
	return table
}

func poolConfig(t testing.TB, url string) *pgxpool.Config {
	t.Helper()
	pool, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	return pool
}

// insert inserts an event of an aggregate, and returns its seq.
func insert(t testing.TB, conn *pgx.Conn, aggregate string) int64 {
	t.Helper()
	return query[int64](t, conn, `INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', $1, 'created', '{}') RETURNING seq`, aggregate)
}

func snapshot(t testing.TB, table *postgres.Table) outbox.Snapshot {
	t.Helper()
	s, err := table.Snapshot(t.Context())
	require.NoError(t, err)
	return s
}

func rows(t testing.TB, table *postgres.Table, from, to string) []outbox.Row {
	t.Helper()
	var found []outbox.Row
	for row, err := range table.Rows(t.Context(), outbox.Window{From: from, To: to}, 0) {
		require.NoError(t, err)
		found = append(found, row)
	}
	return found
}

func seqs(t testing.TB, table *postgres.Table, from, to string) []int64 {
	t.Helper()
	var found []int64
	for _, row := range rows(t, table, from, to) {
		found = append(found, row.Seq)
	}
	return found
}

// refused is the refusal that err has to be.
func refused(t testing.TB, err error, reason string) *outbox.Refusal {
	t.Helper()
	var r *outbox.Refusal
	require.ErrorAs(t, err, &r)
	require.Equal(t, reason, r.Reason)
	return r
}

// strings is the first column of all rows.
func (d *database) strings(sql string, args ...any) []string {
	d.t.Helper()
	rows, err := d.Query(d.t.Context(), sql, args...)
	require.NoError(d.t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(d.t, err)
	return found
}

// tableAs opens the outbox table as a role that has what the guide says.
func (d *database) tableAs(role string, c postgres.Config) *postgres.Table {
	d.t.Helper()
	role = d.schema + "_" + role
	d.exec("CREATE ROLE " + role + " LOGIN")
	d.exec("GRANT USAGE ON SCHEMA " + d.schema + " TO " + role)
	d.exec("GRANT SELECT ON outbox TO " + role)
	d.exec("GRANT SELECT ON SEQUENCE outbox_seq_seq TO " + role)
	c.Schema = d.schema
	return openTable(d.t, strings.Replace(d.server.URL(), "postgres@", role+"@", 1), c)
}

// fill commits n rows, per of them in a transaction, with payloads of size times
// 32 bytes, which PostgreSQL stores as they are up to 2 kB.
func (d *database) fill(n, per, size int) {
	d.t.Helper()
	d.exec(fmt.Sprintf(`
		CREATE OR REPLACE PROCEDURE fill() LANGUAGE plpgsql AS $$ BEGIN
			FOR i IN 0..%d LOOP
				INSERT INTO outbox (aggregatetype, aggregateid, type, payload)
				SELECT 'order', (g %% 1000)::text, 'created', jsonb_build_object('n', g, 'pad', repeat(md5(g::text), %d))
				FROM generate_series(i * %d, (i + 1) * %d - 1) g;
				COMMIT;
			END LOOP;
		END $$`, n/per-1, size, per, per))
	d.exec("CALL fill()")
}
