package rowbinary

import (
	"encoding/binary"
	"math"
	"math/big"
	"net/netip"
	"strconv"
)

// fault says why a scalar does not fit; the zero fault is none.
type fault struct {
	code   Code
	reason string
}

// encodeText encodes a text as a type that is written as a string in JSON, which
// every key of a Map is.
func (w *Writer) encodeText(n *node, dst, text []byte) ([]byte, fault) {
	switch n.op {
	case opString:
		return appendText(dst, text), fault{}
	case opFixedString:
		if len(text) > n.size {
			return dst, fault{CodeTooLong, strconv.Itoa(len(text)) + " bytes are too long for " + n.typ}
		}
		dst = append(dst, text...)
		for range n.size - len(text) {
			dst = append(dst, 0)
		}
		return dst, fault{}
	case opInt:
		if !isDigits(text) {
			return dst, fault{CodeInvalidText, "no integer as " + n.typ + " takes it (digits, no leading zero)"}
		}
		return encodeExact(n, dst, text)
	case opDecimal, opFloat32, opFloat64, opBFloat16:
		switch {
		case !isNumber(text):
			return dst, fault{CodeInvalidText, "no number as " + n.typ + " takes it"}
		case n.op == opDecimal:
			return encodeExact(n, dst, text)
		}
		return encodeFloat(n, dst, text)
	case opDate, opDate32, opDateTime, opDateTime64:
		return w.encodeDate(n, dst, text)
	case opEnum:
		v, ok := n.enum[string(text)]
		if !ok {
			return dst, fault{CodeEnumUnknown, "no name of " + n.typ}
		}
		return wide{uint64(v)}.appendTo(dst, n.size, false), fault{}
	case opUUID, opIPv4, opIPv6:
		return encodeID(n, dst, text)
	case opBool: // a Map's key
		switch string(text) {
		case "true":
			return append(dst, 1), fault{}
		case "false":
			return append(dst, 0), fault{}
		}
	}
	return dst, fault{CodeWrongType, "not a value that " + n.typ + " takes"}
}

// isDigits reports whether text is an integer in its shortest form.
func isDigits(text []byte) bool {
	if len(text) > 1 && text[0] == '-' {
		text = text[1:]
		if text[0] == '0' {
			return false
		}
	}
	return len(text) > 0 && digitsEnd(text, 0) == len(text) && (text[0] != '0' || len(text) == 1)
}

// encodeExact encodes the text of a JSON number as an integer or a Decimal.
func encodeExact(n *node, dst, text []byte) ([]byte, fault) {
	x, negative, lost, fits := exact(text, n.scale)
	limit := &n.max
	if negative {
		limit = &n.min
	}
	switch {
	case !fits || x.greater(limit):
		if n.op == opDecimal {
			return dst, fault{CodeTooManyDigits, "more digits than " + n.typ + " has"}
		}
		return dst, fault{CodeOutOfRange, "out of range for " + n.typ}
	case lost:
		return dst, fault{CodeFractionLost, "a fraction that " + n.typ + " does not hold"}
	}
	return x.appendTo(dst, n.size, negative), fault{}
}

// encodeFloat encodes the text of a JSON number as the nearest float.
func encodeFloat(n *node, dst, text []byte) ([]byte, fault) {
	width := 64
	if n.op == opFloat32 {
		width = 32
	}
	v, err := strconv.ParseFloat(unsafeString(text), width)
	if err != nil {
		return dst, fault{CodeOutOfRange, "beyond the greatest finite " + n.typ}
	}
	switch n.op {
	case opFloat32:
		return binary.LittleEndian.AppendUint32(dst, math.Float32bits(float32(v))), fault{}
	case opFloat64:
		return binary.LittleEndian.AppendUint64(dst, math.Float64bits(v)), fault{}
	}
	bits, ok := nearestBFloat16(v, text)
	if !ok {
		return dst, fault{CodeOutOfRange, "beyond the greatest finite " + n.typ}
	}
	return binary.LittleEndian.AppendUint16(dst, bits), fault{}
}

// nearestBFloat16 rounds v, the float nearest to text, to 8 bits of precision,
// ties to even. Where v lies just between two, it is text itself that decides:
// rounding twice would not be the nearest.
func nearestBFloat16(v float64, text []byte) (uint16, bool) {
	toward := math.Float32bits(float32(v))
	if f := math.Abs(float64(math.Float32frombits(toward))); f > math.Abs(v) {
		toward-- // toward zero
	}
	low := toward &^ 0xFFFF
	middle := math.Float32frombits(low | 0x8000)
	up := false
	switch a, m := math.Abs(v), math.Abs(float64(middle)); {
	case a > m:
		up = true
	case a == m:
		exactly, ok := new(big.Rat).SetString(string(text))
		side := 0
		if ok {
			side = exactly.Abs(exactly).Cmp(new(big.Rat).SetFloat64(m))
		}
		up = side > 0 || side == 0 && low&0x10000 != 0
	}
	if up {
		low += 0x10000
	}
	return uint16(low >> 16), low&0x7F800000 != 0x7F800000
}

