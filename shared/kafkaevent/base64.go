package kafkaevent

import "encoding/binary"

// arenaSlack is how far behind the bytes it decodes decodeBase64 may write.
const arenaSlack = 8

// noPair marks two bytes that are not both digits. It has the bit that no or of
// 12-bit values has.
const noPair = 1 << 15

// pairs holds the 12 bits of every two base64 digits (RFC 4648 section 4) at
// first | second<<8, as a little-endian load finds them. Of its 128 KiB only the
// lines of digits are ever touched, about 16 KiB.
var pairs = pairTable()

func pairTable() *[1 << 16]uint16 {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	var table [1 << 16]uint16
	for i := range table {
		table[i] = noPair
	}
	for i := range uint16(len(alphabet)) {
		for k := range uint16(len(alphabet)) {
			table[uint16(alphabet[i])|uint16(alphabet[k])<<8] = i<<6 | k
		}
	}
	return &table
}

// decodeBase64 decodes the padded base64 text that src starts with and that a
// quote ends. It returns the bytes read, with the quote, and the bytes written;
// or a negative number written when src starts otherwise, for any reason.
//
// One pass finds the end and decodes, because the quote is no digit: that, and
// look-ups of two digits at once, make it about twice as fast as finding the
// quote and encoding/base64 (BenchmarkBase64).
//
// Unused bits of the last digit are not checked, as in encoding/base64: AWS's
// own sample event has a key that ends in such bits. dst has room for
// arenaSlack more than the text is long.
func decodeBase64(dst, src []byte) (read, written int) {
	table := pairs
	in, out := src, dst
	for len(in) >= 16 && len(out) >= 14 {
		x, y := binary.LittleEndian.Uint64(in), binary.LittleEndian.Uint64(in[8:])
		a, b, c, d := table[uint16(x)], table[uint16(x>>16)], table[uint16(x>>32)], table[uint16(x>>48)]
		e, f, g, h := table[uint16(y)], table[uint16(y>>16)], table[uint16(y>>32)], table[uint16(y>>48)]
		if (a|b|c|d|e|f|g|h)&noPair != 0 {
			break
		}
		binary.BigEndian.PutUint64(out, uint64(a)<<52|uint64(b)<<40|uint64(c)<<28|uint64(d)<<16)
		binary.BigEndian.PutUint64(out[6:], uint64(e)<<52|uint64(f)<<40|uint64(g)<<28|uint64(h)<<16)
		in, out = in[16:], out[12:]
	}
	for {
		if len(in) > 0 && in[0] == '"' {
			return len(src) - len(in) + 1, len(dst) - len(out)
		}
		if len(in) < 5 {
			return 0, -1
		}
		digits, n := quantum(in)
		if n == 0 || (n < 3 && in[4] != '"') {
			return 0, -1
		}
		out[0], out[1], out[2] = byte(digits>>16), byte(digits>>8), byte(digits)
		in, out = in[4:], out[n:]
	}
}

// quantum decodes four characters, the last one or two of which may be padding,
// and returns how many bytes they hold: 0 if they are no quantum.
func quantum(src []byte) (digits uint32, n int) {
	third, fourth := src[2], src[3]
	n = 3
	if fourth == '=' {
		n, fourth = 2, 'A'
		if third == '=' {
			n, third = 1, 'A'
		}
	}
	high := pairs[uint16(src[0])|uint16(src[1])<<8]
	low := pairs[uint16(third)|uint16(fourth)<<8]
	if (high|low)&noPair != 0 {
		return 0, 0
	}
	return uint32(high)<<12 | uint32(low), n
}
