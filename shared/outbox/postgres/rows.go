package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"strconv"

	"github.com/jackc/pgx/v5"

	"oncehouse/shared/outbox"
)

const (
	// pageBytes is how much stored payload a page asks for. PostgreSQL may have
	// compressed it.
	pageBytes = 8 << 20
	// pageMost is how much a page may hold in truth before it is cut off.
	pageMost = 32 << 20
)

// start is the snapshot that sees nothing: 1 is no transaction of any table.
const start = "1:1:"

// stretch is a part of a window: the rows with seq in (after, through], of which
// those that are not of transactions that S1 saw running have an xid in
// [first, last].
type stretch struct {
	after, through int64
	rows           int64
	first, last    uint64
}

// Rows implements outbox.Table.
func (t *Table) Rows(ctx context.Context, w outbox.Window, after int64) iter.Seq2[outbox.Row, error] {
	if w.From == "" {
		w.From = start
	}
	return func(yield func(outbox.Row, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		pages := make(chan []outbox.Row)
		var failure error
		go func() {
			defer close(pages)
			failure = t.read(ctx, w, after, pages)
		}()
		defer func() {
			cancel()
			for range pages { // until the reader has ended
			}
		}()
		for page := range pages {
			for i := range page {
				if !yield(page[i], nil) {
					return
				}
			}
		}
		if failure != nil { // written before pages was closed
			yield(outbox.Row{}, fmt.Errorf("read the rows of %s: %w", t.config.name(), failure))
		}
	}
}

// read sends the window's rows, page by page. While the caller works on one, the
// next is read; then it waits, with no query open.
func (t *Table) read(ctx context.Context, w outbox.Window, after int64, pages chan<- []outbox.Row) error {
	stretches, err := t.survey(ctx, w, after)
	if err != nil {
		return err
	}
	for _, s := range stretches {
		for more := true; more; {
			var page []outbox.Row
			if page, more, err = t.fetch(ctx, w, s); err != nil {
				return err
			}
			if len(page) == 0 {
				break
			}
			s.after = page[len(page)-1].Seq
			select {
			case pages <- page:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// survey divides the rows of a window into stretches of at most chartStep rows.
func (t *Table) survey(ctx context.Context, w outbox.Window, after int64) (stretches []stretch, err error) {
	err = t.with(ctx, func(conn *pgx.Conn, h history) error {
		l, err := t.currentLayout(ctx, conn, h)
		if err != nil {
			return err
		}
		rows, err := conn.Query(ctx, l.chart, w.From, w.To, after)
		if err != nil {
			return err
		}
		stretches = nil
		last := after
		var s stretch
		_, err = pgx.ForEachRow(rows, []any{&s.rows, &s.through, &s.first, &s.last}, func() error {
			s.after, last = last, s.through
			if n := len(stretches); n > 0 && stretches[n-1].rows+s.rows <= chartStep {
				stretches[n-1] = stretches[n-1].join(s)
			} else {
				stretches = append(stretches, s)
			}
			return nil
		})
		return err
	})
	return stretches, err
}

// join is both, of which next follows s.
func (s stretch) join(next stretch) stretch {
	joined := stretch{after: s.after, through: next.through, rows: s.rows + next.rows, first: s.first, last: s.last}
	switch {
	case s.first > s.last: // none
		joined.first, joined.last = next.first, next.last
	case next.first <= next.last:
		joined.first, joined.last = min(s.first, next.first), max(s.last, next.last)
	}
	return joined
}

// fetch reads the first page of a stretch to its end. more: there may be others.
func (t *Table) fetch(ctx context.Context, w outbox.Window, s stretch) (page []outbox.Row, more bool, err error) {
	err = t.with(ctx, func(conn *pgx.Conn, h history) error {
		l, err := t.currentLayout(ctx, conn, h)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		rows, err := conn.Query(ctx, l.page, l.formats, w.From, w.To, s.after, s.through,
			strconv.FormatUint(s.first, 10), strconv.FormatUint(s.last, 10), int64(pageBytes))
		if err != nil {
			return err
		}
		defer rows.Close()
		// The same statement may have been prepared after an ALTER.
		for i, field := range rows.FieldDescriptions() {
			if field.DataTypeOID != l.oids[i] {
				return errChanged
			}
		}
		page, more = make([]outbox.Row, 0, s.rows), false
		size := 0
		for rows.Next() {
			var row outbox.Row
			row, more = decode(rows.RawValues())
			page = append(page, row)
			if size += len(row.Payload); size > pageMost {
				more = true
				cancel() // ends the query; the connection goes with it
				return nil
			}
		}
		return rows.Err()
	})
	return page, more, err
}

// decode copies a row out of the connection's buffer.
func decode(values [][]byte) (row outbox.Row, more bool) {
	row = outbox.Row{
		Seq:           int64(binary.BigEndian.Uint64(values[colSeq])),
		ID:            string(values[colID]),
		AggregateType: string(values[colAggregateType]),
		AggregateID:   optional(values[colAggregateID]),
		Type:          string(values[colType]),
		Payload:       bytes.Clone(values[colPayload]), // NULL stays nil
	}
	if ts := values[colTimestamp]; ts != nil {
		row.Timestamp = int64(binary.BigEndian.Uint64(ts))
	}
	if extra := values[colExtra:]; len(extra) > 0 {
		row.Extra = make([]*string, len(extra))
		for i, value := range extra {
			row.Extra[i] = optional(value)
		}
	}
	return row, values[colMore][0] != 0
}

func optional(value []byte) *string {
	if value == nil {
		return nil
	}
	s := string(value)
	return &s
}
