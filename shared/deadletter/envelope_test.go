package deadletter_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"oncehouse/shared/deadletter"
	"oncehouse/shared/deadletter/deadlettertest"
	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
)

// The golden files are the format: one that has to change means a new version.
func TestGolden(t *testing.T) {
	full := deadlettertest.Letter(42)
	tombstone := full
	tombstone.Record = kafka.Record{Offset: 43, Timestamp: -1, Value: nil, Key: []byte{}}
	registry := full
	registry.Record.KeySchema = &kafka.Schema{DataFormat: "AVRO", ID: "7"}
	registry.Record.ValueSchema = &kafka.Schema{DataFormat: "PROTOBUF", ID: "018f-a"}
	long := full
	long.Record.Value = bytes.Repeat([]byte("x"), 1000)
	for name, e := range map[string]deadletter.Envelope{
		"full":           deadletter.New(full, deadletter.MaxBody),
		"tombstone":      deadletter.New(tombstone, deadletter.MaxBody),
		"registry":       deadletter.New(registry, deadletter.MaxBody),
		"value_omitted":  deadletter.New(long, 1200),
		"record_omitted": deadletter.New(full, 10),
	} {
		body, err := e.Marshal()
		require.NoError(t, err)
		var pretty bytes.Buffer
		require.NoError(t, json.Indent(&pretty, body, "", "  "))
		golden, err := os.ReadFile(filepath.Join("testdata", name+".json"))
		require.NoError(t, err)
		require.Equal(t, string(golden), pretty.String()+"\n", name)
		got, err := deadletter.Parse(golden)
		require.NoError(t, err)
		require.Equal(t, e, got, name)
	}
}

func TestWhatIsTooLargeIsLeftOut(t *testing.T) {
	big := bytes.Repeat([]byte("x"), 300<<10)
	tests := []struct {
		name    string
		change  func(*kafka.Record)
		omitted deadletter.Omission
	}{
		{"all fits", func(*kafka.Record) {}, deadletter.OmitNothing},
		{"large value", func(r *kafka.Record) { r.Value = big }, deadletter.OmitValue},
		{"large key", func(r *kafka.Record) { r.Key = big }, deadletter.OmitRecord},
		{"large header of a tombstone", func(r *kafka.Record) {
			r.Value, r.Headers = nil, []kafka.Header{{Key: []byte("h"), Value: big}}
		}, deadletter.OmitRecord},
		// 191 KiB are 255 KiB in base64, and the rest comes on top.
		{"value that base64 makes too large", func(r *kafka.Record) { r.Value = big[:191<<10] }, deadletter.OmitValue},
		{"value that just fits", func(r *kafka.Record) { r.Value = big[:180<<10] }, deadletter.OmitNothing},
	}
	for _, tt := range tests {
		l := deadlettertest.Letter(1)
		l.Message = strings.Repeat("é", 10_000)
		tt.change(&l.Record)
		e := deadletter.New(l, deadletter.MaxBody)
		require.Equal(t, tt.omitted, e.Omitted, tt.name)
		body, err := e.Marshal()
		require.NoError(t, err)
		require.LessOrEqual(t, len(body), deadletter.MaxBody, tt.name)
		got, err := deadletter.Parse(body)
		require.NoError(t, err, tt.name)
		require.Equal(t, e, got, tt.name)
		require.True(t, got.Complete(l.Record), tt.name)
		other := l.Record
		other.Value, other.Key = []byte("other"), []byte("other")
		require.False(t, got.Complete(other), tt.name)
	}
}

func TestTextIsASCII(t *testing.T) {
	l := deadlettertest.Letter(1)
	l.Message = "\x00\x01\x7f\u0085é\u2028\ufffe\uffff😀\xff"
	body, err := deadletter.New(l, deadletter.MaxBody).Marshal()
	require.NoError(t, err)
	for _, c := range body {
		require.True(t, c >= 0x20 && c < 0x7f, "%#x in %s", c, body)
	}
	got, err := deadletter.Parse(body)
	require.NoError(t, err)
	require.Equal(t, "\x00\x01\x7f\u0085é\u2028\ufffe\uffff😀\uFFFD", got.Message)
}

