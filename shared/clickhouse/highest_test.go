package clickhouse_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/clickhouse/targettest"
)

func TestHighest(t *testing.T) {
	s := run(t)
	s.table(t, "h", "("+provenance+", v String) ENGINE = MergeTree ORDER BY _offset")
	target := s.ready(t, "h")
	got, err := target.Highest(t.Context(), targettest.Lane())
	require.NoError(t, err)
	require.Equal(t, int64(-1), got)
	insert(t, target, targettest.Records(0, 7, 41), "t1")
	got, err = target.Highest(t.Context(), targettest.Lane())
	require.NoError(t, err)
	require.Equal(t, int64(41), got)
	other := targettest.Lane()
	other.Partition++
	got, err = target.Highest(t.Context(), other)
	require.NoError(t, err)
	require.Equal(t, int64(-1), got)
}
