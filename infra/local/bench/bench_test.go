package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/engine/enginetest"
	"oncehouse/infra/local/repository"
	"oncehouse/shared/rowbinary"
)

// TestMain lets the stack run the engine from this program.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "engine" {
		if err := run(context.Background(), os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// figures are all that bench.json promises.
func figures() []string {
	names := []string{
		"wire/binary_size", "wire/event_bytes", "wire/events_per_run",
		"wire/ratio_exactly_once_to_at_least_once", "wire/ratio_exactly_once_to_at_least_once_processor",
		"wire/memory/300_first_event", "wire/memory/300", "wire/memory/1600_first_event", "wire/memory/1600",
		"wire/cold/init", "wire/cold/first_invocation", "wire/cold/first_insert", "wire/cold/first_answer",
		"wire/ledger/read", "wire/ledger/write",
	}
	for _, guarantee := range []string{"exactly_once", "at_least_once"} {
		for _, f := range []string{"rows", "duration", "encode_ms", "insert_ms", "ledger_ms", "rest", "processor", "memory"} {
			names = append(names, "wire/"+guarantee+"/"+f)
		}
	}
	for _, size := range []string{"300", "1600"} {
		prefix := "path/" + size + "/"
		names = append(names, prefix+"event_bytes", prefix+"records_per_event", prefix+"ratio_idiomatic_to_sink", prefix+"ratio_sink_to_floor")
		for _, way := range []string{"sink", "idiomatic", "floor"} {
			for _, f := range []string{"throughput", "records", "time_per_record", "allocations_per_record", "allocated_per_record"} {
				names = append(names, prefix+way+"/"+f)
			}
			if way != "floor" {
				names = append(names, prefix+way+"/decode_per_record", prefix+way+"/encode_per_record")
			}
		}
	}
	for _, way := range []string{"oncehouse", "delete", "mark"} {
		for _, f := range append([]string{"rows", "latency_median", "latency_p99", "dead_rows", "wal_per_100k_rows"}, outboxParts(way)...) {
			names = append(names, "outbox/"+way+"/"+f)
		}
	}
	return append(names, "outbox/ratio_oncehouse_to_delete", "outbox/ratio_oncehouse_to_mark")
}

// mayBeNothing are figures that can be 0.
func mayBeNothing(name string) bool {
	return slices.Contains([]string{
		"wire/at_least_once/ledger_ms", "wire/at_least_once/rest", "wire/exactly_once/rest",
		"outbox/oncehouse/dead_rows", "outbox/oncehouse/rest", "outbox/oncehouse/flush", "outbox/oncehouse/wal_per_100k_rows",
	}, name) || strings.HasPrefix(name, "outbox/") && strings.Contains(name, "latency")
}

func TestEveryFigureIsMeasured(t *testing.T) {
	root, err := repository.Root()
	require.NoError(t, err)
	program, err := os.Executable()
	require.NoError(t, err)
	var out bytes.Buffer
	measured, err := measure(t.Context(), options{
		root: root, program: program, runs: 1, sizes: []int{300, 1600}, records: 200, least: time.Millisecond, out: &out,
		outbox: outboxSize{rows: 2000, steady: 300 * time.Millisecond, every: 10 * time.Millisecond},
	})
	require.NoError(t, err)

	text, err := json.Marshal(measured)
	require.NoError(t, err)
	var read report
	require.NoError(t, json.Unmarshal(text, &read))
	var names []string
	for _, f := range read.Figures {
		names = append(names, f.Name)
		require.LessOrEqual(t, f.Min, f.Median, f.Name)
		require.LessOrEqual(t, f.Median, f.Max, f.Name)
		require.Positive(t, f.Runs, f.Name)
		require.Contains(t, out.String(), f.Name)
		if !mayBeNothing(f.Name) {
			require.Positive(t, f.Max, f.Name)
		}
	}
	// On a quick machine 200 records may take less than a tick of /proc.
	optional := func(name string) bool {
		return filepath.Base(name) == "processor" || name == "wire/ratio_exactly_once_to_at_least_once_processor"
	}
	require.ElementsMatch(t, slices.DeleteFunc(figures(), optional), slices.DeleteFunc(names, optional))
	require.Len(t, read.Targets, len(targets()), "every target has its figure")
	require.NotEqual(t, "unknown", read.Machine.Commit)
	require.NotZero(t, read.Machine.Cores)
}

// TestWaysStoreTheSame inserts what the sink and the idiomatic way made of one
// event and looks for a row that only one of the tables has.
func TestWaysStoreTheSame(t *testing.T) {
	root, err := repository.Root()
	require.NoError(t, err)
	columns, err := readColumns(root)
	require.NoError(t, err)
	s := &server{url: enginetest.Run(t).URL()}
	for _, size := range []int{300, 1600} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			e, err := newEvent(size, partitions, 40, 300)
			require.NoError(t, err)
			sink, err := newSinkWay(columns)
			require.NoError(t, err)
			idiomatic, err := newIdiomaticWay(columns)
			require.NoError(t, err)
			floor := &floorWay{}
			for _, w := range []way{sink, idiomatic, floor} {
				rows, err := w.run(e.payload, func(string) {})
				require.NoError(t, err)
				require.Equal(t, e.records, rows)
			}
			require.Len(t, floor.body, e.values)

			for table, insert := range map[string]struct {
				format string
				body   []byte
			}{"sink": {"RowBinaryWithDefaults", sink.body}, "idiomatic": {"Native", idiomatic.body.Buf}} {
				_, err := s.query(t.Context(), "DROP TABLE IF EXISTS "+table+" SYNC", nil)
				require.NoError(t, err)
				require.NoError(t, s.createTable(t.Context(), root, table))
				_, err = s.query(t.Context(), "INSERT INTO "+table+" FORMAT "+insert.format, bytes.NewReader(insert.body))
				require.NoError(t, err)
			}
			ask := func(statement string) string {
				answer, err := s.query(t.Context(), statement+" FORMAT CSV", nil)
				require.NoError(t, err)
				return answer
			}
			require.Equal(t, "300,300", ask("SELECT (SELECT count() FROM sink), (SELECT count() FROM idiomatic)"))
			// A Go map has no order, so that the idiomatic way's Map columns have any.
			const rows = "SELECT * REPLACE (mapSort(props) AS props) FROM "
			require.Equal(t, "0", ask("SELECT count() FROM ("+rows+"sink EXCEPT "+rows+"idiomatic)"))
			require.Equal(t, "0", ask("SELECT count() FROM ("+rows+"idiomatic EXCEPT "+rows+"sink)"))
		})
	}
}

