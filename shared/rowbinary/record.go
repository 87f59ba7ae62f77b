package rowbinary

import (
	"strconv"
	"unicode/utf8"

	"oncehouse/shared/kafka"
)

// provenance is what is known of a record besides its value.
type provenance struct {
	topic     string
	partition int32
	record    *kafka.Record
	deletion  bool
}

// source is a column that is filled from something else than a key of the value.
type source struct {
	name string
	from origin
	typ  *node
	// exactly: a null key or an absent timestamp is refused where the column
	// cannot say NULL. Without it, as for provenance, an absent key is empty, as
	// the Kafka table engine's _key is.
	exactly bool
}

type origin uint8

const (
	fromTopic origin = iota + 1
	fromPartition
	fromOffset
	fromTimestamp
	fromKey
	fromValue
	fromHeaders
	fromUnknown // the overflow column
	fromDeletion
)

// fill encodes the columns that are not filled by keys.
func (w *Writer) fill(dst []byte, at *provenance) ([]byte, bool) {
	for k := range w.encoder.sources {
		s := &w.encoder.sources[k]
		var ok bool
		if dst, ok = w.source(s, dst, at); !ok {
			w.under(s.name)
			w.bad.Column = s.name
			return dst, false
		}
	}
	return dst, true
}

func (w *Writer) source(s *source, dst []byte, at *provenance) ([]byte, bool) {
	rec := at.record
	switch s.from {
	case fromTopic:
		return appendText(present(s, dst), []byte(at.topic)), true
	case fromPartition:
		return w.integer(s, dst, int64(at.partition))
	case fromOffset:
		return w.integer(s, dst, rec.Offset)
	case fromTimestamp:
		return w.timestamp(s, dst, rec.Timestamp)
	case fromKey:
		return w.bytes(s, dst, rec.Key)
	case fromValue:
		return w.bytes(s, dst, rec.Value)
	case fromHeaders:
		return appendHeaders(present(s, dst), rec.Headers), true
	case fromUnknown:
		return w.collected(s, present(s, dst))
	}
	deleted := byte(0)
	if at.deletion {
		deleted = 1
	}
	return append(present(s, dst), deleted), true
}

// present begins a value that is there: no default, no NULL.
func present(s *source, dst []byte) []byte {
	dst = append(dst, 0)
	if s.typ.nullable {
		dst = append(dst, 0)
	}
	return dst
}

// nothing encodes that there is no value, unless that must be refused.
func (w *Writer) nothing(s *source, dst []byte) ([]byte, bool) {
	switch {
	case s.typ.nullable:
		return append(dst, 0, 1), true
	case s.exactly && !w.encoder.nullAsDefault:
		w.bad = Refusal{Code: CodeNull, Message: "null, and " + s.typ.typ + " is not Nullable"}
		return dst, false
	}
	return append(dst, 1), true
}

func (w *Writer) bytes(s *source, dst, text []byte) ([]byte, bool) {
	if text == nil {
		return w.nothing(s, dst)
	}
	return appendText(present(s, dst), text), true
}

func (w *Writer) integer(s *source, dst []byte, v int64) ([]byte, bool) {
	if v < 0 && s.typ.min.isZero() || uint64(max(v, 0)) > s.typ.max[0] && s.typ.size < 8 {
		w.bad = Refusal{Code: CodeOutOfRange, Message: "out of range for " + s.typ.typ + ": " + strconv.FormatInt(v, 10)}
		return dst, false
	}
	if v < 0 {
		return wide{uint64(-v)}.appendTo(present(s, dst), s.typ.size, true), true
	}
	return wide{uint64(v)}.appendTo(present(s, dst), s.typ.size, false), true
}

// millis is the number of ticks of a Kafka timestamp in a second.
const millis = 1000

func (w *Writer) timestamp(s *source, dst []byte, ms int64) ([]byte, bool) {
	if ms < 0 {
		return w.nothing(s, dst) // Kafka's "none" is -1
	}
	if s.typ.op == opInt {
		return w.integer(s, dst, ms)
	}
	ticks := ms % millis
	for range s.typ.scale - 3 {
		ticks *= 10
	}
	if s.typ.scale < 3 {
		part := pow10(3 - s.typ.scale)
		if ticks%part != 0 && !s.typ.truncate {
			w.bad = Refusal{Code: CodeFractionLost, Message: "milliseconds that " + s.typ.typ + " does not hold: " + strconv.FormatInt(ms, 10)}
			return dst, false
		}
		ticks /= part
	}
	dst, fault := w.encodeTicks(s.typ, present(s, dst), ms/millis, ticks)
	if fault.code != "" {
		w.bad = Refusal{Code: fault.code, Message: fault.reason + ": " + strconv.FormatInt(ms, 10)}
	}
	return dst, fault.code == ""
}