func TestParseIsStrict(t *testing.T) {
	golden, err := os.ReadFile(filepath.Join("testdata", "full.json"))
	require.NoError(t, err)
	omitted, err := os.ReadFile(filepath.Join("testdata", "value_omitted.json"))
	require.NoError(t, err)
	tests := []struct{ name, old, with, says string }{
		{"newer version", `"version": 1`, `"version": 2`, "this program knows 1"},
		{"no version", `"version": 1,`, ``, "this program knows 1"},
		{"unknown key", `"version": 1`, `"version": 1, "priority": 1`, "priority"},
		{"key in capitals", `"reason"`, `"Reason"`, "misspelt"},
		{"key twice", `"offset": 42`, `"offset": 42, "offset": 42`, "repeated"},
		{"key missing", `"token": "`, `"message": "`, "missing"},
		{"null for a number", `"partition": 3`, `"partition": null`, "coordinates"},
		{"null headers", `"headers": [`, `"headers": null, "x": [`, "x"},
		{"other coordinates", `"offset": 42`, `"offset": 43`, "its coordinates make"},
		{"bad base64", `"value": "`, `"value": "!`, "base64"},
		{"base64 with a line break", `"value": "`, `"value": "\n`, "misspelt"},
		{"time", `"first_seen": "2026`, `"first_seen": "26`, "parsing time"},
		{"time of another zone", `Z"`, `+00:00"`, "misspelt"},
		{"offset as text", `"offset": 42`, `"offset": "42"`, "cannot unmarshal"},
		{"size of nothing", `"version": 1`, `"version": 1, "omitted_size": 5`, "nothing is omitted"},
		{"omitted and there", `"version": 1`, `"version": 1, "value_omitted": true, "omitted_size": 5, "omitted_sha256": "` + strings.Repeat("0", 64) + `"`, "is there"},
		{"omitted twice", `"version": 1`, `"version": 1, "value_omitted": true, "record_omitted": true`, "both"},
		{"two letters", `{`, `{} {`, "version 0"},
	}
	for _, tt := range tests {
		require.Contains(t, string(golden), tt.old, tt.name)
		_, err := deadletter.Parse([]byte(strings.Replace(string(golden), tt.old, tt.with, 1)))
		require.ErrorContains(t, err, tt.says, tt.name)
	}
	_, err = deadletter.Parse(append(golden, '1'))
	require.ErrorContains(t, err, "misspelt")
	_, err = deadletter.Parse(golden[:len(golden)/2])
	require.Error(t, err)
	_, err = deadletter.Parse([]byte(strings.Replace(string(omitted), `"omitted_size"`, `"omitted_sizes"`, 1)))
	require.ErrorContains(t, err, "omitted_sizes")
	_, err = deadletter.Parse([]byte("{\"version\":1,\"id\":\"\xff\"}"))
	require.ErrorContains(t, err, "not UTF-8")
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := deadletter.New(letters().Draw(t, "letter"), rapid.SampledFrom([]int{0, 700, deadletter.MaxBody}).Draw(t, "limit"))
		body, err := e.Marshal()
		require.NoError(t, err)
		got, err := deadletter.Parse(body)
		require.NoError(t, err)
		require.Equal(t, e, got)
	})
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"full", "tombstone", "registry", "value_omitted", "record_omitted"} {
		golden, err := os.ReadFile(filepath.Join("testdata", name+".json"))
		require.NoError(f, err)
		f.Add(golden)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := deadletter.Parse(body)
		if err != nil {
			return
		}
		again, err := e.Marshal()
		require.NoError(t, err)
		got, err := deadletter.Parse(again)
		require.NoError(t, err)
		require.Equal(t, e, got)
	})
}

func letters() *rapid.Generator[delivery.Letter] {
	null := rapid.OneOf(rapid.Just([]byte(nil)), rapid.SliceOf(rapid.Byte()))
	some := rapid.SliceOf(rapid.Byte())
	return rapid.Custom(func(t *rapid.T) delivery.Letter {
		l := delivery.Letter{
			Lane: delivery.Lane{
				Pipeline: rapid.String().Draw(t, "pipeline"), Cluster: rapid.String().Draw(t, "cluster"),
				TopicPartition: kafka.TopicPartition{Topic: rapid.String().Draw(t, "topic"), Partition: rapid.Int32().Draw(t, "partition")},
			},
			Generation: rapid.Int64().Draw(t, "generation"),
			Record: kafka.Record{
				Offset: rapid.Int64().Draw(t, "offset"), Timestamp: rapid.Int64().Draw(t, "timestamp"),
				Key: null.Draw(t, "key"), Value: null.Draw(t, "value"),
			},
			Code: rapid.String().Draw(t, "code"), Message: rapid.String().Draw(t, "message"), Token: rapid.String().Draw(t, "token"),
			FirstSeen: time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanos")),
		}
		for range rapid.IntRange(0, 3).Draw(t, "headers") {
			l.Record.Headers = append(l.Record.Headers, kafka.Header{Key: some.Draw(t, "header key"), Value: some.Draw(t, "header value")})
		}
		if rapid.Bool().Draw(t, "schema") {
			l.Record.ValueSchema = &kafka.Schema{DataFormat: rapid.String().Draw(t, "format"), ID: rapid.String().Draw(t, "schema id")}
		}
		return l
	})
}
