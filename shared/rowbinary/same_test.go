package rowbinary_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/kafka"
	"oncehouse/shared/rowbinary"
)

// sameColumns have room for every form that a value may be written in.
func sameColumns() []string {
	return []string{
		"id UInt64", "s String", "l LowCardinality(Nullable(String)) DEFAULT", "d Decimal(18, 4) DEFAULT", "a Array(String) DEFAULT",
		"m Map(String, Array(Int8)) DEFAULT", "t Tuple(x UInt8, y Tuple(z Nullable(String), w Float64)) DEFAULT",
		"n.p Array(UInt8) DEFAULT", "n.q Array(String) DEFAULT", "w Nested(e UInt8, f String) DEFAULT", "at DateTime64(3, 'Europe/Berlin') DEFAULT",
	}
}

// sameFields are values of those columns, some of them refused.
func sameFields() []string {
	return []string{
		`"id":18446744073709551615`, `"s":"a \"quoted\" line\n, ü 😀 \\ /"`, `"l":null`, `"d":-12.5`, `"a":["x","","ü"]`,
		`"m":{"k":[1,-128],"l":[]}`, `"t":{"x":1,"y":{"z":"q","w":1.5e3}}`, `"n":[{"p":1,"q":"a"},{"p":2,"q":"b"}]`,
		`"w":{"e":[1,2],"f":["a","b"]}`, `"at":"2025-10-26 02:30:00.125"`, `"other":{"deep":[1,{"er":null}]}`, `"unknown":"\t"`,
		`"a":[1]`, `"d":"1.23456"`, `"t":{"x":1}`,
	}
}

// disguise writes the same record in another way: keys in another order, white
// space between tokens, escapes where none are needed.
func disguise(r *rand.Rand, fields []string) []byte {
	r.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
	plain := "{" + strings.Join(fields, ",") + "}"
	var b bytes.Buffer
	inString := false
	for i := 0; i < len(plain); i++ {
		c := plain[i]
		switch {
		case c == '"':
			inString = !inString
			b.WriteByte(c)
			blank(r, &b, !inString)
		case inString && c == '\\':
			b.WriteString(plain[i : i+2])
			i++
		case inString && c < 0x80 && r.IntN(3) == 0:
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			b.WriteByte(c)
			blank(r, &b, !inString && strings.IndexByte("{}[],:", c) >= 0)
		}
	}
	return b.Bytes()
}

func blank(r *rand.Rand, b *bytes.Buffer, allowed bool) {
	for allowed && r.IntN(3) == 0 {
		b.WriteByte(" \t\r\n"[r.IntN(4)])
	}
}

// The order of keys, white space and escapes never change the row, nor whether
// and why a record is refused; nor does what the Writer read before.
func TestWritingARecordDifferentlyChangesNothing(t *testing.T) {
	encoder, err := compileColumns(rowbinary.Options{}, sameColumns()...)
	require.NoError(t, err)
	warm := encoder.NewWriter()
	r := rand.New(rand.NewPCG(3, 4))
	stored := 0
	for range 3000 {
		all := sameFields()
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		fields := append([]string{`"id":1`, `"s":"x"`}, distinctFields(all[:r.IntN(8)])...)
		plain := []byte("{" + strings.Join(fields, ",") + "}")
		require.True(t, json.Valid(plain), "%s", plain)
		want, outcome, refusal := encoder.NewWriter().Append(nil, "", 0, &kafka.Record{Value: plain})
		if outcome == rowbinary.Stored {
			stored++
		}
		for range 4 {
			other := disguise(r, fields)
			got, sameOutcome, sameRefusal := warm.Append(nil, "", 0, &kafka.Record{Value: other})
			require.Equal(t, outcome, sameOutcome, "%s\n%s\n%v %v", plain, other, refusal, sameRefusal)
			require.Equal(t, want, got, "%s\n%s", plain, other)
		}
	}
	require.Greater(t, stored, 500, "the records are not only refused")
}

