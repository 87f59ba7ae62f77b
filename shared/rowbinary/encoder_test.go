package rowbinary_test

import (
	"encoding/binary"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/kafka"
	"oncehouse/shared/rowbinary"
)

// table is a table with options, to be asked for rows.
type table struct {
	t       *testing.T
	encoder *rowbinary.Encoder
	writer  *rowbinary.Writer
}

// column takes "name Type" or "name Type DEFAULT".
func column(text string) rowbinary.Column {
	name, typ, _ := strings.Cut(text, " ")
	for _, kind := range []string{"DEFAULT", "MATERIALIZED", "ALIAS", "EPHEMERAL"} {
		if short, ok := strings.CutSuffix(typ, " "+kind); ok {
			return rowbinary.Column{Name: name, Type: short, DefaultKind: kind}
		}
	}
	return rowbinary.Column{Name: name, Type: typ}
}

func compileColumns(opts rowbinary.Options, columns ...string) (*rowbinary.Encoder, error) {
	var all []rowbinary.Column
	for _, c := range columns {
		all = append(all, column(c))
	}
	return rowbinary.Compile(all, opts)
}

func newTable(t *testing.T, opts rowbinary.Options, columns ...string) *table {
	t.Helper()
	encoder, err := compileColumns(opts, columns...)
	require.NoError(t, err)
	return &table{t, encoder, encoder.NewWriter()}
}

// row is the row of a value.
func (tb *table) row(value string) []byte {
	tb.t.Helper()
	return tb.record(&kafka.Record{Value: []byte(value)})
}

func (tb *table) record(rec *kafka.Record) []byte {
	tb.t.Helper()
	out, outcome, refusal := tb.writer.Append([]byte("x"), "topic", 7, rec)
	require.Nil(tb.t, refusal)
	require.Equal(tb.t, rowbinary.Stored, outcome)
	return out[1:]
}

// refused is why a value is refused.
func (tb *table) refused(value string) *rowbinary.Refusal {
	tb.t.Helper()
	return tb.refusedRecord(&kafka.Record{Value: []byte(value)})
}

func (tb *table) refusedRecord(rec *kafka.Record) *rowbinary.Refusal {
	tb.t.Helper()
	out, outcome, refusal := tb.writer.Append([]byte("x"), "topic", 7, rec)
	require.Equal(tb.t, rowbinary.Refused, outcome, "%q became %q", rec.Value, out)
	require.NotNil(tb.t, refusal)
	require.Equal(tb.t, "x", string(out))
	return refusal
}

// cat joins bytes, strings and lengths into a row.
func cat(parts ...any) []byte {
	var row []byte
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			row = append(row, byte(p))
		case string:
			row = append(append(row, byte(len(p))), p...)
		case []byte:
			row = append(row, p...)
		}
	}
	return row
}

func TestWholeRecordIsOneObject(t *testing.T) {
	tb := newTable(t, rowbinary.Options{}, "a UInt8 DEFAULT")
	require.Equal(t, cat(0, 1), tb.row(" \t\r\n{ \"a\" : 1 } \n"))
	require.Equal(t, cat(1), tb.row("{}"))
	for value, code := range map[string]rowbinary.Code{
		"":                      rowbinary.CodeEmptyValue,
		" ":                     rowbinary.CodeNotJSON,
		"\xef\xbb\xbf{}":        rowbinary.CodeNotJSON,
		"{":                     rowbinary.CodeNotJSON,
		`{"a"`:                  rowbinary.CodeNotJSON,
		`{"a":`:                 rowbinary.CodeNotJSON,
		`{"a":1`:                rowbinary.CodeNotJSON,
		`{"a":1,}`:              rowbinary.CodeNotJSON,
		`{"a":1 "b":2}`:         rowbinary.CodeNotJSON,
		`{a:1}`:                 rowbinary.CodeNotJSON,
		`{'a':1}`:               rowbinary.CodeNotJSON,
		`{"a" 1}`:               rowbinary.CodeNotJSON,
		"{\"a\":1}\v":           rowbinary.CodeTrailingData,
		"{\"z\":\"\x01\"}":      rowbinary.CodeNotJSON,
		"{\"z\":\"\n\"}":        rowbinary.CodeNotJSON,
		`{"z":"\ud800"}`:        rowbinary.CodeInvalidUTF8,
		`{"z":"\udc00\udc00"}`:  rowbinary.CodeInvalidUTF8,
		"{\"z\":\"\\n\xff\"}":   rowbinary.CodeInvalidUTF8,
		"{\"z\":\"\xc0\x80\"}":  rowbinary.CodeInvalidUTF8,
		"{\"\xff\":1}":          rowbinary.CodeInvalidUTF8,
		`{"\udfff":1}`:          rowbinary.CodeInvalidUTF8,
		`{"z":{"y":"\ud800"}}`:  rowbinary.CodeInvalidUTF8,
		`{"z":01}`:              rowbinary.CodeNotJSON,
		`{"z":NaN}`:             rowbinary.CodeNotJSON,
		"{\"z\":\u00a01}":       rowbinary.CodeNotJSON,
		`{"a":1}{"a":2}`:        rowbinary.CodeTrailingData,
		`{"a":1} x`:             rowbinary.CodeTrailingData,
		"{\"a\":1}\x00":         rowbinary.CodeTrailingData,
		`[{"a":1}]`:             rowbinary.CodeNotObject,
		`"x"`:                   rowbinary.CodeNotObject,
		`1`:                     rowbinary.CodeNotObject,
		`null`:                  rowbinary.CodeNotObject,
		`nul`:                   rowbinary.CodeNotJSON,
		`{"a":1,"a":1}`:         rowbinary.CodeDuplicateKey,
		`{"a":1,"\u0061":1}`:    rowbinary.CodeDuplicateKey,
		`{"z":1,"\u007a":1}`:    rowbinary.CodeDuplicateKey,
		`{"z":{"y":1,"y":2}}`:   rowbinary.CodeDuplicateKey,
		`{"z":[{"y":1,"y":2}]}`: rowbinary.CodeDuplicateKey,
	} {
		require.Equal(t, code, tb.refused(value).Code, "%q", value)
	}
	require.Equal(t, rowbinary.CodeNotJSON, tb.refused("\t").Code)
}

