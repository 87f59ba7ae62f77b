package engine_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/engine/enginetest"
)

// BenchmarkQuery is the cost of a request that asks for nothing.
func BenchmarkQuery(b *testing.B) {
	srv := enginetest.Run(b)
	conn := srv.Open(b)
	var n uint8
	for b.Loop() {
		require.NoError(b, conn.QueryRow(b.Context(), "SELECT 1").Scan(&n))
	}
}

// BenchmarkInsert stores one block of 10,000 rows.
func BenchmarkInsert(b *testing.B) {
	srv := enginetest.Run(b)
	srv.Exec(b, "CREATE TABLE t (a UInt64, s String) ENGINE = MergeTree ORDER BY a")
	conn := srv.Open(b)
	body := strings.Repeat("12345678\t"+strings.Repeat("x", 240)+"\n", 10_000)
	ctx := clickhouse.Context(b.Context(), clickhouse.WithSettings(clickhouse.Settings{"min_insert_block_size_rows": 10_000_000}))
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		require.NoError(b, conn.InsertFormat(ctx, "TSV", "INSERT INTO t", strings.NewReader(body)))
	}
}

// BenchmarkRestart is kill -9 and back to answering.
func BenchmarkRestart(b *testing.B) {
	srv := enginetest.Run(b)
	for b.Loop() {
		srv.Kill()
		srv.Restart(b)
		res, err := http.Get(srv.URL() + "/ping")
		require.NoError(b, err)
		require.NoError(b, res.Body.Close())
	}
}