// distinctFields leaves out fields of a key that is there already.
func distinctFields(fields []string) []string {
	seen := map[string]bool{"id": true, "s": true}
	var out []string
	for _, f := range fields {
		key := f[1 : strings.IndexByte(f[1:], '"')+1]
		if !seen[key] {
			out = append(out, f)
		}
		seen[key] = true
	}
	return out
}

// An Encoder serves many goroutines, each with its Writer.
func TestEncoderIsSharedByWriters(t *testing.T) {
	encoder, err := compileColumns(rowbinary.Options{}, sameColumns()...)
	require.NoError(t, err)
	value := []byte("{" + strings.Join(sameFields()[:12], ",") + "}")
	want, _, refusal := encoder.NewWriter().Append(nil, "", 0, &kafka.Record{Value: value})
	require.Nil(t, refusal)
	var group sync.WaitGroup
	rows := make([][]byte, 8)
	for i := range rows {
		group.Go(func() {
			writer := encoder.NewWriter()
			for range 200 {
				rows[i], _, _ = writer.Append(rows[i][:0], "", 0, &kafka.Record{Value: value})
			}
		})
	}
	group.Wait()
	for _, row := range rows {
		require.Equal(t, want, row)
	}
}

// A warm Writer allocates nothing for a record that is stored.
func TestAppendAllocatesNothing(t *testing.T) {
	for _, fields := range [][]string{sameFields()[:12], {sameFields()[9], sameFields()[1], sameFields()[7], sameFields()[0]}} {
		writer := newTable(t, rowbinary.Options{}, sameColumns()...).writer
		record := &kafka.Record{Value: []byte("{" + strings.Join(fields, ",") + "}")}
		dst := make([]byte, 0, 1<<16)
		require.Zero(t, testing.AllocsPerRun(200, func() {
			var refusal *rowbinary.Refusal
			if dst, _, refusal = writer.Append(dst[:0], "topic", 0, record); refusal != nil {
				t.Fatal(refusal.Message)
			}
		}))
	}
}

// FuzzAnyBytes: no input makes a Writer panic or leave a part of a row, whatever
// the options; and what is stored does not depend on what came before.
func FuzzAnyBytes(f *testing.F) {
	for _, field := range sameFields() {
		f.Add([]byte(`{"id":1,"s":"",`+field+`}`), []byte("{}"))
	}
	f.Add([]byte(`{"n.p":[1],"n":{"q":["a"]},"t.x":1,"t.y.w":2,"w.e":[1],"w.f":["a"]}`), []byte(`{"id":1}`))
	var warm, cold []*rowbinary.Encoder
	for _, opts := range []rowbinary.Options{
		{Missing: rowbinary.MissingZero},
		{Missing: rowbinary.MissingZero, CaseInsensitive: true, NullAsDefault: true, TruncateFraction: true, RawColumns: []string{"s"}, Unknown: rowbinary.UnknownCollect, Overflow: "rest"},
		{Tombstones: rowbinary.TombstonesDelete, Delete: rowbinary.Delete{Marker: "gone", KeyColumns: []string{"id"}, KeyFormat: rowbinary.KeyJSON}},
	} {
		encoder, err := compileColumns(opts, append(sameColumns(), "rest JSON DEFAULT", "gone UInt8 DEFAULT")...)
		require.NoError(f, err)
		warm, cold = append(warm, encoder), append(cold, encoder)
	}
	var writers []*rowbinary.Writer
	for _, encoder := range warm {
		writers = append(writers, encoder.NewWriter())
	}
	f.Fuzz(func(t *testing.T, value, key []byte) {
		for i, writer := range writers {
			record := &kafka.Record{Value: value, Key: key}
			got, outcome, refusal := writer.Append([]byte("before"), "t", 1, record)
			require.Equal(t, outcome == rowbinary.Refused, refusal != nil)
			require.True(t, bytes.HasPrefix(got, []byte("before")))
			require.Equal(t, outcome != rowbinary.Stored, len(got) == len("before"))
			again, _, _ := cold[i].NewWriter().Append([]byte("before"), "t", 1, record)
			require.Equal(t, got, again)
		}
	})
}
