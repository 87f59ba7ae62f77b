package orders_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/orders"
	"oncehouse/infra/local/postgres"
)

// What the service promises the demo: whatever happens to it, the committed
// events of an order count 1, 2, 3 in the order of seq, and there are rolled
// back ones between them.
func TestCommittedEventsCount(t *testing.T) {
	server, err := postgres.Start(t.Context(), postgres.Options{Settings: map[string]string{"fsync": "off"}})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	connect := func() *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), server.URL())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(t.Context()) }) // it may be cut off already
		return conn
	}
	conn := connect()
	_, err = conn.Exec(t.Context(), `CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb,
		seq bigint GENERATED ALWAYS AS IDENTITY (CACHE 1))`)
	require.NoError(t, err)
	require.NoError(t, orders.Prepare(t.Context(), conn))
	require.NoError(t, orders.Prepare(t.Context(), conn), "again is no fault")

	require.NoError(t, orders.Run(t.Context(), orders.Config{Database: server.URL(), Events: 500, Seed: 1}))
	finished := make(chan error)
	go func() {
		finished <- orders.Run(t.Context(), orders.Config{Database: server.URL(), Events: 3000, Seed: 2})
	}()
	for n := int64(0); n < 1000; {
		n, err = orders.Committed(t.Context(), conn)
		require.NoError(t, err)
	}
	server.Crash()
	require.NoError(t, server.Restart(t.Context()))
	require.NoError(t, <-finished, "it waits for the database")

	conn = connect()
	n, err := orders.Committed(t.Context(), conn)
	require.NoError(t, err)
	require.GreaterOrEqual(t, n, int64(3000))
	var rows, wrong, highest int64
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE n <> version), max(seq) FROM (
		SELECT seq, (payload->>'version')::bigint AS version, row_number() OVER (PARTITION BY aggregateid ORDER BY seq) AS n FROM outbox) _`).Scan(&rows, &wrong, &highest))
	require.Equal(t, n, rows)
	require.Zero(t, wrong)
	require.Greater(t, highest, rows+rows/20, "some were rolled back")
}
