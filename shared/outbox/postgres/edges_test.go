package postgres_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	local "oncehouse/infra/local/postgres"
	"oncehouse/shared/outbox/postgres"
)

// Columns whose types are domains are read like those beneath: PostgreSQL
// describes a result by the base type.
func TestDomains(t *testing.T) {
	d := migrated(t, shared)
	for _, statement := range []string{
		"CREATE DOMAIN label AS text CHECK (value <> '')",
		"CREATE DOMAIN title AS label",
		"CREATE DOMAIN document AS bytea",
		"CREATE DOMAIN moment AS timestamptz",
		"ALTER TABLE outbox ALTER COLUMN aggregatetype TYPE label, ALTER COLUMN type TYPE title, ALTER COLUMN payload TYPE document USING NULL",
		"ALTER TABLE outbox ADD COLUMN trace title, ADD COLUMN at moment",
		`INSERT INTO outbox (aggregatetype, aggregateid, type, payload, trace, at) VALUES ('order', 'k', 'made', '\x00ff', 'abc', '2026-01-01Z')`,
	} {
		d.exec(statement)
	}
	table := d.table(postgres.Config{Columns: postgres.Columns{Timestamp: "at", Extra: []string{"trace"}}})
	require.NoError(t, table.Check(t.Context()))
	found := rows(t, table, "", snapshot(t, table).Text)
	require.Len(t, found, 1)
	require.Equal(t, "order", found[0].AggregateType)
	require.Equal(t, "made", found[0].Type)
	require.Equal(t, "\x00\xff", string(found[0].Payload))
	require.Equal(t, "abc", *found[0].Extra[0])
	require.EqualValues(t, 1767225600000, found[0].Timestamp)
}

// Whatever a role or a database asks for, texts come as UTF-8: the payload is
// bytes for Kafka, and keys decide partitions.
func TestClientEncoding(t *testing.T) {
	d := migrated(t, shared)
	table := d.tableAs("latin", postgres.Config{})
	d.exec("ALTER ROLE " + d.schema + "_latin SET client_encoding = 'LATIN1'")
	d.exec(`INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', 'ключ', 'é', '"日本"')`)
	require.NoError(t, table.Check(t.Context()))
	found := rows(t, table, "", snapshot(t, table).Text)
	require.Len(t, found, 1)
	require.Equal(t, "ключ", *found[0].AggregateID)
	require.Equal(t, "é", found[0].Type)
	require.Equal(t, `"日本"`, string(found[0].Payload))
}

// A number that is no time in its unit must not stop the rows around it.
func TestTimestampsOutOfRange(t *testing.T) {
	d := migrated(t, shared)
	d.exec("ALTER TABLE outbox ADD COLUMN at bigint")
	d.exec(`INSERT INTO outbox (aggregatetype, type, at) VALUES ('a', 'b', 1774746000), ('a', 'b', 1774746000123999999), ('a', 'b', -9223372036854775808)`)
	table := d.table(postgres.Config{Columns: postgres.Columns{Timestamp: "at", TimestampUnit: postgres.Seconds}})
	require.NoError(t, table.Check(t.Context()))
	found := rows(t, table, "", snapshot(t, table).Text)
	require.Len(t, found, 3)
	require.EqualValues(t, 1774746000000, found[0].Timestamp)
	require.Zero(t, found[1].Timestamp)
	require.Zero(t, found[2].Timestamp)
}

// A transaction of many rows (a migration, say, that gives all rows one xid) is
// read in pages, too: each begins in the index where the last one ended.
func TestPagesOfOneTransaction(t *testing.T) {
	const all = 100_000
	found, err := local.FindAll(root)
	require.NoError(t, err)
	for _, installation := range found {
		server := shared
		if installation != shared.Installation() {
			server = start(t, local.Options{Installation: installation})
		}
		d := migrated(t, server)
		d.fill(all, all, 1)
		xid := query[string](t, d.Conn, "SELECT max(xid::text) FROM outbox")
		to := snapshot(t, d.table(postgres.Config{})).Text
		reader := d.connect()
		for _, setting := range postgres.Session(postgres.Config{}) {
			exec(t, reader, "SELECT set_config($1, $2, false)", setting[0], setting[1])
		}
		_, page := postgres.Statements(t, reader, postgres.Config{Schema: d.schema})
		exec(t, reader, "PREPARE page(pg_snapshot,pg_snapshot,bigint,bigint,xid8,xid8,bigint) AS "+page)
		for _, after := range []int{0, all / 2, all - 10} {
			plan := strings.Join((&database{Conn: reader, t: t}).strings(fmt.Sprintf(
				"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, BUFFERS) EXECUTE page('1:1:', '%s', %d, %d, '%s', '%s', 1000)", to, after, after+10, xid, xid)), "\n")
			hit := regexp.MustCompile(`shared hit=(\d+)`).FindStringSubmatch(plan)
			require.NotNil(t, hit, plan)
			buffers, err := strconv.Atoi(hit[1])
			require.NoError(t, err)
			require.Less(t, buffers, 50, "%s after %d\n%s", installation, after, plan)
		}
	}
}
