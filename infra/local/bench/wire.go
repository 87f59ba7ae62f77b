package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"oncehouse/infra/local/lambdahost"
	"oncehouse/infra/local/stack"
	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	"oncehouse/shared/ledger/dynamo"
)

const (
	// wireSize is the size of the wire's records, in bytes.
	wireSize = 300
	// inARow is how many events a process gets whose memory is looked at.
	inARow = 5
	// ledgerCalls is how many reads and writes the ledger is timed with.
	ledgerCalls = 100
	// coldRecords is the event of a cold start.
	coldRecords = 100
	// patience is the functions' time-out: a slow machine is measured too.
	patience = 5 * time.Minute
	// eventsPerRun of each guarantee: one event is too short to be a run.
	eventsPerRun = 4
)

// wire is the stack that is measured.
type wire struct {
	options
	stack  *stack.Stack
	dir    string // logs are in its directory log
	server *server
	report *report
}

// measureWire measures real processes, in a directory that is removed after.
func measureWire(ctx context.Context, o options, r *report) error {
	dir, err := os.MkdirTemp("", "oncehouse-bench-")
	if err != nil {
		return fmt.Errorf("make a directory for the stack: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	s, err := stack.Start(ctx, stack.Options{Root: o.root, Dir: dir, Program: o.program})
	if err != nil {
		return err
	}
	defer s.Stop()
	w := &wire{options: o, stack: s, dir: dir, server: &server{url: s.Engine.URL()}, report: r}
	for _, measure := range []func(context.Context) error{w.size, w.guarantees, w.memory, w.cold, w.ledger} {
		if err := measure(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (w *wire) size(context.Context) error {
	info, err := os.Stat(filepath.Join(w.root, ".build", "sink", "bootstrap"))
	if err != nil {
		return fmt.Errorf("look at the sink's binary: %w", err)
	}
	w.report.add("wire/binary_size", "MB", []float64{float64(info.Size()) / 1e6})
	return nil
}

// function starts a pipeline's function with a fresh table.
func (w *wire) function(ctx context.Context, name string, g delivery.Guarantee, settings map[string]string) (*function, error) {
	f := &function{name: name, table: "clicks_" + name}
	if err := w.server.createTable(ctx, w.root, f.table); err != nil {
		return nil, err
	}
	fn, _, err := w.stack.Function(stack.Pipeline{
		Name: name, Topic: topic, Table: f.table, Guarantee: g, Concurrency: 1, Timeout: patience, Settings: settings,
	})
	if err != nil {
		return nil, err
	}
	f.Function, f.log = fn, filepath.Join(w.dir, "log", "sink-"+name+".log")
	return f, nil
}

// function is one under measurement.
type function struct {
	*lambdahost.Function
	name, table, log string
}

// invoke hands an event over and wants success.
func (f *function) invoke(ctx context.Context, e event) (lambdahost.Result, error) {
	result, err := f.Invoke(ctx, e.payload)
	if err == nil && result.FunctionError != "" {
		err = fmt.Errorf("%s: %s", result.ErrorType, result.ErrorMessage)
	}
	if err != nil {
		return result, fmt.Errorf("function %s: %w", f.name, err)
	}
	return result, nil
}

// guarantees sends the same events through both, in turns.
func (w *wire) guarantees(ctx context.Context) error {
	both := make([]*function, 2)
	runs := [2][]*tally{}
	for i, g := range []delivery.Guarantee{delivery.ExactlyOnce, delivery.AtLeastOnce} {
		f, err := w.function(ctx, []string{"exactly_once", "at_least_once"}[i], g, nil)
		if err != nil {
			return err
		}
		defer f.Close()
		both[i] = f
	}
	next, payload, used := int64(0), 0, [2]time.Duration{}
	for run := range w.runs + 1 {
		pair := [2]*tally{{}, {}}
		for range eventsPerRun {
			e, err := newEvent(wireSize, 1, next, w.records)
			if err != nil {
				return err
			}
			for turn := range both {
				i := (turn + run) % 2 // who comes first finds colder caches
				result, err := both[i].invoke(ctx, e)
				if err != nil {
					return err
				}
				pair[i].add(e, result)
				pair[i].until = processorTimeOf(both[i].name)
			}
			next, payload = next+int64(e.records), len(e.payload)
		}
		for i := range pair {
			pair[i].processor, used[i] = pair[i].until-used[i], pair[i].until
			if run > 0 { // the first one is cold
				runs[i] = append(runs[i], pair[i])
			}
		}
	}
	w.report.add("wire/event_bytes", "bytes", []float64{float64(payload)})
	w.report.add("wire/events_per_run", "events", []float64{eventsPerRun})
	for i, f := range both {
		if err := w.server.holds(ctx, f.table, next); err != nil {
			return err
		}
		if err := w.reportTallies(f, runs[i]); err != nil {
			return err
		}
	}
	var durations, processor []float64
	for k, exactly := range runs[0] {
		atLeast := runs[1][k]
		durations = append(durations, float64(exactly.duration)/float64(atLeast.duration))
		if atLeast.processor > 0 {
			processor = append(processor, float64(exactly.processor)/float64(atLeast.processor))
		}
	}
	w.report.add("wire/ratio_exactly_once_to_at_least_once", "times", durations)
	w.report.add("wire/ratio_exactly_once_to_at_least_once_processor", "times", processor)
	w.report.printf("\n")
	return nil
}

// tally is what the events of one run took.
type tally struct {
	records  int
	duration time.Duration
	requests []string
	memoryMB int
	// processor is what the function's process used, until the reading of its
	// clock at the end; both 0 where the system does not tell.
	processor, until time.Duration
}

func (t *tally) add(e event, r lambdahost.Result) {
	t.records += e.records
	t.duration += r.Duration
	t.requests = append(t.requests, r.RequestID)
	t.memoryMB = r.MaxMemoryUsedMB
}

// reportTallies shows what an event takes, by the sink's own account.
func (w *wire) reportTallies(f *function, runs []*tally) error {
	lines, err := readSummaries(f.log)
	if err != nil {
		return err
	}
	values := map[string][]float64{}
	for _, t := range runs {
		n := float64(len(t.requests))
		whole := milliseconds(t.duration) / n
		rest := whole
		for _, part := range summaryParts {
			sum := 0.0
			for _, id := range t.requests {
				line, ok := lines[id]
				if !ok {
					return fmt.Errorf("%s has no summary line of request %s", f.log, id)
				}
				sum += line[part] / n
			}
			values[part] = append(values[part], sum)
			rest -= sum
		}
		values["rows"] = append(values["rows"], float64(t.records)/t.duration.Seconds())
		values["duration"] = append(values["duration"], whole)
		values["rest"] = append(values["rest"], rest)
		if t.processor > 0 {
			values["processor"] = append(values["processor"], milliseconds(t.processor)/n)
		}
	}
	prefix := "wire/" + f.name + "/"
	w.report.add(prefix+"rows", "rows/s", values["rows"])
	w.report.add(prefix+"duration", "ms/event", values["duration"])
	for _, part := range summaryParts {
		w.report.add(prefix+part, "ms/event", values[part])
	}
	w.report.add(prefix+"rest", "ms/event", values["rest"])
	w.report.add(prefix+"processor", "ms/event", values["processor"])
	w.report.add(prefix+"memory", "MiB", []float64{float64(runs[len(runs)-1].memoryMB)})
	return nil
}

// memory looks at fresh processes that get events of 6 MB.
func (w *wire) memory(ctx context.Context) error {
	for _, size := range w.sizes {
		var first, after []float64
		next := int64(0)
		for run := range min(w.runs, 5) {
			f, err := w.function(ctx, "memory_"+strconv.Itoa(size)+"_"+strconv.Itoa(run), delivery.ExactlyOnce, nil)
			if err != nil {
				return err
			}
			peak := 0
			for i := range inARow {
				e, err := newEvent(size, 1, next, w.records)
				if err != nil {
					return err
				}
				result, err := f.invoke(ctx, e)
				if err != nil {
					return err
				}
				if peak = result.MaxMemoryUsedMB; i == 0 {
					first = append(first, float64(peak))
				}
				next += int64(e.records)
			}
			after = append(after, float64(peak))
			f.Close()
		}
		name := "wire/memory/" + strconv.Itoa(size)
		w.report.add(name+"_first_event", "MiB", first)
		w.report.add(name, "MiB", after)
	}
	return nil
}

// cold starts a process for each run and sends one small event.
func (w *wire) cold(ctx context.Context) error {
	proxy, err := startWatch(ctx, w.stack.Engine.URL())
	if err != nil {
		return err
	}
	defer proxy.close()
	var inits, invokes, inserts, answers []float64
	for run := range w.runs + 1 {
		f, err := w.function(ctx, "cold_"+strconv.Itoa(run), delivery.ExactlyOnce, map[string]string{"CLICKHOUSE_URL": proxy.url})
		if err != nil {
			return err
		}
		e, err := newEvent(wireSize, 1, 0, min(coldRecords, w.records))
		if err != nil {
			return err
		}
		proxy.forget()
		begun := time.Now()
		result, err := f.invoke(ctx, e)
		answered := time.Since(begun)
		f.Close()
		if err != nil {
			return err
		}
		inserted, ok := proxy.firstInsert()
		if !ok {
			return fmt.Errorf("function %s answered without an insert", f.name)
		}
		if run == 0 { // reads the binary from disk
			continue
		}
		inits = append(inits, milliseconds(result.InitDuration))
		invokes = append(invokes, milliseconds(result.Duration))
		inserts = append(inserts, milliseconds(inserted.Sub(begun)))
		answers = append(answers, milliseconds(answered))
	}
	w.report.add("wire/cold/init", "ms", inits)
	w.report.add("wire/cold/first_invocation", "ms", invokes)
	w.report.add("wire/cold/first_insert", "ms", inserts)
	w.report.add("wire/cold/first_answer", "ms", answers)
	return nil
}

// ledger times the emulator's part of exactly-once: a read and the conditional
// write of a lane's entry, over one connection that is kept.
func (w *wire) ledger(ctx context.Context) error {
	const table = "oncehouse-bench"
	if err := createLedger(ctx, w.stack.DynamoDB.Config(), table); err != nil {
		return err
	}
	l := dynamo.New(w.stack.DynamoDB.Config(), table)
	lane := delivery.Lane{Pipeline: "bench", Cluster: "local", TopicPartition: kafka.TopicPartition{Topic: topic}}
	var reads, writes []float64
	for range ledgerCalls {
		begun := time.Now()
		entry, err := l.Load(ctx, lane)
		if err != nil {
			return fmt.Errorf("read the ledger: %w", err)
		}
		read := time.Now()
		entry.Version++
		entry.Generation, entry.Guarantee, entry.Writer = 1, delivery.ExactlyOnce, strconv.FormatInt(entry.Version, 10)
		entry.Next = entry.Version * maxRecords
		if err := l.Write(ctx, lane, entry); err != nil {
			return fmt.Errorf("write the ledger: %w", err)
		}
		reads = append(reads, milliseconds(read.Sub(begun)))
		writes = append(writes, milliseconds(time.Since(read)))
	}
	w.report.add("wire/ledger/read", "ms", reads)
	w.report.add("wire/ledger/write", "ms", writes)
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
