// Package tabletest holds what every outbox.Table has to do, as tests: the real
// table and the one in memory pass the same.
//
//	func TestTable(t *testing.T) {
//		tabletest.Run(t, func(t *testing.T) tabletest.Subject { ... })
//	}
package tabletest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/outbox"
)

// Subject is an empty outbox table, and an application that writes into it.
type Subject struct {
	// Table is the table as the poller of a shard reads it.
	Table func(shard outbox.Shard) outbox.Table
	// Begin begins a transaction beside all others, and gives it its id.
	Begin func() Tx
	// Delete deletes a committed row.
	Delete func(seq int64)
}

// Tx is a transaction of the application.
type Tx interface {
	// Insert inserts rows with ID, types, AggregateID, Payload, Timestamp and one
	// Extra column, in this order, and returns their seqs.
	Insert(rows ...outbox.Row) []int64
	Commit()
	Rollback()
}

// Run runs every test on a table of its own.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	for name, test := range map[string]func(*testing.T, *world){
		"an empty table":                                              testEmpty,
		"values are as inserted":                                      testValues,
		"what is rolled back is nowhere":                              testRollback,
		"O5 a gap that is in flight comes in the window it ends":      testInFlight,
		"a window is what became visible in it":                       testWindows,
		"a window stays as it is, deleted rows aside":                 testWindowStays,
		"rows after a seq":                                            testAfter,
		"a caller that leaves early":                                  testLeaves,
		"O17 more rows than a page":                                   testMany,
		"each aggregate has one shard":                                testShards,
		"each value of another column has one shard":                  testShardsByType,
		"a context that is over is an error":                          testCancelled,
		"snapshots advance":                                           testSnapshots,
		"O1 O4 random schedules: nothing lost, doubled or misordered": testRandom,
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			test(t, &world{t: t, Subject: s, table: s.Table(outbox.Shard{Of: 1})})
		})
	}
}

// world is a subject with a hand for tests.
type world struct {
	Subject
	t     *testing.T
	table outbox.Table
	rows  int
}

// row is a row that no other is like.
func (w *world) row(aggregate string) outbox.Row {
	w.rows++
	n := w.rows
	trace := "trace-" + strconv.Itoa(n)
	return outbox.Row{
		ID: fmt.Sprintf("00000000-0000-4000-8000-%012d", n), AggregateType: "Order.Line", AggregateID: &aggregate, Type: "created",
		Payload: fmt.Appendf(nil, `{"n": %d}`, n), Timestamp: 1_700_000_000_000 + int64(n), Extra: []*string{&trace},
	}
}

// commit commits rows of an aggregate in a transaction of their own.
func (w *world) commit(aggregate string, n int) (seqs []int64) {
	tx := w.Begin()
	defer tx.Commit()
	var rows []outbox.Row
	for range n {
		rows = append(rows, w.row(aggregate))
	}
	return tx.Insert(rows...)
}

func (w *world) snapshot() string {
	w.t.Helper()
	s, err := w.table.Snapshot(w.t.Context())
	require.NoError(w.t, err)
	require.NoError(w.t, w.table.Flushed(w.t.Context(), s))
	return s.Text
}

func (w *world) read(table outbox.Table, from, to string, after int64) []outbox.Row {
	w.t.Helper()
	var rows []outbox.Row
	last := after
	for row, err := range table.Rows(w.t.Context(), outbox.Window{From: from, To: to}, after) {
		require.NoError(w.t, err)
		require.Greater(w.t, row.Seq, last, "the order of seq")
		last = row.Seq
		rows = append(rows, row)
	}
	return rows
}

// seqs are those of a window.
func (w *world) seqs(from, to string) []int64 {
	w.t.Helper()
	return seqsOf(w.read(w.table, from, to, 0))
}

func seqsOf(rows []outbox.Row) []int64 {
	var seqs []int64
	for _, row := range rows {
		seqs = append(seqs, row.Seq)
	}
	return seqs
}

func testEmpty(t *testing.T, w *world) {
	require.NoError(t, w.table.Check(t.Context()))
	require.Empty(t, w.seqs("", w.snapshot()))
}

func testValues(t *testing.T, w *world) {
	full := w.row("7")
	null := w.row("ü \x01 '\"")
	null.Payload, null.Extra = nil, []*string{nil}
	keyless := w.row("")
	keyless.AggregateID, keyless.Payload = nil, []byte{}
	tx := w.Begin()
	want := []outbox.Row{full, null, keyless}
	for i, seq := range tx.Insert(want...) {
		want[i].Seq = seq
	}
	tx.Commit()
	require.Equal(t, want, w.read(w.table, "", w.snapshot(), 0))
}

