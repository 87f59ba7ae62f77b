package rowbinary

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"strconv"
	"unicode/utf8"
	"unsafe"
)

// The scanning functions take the index where something begins in w.src and
// return the index behind it, or -1 when w holds a refusal.

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// special marks (in the high bit of each byte) the quotes, backslashes and
// control characters among the eight bytes of x. Only the lowest mark is sure: a
// borrow may set one above it.
func special(x uint64) uint64 {
	quote, slash, control := x^('"'*lowBits), x^('\\'*lowBits), x-' '*lowBits
	return ((quote - lowBits) | (slash - lowBits) | control) &^ x & highBits
}

// run returns the index of the first quote, backslash or control character from
// i on, len(src) if there is none, and whether all before it is ASCII.
func run(src []byte, i int) (end int, ascii bool) {
	var seen uint64
	for i+8 <= len(src) {
		x := binary.LittleEndian.Uint64(src[i:])
		if m := special(x); m != 0 {
			k := bits.TrailingZeros64(m) &^ 7
			return i + k>>3, (seen|x&(1<<k-1))&highBits == 0
		}
		seen |= x
		i += 8
	}
	for ; i < len(src); i++ {
		c := src[i]
		if c == '"' || c == '\\' || c < ' ' {
			break
		}
		seen |= uint64(c)
	}
	return i, seen&highBits == 0
}

// text scans the string whose first byte behind the quote is at i, up to its
// closing quote, and checks it. plain: it has no escapes, so that src[i:end] is
// the text itself.
func (w *Writer) text(i int) (end int, plain bool) {
	src := w.src
	end, ascii := run(src, i)
	if end < len(src) && src[end] == '"' {
		if !ascii && !utf8.Valid(src[i:end]) {
			return w.refuse(CodeInvalidUTF8, i-1, "bytes that are not UTF-8"), false
		}
		return end, true
	}
	return w.escapedText(i, end), false
}

// escapedText goes on from at, where a string has something special.
func (w *Writer) escapedText(i, at int) (end int) {
	src := w.src
	for at < len(src) && src[at] != '"' {
		if src[at] < ' ' {
			return w.refuse(CodeNotJSON, at, "a control character inside a string")
		}
		_, size := unescapeOne(src[at:])
		switch size {
		case badEscape:
			return w.refuse(CodeNotJSON, at, "an escape that JSON does not have")
		case loneSurrogate:
			return w.refuse(CodeInvalidUTF8, at, "a lone surrogate")
		}
		at, _ = run(src, at+size)
	}
	if at == len(src) {
		return w.refuse(CodeNotJSON, i-1, "a string that does not end")
	}
	if !utf8.Valid(src[i:at]) {
		return w.refuse(CodeInvalidUTF8, i-1, "bytes that are not UTF-8")
	}
	return at
}

const (
	badEscape     = -1
	loneSurrogate = -2
)

// unescapeOne reads the escape at the start of src: its rune and its size there,
// or a negative size that says what is wrong.
func unescapeOne(src []byte) (rune, int) {
	if len(src) < 2 {
		return 0, badEscape
	}
	switch c := src[1]; c {
	case '"', '\\', '/':
		return rune(c), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		return unescapeUnit(src)
	}
	return 0, badEscape
}

// unescapeUnit reads \uXXXX, or two of them that are one surrogate pair.
func unescapeUnit(src []byte) (rune, int) {
	r := hex4(src)
	switch {
	case r < 0:
		return 0, badEscape
	case r < 0xD800 || r > 0xDFFF:
		return r, 6
	case r > 0xDBFF || len(src) < 12 || src[6] != '\\' || src[7] != 'u':
		return 0, loneSurrogate
	}
	low := hex4(src[6:])
	if low < 0xDC00 || low > 0xDFFF {
		return 0, loneSurrogate
	}
	return (r-0xD800)<<10 + (low - 0xDC00) + 0x10000, 12
}

func hex4(src []byte) rune {
	if len(src) < 6 {
		return -1
	}
	var r rune
	for _, c := range src[2:6] {
		d := hexDigit(c)
		if d < 0 {
			return -1
		}
		r = r<<4 | rune(d)
	}
	return r
}

