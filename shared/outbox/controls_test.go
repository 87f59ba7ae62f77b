package outbox_test

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"

	"oncehouse/shared/delivery"
	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/memory"
)

// noPlan forgets what aborted attempts had planned.
type noPlan struct{ outbox.Log }

func (l noPlan) Open(ctx context.Context) (outbox.Standing, error) {
	standing, err := l.Log.Open(ctx)
	standing.Plan = nil
	return standing, err
}

// counters writes positions that count the rows of a window, one after the other
// in each partition, in place of their seq.
type counters struct {
	outbox.Log
	s *simulation
}

func (l *counters) Commit(ctx context.Context, t outbox.Transaction) error {
	count := map[string]int{}
	for i := range t.Records {
		for j := range t.Records[i].Headers {
			h := &t.Records[i].Headers[j]
			if h.Key == delivery.HeaderSource {
				if _, ok := count[string(h.Value)]; !ok {
					count[string(h.Value)] = l.s.published(&t.Records[i], string(h.Value), t.Cursor.Window)
				}
				count[string(h.Value)]++
				t.Records[i].Headers[j+1].Value = fmt.Appendf(nil, "%d.%d", t.Cursor.Window, count[string(h.Value)])
			}
		}
	}
	return l.Log.Commit(ctx, t)
}

// published is how many records of a window of a source are committed.
func (s *simulation) published(r *outbox.Record, source string, window int64) int {
	committed, _ := s.kafka.Read(r.Topic, r.Partition, 0, true)
	n := 0
	for i := range committed {
		from, _ := committed[i].FindHeader(delivery.HeaderSource)
		at, _ := committed[i].FindHeader(delivery.HeaderPosition)
		if string(from) == source && strings.HasPrefix(string(at), strconv.FormatInt(window, 10)+".") {
			n++
		}
	}
	return n
}

// seqCursor takes what is visible above the last seq. In its "snapshots" stands a
// seq in place of transaction ids.
type seqCursor struct{ *memory.Table }

func (c seqCursor) Snapshot(ctx context.Context) (outbox.Snapshot, error) {
	now, err := c.Table.Snapshot(ctx)
	last := int64(0)
	for _, row := range c.DB.Committed() {
		last = row.Seq
	}
	now.Text = fmt.Sprintf("%d:%d:", last, last)
	return now, err
}

func (c seqCursor) Rows(ctx context.Context, w outbox.Window, after int64) iter.Seq2[outbox.Row, error] {
	return func(yield func(outbox.Row, error) bool) {
		for row, err := range c.Table.Rows(ctx, outbox.Window{To: c.DB.Snapshot().Text}, after) {
			if err == nil && (row.Seq <= number(w.From) || row.Seq > number(w.To)) {
				continue
			}
			if !yield(row, err) {
				return
			}
		}
	}
}

func number(snapshot string) int64 {
	first, _, _ := strings.Cut(snapshot, ":")
	n, _ := strconv.ParseInt(first, 10, 64) // the beginning is 0
	return n
}

// xidCursor takes the transactions below the oldest that runs, in the order of
// (xid, seq): it makes one number of the two.
type xidCursor struct{ *memory.Table }

func (c xidCursor) Snapshot(ctx context.Context) (outbox.Snapshot, error) {
	now, err := c.Table.Snapshot(ctx)
	now.Text, now.LastSeq = fmt.Sprintf("%d:%d:", number(now.Text), number(now.Text)), math.MaxInt64
	return now, err
}

func (c xidCursor) Rows(ctx context.Context, w outbox.Window, after int64) iter.Seq2[outbox.Row, error] {
	return func(yield func(outbox.Row, error) bool) {
		var rows []outbox.Row
		for row, err := range c.Table.Rows(ctx, w, 0) {
			if err != nil {
				yield(row, err)
				return
			}
			row.Seq += int64(c.DB.XID(row.Seq)) << 32
			rows = append(rows, row)
		}
		slices.SortFunc(rows, func(a, b outbox.Row) int { return cmp.Compare(a.Seq, b.Seq) })
		for _, row := range rows {
			if row.Seq > after && !yield(row, nil) {
				return
			}
		}
	}
}

// unflushed uses snapshots that may not be on disk.
type unflushed struct{ *memory.Table }

func (unflushed) Flushed(context.Context, outbox.Snapshot) error { return nil }