func TestHugeRecords(t *testing.T) {
	tb := newTable(t, rowbinary.Options{}, "a UInt8 DEFAULT", "d Decimal(76, 38) DEFAULT", "s String DEFAULT")
	for _, depth := range []int{10_000, 1_000_000} {
		require.Equal(t, rowbinary.CodeTooDeep, tb.refused(`{"z":`+strings.Repeat("[", depth)+strings.Repeat("]", depth)+`}`).Code)
		require.Equal(t, rowbinary.CodeTooDeep, tb.refused(`{"z":`+strings.Repeat(`{"z":`, depth)).Code)
	}
	deepest := rowbinary.MaxDepth
	require.Equal(t, cat(1, 1, 1), tb.row(`{"z":`+strings.Repeat("[", deepest)+strings.Repeat("]", deepest)+`}`))
	digits := strings.Repeat("9", 5000)
	require.Equal(t, rowbinary.CodeTooManyDigits, tb.refused(`{"d":`+digits+`}`).Code)
	require.Equal(t, rowbinary.CodeFractionLost, tb.refused(`{"d":0.`+digits+`}`).Code)
	require.Equal(t, cat(1, 0, make([]byte, 32), 1), tb.row(`{"d":0.`+strings.Repeat("0", 5000)+`}`))
	require.Equal(t, cat(1, 1, 1), tb.row(`{"`+strings.Repeat("k", 1<<20)+`":`+digits+`}`))
	require.Equal(t, rowbinary.CodeDuplicateKey, tb.refused(`{"`+strings.Repeat("k", 1<<20)+`":1,"`+strings.Repeat("k", 1<<20)+`":2}`).Code)

	// The server writes the long key out before each of the short ones.
	docs := newTable(t, rowbinary.Options{}, "j JSON")
	inner := many(100)
	require.NotEmpty(t, docs.row(`{"j":{"`+strings.Repeat("k", 1<<10)+`":{`+inner+`}}}`))
	require.NotEmpty(t, docs.row(`{"j":{"`+strings.Repeat("k", 1<<20)+`":1}}`))
	require.Equal(t, rowbinary.CodeTooDeep, docs.refused(`{"j":{"`+strings.Repeat("k", 1<<16)+`":{`+inner+`}}}`).Code)
	require.Equal(t, rowbinary.CodeTooDeep, docs.refused(`{"j":{"a":[{"`+strings.Repeat(".", 1<<16)+`":{`+inner+`}}]}}`).Code)

	long := strings.Repeat("x", 300)
	require.Equal(t, append(append([]byte{1, 1, 0}, binary.AppendUvarint(nil, 300)...), long...), tb.row(`{"s":"`+long+`"}`))
	fields := many(5000)
	require.Equal(t, cat(0, 1, 1, 1), tb.row(`{`+fields+`,"a":1}`))
	require.Equal(t, rowbinary.CodeDuplicateKey, tb.refused(`{`+fields+`,"k0":1}`).Code)
}

// A type that nothing is known of is refused by name, wherever it stands.
func TestOtherTypesAreRefusedByName(t *testing.T) {
	for _, typ := range []string{
		"Dynamic", "Dynamic(max_types=4)", "Variant(String, UInt8)", "Time", "Time64(3)", "AggregateFunction(sum, UInt64)", "Nothing",
		"IntervalDay", "Object('json')", "QBit(Float32, 8)", "Geometry", "JSON(a UInt8)", "JSON(a.b Nullable(String), SKIP c)", "Decimal(77, 1)", "DateTime64(10)",
	} {
		for _, around := range []string{"?", "Array(?)", "Map(String, Array(?))", "Tuple(a UInt8, b ?)", "Nested(a ?)"} {
			_, err := compileColumns(rowbinary.Options{}, "ok UInt8", "c "+strings.Replace(around, "?", typ, 1))
			require.ErrorContains(t, err, "c "+strings.Replace(around, "?", typ, 1))
			require.NotContains(t, err.Error(), "ok UInt8")
		}
	}
}

func TestKeysOfAMapDiffer(t *testing.T) {
	tb := newTable(t, rowbinary.Options{}, "f Map(FixedString(2), UInt8) DEFAULT", "d Map(Decimal(9, 2), Map(UUID, UInt8)) DEFAULT")
	require.Equal(t, cat(0, 2, []byte("a\x00"), 1, []byte("b\x00"), 2, 1), tb.row(`{"f":{"a":1,"b":2}}`))
	require.Equal(t, rowbinary.CodeDuplicateKey, tb.refused(`{"f":{"a":1,"b":2,"a\u0000":3}}`).Code)
	require.Equal(t, rowbinary.CodeDuplicateKey, tb.refused(`{"d":{"1.5":{},"1.50":{}}}`).Code)
	const upper, lower = "61F0C404-5CB3-11E7-907B-A6006AD3DBA0", "61f0c404-5cb3-11e7-907b-a6006ad3dba0"
	require.Equal(t, rowbinary.CodeDuplicateKey, tb.refused(`{"d":{"1":{"`+upper+`":1,"`+lower+`":1}}}`).Code)
	require.NotEmpty(t, tb.row(`{"d":{"1":{"`+upper+`":1},"2":{"`+lower+`":1}}}`), "each in a Map of its own")
}

