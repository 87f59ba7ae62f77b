package memory_test

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/memory"
)

func TestLimit(t *testing.T) {
	percent, limit, processors := debug.SetGCPercent(100), debug.SetMemoryLimit(math.MaxInt64), runtime.GOMAXPROCS(3)
	t.Cleanup(func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
		runtime.GOMAXPROCS(processors)
	})
	for _, c := range []struct{ bytes, limit, processors int64 }{
		{0, math.MaxInt64, 3}, // outside of Lambda
		{10240 << 20, 9216 << 20, 3},
		{3000 << 20, 2700 << 20, 2},
		{1769 << 20, 1669437846, 1},
		{500 << 20, 450 << 20, 1},
	} {
		memory.Limit(c.bytes)
		require.InDelta(t, c.limit, debug.SetMemoryLimit(-1), 10, "of %d bytes", c.bytes)
		require.Equal(t, int(c.processors), runtime.GOMAXPROCS(0), "of %d bytes", c.bytes)
		require.Equal(t, 50, debug.SetGCPercent(100))
	}
}
