package rowbinary_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"math/big"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/kafka"
	"oncehouse/shared/rowbinary"
)

// oracleColumns is the table that the oracle knows.
func oracleColumns() []rowbinary.Column {
	return []rowbinary.Column{
		{Name: "a", Type: "UInt8"},
		{Name: "b", Type: "Int64", DefaultKind: "DEFAULT"},
		{Name: "c", Type: "Decimal(9, 2)", DefaultKind: "DEFAULT"},
		{Name: "d", Type: "String", DefaultKind: "DEFAULT"},
		{Name: "e", Type: "Nullable(Float64)"},
		{Name: "f", Type: "Array(Nullable(Int32))", DefaultKind: "DEFAULT"},
		{Name: "g", Type: "Map(String, Int256)", DefaultKind: "DEFAULT"},
		{Name: "h", Type: "Tuple(x Bool, y FixedString(3))", DefaultKind: "DEFAULT"},
		{Name: "i", Type: "DateTime64(3, 'UTC')", DefaultKind: "DEFAULT"},
		{Name: "j", Type: "LowCardinality(Nullable(String))"},
		{Name: "k", Type: "Date", DefaultKind: "DEFAULT"},
	}
}

// oracle encodes a record the slow and obvious way; ok is false for a refusal.
func oracle(doc []byte) (row []byte, ok bool) {
	if !utf8.Valid(doc) || !json.Valid(doc) || hasLoneSurrogate(doc) || !soundKeys(doc) {
		return nil, false
	}
	var fields map[string]json.RawMessage
	if bytes.TrimLeft(doc, " \t\r\n")[0] != '{' || json.Unmarshal(doc, &fields) != nil {
		return nil, false
	}
	for _, col := range oracleColumns() {
		raw, given := fields[col.Name]
		if !given {
			if col.Name == "a" {
				return nil, false
			}
			row = append(row, 1)
			continue
		}
		value, fits := oracleValue(col.Type, raw)
		if !fits {
			return nil, false
		}
		row = append(append(row, 0), value...)
	}
	return row, true
}

func oracleValue(typ string, raw json.RawMessage) ([]byte, bool) {
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return nil, false
	}
	if inner, ok := strings.CutPrefix(typ, "LowCardinality("); ok {
		typ = strings.TrimSuffix(inner, ")")
	}
	if inner, ok := strings.CutPrefix(typ, "Nullable("); ok {
		if v == nil {
			return []byte{1}, true
		}
		value, fits := oracleValue(strings.TrimSuffix(inner, ")"), raw)
		return append([]byte{0}, value...), fits
	}
	switch v := v.(type) {
	case string:
		return oracleString(typ, v)
	case json.Number:
		return oracleNumber(typ, string(v))
	case []any:
		return oracleArray(typ, raw)
	case map[string]any:
		return oracleObject(typ, raw)
	case bool:
		if typ == "Bool" && v {
			return []byte{1}, true
		}
		return []byte{0}, typ == "Bool"
	}
	return nil, false
}

func oracleString(typ, v string) ([]byte, bool) {
	switch typ {
	case "String":
		return append(binary.AppendUvarint(nil, uint64(len(v))), v...), true
	case "FixedString(3)":
		return append([]byte(v), make([]byte, max(0, 3-len(v)))...), len(v) <= 3
	case "Date":
		day, err := time.Parse(time.DateOnly, v)
		days := day.Unix() / 86400
		return binary.LittleEndian.AppendUint16(nil, uint16(days)), err == nil && day.Unix() >= 0 && days <= math.MaxUint16
	case "DateTime64(3, 'UTC')":
		return oracleTime(v)
	case "UInt8", "Int64", "Int32", "Int256":
		n, ok := new(big.Int).SetString(v, 10)
		return oracleInteger(typ, n), ok && n.String() == v && oracleInteger(typ, n) != nil
	}
	if !json.Valid([]byte(v)) || strings.ContainsAny(v, " \t\r\n\"[{tfn") {
		return nil, false
	}
	return oracleNumber(typ, v)
}

func oracleTime(v string) ([]byte, bool) {
	parts := regexp.MustCompile(`^(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:[.,](\d+))?(?:[Zz]|([+-]\d\d)(?::?(\d\d))?)?$`).FindStringSubmatch(v)
	if parts == nil {
		return nil, false
	}
	moment, err := time.Parse(time.DateTime, parts[1]+" "+parts[2])
	fraction := strings.TrimRight(parts[3], "0")
	if err != nil || len(fraction) > 3 {
		return nil, false
	}
	ms, _ := strconv.ParseInt((fraction + "000")[:3], 10, 64)
	hours, _ := strconv.ParseInt(parts[4], 10, 64)
	minutes, _ := strconv.ParseInt(parts[5], 10, 64)
	if strings.HasPrefix(parts[4], "-") {
		minutes = -minutes
	}
	ms += (moment.Unix() - hours*3600 - minutes*60) * 1000
	inside := ms >= -2208988800000 && ms <= 10413791999999 && max(hours, -hours) < 24 && max(minutes, -minutes) < 60
	return binary.LittleEndian.AppendUint64(nil, uint64(ms)), inside
}

