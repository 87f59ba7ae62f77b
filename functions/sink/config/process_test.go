package config_test

import (
	"math"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/functions/sink/config"
)

func TestLimitMemory(t *testing.T) {
	percent, limit := debug.SetGCPercent(100), debug.SetMemoryLimit(math.MaxInt64)
	t.Cleanup(func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	})
	(&config.Config{}).LimitMemory() // outside of Lambda
	require.Equal(t, int64(math.MaxInt64), debug.SetMemoryLimit(-1))
	(&config.Config{MemoryBytes: 1000 << 20}).LimitMemory()
	require.Equal(t, int64(900<<20), debug.SetMemoryLimit(-1))
	require.Equal(t, 50, debug.SetGCPercent(100))
}
