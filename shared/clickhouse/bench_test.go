package clickhouse_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/clickhouse/targettest"
	"oncehouse/shared/offsets"
)

func BenchmarkPreflightWarm(b *testing.B) {
	s := run(b)
	s.Exec(b, "CREATE TABLE b ("+provenance+", v String) ENGINE = MergeTree ORDER BY _offset")
	target := s.ready(b, "b")
	for b.Loop() {
		_, err := target.Preflight(b.Context())
		require.NoError(b, err)
	}
}

func BenchmarkInsert10k(b *testing.B) {
	s := run(b)
	s.Exec(b, "CREATE TABLE b ("+provenance+", v String) ENGINE = MergeTree ORDER BY _offset")
	target := s.ready(b, "b")
	records := manyRecords(10_000, 250)
	chunk, err := target.Encode(targettest.Lane(), records, targettest.NoLimit())
	require.NoError(b, err)
	b.SetBytes(int64(chunk.Bytes))
	b.ReportAllocs()
	for b.Loop() {
		require.NoError(b, target.Insert(b.Context(), targettest.Insert(targettest.Lane(), chunk, records, "")))
	}
}

func BenchmarkEncode10k(b *testing.B) {
	s := run(b)
	s.Exec(b, "CREATE TABLE b ("+provenance+", v String) ENGINE = MergeTree ORDER BY _offset")
	target := s.ready(b, "b")
	records := manyRecords(10_000, 250)
	b.SetBytes(10_000 * int64(len(records[0].Value)))
	b.ReportAllocs()
	for b.Loop() {
		chunk, err := target.Encode(targettest.Lane(), records, targettest.NoLimit())
		require.NoError(b, err)
		chunk.Release()
	}
}

func BenchmarkProbe10k(b *testing.B) {
	s := run(b)
	s.Exec(b, "CREATE TABLE b ("+provenance+", v String) ENGINE = MergeTree ORDER BY _offset",
		"INSERT INTO b SELECT 'clicks-a', 3, number * 2, 'x' FROM numbers(1000000)")
	target := s.ready(b, "b")
	var asked []int64
	for i := range int64(10_000) {
		asked = append(asked, 500_000+3*i)
	}
	ask := offsets.Of(asked...)
	for b.Loop() {
		there, err := target.Probe(b.Context(), targettest.Lane(), ask)
		require.NoError(b, err)
		require.Equal(b, int64(5000), there.Len())
	}
}