// TestEventIsAsLambdaSends: full, and never beyond a limit.
func TestEventIsAsLambdaSends(t *testing.T) {
	for _, size := range []int{300, 1600} {
		e, err := newEvent(size, partitions, 1_000_000, maxRecords)
		require.NoError(t, err)
		require.LessOrEqual(t, len(e.payload), maxPayload)
		require.LessOrEqual(t, e.records, maxRecords)
		require.True(t, e.records == maxRecords || len(e.payload) > maxPayload*98/100, "%d records, %d bytes", e.records, len(e.payload))
		require.Equal(t, e.records*size, e.values)
	}
	_, err := newEvent(10<<20, 1, 0, maxRecords)
	require.ErrorContains(t, err, "fits into an event")
}

func TestFigureIsTheMedian(t *testing.T) {
	r := &report{out: &bytes.Buffer{}}
	r.add("odd", "ms", []float64{9, 1, 2})
	r.add("even", "ms", []float64{4, 1, 3, 100})
	r.add("none", "ms", nil)
	require.Equal(t, []figure{
		{Name: "odd", Unit: "ms", Median: 2, Min: 1, Max: 9, Runs: 3},
		{Name: "even", Unit: "ms", Median: 3.5, Min: 1, Max: 100, Runs: 4},
	}, r.Figures)
}

func TestMissedTargetIsSaid(t *testing.T) {
	var out bytes.Buffer
	r := &report{out: &out}
	r.add("wire/cold/first_insert", "ms", []float64{151})
	r.add("path/1600/sink/throughput", "MB/s", []float64{150})
	r.add("wire/memory/300", "MiB", []float64{40, 40, math.Nextafter(64, 65)})
	r.judge()
	require.Contains(t, out.String(), "target missed wire/cold/first_insert: the median is 151.0, should be at most 150.0 ms\n")
	require.Contains(t, out.String(), "target met    path/1600/sink/throughput: the median is 150.0, should be at least 150.0 MB/s\n")
	require.Contains(t, out.String(), "target missed wire/memory/300: the highest is 64.00, should")
	require.Len(t, r.Targets, 3)
}

func TestProcessorTimeIsRead(t *testing.T) {
	parent, used, ok := parseStat("42 (a) b) S 7 42 42 0 -1 4194560 100 0 0 0 150 25 0 0 20 0 9 0 100 1 2")
	require.True(t, ok)
	require.Equal(t, 7, parent)
	require.Equal(t, 1750*time.Millisecond, used)
	_, _, ok = parseStat("42 (cut")
	require.False(t, ok)
}

func TestIdiomaticWayWantsItsColumns(t *testing.T) {
	_, err := newIdiomaticWay([]rowbinary.Column{{Name: "event_id", Type: "UUID"}})
	require.ErrorContains(t, err, "this way appends")
}
