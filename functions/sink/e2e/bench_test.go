package e2e

import (
	"testing"
	"time"

	"oncehouse/infra/local/lambdahost"
	"oncehouse/shared/kafka"
)

// BenchmarkColdStart is a new process with one small event: from its start to
// the request for its first event (init-ms) and to the end of that (first-ms,
// with the first insert in it).
func BenchmarkColdStart(b *testing.B) {
	s := start(b)
	p := s.pipeline(b, "cold", options{memoryMB: 256})
	p.deliver(event(batch(0, 0, 0))) // the table's files are warm
	var initial, first time.Duration
	offset := int64(1)
	for b.Loop() {
		p.KillAny()
		result := p.deliver(event(batch(0, offset, offset)))
		offset++
		initial += result.InitDuration
		first += result.InitDuration + result.Duration
	}
	b.ReportMetric(float64(initial.Milliseconds())/float64(b.N), "init-ms")
	b.ReportMetric(float64(first.Milliseconds())/float64(b.N), "first-ms")
}

// BenchmarkFullEvent delivers events of almost 6 MB in six partitions and shows
// the process's peak memory.
func BenchmarkFullEvent(b *testing.B) {
	s := start(b)
	p := s.pipeline(b, "full", options{memoryMB: 256})
	const perLane = 1700
	var last lambdahost.Result
	rows, size := 0, 0
	first := int64(0)
	for b.Loop() {
		b.StopTimer()
		var batches []kafka.Batch
		for partition := range int32(6) {
			batches = append(batches, batch(partition, first, first+perLane-1))
		}
		payload := event(batches...)
		first += perLane
		b.StartTimer()
		last = p.deliver(payload)
		rows += 6 * perLane
		size = len(payload)
	}
	b.ReportMetric(float64(size)/1e6, "event-MB")
	b.ReportMetric(float64(last.MaxMemoryUsedMB), "peak-MB")
	b.ReportMetric(float64(rows)/b.Elapsed().Seconds(), "rows/s")
}