func TestPathsOfAJSONColumnDiffer(t *testing.T) {
	tb := newTable(t, rowbinary.Options{}, "j JSON")
	for _, value := range []string{`{"a.b":1,"a":{"c":2}}`, `{"a.b":1,"a.c":{"d":1}}`, `{"ab":1,"a.b":2}`, `{"x":[{"a.b":1},{"a":1}]}`} {
		require.Equal(t, cat(0, value), tb.row(`{"j":`+value+`}`))
	}
	for _, value := range []string{`{"a.b":1,"a":{"b":2}}`, `{"a":1,"a.b":2}`, `{"a.b":2,"a":1}`, `{"a.b.c":1,"a":{"b":[]}}`, `{"x":[[{"a.b":1,"a":2}]]}`, `{"a":1,"a.":2}`} {
		require.Equal(t, rowbinary.CodeDuplicateKey, tb.refused(`{"j":`+value+`}`).Code, value)
	}
}

// Of a path that has all the types that the column keeps of it, the server makes a
// float of an integer; of the objects in an array it keeps half as many.
func TestJSONOfFewTypes(t *testing.T) {
	for typ, kept := range map[string]func(arrays int) bool{
		"JSON":                      func(arrays int) bool { return arrays <= 2 || arrays >= 6 },
		"JSON(max_dynamic_paths=1)": func(arrays int) bool { return arrays <= 2 || arrays >= 6 },
		"JSON(max_dynamic_types=8)": func(arrays int) bool { return arrays == 0 || arrays >= 4 },
		"JSON(max_dynamic_types=1)": func(arrays int) bool { return arrays >= 1 },
		"JSON(max_dynamic_types=0)": func(int) bool { return true },
		"JSON(SKIP x, max_dynamic_paths=8, max_dynamic_types=7)": func(arrays int) bool { return arrays >= 3 },
	} {
		tb := newTable(t, rowbinary.Options{}, "j "+typ)
		for arrays := range 8 {
			require.NotEmpty(t, tb.row(`{"j":`+inArrays(arrays, "9007199254740992")+`}`), typ)
			if beyond := inArrays(arrays, "9007199254740993"); kept(arrays) {
				require.NotEmpty(t, tb.row(`{"j":`+beyond+`}`), "%s %s", typ, beyond)
			} else {
				require.Equal(t, rowbinary.CodeOutOfRange, tb.refused(`{"j":`+beyond+`}`).Code, "%s %s", typ, beyond)
			}
		}
		behind := `{"x":` + inArrays(7, "1") + `,"y":9007199254740993}` // of the objects before it, nothing is left
		if kept(0) {
			require.NotEmpty(t, tb.row(`{"j":`+behind+`}`), typ)
		}
	}
}

// inArrays is an object around a value, inside objects of arrays.
func inArrays(arrays int, value string) string {
	return strings.Repeat(`{"a":[[`, arrays) + `{"b":{"c":` + value + `}}` + strings.Repeat(`]]}`, arrays)
}

// many are n fields with keys of their own.
func many(n int) string {
	fields := make([]string, n)
	for i := range fields {
		fields[i] = `"k` + strconv.Itoa(i) + `":1`
	}
	return strings.Join(fields, ",")
}

func TestRefusalsNameColumnPathAndValue(t *testing.T) {
	tb := newTable(t, rowbinary.Options{}, "a UInt8 DEFAULT", "t Array(Tuple(m Map(String, UInt8))) DEFAULT", "n.x Array(UInt8) DEFAULT", "n.y Array(UInt8) DEFAULT", "need String")
	for value, want := range map[string]rowbinary.Refusal{
		`{"a":256}`:                        {Column: "a", Path: "a", Code: rowbinary.CodeOutOfRange, Message: "a: out of range for UInt8: 256"},
		`{"t":[{"m":{}},{"m":{"k":300}}]}`: {Column: "t", Path: `t[1].m["k"]`, Code: rowbinary.CodeOutOfRange, Message: `t[1].m["k"]: out of range for UInt8: 300`},
		`{"n":[{"x":1,"y":1},{"x":-1}]}`:   {Column: "n.x", Path: "n.x[1]", Code: rowbinary.CodeOutOfRange, Message: "n.x[1]: out of range for UInt8: -1"},
		`{}`:                               {Column: "need", Path: "need", Code: rowbinary.CodeMissing, Message: "need: no key for it, and String has neither a default nor NULL"},
		`{"a":"` + strings.Repeat("é", 40) + `"}`: {Column: "a", Path: "a", Code: rowbinary.CodeInvalidText,
			Message: "a: no integer as UInt8 takes it (digits, no leading zero): \"" + strings.Repeat("é", 31) + "..."},
		"{\"a\":\"\\u0007\x7fü\"}": {Column: "a", Path: "a", Code: rowbinary.CodeInvalidText, Message: `a: no integer as UInt8 takes it (digits, no leading zero): "\u0007\x7fü"`},
	} {
		require.Equal(t, want, *tb.refused(value), value)
	}
}