// oracleNumber reads a number's text as a fraction of two whole numbers.
func oracleNumber(typ, text string) ([]byte, bool) {
	if typ == "Float64" {
		v, err := strconv.ParseFloat(text, 64)
		return binary.LittleEndian.AppendUint64(nil, math.Float64bits(v)), err == nil
	}
	mantissa, exponent, _ := strings.Cut(strings.ToLower(text), "e")
	if m, ok := new(big.Rat).SetString(mantissa); !ok || m.Sign() == 0 {
		text = "0"
	} else if e, err := strconv.Atoi(exponent); exponent != "" && (err != nil || e > 1000+len(mantissa) || e < -1000-len(mantissa)) {
		return nil, false
	}
	x, ok := new(big.Rat).SetString(text)
	if !ok {
		return nil, false
	}
	if typ == "Decimal(9, 2)" {
		x.Mul(x, big.NewRat(100, 1))
	}
	if !x.IsInt() {
		return nil, false
	}
	value := oracleInteger(typ, x.Num())
	return value, value != nil
}

// oracleInteger is nil where n is out of range.
func oracleInteger(typ string, n *big.Int) []byte {
	if n == nil {
		return nil
	}
	limits := map[string]struct {
		low, high string
		size      int
	}{
		"UInt8":                {"0", "255", 1},
		"Int32":                {"-2147483648", "2147483647", 4},
		"Decimal(9, 2)":        {"-999999999", "999999999", 4},
		"Int64":                {"-9223372036854775808", "9223372036854775807", 8},
		"DateTime64(3, 'UTC')": {"-2208988800000", "10413791999999", 8},
		"Int256":               {"-57896044618658097711785492504343953926634992332820282019728792003956564819968", "57896044618658097711785492504343953926634992332820282019728792003956564819967", 32},
	}
	limit, ok := limits[typ]
	if !ok {
		return nil
	}
	low, _ := new(big.Int).SetString(limit.low, 10)
	high, _ := new(big.Int).SetString(limit.high, 10)
	if n.Cmp(low) < 0 || n.Cmp(high) > 0 {
		return nil
	}
	bytes := make([]byte, limit.size)
	new(big.Int).And(n, new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(8*limit.size)), big.NewInt(1))).FillBytes(bytes)
	for i, j := 0, len(bytes)-1; i < j; i, j = i+1, j-1 {
		bytes[i], bytes[j] = bytes[j], bytes[i]
	}
	return bytes
}

func oracleArray(typ string, raw json.RawMessage) ([]byte, bool) {
	var items []json.RawMessage
	if !strings.HasPrefix(typ, "Array(") || json.Unmarshal(raw, &items) != nil {
		return nil, false
	}
	row := binary.AppendUvarint(nil, uint64(len(items)))
	for _, item := range items {
		value, ok := oracleValue("Nullable(Int32)", item)
		if !ok {
			return nil, false
		}
		row = append(row, value...)
	}
	return row, true
}

func oracleObject(typ string, raw json.RawMessage) ([]byte, bool) {
	if strings.HasPrefix(typ, "Tuple(") {
		var tuple map[string]json.RawMessage
		if json.Unmarshal(raw, &tuple) != nil {
			return nil, false
		}
		x, ok1 := oracleValue("Bool", orNull(tuple["x"]))
		y, ok2 := oracleValue("FixedString(3)", orNull(tuple["y"]))
		return append(x, y...), ok1 && ok2
	}
	if !strings.HasPrefix(typ, "Map(") {
		return nil, false
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	_, _ = d.Token()
	var row []byte
	n := uint64(0)
	for ; d.More(); n++ {
		key, _ := d.Token()
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return nil, false
		}
		text, ok := oracleValue("Int256", value)
		if !ok {
			return nil, false
		}
		name, _ := oracleString("String", key.(string))
		row = append(append(row, name...), text...)
	}
	return append(binary.AppendUvarint(nil, n), row...), true
}

func orNull(raw json.RawMessage) json.RawMessage {
	if raw == nil {
		return json.RawMessage("null")
	}
	return raw
}

// soundKeys reports whether no object has a key twice and nothing is nested too
// deeply.
func soundKeys(doc []byte) bool {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	type level struct {
		keys   map[string]bool
		expect bool
	}
	var levels []level
	for {
		token, err := d.Token()
		if err != nil {
			return true
		}
		top := len(levels) - 1
		if delim, ok := token.(json.Delim); ok && (delim == '}' || delim == ']') {
			levels = levels[:top]
			continue
		}
		if top >= 0 && levels[top].keys != nil {
			if levels[top].expect = !levels[top].expect; levels[top].expect {
				key := token.(string)
				if levels[top].keys[key] {
					return false
				}
				levels[top].keys[key] = true
				continue
			}
		}
		switch token {
		case json.Delim('{'):
			levels = append(levels, level{keys: map[string]bool{}})
		case json.Delim('['):
			levels = append(levels, level{})
		}
	}
}

