package rowbinary_test

import (
	"bytes"
	"encoding/json"
	"math/big"
	"math/rand/v2"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/kafka"
	"oncehouse/shared/rowbinary"
)

// store encodes values for a table, stores them in one insert, and returns the
// table's rows as TSV.
func (e *engine) store(table string, opts rowbinary.Options, values ...string) string {
	e.t.Helper()
	zone, err := time.LoadLocation(strings.TrimSpace(e.must("SELECT timezone()")))
	require.NoError(e.t, err)
	opts.Timezone = zone
	encoder, err := rowbinary.Compile(e.columns(table), opts)
	require.NoError(e.t, err)
	writer := encoder.NewWriter()
	var rows []byte
	for i, value := range values {
		var refusal *rowbinary.Refusal
		rec := &kafka.Record{Offset: int64(i), Timestamp: 1750478400123, Value: []byte(value), Headers: []kafka.Header{{Key: []byte("h"), Value: []byte("v")}}}
		rows, _, refusal = writer.Append(rows, "clicks", 3, rec)
		require.Nil(e.t, refusal, value)
	}
	e.insert(table, encoder.Columns(), rows)
	return e.must("SELECT * FROM " + table + " FORMAT TSVRaw")
}

// system.columns tells of names, enums and zones with quotes, and of DEFAULT
// expressions that read what the record gave.
func TestTablesAsTheServerDescribesThem(t *testing.T) {
	e := newEngine(t)
	e.must("CREATE TABLE t (`a b` Tuple(`x y` UInt8, `it``s` String, `q\\\\z` UInt8), e Enum8('a\\'b' = 1, 'c=d' = 2, 'tab\\t' = 3, 'ü\\\\' = -4, '' = 7), " +
		"lc LowCardinality(Nullable(String)), m Map(LowCardinality(String), Array(Nullable(Decimal(10, 3)))), d DateTime DEFAULT '2020-01-01 00:00:00', " +
		"twice UInt64 DEFAULT ifNull(length(lc), 0) * 2, up String MATERIALIZED upper(ifNull(lc, '')), eph String EPHEMERAL, low String DEFAULT lower(eph), " +
		"_topic LowCardinality(String), _partition Int32, _offset Int64, _timestamp DateTime64(3, 'UTC'), _key Nullable(String), _headers Map(String, String)) ENGINE = Memory")
	got := e.store("t", rowbinary.Options{Provenance: rowbinary.StandardProvenance()},
		`{"a b":{"q\\z":3,"x y":1,"it`+"`"+`s":"s"},"e":"tab\t","lc":"five5","m":{"k":[1.5,null]},"eph":"ABC","_offset":77}`,
		`{"m":{},"a b.it`+"`"+`s":"s","a b.x y":1,"a b.q\\z":2,"e":"ü\\","twice":1,"low":"given","d":"2025-06-21 04:00:00"}`)
	require.Equal(t, "(1,'s',3)\ttab\t\tfive5\t{'k':[1.5,NULL]}\t2020-01-01 00:00:00\t10\tabc\tclicks\t3\t0\t2025-06-21 04:00:00.123\t\\N\t{'h':'v'}\n"+
		"(1,'s',2)\tü\\\t\\N\t{}\t2025-06-21 04:00:00\t1\tgiven\tclicks\t3\t1\t2025-06-21 04:00:00.123\t\\N\t{'h':'v'}\n", got)
}

func TestNestedThatStaysWhole(t *testing.T) {
	e := newEngine(t)
	_, err := e.post("CREATE TABLE n (n Nested(a UInt8, b Nested(c String))) ENGINE = Memory", nil, url.Values{"flatten_nested": {"0"}})
	require.NoError(t, err)
	want := "[(1,[('x'),('y')]),(2,[])]\n"
	got := e.store("n", rowbinary.Options{}, `{"n":[{"a":1,"b":[{"c":"x"},{"c":"y"}]},{"a":2,"b":[]}]}`, `{"n":{"a":[1,2],"b":[{"c":["x","y"]},[]]}}`, `{"n.b":[[{"c":"x"},{"c":"y"}],[]],"n.a":[1,2]}`)
	require.Equal(t, strings.Repeat(want, 3), got)

	e.must("CREATE TABLE f (n Nested(a UInt8, b Nested(c String))) ENGINE = Memory")
	got = e.store("f", rowbinary.Options{}, `{"n":[{"a":1,"b":[{"c":"x"},{"c":"y"}]},{"a":2,"b":[]}]}`, `{"n.a":[1,2],"n":{"b":[{"c":["x","y"]},[]]}}`)
	require.Equal(t, strings.Repeat("[1,2]\t[[('x'),('y')],[]]\n", 2), got)
}

// What stands for an absent member is what the server calls the type's default.
func TestDefaultsOfTypesAreTheServers(t *testing.T) {
	e := newEngine(t)
	for i, typ := range []string{
		"UInt8", "Int256", "Float32", "BFloat16", "Decimal(20, 3)", "Bool", "String", "FixedString(2)", "UUID", "IPv4", "IPv6", "Date", "Date32",
		"DateTime(\\'UTC\\')", "DateTime64(3, \\'UTC\\')", "Enum8(\\'b\\' = 2, \\'a\\' = 1)", "Enum16(\\'z\\' = -300, \\'a\\' = 1)", "Array(String)", "Map(String, UInt8)", "Nullable(UInt8)", "JSON", "Point",
	} {
		table := "z" + strconv.Itoa(i)
		e.must("CREATE TABLE " + table + " (c Tuple(v " + strings.ReplaceAll(typ, `\'`, `'`) + ")) ENGINE = Memory")
		e.store(table, rowbinary.Options{Missing: rowbinary.MissingZero}, `{"c":{}}`)
		require.Equal(t, e.must("SELECT defaultValueOfTypeName('"+typ+"')"), e.must("SELECT c.v FROM "+table), typ)
	}
}