func TestAbsentAndNull(t *testing.T) {
	columns := []string{"plain UInt8", "may Nullable(UInt8)", "def UInt8 DEFAULT", "eph UInt8 EPHEMERAL", "both Nullable(UInt8) DEFAULT"}
	tb := newTable(t, rowbinary.Options{}, columns...)
	require.Equal(t, cat(0, 1, 1, 1, 1, 1), tb.row(`{"plain":1}`))
	require.Equal(t, cat(0, 1, 0, 1, 0, 2, 0, 3, 0, 1), tb.row(`{"both":null,"eph":3,"def":2,"may":null,"plain":1}`))
	require.Equal(t, rowbinary.CodeMissing, tb.refused(`{"may":1}`).Code)
	require.Equal(t, rowbinary.CodeNull, tb.refused(`{"plain":null}`).Code)
	require.Equal(t, rowbinary.CodeNull, tb.refused(`{"plain":1,"def":null}`).Code)
	require.Equal(t, rowbinary.CodeNotJSON, tb.refused(`{"plain":nulL}`).Code)

	tb = newTable(t, rowbinary.Options{Missing: rowbinary.MissingZero}, columns...)
	require.Equal(t, cat(1, 1, 1, 1, 1), tb.row(`{}`))
	require.Equal(t, rowbinary.CodeNull, tb.refused(`{"plain":null}`).Code)

	tb = newTable(t, rowbinary.Options{NullAsDefault: true}, columns...)
	require.Equal(t, cat(1, 0, 1, 1, 1, 0, 1), tb.row(`{"plain":null,"may":null,"def":null,"both":null}`))
	require.Equal(t, rowbinary.CodeMissing, tb.refused(`{}`).Code)
	tb = newTable(t, rowbinary.Options{NullAsDefault: true}, "a Array(UInt8)")
	require.Equal(t, rowbinary.CodeNull, tb.refused(`{"a":[null]}`).Code)

	tb = newTable(t, rowbinary.Options{Missing: rowbinary.MissingZero}, "t Tuple(a UInt16, b Date32, c Enum8('y' = 2, 'x' = 1), d Array(String), e JSON)")
	first := binary.LittleEndian.AppendUint32(nil, uint32(math.MaxUint32-25567+1))
	require.Equal(t, cat(0, 0, 0, first, 1, 0, "{}"), tb.row(`{"t":{}}`))
}

func TestColumnsThatKeysDoNotReach(t *testing.T) {
	tb := newTable(t, rowbinary.Options{Provenance: rowbinary.StandardProvenance()}, "a UInt8", "_offset Int64", "m UInt8 MATERIALIZED", "l UInt8 ALIAS", "_partition UInt32")
	require.Equal(t, []string{"a", "_partition", "_offset"}, tb.encoder.Columns())
	want := cat(0, 1, 0, 7, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0)
	rec := &kafka.Record{Offset: 5, Value: []byte(`{"_offset":99,"m":1,"a":1,"l":1,"_partition":3}`)}
	require.Equal(t, want, tb.record(rec))
	require.EqualValues(t, 4, tb.writer.UnknownFields())

	tb = newTable(t, rowbinary.Options{Unknown: rowbinary.UnknownRefuse, Provenance: rowbinary.StandardProvenance()}, "a UInt8", "_offset Int64")
	require.Equal(t, rowbinary.CodeUnknownField, tb.refused(`{"a":1,"_offset":1}`).Code)
}

func TestProvenance(t *testing.T) {
	opts := rowbinary.Options{Provenance: rowbinary.StandardProvenance()}
	tb := newTable(t, opts, "_topic LowCardinality(String)", "_timestamp DateTime64(6)", "_key Nullable(String)", "_headers Map(String, String)")
	rec := &kafka.Record{Timestamp: 1500, Key: []byte("\xff"), Value: []byte("{}"), Headers: []kafka.Header{{Key: []byte("h"), Value: []byte("1")}, {Key: []byte("h")}}}
	ticks := binary.LittleEndian.AppendUint64(nil, 1_500_000)
	require.Equal(t, cat(0, "topic", 0, ticks, 0, 0, "\xff", 0, 2, "h", "1", "h", ""), tb.record(rec))
	require.Equal(t, cat(0, "topic", 1, 0, 1, 0, 0), tb.record(&kafka.Record{Timestamp: -1, Value: []byte("{}")}))

	tb = newTable(t, opts, "_key String", "_headers Array(Tuple(key String, value String))", "_timestamp Int64", "_offset Int256")
	require.Equal(t, []string{"_offset", "_timestamp", "_key", "_headers"}, tb.encoder.Columns())
	minusOne := strings.Repeat("\xff", 32)
	require.Equal(t, cat(0, []byte(minusOne), 0, 9, make([]byte, 7), 1, 0, 0), tb.record(&kafka.Record{Offset: -1, Timestamp: 9, Value: []byte("{}")}))

	tb = newTable(t, opts, "_offset UInt64")
	require.Equal(t, rowbinary.CodeOutOfRange, tb.refusedRecord(&kafka.Record{Offset: -1, Value: []byte("{}")}).Code)
}

func TestUnknownFieldsAreCollected(t *testing.T) {
	opts := rowbinary.Options{Unknown: rowbinary.UnknownCollect, Overflow: "rest"}
	value := `{"x":"1","a":1,"\u0079" : [ 2 ],"rest":{}}`
	want := `{"x":"1","\u0079":[ 2 ],"rest":{}}`
	for _, typ := range []string{"String", "JSON"} {
		tb := newTable(t, opts, "rest "+typ, "a UInt8")
		require.Equal(t, cat(0, 1, 0, want), tb.row(value))
		require.EqualValues(t, 3, tb.writer.UnknownFields())
		require.Equal(t, cat(0, 1, 0, "{}"), tb.row(`{"a":1}`))
		require.Equal(t, rowbinary.CodeDuplicateKey, tb.refused(`{"a":1,"x":1,"x":2}`).Code)
	}
	tb := newTable(t, opts, "rest Map(String, String)", "a UInt8", "t Tuple(u UInt8) DEFAULT")
	require.Equal(t, cat(0, 1, 1, 0, 3, "x", `"1"`, "y", "[ 2 ]", "rest", "{}"), tb.row(value))
	require.Equal(t, rowbinary.CodeUnknownField, tb.refused(`{"a":1,"t":{"u":1,"v":2}}`).Code)

	tb = newTable(t, opts, "rest JSON", "a UInt8")
	require.Equal(t, rowbinary.CodeOutOfRange, tb.refused(`{"a":1,"x":18446744073709551616}`).Code)
	require.Equal(t, rowbinary.CodeDuplicateKey, tb.refused(`{"a":1,"x.y":1,"x":{"y":1}}`).Code)
}