// encodeDate encodes the text of a date or a date and time.
func (w *Writer) encodeDate(n *node, dst, text []byte) ([]byte, fault) {
	if n.op == opDateTime || n.op == opDateTime64 {
		m, ok := parseMoment(text)
		if !ok {
			return dst, fault{CodeInvalidDate, "no date and time that exists, or not written as one"}
		}
		return w.encodeMoment(n, dst, m)
	}
	days, ok := parseDate(text)
	switch {
	case !ok:
		return dst, fault{CodeInvalidDate, "no date that exists, or not written as YYYY-MM-DD"}
	case n.op == opDate && days >= 0 && days <= maxDate:
		return binary.LittleEndian.AppendUint16(dst, uint16(days)), fault{}
	case n.op == opDate32 && days >= minDate32 && days <= maxDate32:
		return binary.LittleEndian.AppendUint32(dst, uint32(days)), fault{}
	}
	return dst, fault{CodeOutOfRange, "out of range for " + n.typ}
}

func (w *Writer) encodeMoment(n *node, dst []byte, m moment) ([]byte, fault) {
	utc, ok := m.seconds, true
	if !m.zoned {
		utc, ok = w.zones.instant(m.seconds, n.zone)
	}
	if !ok {
		return dst, fault{CodeInvalidDate, "no such time on the clocks of " + n.zone.String()}
	}
	part := pow10(nanosDigits - n.scale)
	if !n.truncate && (m.beyond || m.nanos%part != 0) {
		return dst, fault{CodeFractionLost, "more digits of a second than " + n.typ + " has"}
	}
	return w.encodeTicks(n, dst, utc, m.nanos/part)
}

// encodeTicks encodes seconds since 1970 and ticks within the second.
func (w *Writer) encodeTicks(n *node, dst []byte, utc, ticks int64) ([]byte, fault) {
	if n.op == opDateTime {
		if utc < 0 || utc > maxDateTime {
			return dst, fault{CodeOutOfRange, "out of range for " + n.typ}
		}
		return binary.LittleEndian.AppendUint32(dst, uint32(utc)), fault{}
	}
	local := utc // the range of the type is one of local times
	if n.zone != nil && (utc < minDateTime64+clockMargin || utc > maxDateTime64-clockMargin) {
		local += w.zones.offsetAt(utc, n.zone)
	}
	beyond := n.scale == nanosDigits && (utc > maxSecondsNanos || utc == maxSecondsNanos && ticks > maxNanos)
	if local < minDateTime64 || local > maxDateTime64 || beyond {
		return dst, fault{CodeOutOfRange, "out of range for " + n.typ}
	}
	return binary.LittleEndian.AppendUint64(dst, uint64(utc*pow10(n.scale)+ticks)), fault{}
}

// encodeEpoch encodes the text of a JSON number as a date and time.
func (w *Writer) encodeEpoch(n *node, dst, text []byte) ([]byte, fault) {
	x, negative, lost, fits := exact(text, n.unit)
	switch {
	case !fits || x[1]|x[2]|x[3] != 0 || x[0] >= 1<<63:
		return dst, fault{CodeOutOfRange, "out of range for " + n.typ}
	case lost && !n.truncate:
		return dst, fault{CodeFractionLost, "a fraction that " + n.typ + " does not hold"}
	}
	ticks := int64(x[0])
	if negative {
		if ticks = -ticks; lost {
			ticks-- // as text is cut: to the earlier tick
		}
	}
	perSecond := pow10(n.scale)
	utc, rest := ticks/perSecond, ticks%perSecond
	if rest < 0 {
		utc, rest = utc-1, rest+perSecond
	}
	return w.encodeTicks(n, dst, utc, rest)
}

// encodeID encodes the text of a UUID or an IP address.
func encodeID(n *node, dst, text []byte) ([]byte, fault) {
	if n.op == opUUID {
		id, ok := parseUUID(text)
		if !ok {
			return dst, fault{CodeInvalidText, "no UUID (8-4-4-4-12 hexadecimal digits)"}
		}
		dst = binary.LittleEndian.AppendUint64(dst, binary.BigEndian.Uint64(id[:8]))
		return binary.LittleEndian.AppendUint64(dst, binary.BigEndian.Uint64(id[8:])), fault{}
	}
	address, err := netip.ParseAddr(unsafeString(text))
	if err != nil || address.Zone() != "" || n.op == opIPv4 && !address.Is4() {
		return dst, fault{CodeInvalidText, "no address as " + n.typ + " takes it"}
	}
	if n.op == opIPv4 {
		four := address.As4()
		return binary.LittleEndian.AppendUint32(dst, binary.BigEndian.Uint32(four[:])), fault{}
	}
	sixteen := address.As16() // an IPv4 address as ::ffff:a.b.c.d
	return append(dst, sixteen[:]...), fault{}
}

func parseUUID(text []byte) (id [16]byte, ok bool) {
	if len(text) != 36 || text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' {
		return id, false
	}
	at := 0
	for i := 0; i < len(text); i += 2 {
		if text[i] == '-' {
			i++
		}
		high, low := hexDigit(text[i]), hexDigit(text[i+1])
		if high < 0 || low < 0 {
			return id, false
		}
		id[at] = byte(high<<4 | low)
		at++
	}
	return id, true
}