// Whatever a JSON column is sent, the server takes and keeps: a row that it refused
// would fail the insert of all its neighbours.
func TestServerKeepsEveryJSONThatIsNotRefused(t *testing.T) {
	e := newEngine(t)
	for _, typ := range []string{"JSON", "JSON(max_dynamic_types=1)", "JSON(max_dynamic_types=3, max_dynamic_paths=2)"} {
		t.Run(typ, func(t *testing.T) { requireKept(t, e, typ) })
	}
}

func requireKept(t *testing.T, e *engine, typ string) {
	t.Helper()
	e.must("DROP TABLE IF EXISTS j")
	e.must("CREATE TABLE j (c " + typ + ") ENGINE = Memory")
	encoder, err := rowbinary.Compile(e.columns("j"), rowbinary.Options{})
	require.NoError(t, err)
	writer := encoder.NewWriter()
	deepest := rowbinary.MaxDepth
	values := []string{
		strings.Repeat(`{"a":`, deepest) + "1" + strings.Repeat("}", deepest),
		`{"a":` + strings.Repeat(`[`, deepest-1) + strings.Repeat("]", deepest-1) + "}",
		`{"` + strings.Repeat("k", 1<<16) + `":1}`, `{"":1,"a":{"":2}}`, `{"a":{"c":1},"a.b":2}`, `{".":1}`, `{"a\u0000":"\u0000"}`, `{"a":0.` + strings.Repeat("1", 1000) + `}`, `{"a":1e-400}`, `{"a":1E+2}`, `{"a":-0}`,
	}
	edges := len(values) // all of these are taken
	for arrays := range 8 {
		for _, value := range []string{"0.5", `"x"`, "9007199254740993", "-9223372036854775808", "18446744073709551615"} {
			values = append(values, `{"in`+strconv.Itoa(arrays)+`":`+inArrays(arrays, value)+`}`)
		}
	}
	r := rand.New(rand.NewPCG(5, 6))
	for range 1500 {
		values = append(values, "{"+strings.Join(randomFields(r, 3), ",")+"}")
	}
	var rows []byte
	var stored []string
	for i, value := range values {
		next, outcome, _ := writer.Append(rows, "", 0, &kafka.Record{Value: []byte(`{"c":` + value + `}`)})
		if outcome == rowbinary.Stored {
			rows, stored = next, append(stored, value)
		}
		require.True(t, outcome == rowbinary.Stored || i >= edges, value)
	}
	require.Greater(t, len(stored), 500)
	require.Less(t, len(stored), len(values))
	e.insert("j", encoder.Columns(), rows)
	printed := strings.Split(e.must("SELECT c FROM j FORMAT TSVRaw"), "\n")
	require.Len(t, printed, len(stored)+1)
	for i, value := range stored {
		require.Equal(t, keptPaths(t, value), keptPaths(t, printed[i]), value)
	}
}

// keptPaths is what a JSON column keeps of an object: the value of each path. A
// null is as good as no value, an object without members is no path, and a key with
// a dot is one.
func keptPaths(t *testing.T, object string) map[string]any {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(object))
	decoder.UseNumber()
	var value map[string]any
	require.NoError(t, decoder.Decode(&value), object)
	paths := map[string]any{}
	addPaths(paths, "", value)
	return paths
}

func addPaths(paths map[string]any, prefix string, object map[string]any) {
	for key, value := range object {
		switch value := value.(type) {
		case nil:
		case map[string]any:
			addPaths(paths, prefix+key+".", value)
		default:
			paths[prefix+key] = keptValue(value)
		}
	}
}

func keptValue(value any) any {
	switch value := value.(type) {
	case map[string]any:
		paths := map[string]any{}
		addPaths(paths, "", value)
		return paths
	case []any:
		for i := range value {
			value[i] = keptValue(value[i])
		}
	case json.Number:
		number, _ := new(big.Rat).SetString(value.String())
		if strings.ContainsAny(value.String(), ".eE") {
			float, _ := value.Float64()
			number.SetFloat64(float)
		}
		return number.RatString()
	}
	return value
}

// randomFields are fields of an object, many of which a JSON column cannot take.
func randomFields(r *rand.Rand, depth int) []string {
	var fields []string
	for range r.IntN(4) {
		key := []string{"a", "b", "a.b", "a.b.c", "c", "", ".", `\u0061`, "ü"}[r.IntN(9)]
		fields = append(fields, `"`+key+`":`+randomValue(r, depth))
	}
	return fields
}

func randomValue(r *rand.Rand, depth int) string {
	switch kind := r.IntN(10); {
	case kind < 2 && depth > 0:
		return "{" + strings.Join(randomFields(r, depth-1), ",") + "}"
	case kind < 4 && depth > 0:
		var b bytes.Buffer
		for i := range r.IntN(3) {
			b.WriteString(strings.Repeat(",", min(i, 1)) + randomValue(r, depth-1))
		}
		return "[" + b.String() + "]"
	}
	scalars := []string{"1", "-1", "0.5", "1.0", `"x"`, `"2025-06-21"`, `"true"`, `"1.5"`, `"[1]"`, `"{}"`, `"null"`, "true", "false", "null", "18446744073709551615", "18446744073709551616", "9007199254740993", "-9223372036854775808", "1e400", `"\u0000"`}
	return scalars[r.IntN(len(scalars))]
}
