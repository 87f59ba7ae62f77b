package rowbinary

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"
)

// value encodes the value at i as n says.
func (w *Writer) value(n *node, dst []byte, i int) ([]byte, int) {
	src := w.src
	if i >= len(src) {
		return dst, w.syntax(i, "a value is expected")
	}
	c := src[i]
	switch {
	case c == 'n' && (n.nullable || n.op != opRaw):
		return w.null(n, dst, i)
	case n.nullable:
		dst = append(dst, 0)
	}
	switch n.op {
	case opString:
		if c == '"' {
			return w.string(dst, i)
		}
	case opInt, opDateTime, opDateTime64:
		if c != '"' {
			return w.short(n, dst, i)
		}
	case opRaw:
		end := w.skip(i, 0)
		if end < 0 {
			return dst, -1
		}
		return appendText(dst, src[i:end]), end
	case opBool:
		return w.boolean(n, dst, i)
	case opArray, opMap, opTuple, opUnnamed, opNested, opJSON:
		return w.composite(n, dst, i)
	}
	if c == '"' {
		return w.quoted(n, dst, i)
	}
	return w.number(n, dst, i)
}

func (w *Writer) null(n *node, dst []byte, i int) ([]byte, int) {
	end := w.literal(i, "null")
	switch {
	case end < 0:
		return dst, -1
	case !n.nullable:
		w.bad = Refusal{Code: CodeNull, Message: "null, and " + n.typ + " is not Nullable"}
		return dst, -1
	}
	return append(dst, 1), end
}

// string encodes the string at i as a String.
func (w *Writer) string(dst []byte, i int) ([]byte, int) {
	end, plain := w.text(i + 1)
	if end < 0 {
		return dst, -1
	}
	text := w.src[i+1 : end]
	if !plain {
		w.plain = appendUnescaped(w.plain[:0], text)
		text = w.plain
	}
	return appendText(dst, text), end + 1
}

func appendText(dst, text []byte) []byte {
	return append(appendLength(dst, len(text)), text...)
}

func appendLength(dst []byte, n int) []byte {
	if n < 0x80 {
		return append(dst, byte(n))
	}
	return binary.AppendUvarint(dst, uint64(n))
}

// quoted encodes the string at i as a type that is written as text.
func (w *Writer) quoted(n *node, dst []byte, i int) ([]byte, int) {
	end, plain := w.text(i + 1)
	if end < 0 {
		return dst, -1
	}
	text := w.src[i+1 : end]
	if !plain {
		w.plain = appendUnescaped(w.plain[:0], text)
		text = w.plain
	}
	dst, fault := w.encodeText(n, dst, text)
	if fault.code != "" {
		return dst, w.refuse(fault.code, i, fault.reason)
	}
	return dst, end + 1
}

// short encodes the integer at i, if it is one that fits 64 bits and is written
// without point and exponent; else number does.
func (w *Writer) short(n *node, dst []byte, i int) ([]byte, int) {
	src := w.src
	j := i
	negative := src[j] == '-'
	if negative {
		j++
	}
	first := j
	var v uint64
	for j < len(src) && j < first+18 && src[j]-'0' <= 9 {
		v = v*10 + uint64(src[j]-'0')
		j++
	}
	if j == first || src[first] == '0' && j > first+1 || j == first+18 ||
		j < len(src) && (src[j] == '.' || src[j]|0x20 == 'e') || n.op != opInt || n.size > 8 {
		return w.number(n, dst, i)
	}
	switch {
	case !negative && v <= n.max[0]:
	case negative && v <= n.min[0]:
		v = -v
	default:
		return dst, w.refuse(CodeOutOfRange, i, "out of range for "+n.typ)
	}
	switch n.size {
	case 1:
		return append(dst, byte(v)), j
	case 2:
		return binary.LittleEndian.AppendUint16(dst, uint16(v)), j
	case 4:
		return binary.LittleEndian.AppendUint32(dst, uint32(v)), j
	}
	return binary.LittleEndian.AppendUint64(dst, v), j
}

// number encodes the number at i; anything else there is of the wrong type.
func (w *Writer) number(n *node, dst []byte, i int) ([]byte, int) {
	if c := w.src[i]; c != '-' && (c < '0' || c > '9') {
		return w.wrong(n, dst, i)
	}
	end, _ := w.numberEnd(i)
	if end < 0 {
		return dst, -1
	}
	var fault fault
	switch n.op {
	case opInt, opDecimal:
		dst, fault = encodeExact(n, dst, w.src[i:end])
	case opFloat32, opFloat64, opBFloat16:
		dst, fault = encodeFloat(n, dst, w.src[i:end])
	case opDateTime, opDateTime64:
		dst, fault = w.encodeEpoch(n, dst, w.src[i:end])
	default:
		return w.wrong(n, dst, i)
	}
	if fault.code != "" {
		return dst, w.refuse(fault.code, i, fault.reason)
	}
	return dst, end
}

func (w *Writer) boolean(n *node, dst []byte, i int) ([]byte, int) {
	switch w.src[i] {
	case 't':
		return append(dst, 1), w.literal(i, "true")
	case 'f':
		return append(dst, 0), w.literal(i, "false")
	}
	return w.wrong(n, dst, i)
}