// hasLoneSurrogate looks at the escapes of a text that is JSON.
func hasLoneSurrogate(doc []byte) bool {
	unit := func(i int) int64 {
		if i+6 > len(doc) || doc[i] != '\\' || doc[i+1] != 'u' {
			return -1
		}
		n, err := strconv.ParseInt(string(doc[i+2:i+6]), 16, 32)
		if err != nil {
			return -1
		}
		return n
	}
	for i := 0; i < len(doc); i++ {
		if doc[i] != '\\' {
			continue
		}
		switch u := unit(i); {
		case u >= 0xD800 && u < 0xDC00:
			if low := unit(i + 6); low < 0xDC00 || low > 0xDFFF {
				return true
			}
			i += 11
		case u >= 0xDC00 && u <= 0xDFFF:
			return true
		default:
			i++
		}
	}
	return false
}

// compare encodes doc behind other bytes and asks the oracle.
func compare(t *testing.T, writer *rowbinary.Writer, doc []byte) {
	t.Helper()
	before := []byte("rows before")
	out, outcome, refusal := writer.Append(before, "topic", 0, &kafka.Record{Value: doc})
	want, ok := oracle(doc)
	if !ok {
		require.Equal(t, rowbinary.Refused, outcome, "%q", doc)
		require.NotNil(t, refusal)
		require.Equal(t, before, out)
		return
	}
	require.Nil(t, refusal, "%q", doc)
	require.Equal(t, rowbinary.Stored, outcome)
	require.Equal(t, append([]byte("rows before"), want...), out, "%q", doc)
}

func oracleWriter(t testing.TB) *rowbinary.Writer {
	encoder, err := rowbinary.Compile(oracleColumns(), rowbinary.Options{})
	require.NoError(t, err)
	return encoder.NewWriter()
}

// pieces are values and parts of values that lie at some edge.
func pieces() []string {
	return []string{
		"0", "-0", "255", "256", "-1", "1e2", "100.0", "1.5", "01", "1e400", "-9223372036854775808", "9223372036854775808", "12345678.9", "1.230", "1.239",
		`"12"`, `""`, `"x"`, `"a\u0000b"`, `"\ud83d\ude00"`, `"\ud800"`, `"\u00e4"`, `"äöü"`, `"1.5"`, "\"\xff\"", `"ab\n"`, `"\/"`, `"\q"`,
		`"2025-06-21"`, `"2025-02-30"`, `"2025-06-21T04:00:00.123Z"`, `"2025-06-21 04:00:00"`, `"2025-06-21T04:00:00.1234+02:00"`, `"2025-06-21T04:00:00,5-0330"`, "1750478400123",
		"true", "false", "null", "nul", "[]", "[1,null]", "[1,]", "[2147483648]", `{}`, `{"x":true,"y":"abc"}`, `{"y":"ab","x":false}`, `{"x":true}`, `{"x":true,"y":"ä","z":[{"z":1}]}`,
		`{"k":1,"l":-2}`, `{"k":1,"k":2}`, `{"\u006b":1,"k":2}`, `{"k":57896044618658097711785492504343953926634992332820282019728792003956564819967}`, "{", "}", "]", " ", "\t", "\ufeff",
	}
}

// randomDocument puts values at random keys, and now and then breaks the text.
func randomDocument(r *rand.Rand) []byte {
	values := pieces()
	keys := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "zz", `\u0061`, "A", "a "}
	var b bytes.Buffer
	b.WriteString(`{"a":1`)
	for range r.IntN(6) {
		b.WriteString(`,"` + keys[r.IntN(len(keys))] + `": ` + values[r.IntN(len(values))])
	}
	b.WriteString("}")
	doc := b.Bytes()
	if r.IntN(4) == 0 {
		at := r.IntN(len(doc))
		switch r.IntN(3) {
		case 0:
			doc[at] = byte(r.IntN(256))
		case 1:
			doc = append(doc[:at:at], doc[at+1:]...)
		case 2:
			doc = append(doc[:at:at], append([]byte(values[r.IntN(len(values))]), doc[at:]...)...)
		}
	}
	return doc
}

func TestRandomRecordsAsTheOracleEncodesThem(t *testing.T) {
	writer := oracleWriter(t)
	r := rand.New(rand.NewPCG(1, 2))
	accepted := 0
	for range 30_000 {
		doc := randomDocument(r)
		compare(t, writer, doc)
		if _, ok := oracle(doc); ok {
			accepted++
		}
	}
	require.Greater(t, accepted, 1000, "the documents are not only refused")
}

func FuzzAppend(f *testing.F) {
	for _, piece := range pieces() {
		for _, key := range []string{"b", "c", "d", "e", "f", "g", "h", "i", "j", "k"} {
			f.Add([]byte(`{"a":1,"` + key + `":` + piece + `}`))
		}
	}
	writer := oracleWriter(f)
	f.Fuzz(func(t *testing.T, doc []byte) {
		if doc == nil {
			doc = []byte{}
		}
		compare(t, writer, doc)
	})
}