func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// appendUnescaped appends the text of a string that was scanned and is valid.
func appendUnescaped(dst, src []byte) []byte {
	for {
		end, _ := run(src, 0)
		dst = append(dst, src[:end]...)
		if end == len(src) {
			return dst
		}
		r, size := unescapeOne(src[end:])
		dst = utf8.AppendRune(dst, r)
		src = src[end+size:]
	}
}

// space skips JSON's white space.
func space(src []byte, i int) int {
	for i < len(src) && (src[i] == ' ' || src[i] == '\n' || src[i] == '\r' || src[i] == '\t') {
		i++
	}
	return i
}

// colon skips the colon behind a key and the white space around it.
func (w *Writer) colon(i int) int {
	src := w.src
	if i+1 < len(src) && src[i] == ':' && src[i+1] > ' ' {
		return i + 1
	}
	i = space(src, i)
	if i >= len(src) || src[i] != ':' {
		return w.syntax(i, "a colon is expected")
	}
	return space(src, i+1)
}

// next skips what is behind a value: more is true after a comma, and i is then
// where the next value begins; false after the closing bracket.
func (w *Writer) next(i int, closing byte) (at int, more bool) {
	src := w.src
	if i < len(src) && src[i] <= ' ' {
		i = space(src, i)
	}
	if i < len(src) {
		switch src[i] {
		case ',':
			i++
			if i < len(src) && src[i] <= ' ' {
				i = space(src, i)
			}
			return i, true
		case closing:
			return i + 1, false
		}
	}
	return w.syntax(i, "a comma or the closing bracket is expected"), false
}

// numberEnd checks the grammar of a number.
func (w *Writer) numberEnd(i int) (end int, integer bool) {
	src := w.src
	end, integer = numberEnd(src, i)
	if end < 0 {
		return w.refuse(CodeNotJSON, i, "not a number as JSON writes it"), false
	}
	return end, integer
}

func numberEnd(src []byte, i int) (end int, integer bool) {
	integer = true
	if i < len(src) && src[i] == '-' {
		i++
	}
	first := i
	if i = digitsEnd(src, i); i == first || src[first] == '0' && i > first+1 {
		return -1, false
	}
	if i < len(src) && src[i] == '.' {
		integer = false
		first = i + 1
		if i = digitsEnd(src, first); i == first {
			return -1, false
		}
	}
	if i < len(src) && src[i]|0x20 == 'e' {
		integer = false
		i++
		if i < len(src) && (src[i] == '+' || src[i] == '-') {
			i++
		}
		first = i
		if i = digitsEnd(src, first); i == first {
			return -1, false
		}
	}
	return i, integer
}

func digitsEnd(src []byte, i int) int {
	for i < len(src) && src[i]-'0' <= 9 {
		i++
	}
	return i
}

// isNumber reports whether text is one JSON number, whole.
func isNumber(text []byte) bool {
	end, _ := numberEnd(text, 0)
	return end == len(text)
}

// literal checks for true, false or null.
func (w *Writer) literal(i int, word string) int {
	if end := i + len(word); end <= len(w.src) && string(w.src[i:end]) == word {
		return end
	}
	return w.syntax(i, "no JSON value begins like this")
}

// skip checks the value at i, whatever it is.
func (w *Writer) skip(i, depth int) int {
	src := w.src
	if i >= len(src) {
		return w.syntax(i, "a value is expected")
	}
	switch c := src[i]; c {
	case '"':
		end, _ := w.text(i + 1)
		if end < 0 {
			return -1
		}
		return end + 1
	case '{':
		return w.skipObject(i, depth+1)
	case '[':
		return w.skipArray(i, depth+1)
	case 't':
		return w.literal(i, "true")
	case 'f':
		return w.literal(i, "false")
	case 'n':
		return w.literal(i, "null")
	}
	end, integer := w.numberEnd(i)
	if end >= 0 && w.strict {
		return w.strictNumber(i, end, integer)
	}
	return end
}

func (w *Writer) skipArray(i, depth int) int {
	if depth > MaxDepth {
		return w.refuse(CodeTooDeep, i, "nested deeper than "+strconv.Itoa(MaxDepth)+" levels")
	}
	start := i
	i = space(w.src, i+1)
	if i < len(w.src) && w.src[i] == ']' {
		return i + 1
	}
	w.arrays++
	var nulls, others bool
	for more := true; more; {
		first := i
		if i = w.skip(i, depth); i < 0 {
			return -1
		}
		nulls, others = nulls || w.src[first] == 'n', others || w.src[first] != 'n' && w.src[first] != '['
		if i, more = w.next(i, ']'); i < 0 {
			return -1
		}
	}
	w.arrays--
	if w.strict && nulls && !others {
		return w.refuse(CodeNull, start, "null in an array without other values than arrays: beside an array of arrays, in any row, the JSON column makes it an empty array")
	}
	return i
}

