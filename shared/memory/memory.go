// Package memory fits Go's runtime to the memory that Lambda gives a function.
//
//	memory.Limit(memory.Size(environ))
package memory

import (
	"runtime"
	"runtime/debug"
	"strconv"
)

// variable is Lambda's own: the function's memory in MB.
const variable = "AWS_LAMBDA_FUNCTION_MEMORY_SIZE"

// Size is the function's memory in bytes, 0 outside of Lambda.
func Size(environ map[string]string) int64 {
	size, err := strconv.ParseInt(environ[variable], 10, 32)
	if err != nil {
		return 0
	}
	return size << 20
}

// gcPercent is how much garbage may gather, relative to what is in use, before
// it is collected. Nearly all that is in use are a few large buffers without
// pointers that live on (payload, records, rows), so that a collection is cheap
// and rare, and half of Go's default saves more memory than it costs time.
const gcPercent = 50

// cpuBytes is the memory with which a function has one processor; it has less of
// one with less. https://docs.aws.amazon.com/lambda/latest/dg/configuration-memory.html
const cpuBytes = 1769 << 20

// Limit fits Go's runtime to a function of that many bytes of memory; 0, outside
// of Lambda, sets no limit. A tenth of it is left for what Go does not count: the
// binary itself and the kernel's buffers.
//
// Go sees two processors also where the function has the time of less than one. Two
// at work would use that time up twice as fast and gain nothing; and the runtime's
// sync.Pools, the one of aws-lambda-go for payloads first of all, would keep their
// buffers once for each.
func Limit(bytes int64) {
	debug.SetGCPercent(gcPercent)
	if bytes > 0 {
		debug.SetMemoryLimit(bytes / 10 * 9)
		processors := int((bytes + cpuBytes - 1) / cpuBytes)
		runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), processors))
	}
}
