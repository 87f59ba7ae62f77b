package kafkaevent

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds the nesting of a value that is passed over.
const maxDepth = 128

// scanner reads JSON tokens from data. Its methods leave pos behind what they
// read, or return where it is wrong.
type scanner struct {
	data    []byte
	pos     int
	scratch []byte // the last string that had escapes
}

func (s *scanner) refuse(at int, format string, args ...any) error {
	if at >= len(s.data) {
		format, args = "the event is cut short", nil
	}
	return &RefusedError{Byte: min(at, len(s.data)), Record: -1, Message: fmt.Sprintf(format, args...)}
}

// peek passes white space and returns the byte behind it, 0 at the end.
func (s *scanner) peek() byte {
	for s.pos < len(s.data) {
		c := s.data[s.pos]
		if c > ' ' || !isSpace(c) {
			return c
		}
		s.pos++
	}
	return 0
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

// valueAt is where the next value starts.
func (s *scanner) valueAt() int {
	s.peek()
	return s.pos
}

// open passes the bracket at pos and says whether a first element follows it;
// if none does, the closing one is passed too.
func (s *scanner) open(closing byte) (bool, error) {
	s.pos++
	switch s.peek() {
	case closing:
		s.pos++
		return false, nil
	case 0:
		return false, s.refuse(s.pos, "a zero byte")
	}
	return true, nil
}

// more passes the comma or the closing bracket behind an element and says
// whether there is another element.
func (s *scanner) more(closing byte) (bool, error) {
	if i := s.pos; i+1 < len(s.data) && s.data[i] == ',' && s.data[i+1] > ' ' {
		s.pos++ // as Lambda writes it: no white space
		return true, nil
	}
	switch c := s.peek(); c {
	case ',':
		s.pos++
		s.peek()
		return true, nil
	case closing:
		s.pos++
		return false, nil
	}
	return false, s.refuse(s.pos, "a comma or %q expected", closing)
}

func (s *scanner) colon() error {
	if s.peek() != ':' {
		return s.refuse(s.pos, "a colon expected")
	}
	s.pos++
	return nil
}

// pass passes text if that is what comes next, to the letter.
func (s *scanner) pass(text string) bool {
	rest := s.data[s.pos:]
	if len(rest) < len(text) || string(rest[:len(text)]) != text {
		return false
	}
	s.pos += len(text)
	return true
}

// name reads a member's name and the colon. The bytes are valid until the next
// string. A name that is not valid Unicode equals none that has a meaning.
func (s *scanner) name() ([]byte, error) {
	if s.peek() != '"' {
		return nil, s.refuse(s.pos, "a field's name expected")
	}
	name, escaped, err := s.raw()
	if err != nil {
		return nil, err
	}
	if escaped {
		name, _ = s.unescape(name)
	}
	return name, s.colon()
}

// text reads a string that is kept, or null. It has to be valid Unicode. The
// bytes are valid until the next string.
func (s *scanner) text() (text []byte, null bool, err error) {
	switch s.peek() {
	case 'n':
		return nil, true, s.literal("null")
	case '"':
	default:
		return nil, false, s.refuse(s.pos, "a string expected")
	}
	at := s.pos
	text, escaped, err := s.raw()
	if err != nil {
		return nil, false, err
	}
	valid := utf8.Valid(text)
	if escaped && valid {
		text, valid = s.unescape(text)
	}
	if !valid {
		return nil, false, s.refuse(at, "a string is not valid Unicode")
	}
	return text, false, nil
}

// raw passes the string at pos, checks its syntax, and returns what is between
// the quotes.
func (s *scanner) raw() (text []byte, escaped bool, err error) {
	start := s.pos + 1
	for i := start; i < len(s.data); {
		i += plain(s.data[i:])
		if i == len(s.data) {
			break
		}
		switch s.data[i] {
		case '"':
			s.pos = i + 1
			return s.data[start:i], escaped, nil
		case '\\':
			n := escapeLen(s.data[i:])
			if n == 0 {
				return nil, false, s.refuse(i, "a bad escape in a string")
			}
			escaped = true
			i += n
		default:
			return nil, false, s.refuse(i, "a control character in a string")
		}
	}
	return nil, false, s.refuse(len(s.data), "")
}

// plain counts the bytes of text before the first quote, backslash or control
// character, eight at a time.
func plain(text []byte) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	i := 0
	for ; i+8 <= len(text); i += 8 {
		x := binary.LittleEndian.Uint64(text[i:])
		quote, backslash := x^(ones*'"'), x^(ones*'\\')
		// The lowest high bit of each term is exact: borrows only go upwards.
		stop := ((quote-ones)&^quote | (backslash-ones)&^backslash | (x-ones*0x20)&^x) & highs
		if stop != 0 {
			return i + bits.TrailingZeros64(stop)>>3
		}
	}
	for ; i < len(text); i++ {
		if c := text[i]; c < 0x20 || c == '"' || c == '\\' {
			break
		}
	}
	return i
}