func testRollback(t *testing.T, w *world) {
	tx := w.Begin()
	tx.Insert(w.row("a"))
	s1 := w.snapshot()
	tx.Rollback()
	seqs := w.commit("a", 1)
	s2 := w.snapshot()
	require.Empty(t, w.seqs("", s1))
	require.Equal(t, seqs, w.seqs(s1, s2))
	require.Equal(t, seqs, w.seqs("", s2))
}

func testInFlight(t *testing.T, w *world) {
	early := w.Begin()
	seq1 := early.Insert(w.row("a"))[0]
	later := w.commit("b", 2)
	s1 := w.snapshot()
	require.Equal(t, later, w.seqs("", s1))
	seq2 := early.Insert(w.row("a"))[0]
	s2 := w.snapshot()
	require.Empty(t, w.seqs(s1, s2))
	early.Commit()
	s3 := w.snapshot()
	require.Equal(t, []int64{seq1, seq2}, w.seqs(s2, s3))
	require.Equal(t, []int64{seq1, seq2}, w.seqs(s1, s3))
	require.Equal(t, []int64{seq1, later[0], later[1], seq2}, w.seqs("", s3))
}

func testWindows(t *testing.T, w *world) {
	from := ""
	for n := range 5 {
		seqs := w.commit("a", n)
		to := w.snapshot()
		require.Equal(t, seqs, w.seqs(from, to))
		require.Empty(t, w.seqs(to, to))
		from = to
	}
}

func testWindowStays(t *testing.T, w *world) {
	open := w.Begin()
	open.Insert(w.row("b"))
	seqs := w.commit("a", 3)
	to := w.snapshot()
	open.Commit()
	w.commit("a", 2)
	require.Equal(t, seqs, w.seqs("", to))
	w.Delete(seqs[1])
	require.Equal(t, []int64{seqs[0], seqs[2]}, w.seqs("", to))
}

func testAfter(t *testing.T, w *world) {
	seqs := w.commit("a", 5)
	to := w.snapshot()
	for i, seq := range seqs {
		require.Equal(t, slices.Clone(seqs[i+1:]), append([]int64{}, seqsOf(w.read(w.table, "", to, seq))...))
	}
}

func testLeaves(t *testing.T, w *world) {
	seqs := w.commit("a", 5)
	to := w.snapshot()
	for range 3 {
		for row, err := range w.table.Rows(t.Context(), outbox.Window{To: to}, 0) {
			require.NoError(t, err)
			require.Equal(t, seqs[0], row.Seq)
			break
		}
	}
	require.Equal(t, seqs, w.seqs("", to))
}

func testMany(t *testing.T, w *world) {
	early := w.Begin()
	held := early.Insert(w.row("held"))
	s1 := w.snapshot()
	var want []int64
	for range 9 {
		want = append(want, w.commit("a", 1000)...)
		held = append(held, early.Insert(w.row("held"))...)
	}
	s2 := w.snapshot()
	require.Equal(t, want, w.seqs("", s2))
	require.Equal(t, want, w.seqs(s1, s2))
	early.Commit()
	s3 := w.snapshot()
	require.Equal(t, held, w.seqs(s2, s3))
	want = append(want, held...)
	slices.Sort(want)
	require.Equal(t, want, w.seqs(s1, s3))
}

func testShards(_ *testing.T, w *world) {
	w.requireShards("", func(i int) outbox.Row {
		row := w.row(strconv.Itoa(i % 100))
		if i%10 == 0 {
			row.AggregateID = nil
		}
		return row
	}, func(row outbox.Row) *string { return row.AggregateID })
}

func testShardsByType(_ *testing.T, w *world) {
	w.requireShards("type", func(i int) outbox.Row {
		row := w.row(strconv.Itoa(i % 100))
		row.Type = *row.AggregateID
		return row
	}, func(row outbox.Row) *string { return &row.Type })
}