func TestRawColumns(t *testing.T) {
	tb := newTable(t, rowbinary.Options{RawColumns: []string{"r", "o"}}, "r String", "o Nullable(String)")
	require.Equal(t, cat(0, `{ "b" : [1,null] }`, 0, 0, `"x\u0041"`), tb.row(`{"r":{ "b" : [1,null] },"o":"x\u0041"}`))
	require.Equal(t, cat(0, "null", 0, 1), tb.row(`{"r": null ,"o":null}`))
	require.Equal(t, cat(0, "1e400", 1), tb.row(`{"r":1e400}`))
	require.Equal(t, rowbinary.CodeDuplicateKey, tb.refused(`{"r":{"a":1,"a":2}}`).Code)
	require.Equal(t, rowbinary.CodeInvalidUTF8, tb.refused(`{"r":"\ud800"}`).Code)
	require.Equal(t, rowbinary.CodeNotJSON, tb.refused(`{"r":nope}`).Code)
}

// A key is compared with the one that came last time, but never instead of being
// JSON.
func TestNamesThatNeedEscapes(t *testing.T) {
	for name, key := range map[string]string{`q\z`: `q\\z`, `a"b`: `a\"b`, "a\tb": `a\tb`, `\u0041`: `\\u0041`} {
		encoder, err := rowbinary.Compile([]rowbinary.Column{{Name: name, Type: "UInt8"}, {Name: "x", Type: "Tuple(`in\\\\ner` UInt8)", DefaultKind: "DEFAULT"}}, rowbinary.Options{})
		require.NoError(t, err)
		tb := &table{t, encoder, encoder.NewWriter()}
		for range 2 {
			require.Equal(t, cat(0, 1, 0, 2), tb.row(`{"`+key+`":1,"x":{"in\\ner":2}}`))
			require.Equal(t, rowbinary.CodeNotJSON, tb.refused(`{"`+key+`":1,"x":{"in\ner":2}}`[:len(key)+10]).Code)
		}
		if name != `\u0041` {
			require.Equal(t, rowbinary.CodeNotJSON, tb.refused(`{"`+name+`":1}`).Code)
		}
		require.NotEmpty(t, tb.refused(`{"`+name+`":1}`).Code)
	}
}

func TestCaseInsensitiveKeys(t *testing.T) {
	tb := newTable(t, rowbinary.Options{CaseInsensitive: true}, "userId UInt8", "Äb Tuple(Inner UInt8)", "n.A Array(UInt8)")
	want := cat(0, 1, 0, 2, 0, 1, 3)
	require.Equal(t, want, tb.row(`{"USERID":1,"äB":{"INNER":2},"N":[{"a":3}]}`))
	require.Equal(t, want, tb.row(`{"n.a":[3],"\u0055serid":1,"ÄB.inner":2}`))
	require.Equal(t, rowbinary.CodeDuplicateKey, tb.refused(`{"userId":1,"userid":1}`).Code)

	_, err := compileColumns(rowbinary.Options{CaseInsensitive: true}, "a UInt8", "A UInt8")
	require.ErrorContains(t, err, "differs from another only in case")
	tb = newTable(t, rowbinary.Options{}, "a UInt8", "A UInt8")
	require.Equal(t, cat(0, 1, 0, 2), tb.row(`{"A":2,"a":1}`))
}

func TestDotsAddressMembers(t *testing.T) {
	tb := newTable(t, rowbinary.Options{}, "t Tuple(a UInt8, u Tuple(b UInt8, c Nullable(UInt8)))", "f UInt8 DEFAULT")
	want := cat(0, 1, 2, 0, 3, 1)
	require.Equal(t, want, tb.row(`{"t":{"a":1,"u":{"b":2,"c":3}}}`))
	require.Equal(t, want, tb.row(`{"t.u.c":3,"t.a":1,"t.u.b":2}`))
	require.Equal(t, want, tb.row(`{"t.u":{"c":3,"b":2},"t.a":1}`))
	require.Equal(t, cat(0, 1, 2, 1, 0, 9), tb.row(`{"f":9,"t.a":1,"t.u.b":2}`))
	for value, code := range map[string]rowbinary.Code{
		`{"t.a":1}`:                              rowbinary.CodeMissing,
		`{"t.a":1,"t.u.b":2,"t.u":{"b":2}}`:      rowbinary.CodeDuplicateKey,
		`{"t.a":1,"t.u.b":2,"t.a":1}`:            rowbinary.CodeDuplicateKey,
		`{"t.a":1,"t":{"a":1,"u":{"b":2}}}`:      rowbinary.CodeDuplicateKey,
		`{"t.a":300,"t.u.b":2}`:                  rowbinary.CodeOutOfRange,
		`{"t":{"a":1,"u":{"b":2}},"t.u.c":null}`: rowbinary.CodeDuplicateKey,
		`{"t.a":tru,"t.u.b":2}`:                  rowbinary.CodeNotJSON,
	} {
		refusal := tb.refused(value)
		require.Equal(t, code, refusal.Code, value)
	}
}