// appendHeaders encodes headers as the Array of pairs that a Map is too; order
// and repeats stay.
func appendHeaders(dst []byte, headers []kafka.Header) []byte {
	dst = appendLength(dst, len(headers))
	for k := range headers {
		dst = appendText(dst, headers[k].Key)
		dst = appendText(dst, headers[k].Value)
	}
	return dst
}

// collected encodes the unknown fields of the record.
func (w *Writer) collected(s *source, dst []byte) ([]byte, bool) {
	if s.typ.op == opMap {
		dst = appendLength(dst, len(w.extra))
		for _, f := range w.extra {
			w.plain = appendUnescaped(w.plain[:0], w.src[f.key.start+1:f.key.end-1])
			dst = appendText(dst, w.plain)
			dst = appendText(dst, w.src[f.value.start:f.value.end])
		}
		return dst, true
	}
	w.pieces = append(w.pieces[:0], '{')
	for k, f := range w.extra {
		if k > 0 {
			w.pieces = append(w.pieces, ',')
		}
		w.pieces = append(w.pieces, w.src[f.key.start:f.key.end]...)
		w.pieces = append(w.pieces, ':')
		w.pieces = append(w.pieces, w.src[f.value.start:f.value.end]...)
	}
	w.pieces = append(w.pieces, '}')
	if s.typ.op == opJSON {
		src := w.src
		w.src = w.pieces
		end := w.json(s.typ, 0)
		w.src = src
		if end < 0 {
			return dst, false
		}
	}
	return appendText(dst, w.pieces), true
}

// deletion encodes the row of a tombstone.
func (w *Writer) deletion(dst []byte, at *provenance) ([]byte, bool) {
	at.deletion = true
	w.src = at.record.Key
	if at.record.Key == nil {
		w.bad = Refusal{Code: CodeBadKey, Message: "a tombstone without a key says nothing about what is deleted"}
		return dst, false
	}
	e := w.encoder
	f := w.open(e.row, dst)
	f.deletion = true
	var i int
	if e.keyFormat == KeyJSON {
		dst, i = w.keyObject(&f, dst)
	} else {
		dst, i = w.keyColumn(&f, dst)
	}
	if i < 0 {
		w.under("key")
		return dst, false
	}
	for _, m := range e.keyMembers {
		if w.spans[f.base+m].end == 0 {
			w.bad = Refusal{Code: CodeMissing, Message: "the record's key has no key for it"}
			w.inMember(e.row, m)
			return dst, false
		}
	}
	if dst, i = w.close(&f, dst, i); i < 0 {
		return dst, false
	}
	return w.fill(dst, at)
}

// keyObject reads the record's key as a JSON object of the key columns.
func (w *Writer) keyObject(f *frame, dst []byte) ([]byte, int) {
	i := w.opening()
	if i < 0 {
		return dst, -1
	}
	if dst, i = w.fields(f, &w.encoder.keyKeys, dst, i); i < 0 {
		return dst, -1
	}
	if i = space(w.src, i); i != len(w.src) {
		return dst, w.refuse(CodeTrailingData, i, "something follows the object")
	}
	return dst, i
}

// keyColumn takes the record's key as the text of the one key column.
func (w *Writer) keyColumn(f *frame, dst []byte) ([]byte, int) {
	m := w.encoder.keyMembers[0]
	typ := f.o.members[m].typ
	if !utf8.Valid(w.src) {
		w.bad = Refusal{Code: CodeInvalidUTF8, Message: "bytes that are not UTF-8: " + excerpt(w.src)}
		return dst, w.inMember(f.o, m)
	}
	dst = w.skipTo(f, dst, m)
	start := len(dst)
	dst = append(dst, 0)
	if typ.nullable {
		dst = append(dst, 0)
	}
	dst, fault := w.encodeText(typ, dst, w.src)
	if fault.code != "" {
		w.bad = Refusal{Code: fault.code, Message: fault.reason + ": " + excerpt(w.src)}
		return dst, w.inMember(f.o, m)
	}
	w.spans[f.base+m] = span{start, len(dst)}
	return dst, 0
}