// escapeLen is the length of the escape that text starts with, 0 if it is none.
// Where text is shorter than that, the end is missing.
func escapeLen(text []byte) int {
	if len(text) < 2 {
		return 2
	}
	switch text[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if _, ok := hex(text[2:min(6, len(text))]); ok {
			return 6
		}
	}
	return 0
}

func hex(digits []byte) (r rune, ok bool) {
	for _, c := range digits {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// unescape resolves the escapes of a string that raw returned, and says
// whether every surrogate has its other half.
func (s *scanner) unescape(text []byte) (plainText []byte, valid bool) {
	out, valid := s.scratch[:0], true
	for i := 0; i < len(text); {
		c := text[i]
		if c != '\\' {
			out = append(out, c)
			i++
			continue
		}
		if text[i+1] != 'u' {
			out = append(out, simpleEscape(text[i+1]))
			i += 2
			continue
		}
		r, _ := hex(text[i+2 : i+6])
		i += 6
		if utf16.IsSurrogate(r) {
			low := rune(-1)
			if len(text) >= i+6 && text[i] == '\\' && text[i+1] == 'u' {
				low, _ = hex(text[i+2 : i+6])
			}
			if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
				valid = false
			} else {
				i += 6
			}
		}
		out = utf8.AppendRune(out, r)
	}
	s.scratch = out
	return out, valid
}

func simpleEscape(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c // quote, backslash, slash
}

// integer reads a number without fraction and exponent that an int64 holds.
func (s *scanner) integer() (int64, error) {
	s.peek()
	data, start := s.data, s.pos
	i := start
	negative := i < len(data) && data[i] == '-'
	if negative {
		i++
	}
	digits := i
	var n uint64
	for i < len(data) && data[i]-'0' <= 9 {
		n = n*10 + uint64(data[i]-'0')
		i++
	}
	switch {
	case i == len(data):
		return 0, s.refuse(i, "")
	case i == digits:
		return 0, s.refuse(start, "an integer expected")
	case data[digits] == '0' && i > digits+1:
		return 0, s.refuse(start, "a number has a leading zero")
	case data[i] == '.' || data[i]|0x20 == 'e':
		return 0, s.refuse(start, "a number is not written as an integer")
	case i-digits > 19: // 19 digits cannot overflow a uint64
		return 0, s.refuse(start, "a number is too large")
	}
	s.pos = i
	if negative {
		if n > -math.MinInt64 {
			return 0, s.refuse(start, "a number is too large")
		}
		return -int64(n), nil
	}
	if n > math.MaxInt64 {
		return 0, s.refuse(start, "a number is too large")
	}
	return int64(n), nil
}

func (s *scanner) literal(word string) error {
	rest := s.data[s.pos:]
	if len(rest) < len(word) && word[:len(rest)] == string(rest) {
		return s.refuse(len(s.data), "")
	}
	if len(rest) < len(word) || string(rest[:len(word)]) != word {
		return s.refuse(s.pos, "not a JSON value")
	}
	s.pos += len(word)
	return nil
}

// skip passes any JSON value, at most depth arrays and objects deep.
func (s *scanner) skip(depth int) error {
	switch c := s.peek(); c {
	case '{', '[':
		if depth == 0 {
			return s.refuse(s.pos, "a field is nested deeper than %d", maxDepth)
		}
		return s.skipNested(c, depth)
	case '"':
		_, _, err := s.raw()
		return err
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	default:
		return s.skipNumber()
	}
}

func (s *scanner) skipNested(opening byte, depth int) error {
	closing := opening + 2 // ASCII: [ ] and { } are two apart
	more, err := s.open(closing)
	for more && err == nil {
		if opening == '{' {
			if _, err = s.name(); err != nil {
				return err
			}
		}
		if err = s.skip(depth - 1); err != nil {
			return err
		}
		more, err = s.more(closing)
	}
	return err
}

// skipNumber passes a number as RFC 8259 writes it.
func (s *scanner) skipNumber() error {
	start, i := s.pos, s.pos
	if i < len(s.data) && s.data[i] == '-' {
		i++
	}
	end := s.digits(i)
	if end == i || (s.data[i] == '0' && end > i+1) {
		return s.refuse(max(start, min(end, i)), "not a JSON value")
	}
	i = end
	if i < len(s.data) && s.data[i] == '.' {
		if end = s.digits(i + 1); end == i+1 {
			return s.refuse(end, "a number has no digits behind its point")
		}
		i = end
	}
	if i < len(s.data) && s.data[i]|0x20 == 'e' {
		i++
		if i < len(s.data) && (s.data[i] == '+' || s.data[i] == '-') {
			i++
		}
		if end = s.digits(i); end == i {
			return s.refuse(end, "a number has no digits in its exponent")
		}
		i = end
	}
	s.pos = i
	return nil
}

// digits is where the digits from i on end.
func (s *scanner) digits(i int) int {
	for i < len(s.data) && s.data[i]-'0' <= 9 {
		i++
	}
	return i
}