func (w *Writer) skipObject(i, depth int) int {
	if depth > MaxDepth {
		return w.refuse(CodeTooDeep, i, "nested deeper than "+strconv.Itoa(MaxDepth)+" levels")
	}
	i = space(w.src, i+1)
	if i < len(w.src) && w.src[i] == '}' {
		return i + 1
	}
	arrays, prefix, types, first := w.arrays, w.prefix, w.types, len(w.keys)
	if arrays > 0 {
		w.types /= 2
	}
	for more := true; more; {
		key, end := w.key(i)
		if end < 0 {
			return -1
		}
		w.remember(key)
		if i = w.colon(end); i < 0 {
			return -1
		}
		w.arrays, w.prefix = 0, prefix+int(key.end-key.at)+1
		w.paths += w.prefix
		if i = w.skip(i, depth); i < 0 {
			return -1
		}
		if i, more = w.next(i, '}'); i < 0 {
			return -1
		}
	}
	w.arrays, w.prefix, w.types = arrays, prefix, types
	if !w.distinct(first) {
		return -1
	}
	return i
}

// keyRef is a key of an object that is being read: src[at:end], or
// names[at:end] where it had escapes.
type keyRef struct {
	at, end   int32 // a record is far below 2 GiB
	unescaped bool
	hash      uint32
}

// key reads the key whose quote is at i, and returns it and the index behind its
// closing quote.
func (w *Writer) key(i int) (keyRef, int) {
	if i >= len(w.src) || w.src[i] != '"' {
		return keyRef{}, w.syntax(i, "a key in double quotes is expected")
	}
	end, plain := w.text(i + 1)
	if end < 0 {
		return keyRef{}, -1
	}
	k := keyRef{at: int32(i + 1), end: int32(end)}
	if !plain {
		k.at, k.unescaped = int32(len(w.names)), true
		w.names = appendUnescaped(w.names, w.src[i+1:end])
		k.end = int32(len(w.names))
	}
	return k, end + 1
}

func (w *Writer) keyText(k keyRef) []byte {
	if k.unescaped {
		return w.names[k.at:k.end]
	}
	return w.src[k.at:k.end]
}

// remember keeps a key until distinct is asked about its object.
func (w *Writer) remember(k keyRef) {
	text := w.keyText(k)
	k.hash = uint32(maphash.Bytes(w.seed, text))
	if w.strict && !w.dots {
		for _, c := range text {
			if c == '.' {
				w.dots = true
				break
			}
		}
	}
	w.keys = append(w.keys, k)
}

// strictNumber refuses what the server's JSON type would not keep: an integer
// beyond 64 bits (it fails the insert), a number that is no finite float.
func (w *Writer) strictNumber(i, end int, integer bool) int {
	text := w.src[i:end]
	if !integer {
		if _, err := strconv.ParseFloat(unsafeString(text), 64); err != nil {
			return w.refuse(CodeOutOfRange, i, "not a finite Float64")
		}
		return end
	}
	if len(text) < 16 {
		return end
	}
	x, negative, _, fits := exact(text, 0)
	switch {
	case !fits || x[1]|x[2]|x[3] != 0 || negative && x[0] > 1<<63:
		return w.refuse(CodeOutOfRange, i, "a JSON column holds no integer beyond 64 bits")
	case x[0] > 1<<53 && w.types > 0 && w.types < enoughTypes:
		return w.refuse(CodeOutOfRange, i, "an integer beyond 2^53 where the JSON column keeps few types (max_dynamic_types, half as many in each array of objects): beside fractions, in any row, it makes it a float")
	case x[0] > 1<<53 && w.arrays > 0:
		return w.refuse(CodeOutOfRange, i, "an integer beyond 2^53 in an array: beside one of fractions, in any row, the JSON column makes it a float")
	}
	return end
}

// unsafeString is b as a string, for calls that do not keep it.
func unsafeString(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b)) //nolint:gosec // strconv and netip only read it
}
