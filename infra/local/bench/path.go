package main

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// partitions is how many of them the path's events have.
const partitions = 3

// sample is one run of one way: what one event costs.
type sample struct {
	total  time.Duration
	parts  map[string]time.Duration
	allocs float64
	bytes  float64
}

// measurePath measures the three ways for each size.
func measurePath(ctx context.Context, o options, r *report) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // a core's figures, the garbage collector's work in them
	columns, err := readColumns(o.root)
	if err != nil {
		return err
	}
	for _, size := range o.sizes {
		e, err := newEvent(size, partitions, 1_000_000, o.records)
		if err != nil {
			return err
		}
		sink, err := newSinkWay(columns)
		if err != nil {
			return err
		}
		idiomatic, err := newIdiomaticWay(columns)
		if err != nil {
			return err
		}
		names, ways := []string{"sink", "idiomatic", "floor"}, []way{sink, idiomatic, &floorWay{}}
		samples := make([][]sample, len(ways))
		for run := range o.runs + 1 {
			for i, w := range ways {
				if err := ctx.Err(); err != nil {
					return err
				}
				s, err := runOnce(w, e, o.least)
				if err != nil {
					return fmt.Errorf("%s: %w", names[i], err)
				}
				if run > 0 { // the first one warms up
					samples[i] = append(samples[i], s)
				}
			}
		}
		reportPath(r, "path/"+strconv.Itoa(size)+"/", e, names, samples)
	}
	return nil
}

// runOnce runs w until that much time of the processor is over.
func runOnce(w way, e event, least time.Duration) (sample, error) {
	s := sample{parts: map[string]time.Duration{}}
	runtime.GC() // what was there before is not this one's garbage
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begun := processorTime()
	now, n := begun, time.Duration(0)
	lap := func(part string) {
		over := processorTime()
		s.parts[part] += over - now
		now = over
	}
	for ; n == 0 || now-begun < least; n++ {
		rows, err := w.run(e.payload, lap)
		if err != nil {
			return s, err
		}
		if rows != e.records {
			return s, fmt.Errorf("%d rows of %d records", rows, e.records)
		}
	}
	runtime.ReadMemStats(&after)
	s.total = (now - begun) / n
	for part := range s.parts {
		s.parts[part] /= n
	}
	s.allocs = float64(after.Mallocs-before.Mallocs) / float64(n)
	s.bytes = float64(after.TotalAlloc-before.TotalAlloc) / float64(n)
	return s, nil
}

// processorTime is what this process has used, in user and kernel mode.
func processorTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err) // the arguments are constants
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func reportPath(r *report, prefix string, e event, names []string, samples [][]sample) {
	r.add(prefix+"event_bytes", "bytes", []float64{float64(len(e.payload))})
	r.add(prefix+"records_per_event", "records", []float64{float64(e.records)})
	for i, name := range names {
		prefix := prefix + name + "/"
		of := func(figure, unit string, value func(sample) float64) {
			values := make([]float64, len(samples[i]))
			for k, s := range samples[i] {
				values[k] = value(s)
			}
			r.add(prefix+figure, unit, values)
		}
		records := float64(e.records)
		of("throughput", "MB/s", func(s sample) float64 { return float64(e.values) / 1e6 / s.total.Seconds() })
		of("records", "records/s", func(s sample) float64 { return records / s.total.Seconds() })
		of("time_per_record", "ns", func(s sample) float64 { return float64(s.total) / records })
		for _, part := range []string{"decode", "encode"} {
			if _, ok := samples[i][0].parts[part]; ok {
				of(part+"_per_record", "ns", func(s sample) float64 { return float64(s.parts[part]) / records })
			}
		}
		of("allocations_per_record", "", func(s sample) float64 { return s.allocs / records })
		of("allocated_per_record", "bytes", func(s sample) float64 { return s.bytes / records })
	}
	sink, idiomatic, floor := samples[0], samples[1], samples[2]
	r.add(prefix+"ratio_idiomatic_to_sink", "times", ratios(idiomatic, sink))
	r.add(prefix+"ratio_sink_to_floor", "times", ratios(sink, floor))
	r.printf("\n")
}

// ratios are those of the time, run by run.
func ratios(a, b []sample) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = float64(a[i].total) / float64(b[i].total)
	}
	return out
}
