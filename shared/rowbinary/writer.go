package rowbinary

import (
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"
	"unicode/utf8"

	"oncehouse/shared/kafka"
)

// Writer encodes records, one goroutine at a time. Its memory grows to what the
// largest record so far needed.
type Writer struct {
	encoder *Encoder
	unknown int64

	// src is the text that is being read: the record's value or key.
	src []byte
	// bad is the refusal of the record, once a function has returned -1.
	bad Refusal

	spans  []span         // where the members of the open objects are encoded, in dst
	cells  []span         // where the values of a Nested stand, in src
	slots  []span         // where the values of keys with dots stand, in src
	used   []int          // the slots in use
	extra  []unknownField // unknown fields to collect
	keys   []keyRef       // keys of the open objects, to tell doubles
	names  []byte         // keys without their escapes
	plain  []byte         // a string without its escapes
	pieces []byte         // a row on its way into the columns' order
	follow []uint16       // which member's key came behind which, last time
	zones  zoneSpan
	seed   maphash.Seed

	strict bool  // inside a JSON column
	types  int64 // that it keeps of a path here
	dots   bool  // a key with a dot was seen in a JSON column
	arrays int   // how many arrays are open in one value of a JSON column
	prefix int   // bytes of the path that leads to the open object
	paths  int   // bytes of all paths so far
}

type span struct{ start, end int }

// unknownField says where an unknown field stands in src: the key with its
// quotes, and the value.
type unknownField struct{ key, value span }

// NewWriter returns the memory that one goroutine encodes with.
func (e *Encoder) NewWriter() *Writer {
	w := &Writer{
		encoder: e,
		slots:   make([]span, e.slots),
		follow:  make([]uint16, e.follow),
		seed:    maphash.MakeSeed(),
	}
	return w
}

// Append appends the row of one record to dst. Unless the outcome is Stored, out
// is dst as it was. The refusal is nil unless the outcome is Refused. Nothing of
// rec is kept.
func (w *Writer) Append(dst []byte, topic string, partition int32, rec *kafka.Record) (out []byte, outcome Outcome, refusal *Refusal) {
	w.reset()
	at := provenance{topic: topic, partition: partition, record: rec}
	length, ok := len(dst), false
	switch e := w.encoder; {
	case rec.Value == nil && e.tombstones == TombstonesSkip:
		return dst, Skipped, nil
	case rec.Value == nil && e.tombstones == TombstonesLetter:
		w.bad = Refusal{Code: CodeTombstone, Message: "the record has no value (a tombstone)"}
	case rec.Value == nil:
		dst, ok = w.deletion(dst, &at)
	case e.row == nil:
		dst, ok = w.fill(dst, &at)
	default:
		dst, ok = w.document(dst, &at)
	}
	w.src = nil
	if !ok {
		bad := w.bad
		bad.Message = bad.where() + bad.Message
		return dst[:length], Refused, &bad
	}
	return dst, Stored, nil
}

// UnknownFields is the number of fields, of all records so far, that no column
// takes.
func (w *Writer) UnknownFields() int64 { return w.unknown }

func (w *Writer) reset() {
	w.bad = Refusal{}
	w.spans, w.cells, w.extra = w.spans[:0], w.cells[:0], w.extra[:0]
	w.keys, w.names = w.keys[:0], w.names[:0]
	for _, slot := range w.used {
		w.slots[slot] = span{}
	}
	w.used = w.used[:0]
	w.strict, w.dots = false, false
}

// document encodes a record whose value is a JSON object.
func (w *Writer) document(dst []byte, at *provenance) ([]byte, bool) {
	w.src = at.record.Value
	i := w.opening()
	if i < 0 {
		return dst, false
	}
	if dst, i = w.object(w.encoder.row, dst, i); i < 0 {
		return dst, false
	}
	if i = space(w.src, i); i != len(w.src) {
		w.refuse(CodeTrailingData, i, "something follows the object")
		return dst, false
	}
	return w.fill(dst, at)
}

// opening returns where the object begins.
func (w *Writer) opening() int {
	if len(w.src) == 0 {
		return w.refuse(CodeEmptyValue, 0, "the value has no bytes")
	}
	i := space(w.src, 0)
	if i == len(w.src) {
		return w.refuse(CodeNotJSON, 0, "the value is white space")
	}
	switch c := w.src[i]; {
	case c == '{':
		return i
	case strings.HasPrefix(unsafeString(w.src), "\ufeff"):
		return w.refuse(CodeNotJSON, 0, "the value begins with a byte order mark")
	case w.skip(i, 0) < 0:
		return -1
	}
	return w.refuse(CodeNotObject, i, "the value is not a JSON object")
}

// refuse notes why the record is refused; at is where in src. It returns -1, the
// index of every function that failed.
func (w *Writer) refuse(code Code, at int, reason string) int {
	w.bad = Refusal{Code: code, Message: reason}
	if value := w.valueAt(at); value != "" {
		w.bad.Message += ": " + value
	}
	return -1
}

// syntax refuses a text that is not JSON.
func (w *Writer) syntax(at int, reason string) int {
	if at >= len(w.src) {
		reason = "the text ends early: " + reason
	}
	w.bad = Refusal{Code: CodeNotJSON, Message: reason + " at byte " + strconv.Itoa(at)}
	if at < len(w.src) {
		w.bad.Message += ": " + excerpt(w.src[at:])
	}
	return -1
}

// valueAt shows the value at src[at:], if it is one; "" at the end.
func (w *Writer) valueAt(at int) string {
	value := w.src[min(at, len(w.src)):]
	if len(value) == 0 {
		return ""
	}
	switch value[0] {
	case '{', '[': // shown from its beginning
	case '"':
		for i := 1; i < len(value); i++ {
			switch value[i] {
			case '"':
				value = value[:i+1]
			case '\\':
				i++
			}
		}
	default:
		if end := strings.IndexAny(unsafeString(value), ",]} \t\r\n"); end > 0 {
			value = value[:end]
		}
	}
	return excerpt(value)
}

// under says that the refusal lies below a name or index of its path.
func (w *Writer) under(step string) {
	if w.bad.Path != "" && w.bad.Path[0] != '[' {
		step += "."
	}
	w.bad.Path = step + w.bad.Path
}

// where is the path as the beginning of a message.
func (r *Refusal) where() string {
	if r.Path == "" {
		return ""
	}
	return excerpt([]byte(r.Path)) + ": "
}

const excerptBytes = 64

// excerpt shows at most 64 bytes of a text, printable.
func excerpt(text []byte) string {
	cut := ""
	if len(text) > excerptBytes {
		end := excerptBytes
		for end > excerptBytes-utf8.UTFMax && !utf8.RuneStart(text[end]) {
			end--
		}
		text, cut = text[:end], "..."
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, "\\x%02x", text[i])
		case !strconv.IsPrint(r):
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		default:
			b.WriteRune(r)
		}
		i += size
	}
	return b.String() + cut
}