// wrong refuses a value whose kind the type does not take, unless it is not even
// JSON.
func (w *Writer) wrong(n *node, dst []byte, i int) ([]byte, int) {
	if w.skip(i, 0) < 0 {
		return dst, -1
	}
	return dst, w.refuse(CodeWrongType, i, "not a value that "+n.typ+" takes")
}

func (w *Writer) composite(n *node, dst []byte, i int) ([]byte, int) {
	c := w.src[i]
	switch {
	case n.op == opArray && c == '[':
		return w.array(n.elem, dst, i)
	case n.op == opMap && c == '{':
		return w.dictionary(n, dst, i)
	case n.op == opTuple && c == '{':
		return w.object(n.members, dst, i)
	case n.op == opUnnamed && c == '[':
		return w.unnamed(n, dst, i)
	case n.op == opNested && c == '[':
		return w.array(n.elem, dst, i)
	case n.op == opNested && c == '{':
		return w.columnar(n, dst, i)
	case n.op == opJSON && c == '{':
		end := w.json(n, i)
		if end < 0 {
			return dst, -1
		}
		return appendText(dst, w.src[i:end]), end
	}
	return w.wrong(n, dst, i)
}

// array encodes the array at i.
func (w *Writer) array(elem *node, dst []byte, i int) ([]byte, int) {
	start := len(dst)
	dst = append(dst, 0)
	i = space(w.src, i+1)
	if i < len(w.src) && w.src[i] == ']' {
		return dst, i + 1
	}
	n := 0
	for more := true; more; n++ {
		if dst, i = w.value(elem, dst, i); i < 0 {
			return dst, w.atIndex(n)
		}
		if i, more = w.next(i, ']'); i < 0 {
			return dst, -1
		}
	}
	return setLength(dst, start, n), i
}

// setLength writes n as the length whose first byte is at start, and moves what
// follows when it takes more than that byte.
func setLength(dst []byte, start, n int) []byte {
	if n < 0x80 {
		dst[start] = byte(n)
		return dst
	}
	var buf [binary.MaxVarintLen64]byte
	size := binary.PutUvarint(buf[:], uint64(n))
	dst = append(dst, buf[:size-1]...)
	copy(dst[start+size:], dst[start+1:len(dst)-size+1])
	copy(dst[start:], buf[:size])
	return dst
}

// unnamed encodes the array at i as a Tuple without names.
func (w *Writer) unnamed(n *node, dst []byte, i int) ([]byte, int) {
	start := i
	i = space(w.src, i+1)
	for k, elem := range n.unnamed {
		if i < len(w.src) && w.src[i] == ']' {
			return dst, w.refuse(CodeLength, start, "not as many elements as "+n.typ)
		}
		if dst, i = w.value(elem, dst, i); i < 0 {
			return dst, w.atIndex(k)
		}
		var more bool
		i, more = w.next(i, ']')
		switch last := k == len(n.unnamed)-1; {
		case i < 0:
			return dst, -1
		case more == last:
			return dst, w.refuse(CodeLength, start, "not as many elements as "+n.typ)
		}
	}
	return dst, i
}

// dictionary encodes the object at i as a Map.
func (w *Writer) dictionary(n *node, dst []byte, i int) ([]byte, int) {
	start := len(dst)
	dst = append(dst, 0)
	i = space(w.src, i+1)
	if i < len(w.src) && w.src[i] == '}' {
		return dst, i + 1
	}
	first, place, count := len(w.keys), len(w.cells), 0
	for more := true; more; count++ {
		key, behind := w.key(i)
		if behind < 0 {
			return dst, -1
		}
		w.remember(key)
		var fault fault
		begun := len(dst)
		if dst, fault = w.encodeText(n.key, dst, w.keyText(key)); fault.code != "" {
			return dst, w.refuse(fault.code, i, "as a key of "+n.typ+" "+fault.reason)
		}
		w.cells = append(w.cells, span{begun, len(dst)})
		if i = w.colon(behind); i < 0 {
			return dst, -1
		}
		if dst, i = w.value(n.elem, dst, i); i < 0 {
			w.under("[" + strconv.Quote(string(w.keyText(key))) + "]")
			return dst, -1
		}
		if i, more = w.next(i, '}'); i < 0 {
			return dst, -1
		}
	}
	if !w.distinct(first) || n.key.manyForms() && !w.distinctKeys(n, dst, w.cells[place:]) {
		return dst, -1
	}
	w.cells = w.cells[:place]
	return setLength(dst, start, count), i
}

// manyForms reports whether different texts are one value of the type.
func (n *node) manyForms() bool {
	switch n.op {
	case opString, opInt, opBool, opEnum, opDate, opDate32, opIPv4:
		return false
	}
	return true
}

// distinctKeys checks that the keys of a Map, which are encoded at dst[at], differ.
func (w *Writer) distinctKeys(n *node, dst []byte, at []span) bool {
	slices.SortFunc(at, func(a, b span) int { return bytes.Compare(dst[a.start:a.end], dst[b.start:b.end]) })
	for i := 1; i < len(at); i++ {
		if bytes.Equal(dst[at[i].start:at[i].end], dst[at[i-1].start:at[i-1].end]) {
			w.bad = Refusal{Code: CodeDuplicateKey, Message: "two keys are one " + n.key.typ}
			return false
		}
	}
	return true
}