func TestNestedInEveryForm(t *testing.T) {
	flat := newTable(t, rowbinary.Options{}, "x UInt8 DEFAULT", "n.a Array(UInt8)", "n.b Array(Nullable(String))", "y UInt8 DEFAULT")
	want := cat(1, 0, 2, 1, 2, 0, 2, 0, "p", 1, 1)
	for _, value := range []string{
		`{"n":[{"a":1,"b":"p"},{"a":2}]}`,
		`{"n":[{"b":"p","a":1},{"b":null,"a":2}]}`,
		`{"n":{"a":[1,2],"b":["p",null]}}`,
		`{"n":{"b":["p",null],"a":[1,2]}}`,
		`{"n.a":[1,2],"n.b":["p",null]}`,
		`{"n.b":["p",null],"n":{"a":[1,2]}}`,
	} {
		require.Equal(t, want, flat.row(value), value)
	}
	require.Equal(t, cat(1, 0, 1, 5, 0, 1, 1, 1), flat.row(`{"n.a":[5]}`))
	require.Equal(t, cat(1, 0, 0, 0, 0, 1), flat.row(`{"n":[]}`))
	for value, code := range map[string]rowbinary.Code{
		`{}`:                              rowbinary.CodeMissing,
		`{"n":[{"b":"p"}]}`:               rowbinary.CodeMissing,
		`{"n":{"b":["p"]}}`:               rowbinary.CodeMissing,
		`{"n":{"a":[1],"b":[]}}`:          rowbinary.CodeLength,
		`{"n.a":[1],"n.b":["p","q"]}`:     rowbinary.CodeLength,
		`{"n":[{"a":1}],"n.a":[1]}`:       rowbinary.CodeDuplicateKey,
		`{"n.a":[1],"n":[{"a":1}]}`:       rowbinary.CodeDuplicateKey,
		`{"n":{"a":[1]},"n":{"b":["p"]}}`: rowbinary.CodeDuplicateKey,
		`{"n":[{"a":1,"a":1}]}`:           rowbinary.CodeDuplicateKey,
		`{"n":[{"a":1,"z":1,"z":1}]}`:     rowbinary.CodeDuplicateKey,
		`{"n":[{"a":1},5]}`:               rowbinary.CodeWrongType,
		`{"n":{}}`:                        rowbinary.CodeMissing,
		`{"n":5}`:                         rowbinary.CodeWrongType,
		`{"n":null}`:                      rowbinary.CodeNull,
		`{"n":[{"a":1}`:                   rowbinary.CodeNotJSON,
		`{"n":[{"a":1}x]}`:                rowbinary.CodeNotJSON,
		`{"n":[nul]}`:                     rowbinary.CodeNotJSON,
	} {
		require.Equal(t, code, flat.refused(value).Code, value)
	}

	whole := newTable(t, rowbinary.Options{}, "n Nested(a UInt8, b Nullable(String))")
	want = cat(0, 2, 1, 0, "p", 2, 1)
	for _, value := range []string{
		`{"n":[{"a":1,"b":"p"},{"a":2}]}`,
		`{"n":{"a":[1,2],"b":["p",null]}}`,
		`{"n":{ "b" : [ "p" , null ] , "a" : [ 1 , 2 ] }}`,
		`{"n.b":["p",null],"n.a":[1,2]}`,
	} {
		require.Equal(t, want, whole.row(value), value)
	}
	require.Equal(t, cat(0, 1, 5, 1), whole.row(`{"n":{"a":[5]}}`))
	for value, code := range map[string]rowbinary.Code{
		`{"n":{"a":[1,2],"b":["p"]}}`: rowbinary.CodeLength,
		`{"n":{"a":1}}`:               rowbinary.CodeWrongType,
		`{"n":{}}`:                    rowbinary.CodeMissing,
		`{"n":{"b":["p"]}}`:           rowbinary.CodeMissing,
		`{"n.a":[1],"n":[]}`:          rowbinary.CodeDuplicateKey,
		`{"n":{"a":[1],"a":[1]}}`:     rowbinary.CodeDuplicateKey,
		`{"n":{"a":[300]}}`:           rowbinary.CodeOutOfRange,
	} {
		require.Equal(t, code, whole.refused(value).Code, value)
	}

	zero := newTable(t, rowbinary.Options{Missing: rowbinary.MissingZero}, "n.a Array(UInt8)", "n.b Array(String)")
	require.Equal(t, cat(0, 2, 1, 2, 0, 2, "", ""), zero.row(`{"n.a":[1,2]}`))
	require.Equal(t, cat(1, 1), zero.row(`{}`))
}

func TestLongArraysMoveForTheirLength(t *testing.T) {
	tb := newTable(t, rowbinary.Options{}, "a Array(UInt8)", "m Map(String, UInt8)")
	for _, n := range []int{127, 128, 16383, 16384} {
		values := strings.Repeat("7,", n-1) + "7"
		want := append([]byte{0}, binary.AppendUvarint(nil, uint64(n))...)
		want = append(want, []byte(strings.Repeat("\x07", n))...)
		require.Equal(t, append(want, 0, 0), tb.row(`{"a":[`+values+`],"m":{}}`))
	}
}

func TestEpochs(t *testing.T) {
	seconds := func(n uint32) []byte { return append([]byte{0}, binary.LittleEndian.AppendUint32(nil, n)...) }
	ticks := func(n int64) []byte { return append([]byte{0}, binary.LittleEndian.AppendUint64(nil, uint64(n))...) }
	for _, c := range []struct {
		epoch rowbinary.Epoch
		typ   string
		value string
		want  []byte // nil: refused
	}{
		{rowbinary.EpochSeconds, "DateTime64(3)", "1750478400", ticks(1750478400000)},
		{rowbinary.EpochSeconds, "DateTime64(3)", "1750478400.123", ticks(1750478400123)},
		{rowbinary.EpochSeconds, "DateTime64(3)", "1750478400.1234", nil},
		{rowbinary.EpochMillis, "DateTime", "1750478400000", seconds(1750478400)},
		{rowbinary.EpochMillis, "DateTime", "1750478400001", nil},
		{rowbinary.EpochMicros, "DateTime64(3)", "1750478400123000", ticks(1750478400123)},
		{rowbinary.EpochMicros, "DateTime64(3)", "1750478400123001", nil},
		{rowbinary.EpochNanos, "DateTime64(9)", "-1", ticks(-1)},
		{rowbinary.EpochMillis, "DateTime64(9)", "1750478400123", ticks(1750478400123000000)},
		{rowbinary.EpochMillis, "DateTime64(9)", "1e30", nil},
	} {
		tb := newTable(t, rowbinary.Options{Epoch: c.epoch}, "c "+c.typ)
		if c.want == nil {
			require.NotEmpty(t, tb.refused(`{"c":`+c.value+`}`).Message)
			continue
		}
		require.Equal(t, c.want, tb.row(`{"c":`+c.value+`}`), c)
	}
}

