package oracle

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"

	"oncehouse/infra/local/clickstream"
)

// record is one record as the generator makes it, with what its row must hold.
type record struct {
	click     clickstream.Click
	timestamp int64
	key       []byte
}

// column is one column of events/clicks.sql in ClickHouse's RowBinary: how long
// a value is, and what it must be. The expected bytes come from the generator
// alone, and the encoding here shares nothing with the sink's.
//
// https://clickhouse.com/docs/interfaces/formats/RowBinary
type column struct {
	name string
	read func(*rowReader)
	want func([]byte, *record) []byte
}

// columns are those of the table besides _topic, _partition and _offset, which
// say which record a row is of.
func columns() []column {
	return []column{
		{"event_id", fixed(16), func(b []byte, r *record) []byte { return appendUUID(b, r.click.EventID) }},
		{"user_id", fixed(8), func(b []byte, r *record) []byte { return binary.LittleEndian.AppendUint64(b, r.click.UserID) }},
		{"session", text, func(b []byte, r *record) []byte { return appendText(b, r.click.Session) }},
		{"url", text, func(b []byte, r *record) []byte { return appendText(b, r.click.URL) }},
		{"referrer", nullable, func(b []byte, r *record) []byte { return appendNullable(b, r.click.Referrer, r.click.Referrer == "") }},
		{"ts", fixed(8), func(b []byte, r *record) []byte { return appendInt64(b, r.click.Time.UnixMilli()) }},
		{"duration_ms", fixed(4), func(b []byte, r *record) []byte { return binary.LittleEndian.AppendUint32(b, r.click.DurationMS) }},
		{"price", fixed(8), func(b []byte, r *record) []byte { return appendInt64(b, r.click.PriceCents) }},
		{"tags", texts(1), func(b []byte, r *record) []byte {
			b = binary.AppendUvarint(b, uint64(len(r.click.Tags)))
			for _, tag := range r.click.Tags {
				b = appendText(b, tag)
			}
			return b
		}},
		{"props", texts(2), func(b []byte, r *record) []byte {
			b = binary.AppendUvarint(b, uint64(len(r.click.Props)))
			for _, p := range r.click.Props {
				b = appendText(appendText(b, p.Name), p.Value)
			}
			return b
		}},
		{"_timestamp", fixed(8), func(b []byte, r *record) []byte { return appendInt64(b, r.timestamp) }},
		{"_key", nullable, func(b []byte, r *record) []byte { return appendNullable(b, string(r.key), r.key == nil) }},
	}
}

func appendInt64(b []byte, v int64) []byte { return binary.LittleEndian.AppendUint64(b, uint64(v)) }

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendNullable(b []byte, s string, null bool) []byte {
	if null {
		return append(b, 1)
	}
	return appendText(append(b, 0), s)
}

// appendUUID: ClickHouse keeps a UUID as two little-endian halves.
func appendUUID(b []byte, id [16]byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, binary.BigEndian.Uint64(id[:8]))
	return binary.LittleEndian.AppendUint64(b, binary.BigEndian.Uint64(id[8:]))
}

// rowReader takes values off a RowBinary stream. After an error it reads nothing.
type rowReader struct {
	in    *bufio.Reader
	value []byte // of the present column
	err   error
}

// maxText bounds a text: no column holds a longer one, so it is a torn stream.
const maxText = 16 << 20

func fixed(n int) func(*rowReader) { return func(r *rowReader) { r.take(n) } }

func text(r *rowReader) { r.take(int(min(r.length(), maxText))) }

func nullable(r *rowReader) {
	if r.take(1); r.err == nil && r.value[len(r.value)-1] == 0 {
		text(r)
	}
}

// texts is an array of so many texts per element.
func texts(each int) func(*rowReader) {
	return func(r *rowReader) {
		for n := r.length() * uint64(each); n > 0 && r.err == nil; n-- {
			text(r)
		}
	}
}

// take appends n bytes to the value.
func (r *rowReader) take(n int) {
	if r.err != nil {
		return
	}
	at := len(r.value)
	r.value = append(r.value, make([]byte, n)...)
	_, r.err = io.ReadFull(r.in, r.value[at:])
}

// length reads a variable-length number and appends it to the value.
func (r *rowReader) length() uint64 {
	if r.err != nil {
		return 0
	}
	var n uint64
	n, r.err = binary.ReadUvarint(r.in)
	r.value = binary.AppendUvarint(r.value, n)
	return n
}

// RowQuery selects what Checker.Rows reads, from a table.
const RowQuery = "SELECT _topic, _partition, _offset, event_id, user_id, session, url, referrer, ts, duration_ms, price, tags, props, _timestamp, _key FROM %s FORMAT RowBinary"

// readRows hands every row of a RowBinary stream to see, which must not keep
// the values. Error: the stream is not whole.
func readRows(in io.Reader, see func(topic string, partition int32, offset int64, values [][]byte)) error {
	r := &rowReader{in: bufio.NewReaderSize(in, 1<<20)}
	all := columns()
	ends := make([]int, len(all))
	values := make([][]byte, len(all))
	for {
		if _, err := r.in.Peek(1); err == io.EOF {
			return nil
		}
		r.value = r.value[:0]
		n := int(min(r.length(), maxText))
		head := len(r.value)
		r.take(n + 4 + 8)
		for i, c := range all {
			if r.err != nil {
				return fmt.Errorf("read the rows: %w", r.err)
			}
			c.read(r)
			ends[i] = len(r.value)
		}
		if r.err != nil {
			return fmt.Errorf("read the rows: %w", r.err)
		}
		begin := head + n + 4 + 8
		for i, end := range ends {
			values[i], begin = r.value[begin:end], end
		}
		see(string(r.value[head:head+n]),
			int32(binary.LittleEndian.Uint32(r.value[head+n:])), int64(binary.LittleEndian.Uint64(r.value[head+n+4:])), values)
	}
}