// requireShards wants each row in one shard, and all rows of a key in the same; nil
// is no key.
func (w *world) requireShards(by string, row func(i int) outbox.Row, key func(outbox.Row) *string) {
	t := w.t
	t.Helper()
	const shards = 3
	tx := w.Begin()
	var rows []outbox.Row
	for i := range 300 {
		rows = append(rows, row(i))
	}
	want := tx.Insert(rows...)
	tx.Commit()
	to := w.snapshot()
	owner := map[string]int{}
	var got []int64
	for shard := range shards {
		rows := w.read(w.Table(outbox.Shard{Index: shard, Of: shards, By: by}), "", to, 0)
		require.NotEmpty(t, rows, "shard %d", shard)
		got = append(got, seqsOf(rows)...)
		for _, row := range rows {
			value := key(row)
			if value == nil {
				continue
			}
			if first, known := owner[*value]; known {
				require.Equal(t, first, shard, "key %s", *value)
			}
			owner[*value] = shard
		}
	}
	slices.Sort(got)
	require.Equal(t, want, got)
}

// A stream that ends early must not look like one that is complete.
func testCancelled(t *testing.T, w *world) {
	w.commit("a", 3)
	to := w.snapshot()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var failure error
	for _, err := range w.table.Rows(ctx, outbox.Window{To: to}, 0) {
		failure = err
	}
	require.ErrorIs(t, failure, context.Canceled)
	_, err := w.table.Snapshot(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, w.seqs("", to), 3)
}

func testSnapshots(t *testing.T, w *world) {
	before, err := w.table.Snapshot(t.Context())
	require.NoError(t, err)
	require.NotZero(t, before.SystemID)
	require.NotZero(t, before.Timeline)
	require.NotZero(t, before.TableOID)
	require.Zero(t, before.LastSeq)
	seqs := w.commit("a", 2)
	after, err := w.table.Snapshot(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, before.Text, after.Text)
	require.Equal(t, before.Identity, after.Identity)
	require.Equal(t, seqs[1], after.LastSeq)
	require.Greater(t, after.LSN, before.LSN)
	require.NoError(t, w.table.Flushed(t.Context(), after))
}

// Transactions interleave at random, each aggregate locked by one at a time, as
// a row of the application is; windows are cut anywhere.
func testRandom(t *testing.T, w *world) {
	for seed := range uint64(3) {
		random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a seed makes the same schedule again
		s := schedule{world: w, random: random, locked: map[string]bool{}, from: w.snapshot()}
		for range 300 {
			s.step()
		}
		for len(s.open) > 0 {
			s.end()
		}
		s.cut()
		require.ElementsMatch(t, s.committed, s.got, "seed %d", seed)
		last := map[string]int64{}
		for _, e := range s.delivered {
			require.Greater(t, e.seq, last[e.aggregate], "seed %d: aggregate %s", seed, e.aggregate)
			last[e.aggregate] = e.seq
		}
	}
}

type event struct {
	aggregate string
	seq       int64
}

type running struct {
	tx     Tx
	events []event
}

type schedule struct {
	*world
	random    *rand.Rand
	open      []*running
	locked    map[string]bool
	from      string
	committed []int64
	got       []int64
	delivered []event
}

func (s *schedule) step() {
	switch s.random.IntN(10) {
	case 0, 1:
		if len(s.open) < 8 {
			s.open = append(s.open, &running{tx: s.Begin()})
		}
	case 2, 3:
		if len(s.open) > 0 {
			s.end()
		}
	case 4:
		s.cut()
	default:
		s.insert()
	}
}

func (s *schedule) insert() {
	aggregate := strconv.Itoa(s.random.IntN(12))
	if len(s.open) == 0 {
		return
	}
	r := s.open[s.random.IntN(len(s.open))]
	mine := slices.ContainsFunc(r.events, func(e event) bool { return e.aggregate == aggregate })
	if s.locked[aggregate] && !mine {
		return
	}
	s.locked[aggregate] = true
	r.events = append(r.events, event{aggregate, r.tx.Insert(s.row(aggregate))[0]})
}

func (s *schedule) end() {
	i := s.random.IntN(len(s.open))
	r := s.open[i]
	s.open = slices.Delete(s.open, i, i+1)
	if s.random.IntN(4) == 0 {
		r.tx.Rollback()
	} else {
		r.tx.Commit()
		for _, e := range r.events {
			s.committed = append(s.committed, e.seq)
		}
	}
	for _, e := range r.events {
		s.locked[e.aggregate] = false
	}
}

func (s *schedule) cut() {
	to := s.snapshot()
	for _, row := range s.read(s.table, s.from, to, 0) {
		s.got = append(s.got, row.Seq)
		s.delivered = append(s.delivered, event{*row.AggregateID, row.Seq})
	}
	s.from = to
}
