// Package events holds the sample events and the test that each of them is what
// the README says. After a change of samples_test.go,
//
//	go test ./events -update
//
// writes the files and the README's table anew.
package events

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/kafka"
	"oncehouse/shared/kafkaevent"
	"oncehouse/shared/offsets"
)

var update = flag.Bool("update", false, "write the files and the README's table")

// TestFilesAreWhatTheyAreMadeFrom: no file was edited by itself, none is left over.
func TestFilesAreWhatTheyAreMadeFrom(t *testing.T) {
	names := []string{}
	for _, s := range samples {
		names = append(names, s.file)
		if *update {
			require.NoError(t, os.MkdirAll(filepath.Dir(s.file), 0o755))
			require.NoError(t, os.WriteFile(s.file, s.content(), 0o644))
		}
		content, err := os.ReadFile(s.file)
		require.NoError(t, err)
		require.Equal(t, string(s.content()), string(content), s.file)
	}
	found := []string{}
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && path == "outbox" { // of another function, which tests them
			return fs.SkipDir
		}
		if filepath.Ext(path) == ".json" {
			found = append(found, filepath.ToSlash(path))
		}
		return err
	}))
	require.ElementsMatch(t, names, found)
}

// TestLinesAreWhatTheyAreMadeFrom: what a producer is fed line by line is one
// JSON object a line.
func TestLinesAreWhatTheyAreMadeFrom(t *testing.T) {
	const file = "clicks.jsonl"
	if *update {
		require.NoError(t, os.WriteFile(file, lines(), 0o644))
	}
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(lines()), string(content))
	n := 0
	for line := range strings.Lines(string(content)) {
		require.True(t, json.Valid([]byte(line)), line)
		n++
	}
	require.Equal(t, 21, n)
}

// TestEventsHoldWhatTheReadmeSays decodes each file with one decoder, twice, so
// that nothing of one event is left in the next.
func TestEventsHoldWhatTheReadmeSays(t *testing.T) {
	var d kafkaevent.Decoder
	for range 2 {
		for _, s := range samples {
			content, err := os.ReadFile(s.file)
			require.NoError(t, err)
			event, err := d.Decode(content)
			if s.refused != "" {
				var refused *kafkaevent.RefusedError
				require.ErrorAs(t, err, &refused, s.file)
				require.ErrorContains(t, err, s.refused, s.file)
				continue
			}
			require.NoError(t, err, s.file)
			require.Equal(t, s.source, event.Source)
			require.Equal(t, s.source == kafkaevent.SourceMSK, event.SourceARN == arn)
			require.Equal(t, s.lanes, offsetsOf(event, func(kafka.Record) bool { return true }), s.file)
			require.Equal(t, s.tombstones, orNil(offsetsOf(event, func(r kafka.Record) bool { return r.Value == nil })), s.file)
			require.Equal(t, s.poison, orNil(offsetsOf(event, func(r kafka.Record) bool {
				return r.Value != nil && fits(r.Value) != nil
			})), s.file)
		}
	}
}

func offsetsOf(event *kafkaevent.Event, choose func(kafka.Record) bool) lanes {
	found := lanes{}
	for _, b := range event.Batches {
		var set offsets.Set
		for _, r := range b.Records {
			if choose(r) {
				set = set.Append(r.Offset)
			}
		}
		if set.Len() > 0 {
			found[b.String()] = set.String()
		}
	}
	return found
}

func orNil(l lanes) lanes {
	if len(l) == 0 {
		return nil
	}
	return l
}

var price = regexp.MustCompile(`"price":\d{1,10}(\.\d\d?)?[,}]`)

// fits says, by the standard library, whether a value fits clicks.sql.
func fits(value []byte) error {
	var v struct {
		EventID    *string           `json:"event_id"`
		UserID     *uint64           `json:"user_id"`
		Session    *string           `json:"session"`
		URL        *string           `json:"url"`
		Referrer   *string           `json:"referrer"`
		TS         *time.Time        `json:"ts"`
		DurationMS *uint32           `json:"duration_ms"`
		Price      *json.Number      `json:"price"`
		Tags       []string          `json:"tags"`
		Props      map[string]string `json:"props"`
	}
	decoder := json.NewDecoder(bytes.NewReader(value))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&v); err != nil {
		return err
	}
	switch {
	case decoder.InputOffset() != int64(len(value)):
		return fmt.Errorf("trailing data")
	case v.EventID == nil, v.UserID == nil, v.Session == nil, v.URL == nil, v.TS == nil, v.DurationMS == nil, v.Tags == nil, v.Props == nil:
		return fmt.Errorf("a null or missing field")
	case !utf8.Valid(value), !price.Match(value), bytes.Count(value, []byte(`"user_id":`)) != 1:
		return fmt.Errorf("bad UTF-8, a price that is no Decimal(12,2), or a key twice")
	}
	return nil
}

var column = regexp.MustCompile(`(?m)^    (\w+) +[A-Z]`)