func TestTruncatedFractionsGoToTheEarlierTick(t *testing.T) {
	tb := newTable(t, rowbinary.Options{TruncateFraction: true, Epoch: rowbinary.EpochMillis}, "c DateTime64(0)")
	for value, want := range map[string]int64{
		`"2025-06-21T04:00:00.999999999999Z"`: 1750478400,
		`"1969-12-31T23:59:58.5Z"`:            -2,
		"1750478400999":                       1750478400,
		"-1":                                  -1,
		"-1500":                               -2,
		"-2000":                               -2,
	} {
		require.Equal(t, append([]byte{0}, binary.LittleEndian.AppendUint64(nil, uint64(want))...), tb.row(`{"c":`+value+`}`), value)
	}
}

// A text without a zone is in the column's, else the server's, whatever the
// clock of this process.
func TestZonesAreNeverTheProcess(t *testing.T) {
	local := time.Local
	t.Cleanup(func() { time.Local = local })
	tokyo, err := time.LoadLocation("Asia/Tokyo")
	require.NoError(t, err)
	for _, zone := range []string{"UTC", "Pacific/Apia", "America/St_Johns", "Asia/Kathmandu"} {
		time.Local, err = time.LoadLocation(zone)
		require.NoError(t, err)
		tb := newTable(t, rowbinary.Options{Timezone: tokyo}, "server DateTime", "own DateTime('America/New_York')", "utc DateTime('UTC')")
		at := func(h int) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(1750464000+h*3600)) } // 2025-06-21 00:00 UTC
		require.Equal(t, cat(0, at(3), 0, at(16), 0, at(12)),
			tb.row(`{"server":"2025-06-21 12:00:00","own":"2025-06-21 12:00:00","utc":"2025-06-21 12:00:00"}`))
	}
}

func TestClockChanges(t *testing.T) {
	for _, c := range []struct {
		zone, text string
		want       int64 // -1: refused
	}{
		{"Europe/Berlin", "2025-03-30 01:59:59", 1743296399},
		{"Europe/Berlin", "2025-03-30 02:00:00", -1},
		{"Europe/Berlin", "2025-03-30 02:59:59", -1},
		{"Europe/Berlin", "2025-03-30 03:00:00", 1743296400},
		{"Europe/Berlin", "2025-10-26 01:59:59", 1761436799},
		{"Europe/Berlin", "2025-10-26 02:00:00", 1761436800},
		{"Europe/Berlin", "2025-10-26 02:59:59", 1761440399},
		{"Europe/Berlin", "2025-10-26 03:00:00", 1761444000},
		{"Pacific/Apia", "2011-12-30 12:00:00", -1}, // the day that Samoa left out
		{"Pacific/Apia", "2011-12-29 12:00:00", 1325196000},
		{"Pacific/Apia", "2011-12-31 12:00:00", 1325282400},
		{"Australia/Lord_Howe", "2025-10-05 02:15:00", -1}, // half an hour
		{"Australia/Lord_Howe", "2025-04-06 01:45:00", 1743864300},
	} {
		tb := newTable(t, rowbinary.Options{}, "c DateTime('"+c.zone+"')")
		for range 2 { // the second time from what the first left behind
			if c.want < 0 {
				require.Equal(t, rowbinary.CodeInvalidDate, tb.refused(`{"c":"`+c.text+`"}`).Code, c)
				continue
			}
			require.Equal(t, append([]byte{0}, binary.LittleEndian.AppendUint32(nil, uint32(c.want))...), tb.row(`{"c":"`+c.text+`"}`), c)
		}
	}
}

func TestRawFormat(t *testing.T) {
	opts := rowbinary.Options{Format: rowbinary.FormatRaw, Raw: rowbinary.RawMapping{Key: "k", Value: "v", Headers: "h", Timestamp: "ts"}, Provenance: rowbinary.StandardProvenance()}
	tb := newTable(t, opts, "v String", "k Nullable(String)", "h Map(String, String)", "ts DateTime64(3)", "_offset UInt64", "other UInt8 DEFAULT")
	require.Equal(t, []string{"k", "v", "h", "ts", "_offset"}, tb.encoder.Columns())
	want := cat(0, 1, 0, "\xff{", 0, 0, 0, 7, make([]byte, 7), 0, 3, make([]byte, 7))
	require.Equal(t, want, tb.record(&kafka.Record{Offset: 3, Timestamp: 7, Value: []byte("\xff{")}))
	require.Equal(t, cat(0, 1, 0, "", 0, 0, 0, 7, make([]byte, 7), 0, 3, make([]byte, 7)), tb.record(&kafka.Record{Offset: 3, Timestamp: 7, Value: []byte{}}))

	opts.Raw = rowbinary.RawMapping{Key: "k", Value: "v"}
	tb = newTable(t, opts, "v String", "k String")
	require.Equal(t, rowbinary.CodeNull, tb.refusedRecord(&kafka.Record{Value: []byte("x")}).Code)
	_, err := compileColumns(opts, "v String", "k String", "z UInt8")
	require.ErrorContains(t, err, "column z UInt8 has no source")
}

