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

// collectAt is how much the heap may grow before it is collected, in percent. An
// event's memory is used again by the next one, so there is little to collect,
// and with Go's 100 an event of 6 MB needs half as much memory again.
const collectAt = 25

// LimitMemory tells the garbage collector how much memory there is. A tenth of
// it is left for what Go does not count: the binary itself and the kernel's
// buffers.
func (c *Config) LimitMemory() {
	debug.SetGCPercent(collectAt)
	if c.MemoryBytes > 0 {
		debug.SetMemoryLimit(c.MemoryBytes / 10 * 9)
	}
}
