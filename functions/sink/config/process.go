package config

import (
	"log/slog"
	"runtime/debug"
)

// Level is the least level that is logged.
func (c *Config) Level() slog.Level {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return slog.LevelInfo // a Config that Parse did not make
	}
	return level
}

// gcPercent is how much garbage may gather, relative to what is in use, before
// it is collected. Nearly all that is in use are a few large buffers without
// pointers that live on (payload, records, rows), so that a collection is cheap
// and rare, and half of Go's default saves more memory than it costs time.
const gcPercent = 50

// LimitMemory tells the garbage collector how much memory there is. A tenth of
// it is left for what Go does not count: the binary itself and the kernel's
// buffers.
func (c *Config) LimitMemory() {
	debug.SetGCPercent(gcPercent)
	if c.MemoryBytes > 0 {
		debug.SetMemoryLimit(c.MemoryBytes / 10 * 9)
	}
}
