package clickhouse_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/clickhouse/targettest"
	"oncehouse/shared/delivery"
)

// Encoding costs the same few allocations whatever the number of records.
func TestEncodeAllocatesPerChunkOnly(t *testing.T) {
	s := run(t)
	s.table(t, "e", "("+provenance+", v String) ENGINE = MergeTree ORDER BY _offset")
	target := s.ready(t, "e")
	records := manyRecords(10_000, 200)
	allocs := testing.AllocsPerRun(20, func() {
		chunk, err := target.Encode(targettest.Lane(), records, targettest.NoLimit())
		if err != nil || chunk.Rows != len(records) {
			panic(fmt.Sprint(chunk, err))
		}
		chunk.Release()
	})
	require.Less(t, allocs, 50.0, "allocations for 10,000 records")
}

// A chunk that finds no buffer to borrow takes its memory in one piece, not by
// doubling: what growing leaves behind counts against the function's memory.
func TestEncodeTakesItsMemoryAtOnce(t *testing.T) {
	s := run(t)
	s.table(t, "e", "("+provenance+", v String) ENGINE = MergeTree ORDER BY _offset")
	target := s.ready(t, "e")
	records := manyRecords(10_000, 200)
	allocs := testing.AllocsPerRun(10, func() {
		chunk, err := target.Encode(targettest.Lane(), records, targettest.NoLimit())
		if err != nil || chunk.Rows != len(records) {
			panic(fmt.Sprint(chunk, err))
		} // the chunk is not released
	})
	require.Less(t, allocs, 10.0, "allocations without a buffer to borrow")
}

func TestEncodeCountsPerChunk(t *testing.T) {
	s := run(t)
	s.table(t, "e", "("+provenance+", v String) ENGINE = MergeTree ORDER BY _offset")
	target := s.ready(t, "e")
	for range 3 {
		records := targettest.Records(1, 2, 3)
		records[1].Value = []byte(`{"v":"x","surplus":1}`)
		chunk, err := target.Encode(targettest.Lane(), records, targettest.NoLimit())
		require.NoError(t, err)
		require.Equal(t, int64(1), chunk.UnknownFields)
		chunk.Release()
	}
}

func TestEncodeNeedsAPreflight(t *testing.T) {
	s := run(t)
	target := open(t, s.config("e"))
	_, err := target.Encode(targettest.Lane(), targettest.Records(1), targettest.NoLimit())
	require.Equal(t, delivery.Fatal, delivery.KindOf(err))
}