// TestTableHasAColumnPerField, and those of the record's coordinates.
func TestTableHasAColumnPerField(t *testing.T) {
	ddl, err := os.ReadFile("clicks.sql")
	require.NoError(t, err)
	columns := []string{}
	for _, match := range column.FindAllStringSubmatch(string(ddl), -1) {
		columns = append(columns, match[1])
	}
	var value map[string]any
	require.NoError(t, json.Unmarshal(stream.Value(nil, good(1)[0]), &value))
	fields := slices.Collect(maps.Keys(value))
	require.ElementsMatch(t, append(fields, "_topic", "_partition", "_offset", "_timestamp", "_key"), columns)
}

// TestSamplesShowWhatTheirNamesSay looks at what lanes and offsets do not tell.
func TestSamplesShowWhatTheirNamesSay(t *testing.T) {
	records := func(file string) []kafka.Record {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		var d kafkaevent.Decoder // not shared: its events are all in use
		event, err := d.Decode(content)
		require.NoError(t, err)
		return event.Batches[0].Records
	}
	h := records("headers.json")
	require.Equal(t, []kafka.Header{
		{Key: []byte("signed"), Value: []byte{0x80, 0xff, 0, 1, 0x7f}},
		{Key: []byte("unsigned"), Value: []byte{0x80, 0xff, 0, 200}},
	}, h[0].Headers)
	require.Equal(t, []kafka.Header{
		{Key: []byte("hop"), Value: []byte("eu")}, {Key: []byte("hop"), Value: []byte("us")},
		{Key: []byte("empty"), Value: []byte{}}, {Key: []byte("null"), Value: []byte{}},
		{Key: []byte("hop"), Value: []byte("eu")},
	}, h[1].Headers)
	require.Equal(t, []kafka.Header{
		{Key: []byte("several"), Value: []byte{1}}, {Key: []byte("in one object"), Value: []byte{2}},
	}, h[2].Headers)

	tomb := records("tombstones.json")
	require.Nil(t, tomb[3].Key)
	require.Equal(t, []byte{}, tomb[5].Key)
	require.Equal(t, []byte{}, tomb[4].Value)

	reg := records("registry.json")
	require.Equal(t, &kafka.Schema{DataFormat: "JSON", ID: "17"}, reg[0].KeySchema)
	require.Equal(t, &kafka.Schema{DataFormat: "AVRO", ID: "3f6c8a52-0d7e-4b1e-9a52-6b9c1c0f7f11"}, reg[0].ValueSchema)
	require.Same(t, reg[0].ValueSchema, reg[2].ValueSchema)
	require.Nil(t, reg[2].KeySchema)

	times := records("timestamps.json")
	require.Equal(t, []int64{0, -1, stream.Timestamp(good(3)[2])}, []int64{times[0].Timestamp, times[1].Timestamp, times[2].Timestamp})

	require.Len(t, slashed(2), 2)
	for i, value := range slashed(2) {
		require.Equal(t, string(value), string(records("escapes.json")[i].Value))
	}
	content, err := os.ReadFile("escapes.json")
	require.NoError(t, err)
	require.Contains(t, string(content), `\u002b`)
	require.Contains(t, string(content), `\/`)
}

// TestOneTableTakesAllSamples: no offset is in two events that are taken, so
// that all of them may go through one pipeline, in any order.
func TestOneTableTakesAllSamples(t *testing.T) {
	all := map[string]offsets.Set{}
	for _, s := range samples {
		for lane, text := range s.lanes {
			set, err := offsets.Parse(text)
			require.NoError(t, err)
			require.Empty(t, all[lane].Intersect(set), "%s: %s", s.file, lane)
			all[lane] = all[lane].Union(set)
		}
	}
}

const (
	tableBegins = "<!-- the table begins: go test ./events -update -->\n"
	tableEnds   = "<!-- the table ends -->\n"
)

// TestReadmeTable keeps the README's table what the samples are.
func TestReadmeTable(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(readme), tableBegins)
	require.True(t, ok)
	_, after, ok := strings.Cut(rest, tableEnds)
	require.True(t, ok)
	want := before + tableBegins + table() + tableEnds + after
	if *update {
		require.NoError(t, os.WriteFile("README.md", []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(readme))
}

func table() string {
	var out strings.Builder
	out.WriteString("| file | shows | partitions and offsets | right result |\n|---|---|---|---|\n")
	for _, s := range samples {
		fmt.Fprintf(&out, "| [%s](%s) | %s | %s | %s |\n", s.file, s.file, s.shows, describe(s.lanes), result(s))
	}
	return out.String()
}

func result(s sample) string {
	if s.refused != "" {
		return "refused whole: `... " + s.refused + " ...`"
	}
	rows := count(s.lanes) - count(s.tombstones) - count(s.poison)
	text := fmt.Sprintf("%d stored", rows)
	if n := count(s.tombstones); n > 0 {
		text += fmt.Sprintf(", %d passed over (%s)", n, describe(s.tombstones))
	}
	if n := count(s.poison); n > 0 {
		text += fmt.Sprintf(", %d dead-lettered (%s)", n, describe(s.poison))
	}
	return text
}

func count(l lanes) (n int64) {
	for _, text := range l {
		set, err := offsets.Parse(text)
		if err != nil {
			panic(err)
		}
		n += set.Len()
	}
	return n
}

func describe(l lanes) string {
	parts := []string{}
	for _, lane := range slices.Sorted(maps.Keys(l)) {
		parts = append(parts, "`"+lane+"`: "+l[lane])
	}
	return strings.Join(parts, "; ")
}