func TestTombstones(t *testing.T) {
	tb := newTable(t, rowbinary.Options{}, "a UInt8")
	out, outcome, refusal := tb.writer.Append([]byte("x"), "topic", 0, &kafka.Record{})
	require.Equal(t, "x", string(out))
	require.Equal(t, rowbinary.Skipped, outcome)
	require.Nil(t, refusal)
	empty := tb.refusedRecord(&kafka.Record{Value: []byte{}})
	require.Equal(t, rowbinary.CodeEmptyValue, empty.Code)
	require.Equal(t, "the value has no bytes", empty.Message)

	tb = newTable(t, rowbinary.Options{Tombstones: rowbinary.TombstonesLetter}, "a UInt8")
	require.Equal(t, rowbinary.CodeTombstone, tb.refusedRecord(&kafka.Record{}).Code)
}

func TestTombstonesThatDelete(t *testing.T) {
	opts := rowbinary.Options{Tombstones: rowbinary.TombstonesDelete, Provenance: rowbinary.StandardProvenance(), Delete: rowbinary.Delete{Marker: "gone", KeyColumns: []string{"id"}}}
	tb := newTable(t, opts, "a String", "id UInt16", "gone UInt8", "_offset Int64")
	offset := cat(0, 4, make([]byte, 7))
	require.Equal(t, cat(1, 0, 44, 1, offset, 0, 1), tb.record(&kafka.Record{Offset: 4, Key: []byte("300")}))
	require.Equal(t, cat(0, "x", 0, 44, 1, offset, 0, 0), tb.record(&kafka.Record{Offset: 4, Value: []byte(`{"id":300,"a":"x","gone":1}`)}))
	require.Equal(t, rowbinary.CodeInvalidText, tb.refusedRecord(&kafka.Record{Key: []byte("x")}).Code)
	require.Equal(t, rowbinary.CodeInvalidText, tb.refusedRecord(&kafka.Record{Key: []byte{}}).Code)
	require.Equal(t, rowbinary.CodeInvalidUTF8, tb.refusedRecord(&kafka.Record{Key: []byte("\xff")}).Code)
	require.Equal(t, rowbinary.CodeBadKey, tb.refusedRecord(&kafka.Record{}).Code)

	opts.Delete.KeyColumns, opts.Delete.KeyFormat = []string{"id", "b"}, rowbinary.KeyJSON
	tb = newTable(t, opts, "a String", "id UInt16", "b String", "gone Bool")
	require.Equal(t, cat(1, 0, 44, 1, 0, "k", 0, 1), tb.record(&kafka.Record{Key: []byte(`{"b":"k","id":300,"zz":1}`)}))
	require.Equal(t, rowbinary.CodeMissing, tb.refusedRecord(&kafka.Record{Key: []byte(`{"b":"k"}`)}).Code)
	require.Equal(t, rowbinary.CodeTrailingData, tb.refusedRecord(&kafka.Record{Key: []byte(`{"b":"k","id":1}x`)}).Code)
	require.Equal(t, rowbinary.CodeNotObject, tb.refusedRecord(&kafka.Record{Key: []byte(`5`)}).Code)
}

func TestCompileNamesEveryProblem(t *testing.T) {
	_, err := compileColumns(rowbinary.Options{Unknown: "drop", Overflow: "o", RawColumns: []string{"n", "none"}, Provenance: rowbinary.StandardProvenance()},
		"v Variant(String, UInt8)", "n UInt8", "agg AggregateFunction(sum, UInt64)", "d Dynamic", "i IntervalDay", "ti Time", "j JSON(a.b UInt8)",
		"z DateTime('Mars/Base')", "l DateTime('Local')", "_offset String", "_topic String MATERIALIZED", "bad Array(", "m Map(Array(String), UInt8)", "t Tuple()", "f FixedString(0)", "k UInt8 SOMETIMES ")
	require.Error(t, err)
	for _, part := range []string{
		`unknown "drop" is not one of`, `column o`, `column v Variant(String, UInt8): type not supported`, `column n UInt8: only a String`, `raw column none`,
		`column agg AggregateFunction`, `column d Dynamic`, `column i IntervalDay`, `column ti Time: type`, `path a.b has a type`, `Mars/Base`, `"Local"`,
		`column _offset String as the offset column: must be Int64`, `column _topic is MATERIALIZED`, `column bad Array(`, `Map(Array(String), UInt8)`, `column t Tuple()`, `column f FixedString(0)`,
	} {
		require.ErrorContains(t, err, part)
	}

	for _, c := range []struct {
		opts    rowbinary.Options
		columns string
		want    string
	}{
		{rowbinary.Options{}, "m UInt8 ALIAS", "no column that can be inserted into"},
		{rowbinary.Options{Format: "csv"}, "a UInt8", `format "csv" is not one of`},
		{rowbinary.Options{Format: rowbinary.FormatRaw}, "a String", "format raw needs"},
		{rowbinary.Options{Raw: rowbinary.RawMapping{Value: "a"}}, "a String", "are of format raw"},
		{rowbinary.Options{Unknown: rowbinary.UnknownCollect}, "a String", "overflow column is named if and only if"},
		{rowbinary.Options{Unknown: rowbinary.UnknownCollect, Overflow: "a"}, "a UInt8", "must be JSON, String or Map"},
		{rowbinary.Options{Tombstones: rowbinary.TombstonesDelete}, "a UInt8", "deletions need a marker column"},
		{rowbinary.Options{Provenance: rowbinary.Provenance{Timestamp: "a"}}, "a DateTime", "DateTime64(3)"},
		{rowbinary.Options{Timezone: time.Local}, "a UInt8", "time zone \"Local\""},
		{rowbinary.Options{}, "a Nullable(Nullable(UInt8))", "arguments"},
		{rowbinary.Options{}, "a Decimal(77, 2)", "arguments"},
		{rowbinary.Options{}, "a Tuple(x UInt8, x UInt8)", "twice"},
		{rowbinary.Options{}, "a " + strings.Repeat("Array(", 100) + "UInt8" + strings.Repeat(")", 100), "too deeply"},
	} {
		_, err := compileColumns(c.opts, c.columns)
		require.ErrorContains(t, err, c.want, c.columns)
	}
}
