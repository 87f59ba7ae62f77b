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

// LimitMemory tells the garbage collector how much memory there is. A tenth of
// it is left for what Go does not count: the binary itself and the kernel's
// buffers.
func (c *Config) LimitMemory() {
	if c.MemoryBytes > 0 {
		debug.SetMemoryLimit(c.MemoryBytes / 10 * 9)
	}
}
