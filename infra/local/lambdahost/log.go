package lambdahost

import (
	"fmt"
	"io"
	"math"
	"sync"
	"time"
)

// lineWriter lets several processes and the host share one log.
type lineWriter struct {
	mu   sync.Mutex
	next io.Writer
}

func (w *lineWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next.Write(b)
}

// printf writes one line. A log that cannot be written must not fail the
// function, nor can there be a better place to say so.
func (w *lineWriter) printf(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }

// start, end and report print what Lambda prints around an invocation.
func (w *lineWriter) start(requestID string) {
	w.printf("START RequestId: %s Version: $LATEST", requestID)
}

func (w *lineWriter) end(cfg *Config, r Result) {
	if r.ErrorType == TypeTimeout {
		w.printf("%s %s Task timed out after %.2f seconds", time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), r.RequestID, cfg.Timeout.Seconds())
	}
	w.printf("END RequestId: %s", r.RequestID)
	// The init phase is billed like the rest.
	line := fmt.Sprintf("REPORT RequestId: %s\tDuration: %.2f ms\tBilled Duration: %.0f ms\tMemory Size: %d MB\tMax Memory Used: %d MB\t",
		r.RequestID, milliseconds(r.Duration), math.Ceil(milliseconds(r.Duration+r.InitDuration)), cfg.MemoryMB, r.MaxMemoryUsedMB)
	if r.Cold {
		line += fmt.Sprintf("Init Duration: %.2f ms\t", milliseconds(r.InitDuration))
	}
	switch r.ErrorType {
	case TypeTimeout:
		line += "Status: timeout"
	case TypeExit, TypeInvalidEntrypoint:
		line += "Status: error\tError Type: " + r.ErrorType
	}
	w.printf("%s", line)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
