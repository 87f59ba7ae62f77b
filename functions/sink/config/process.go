package config

import (
	"log/slog"
	"runtime"
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

// cpuBytes is the memory with which a function has one processor; it has less of
// one with less. https://docs.aws.amazon.com/lambda/latest/dg/configuration-memory.html
const cpuBytes = 1769 << 20

// LimitMemory fits Go's runtime to the function's memory. A tenth of it is left
// for what Go does not count: the binary itself and the kernel's buffers.
//
// Go sees two processors also where the function has the time of less than one. Two
// at work would use that time up twice as fast and gain nothing; and the runtime's
// sync.Pools, the one of aws-lambda-go for payloads first of all, would keep their
// buffers once for each.
func (c *Config) LimitMemory() {
	debug.SetGCPercent(gcPercent)
	if c.MemoryBytes > 0 {
		debug.SetMemoryLimit(c.MemoryBytes / 10 * 9)
		processors := int((c.MemoryBytes + cpuBytes - 1) / cpuBytes)
		runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), processors))
	}
}
