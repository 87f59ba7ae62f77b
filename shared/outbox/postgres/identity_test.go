package postgres_test

import (
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/postgres"
)

// A copy within the cluster has the same cluster, timeline, transaction ids and
// table oid (O2).
func TestO2CopiedDatabase(t *testing.T) {
	d := open(t, shared)
	identities := map[string]outbox.Identity{}
	for _, name := range []string{d.schema + "_a", d.schema + "_b"} {
		statement := "CREATE DATABASE " + name
		if len(identities) > 0 {
			statement += " TEMPLATE " + d.schema + "_a"
		}
		d.exec(statement)
		address, err := url.Parse(shared.URL())
		require.NoError(t, err)
		address.Path = "/" + name
		conn, err := pgx.Connect(t.Context(), address.String())
		require.NoError(t, err)
		if len(identities) == 0 {
			exec(t, conn, postgres.Migration(false))
		}
		table := openTable(t, address.String(), postgres.Config{})
		identities[name] = snapshot(t, table).Identity
		table.Close() // a template must not be in use
		require.NoError(t, conn.Close(t.Context()))
	}
	a, b := identities[d.schema+"_a"], identities[d.schema+"_b"]
	require.NotEqual(t, a.DatabaseOID, b.DatabaseOID)
	a.DatabaseOID = b.DatabaseOID
	require.Equal(t, a, b, "nothing else tells them apart")
}

// What says what is new, and for whom, is a column and not its name.
func TestIdentityIsOfTheColumns(t *testing.T) {
	d := migrated(t, shared)
	at := func(c postgres.Columns, shard outbox.Shard) outbox.Identity {
		table := d.table(postgres.Config{Columns: c, Shard: shard})
		require.NoError(t, table.Check(t.Context()))
		return snapshot(t, table).Identity
	}
	one, two := outbox.Shard{Of: 1}, outbox.Shard{Of: 2}
	first, divided := at(postgres.Columns{}, one), at(postgres.Columns{}, two)
	require.Empty(t, first.KeyType, "one shard divides nothing")
	require.Equal(t, "S", divided.KeyType)
	divided.KeyType = ""
	require.Equal(t, first, divided)

	d.exec("ALTER TABLE outbox RENAME COLUMN xid TO tx")
	require.Equal(t, first, at(postgres.Columns{XID: "tx"}, one), "it is the same column")
	d.exec("ALTER TABLE outbox RENAME COLUMN tx TO xid; ALTER TABLE outbox DROP COLUMN xid")
	d.exec("ALTER TABLE outbox ADD COLUMN xid xid8 NOT NULL DEFAULT pg_current_xact_id(); CREATE INDEX ON outbox (xid, seq)")
	again := at(postgres.Columns{}, one)
	require.NotEqual(t, first.XIDColumn, again.XIDColumn, "all rows have another transaction id")

	d.exec("ALTER TABLE outbox ALTER COLUMN aggregateid TYPE varchar(36)")
	require.Equal(t, "S", at(postgres.Columns{}, two).KeyType, "it prints the same")
	d.exec("ALTER TABLE outbox ALTER COLUMN aggregateid TYPE uuid USING aggregateid::uuid")
	require.Equal(t, "U", at(postgres.Columns{}, two).KeyType)
}

// What is done to a table in its daily life makes it no other one: a false refusal
// would stop the outbox.
func TestIdentityStays(t *testing.T) {
	for _, partitioned := range []bool{false, true} {
		d := open(t, shared)
		d.exec(postgres.Migration(partitioned))
		identity := func() outbox.Identity {
			table := d.table(postgres.Config{Shard: outbox.Shard{Of: 2}})
			require.NoError(t, table.Check(t.Context()))
			return snapshot(t, table).Identity
		}
		first := identity()
		statements := []string{
			"VACUUM FULL outbox", "ANALYZE outbox", "TRUNCATE outbox", "REINDEX TABLE outbox",
			"ALTER TABLE outbox ADD COLUMN more text, ADD COLUMN gone int DEFAULT 1", "ALTER TABLE outbox DROP COLUMN gone",
			"ALTER TABLE outbox ALTER COLUMN aggregateid TYPE varchar(100)", "ALTER TABLE outbox ALTER COLUMN aggregateid TYPE text",
			"CREATE DOMAIN aggregate AS text CHECK (VALUE <> ''); CREATE DOMAIN buyer AS aggregate; ALTER TABLE outbox ALTER COLUMN aggregateid TYPE buyer",
			"ALTER TABLE outbox RENAME COLUMN seq TO s; ALTER TABLE outbox RENAME COLUMN s TO seq",
			"ALTER TABLE outbox RENAME TO o; ALTER TABLE o RENAME TO outbox",
			"ALTER TABLE outbox OWNER TO CURRENT_USER", "CREATE INDEX ON outbox (aggregateid)",
		}
		if partitioned {
			statements = append(statements,
				"CREATE TABLE more PARTITION OF outbox FOR VALUES FROM ('2040-01-01') TO ('2040-01-02')",
				"ALTER TABLE outbox DETACH PARTITION more", "ALTER TABLE outbox ATTACH PARTITION more FOR VALUES FROM ('2040-01-01') TO ('2040-01-02')", "DROP TABLE more")
		}
		for _, statement := range statements {
			d.exec(statement)
			require.Equal(t, first, identity(), statement)
		}
	}
}

// Rows are divided as the snapshot says, or not at all.
func TestKeyAlteredBetweenSnapshotAndRows(t *testing.T) {
	d := migrated(t, shared)
	insert(t, d.Conn, "1")
	for _, warm := range []bool{false, true} {
		table := d.table(postgres.Config{Shard: outbox.Shard{Of: 2, By: "aggregateid"}})
		s := snapshot(t, table)
		if warm {
			_ = rows(t, table, "", s.Text)
		}
		d.exec("ALTER TABLE outbox ALTER COLUMN aggregateid TYPE bigint USING aggregateid::bigint")
		var failure error
		for _, err := range table.Rows(t.Context(), outbox.Window{To: s.Text}, 0) {
			failure = err
		}
		require.ErrorContains(t, failure, "column aggregateid", "warm: %v", warm)
		require.ErrorContains(t, failure, "altered since the last snapshot", "warm: %v", warm)
		require.Equal(t, "N", snapshot(t, table).KeyType)
		d.exec("ALTER TABLE outbox ALTER COLUMN aggregateid TYPE text USING aggregateid::text")
	}
}
