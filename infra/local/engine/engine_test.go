package engine_test

import (
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"oncehouse/infra/local/engine/enginetest"
)

// Limits of waiting for what happens at once on an idle machine.
const (
	eventually = 30 * time.Second
	tick       = 10 * time.Millisecond
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDriverRoundTrip(t *testing.T) {
	srv := enginetest.Run(t)
	conn := srv.Open(t)
	ctx := t.Context()
	require.NoError(t, conn.Exec(ctx, "CREATE TABLE t (a UInt64, b Nullable(String), c DateTime64(3, 'UTC') DEFAULT '2026-01-02 03:04:05.678') ENGINE = MergeTree ORDER BY a"))
	batch, err := conn.PrepareBatch(ctx, "INSERT INTO t (a, b)")
	require.NoError(t, err)
	word := "x"
	for i := range 1000 {
		require.NoError(t, batch.Append(uint64(i), &word))
	}
	require.NoError(t, batch.Send())
	var n, sum uint64
	require.NoError(t, conn.QueryRow(ctx, "SELECT count(), sum(a) FROM t WHERE b = {b:String}", clickhouse.Named("b", "x")).Scan(&n, &sum))
	require.Equal(t, uint64(1000), n)
}
