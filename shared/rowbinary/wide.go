package rowbinary

import (
	"encoding/binary"
	"math/bits"
)

// wide is an unsigned integer of 256 bits, least significant word first: what
// (U)Int256 and Decimal256 need, and every smaller type fits into.
type wide [4]uint64

// mulAdd makes x = x*m + a and reports whether it still fits.
func (x *wide) mulAdd(m, a uint64) bool {
	carry := a
	for i := range x {
		hi, lo := bits.Mul64(x[i], m)
		var c uint64
		x[i], c = bits.Add64(lo, carry, 0)
		carry = hi + c
	}
	return carry == 0
}

func (x *wide) isZero() bool { return x[0]|x[1]|x[2]|x[3] == 0 }

// greater reports whether x > y.
func (x *wide) greater(y *wide) bool {
	for i := 3; i >= 0; i-- {
		if x[i] != y[i] {
			return x[i] > y[i]
		}
	}
	return false
}

// appendTo appends the low size bytes of x, or of -x, in two's complement.
func (x wide) appendTo(dst []byte, size int, negative bool) []byte {
	if negative {
		carry := uint64(1)
		for i := range x {
			x[i], carry = bits.Add64(^x[i], 0, carry)
		}
	}
	switch size {
	case 1:
		return append(dst, byte(x[0]))
	case 2:
		return binary.LittleEndian.AppendUint16(dst, uint16(x[0]))
	case 4:
		return binary.LittleEndian.AppendUint32(dst, uint32(x[0]))
	}
	for i := range size / 8 {
		dst = binary.LittleEndian.AppendUint64(dst, x[i])
	}
	return dst
}

// wideBits is 2^n - 1.
func wideBits(n int) wide {
	var x wide
	for i := range x {
		if n >= 64 {
			x[i] = ^uint64(0)
			n -= 64
		} else {
			x[i] = 1<<n - 1
			break
		}
	}
	return x
}

// wideDigits is 10^n - 1, for n up to 76.
func wideDigits(n int) wide {
	var x wide
	for range n {
		x.mulAdd(10, 9)
	}
	return x
}

// chunkDigits is how many decimal digits a uint64 always holds.
const chunkDigits = 19

// exact reads the text of a JSON number as an integer of 10^-scale parts, digit
// by digit, never through a float. lost says that digits behind the last part
// are not zero; fits is false when the rest is beyond 256 bits.
func exact(text []byte, scale int) (x wide, negative, lost, fits bool) {
	if v, ok := shortNumber(text, scale); ok {
		return wide{v}, text[0] == '-', false, true
	}
	if negative = text[0] == '-'; negative {
		text = text[1:]
	}
	digits, point, exponent := splitNumber(text)
	keep := point + exponent + scale // digits before the last part's end
	var chunk, weight uint64 = 0, 1
	n, seen, at := 0, false, 0
	for i, c := range digits {
		if i == point && c == '.' {
			continue
		}
		d := uint64(c - '0')
		if at >= keep {
			lost = lost || d != 0
			at++
			continue
		}
		at++
		if seen = seen || d != 0; !seen {
			continue
		}
		chunk, weight = chunk*10+d, weight*10
		if n++; n == chunkDigits {
			if !x.mulAdd(weight, chunk) {
				return x, negative, lost, false
			}
			chunk, weight, n = 0, 1, 0
		}
	}
	if !x.mulAdd(weight, chunk) {
		return x, negative, lost, false
	}
	for pad := keep - at; pad > 0 && !x.isZero(); pad-- {
		if !x.mulAdd(10, 0) { // after 78 times at most
			return x, negative, lost, false
		}
	}
	return x, negative, lost, true
}

// shortDigits is how many digits shortNumber handles: any such number fits 64 bits.
const shortDigits = 18

// shortNumber is exact for the usual number: short, without an exponent, and with
// no more digits behind the point than are kept. ok is false for any other.
func shortNumber(text []byte, scale int) (v uint64, ok bool) {
	if len(text) > shortDigits || len(text)+scale > shortDigits {
		return 0, false
	}
	pad, behind := scale, 0
	for i, c := range text {
		switch {
		case c-'0' <= 9:
			v = v*10 + uint64(c-'0')
			pad -= behind
		case c == '.':
			behind = 1
		case i > 0 || c != '-':
			return 0, false
		}
	}
	if pad < 0 {
		return 0, false
	}
	return v * uint64(pow10(pad)), true
}

// splitNumber finds the digits (with their point), how many of them stand before
// the point, and the exponent, held within bounds that no digit count reaches.
func splitNumber(text []byte) (digits []byte, point, exponent int) {
	const bound = 1 << 40
	point = -1
	end := len(text)
	for i, c := range text {
		if c == '.' {
			point = i
		}
		if c == 'e' || c == 'E' {
			end = i
			break
		}
	}
	if point < 0 {
		point = end
	}
	if end == len(text) {
		return text, point, 0
	}
	sign := 1
	for _, c := range text[end+1:] {
		switch {
		case c == '-':
			sign = -1
		case c != '+' && exponent < bound:
			exponent = exponent*10 + int(c-'0')
		}
	}
	return text[:end], point, sign * exponent
}
