package mapping

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"oncehouse/shared/kafka"
)

func format(t require.TestingT, cfg Config) *payloadFormat {
	f, err := newPayloadFormat(&cfg)
	require.NoError(t, err)
	return &f
}

// partitionOf has the records at hand, ready to be sent.
func partitionOf(f *payloadFormat, topic string, number int32, records ...*kgo.Record) *partition {
	p := newPartition(kafka.TopicPartition{Topic: topic, Partition: number}, 1)
	for _, r := range records {
		r.Topic, r.Partition = topic, number
		it := item{r, f.recordSize(r)}
		p.queue = append(p.queue, it)
		p.bytes += it.size
		p.polled = r.Offset + 1
	}
	return p
}

func TestPayloadIsWhatLambdaBuilds(t *testing.T) {
	at := time.UnixMilli(1545084650987)
	records := func() (*kgo.Record, *kgo.Record) {
		return &kgo.Record{Offset: 15, Timestamp: at, Key: []byte("k"), Value: []byte("Hello, this is a test."), Headers: []kgo.RecordHeader{
				{Key: "headerKey", Value: []byte("header")}, {Key: `"q"`, Value: []byte{0, 127, 128, 255}}, {Key: "headerKey"},
			}},
			&kgo.Record{Offset: 17, Timestamp: time.UnixMilli(0), Value: []byte{}}
	}
	const self = `{"eventSource":"SelfManagedKafka","bootstrapServers":"a:1,b:2","records":{"a-b-1-0":[` +
		`{"topic":"a-b-1","partition":0,"offset":15,"timestamp":1545084650987,"timestampType":"CREATE_TIME","key":"aw==","value":"SGVsbG8sIHRoaXMgaXMgYSB0ZXN0Lg==","headers":[{"headerKey":[104,101,97,100,101,114]},{"\"q\"":[0,127,-128,-1]},{"headerKey":[]}]},` +
		`{"topic":"a-b-1","partition":0,"offset":17,"timestamp":0,"timestampType":"CREATE_TIME","key":null,"value":"","headers":[]}` +
		`],"a-b-1-1":[{"topic":"a-b-1","partition":1,"offset":3,"timestamp":-1,"timestampType":"CREATE_TIME","key":"","value":null,"headers":[]}]}}`
	for _, tt := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"self-managed, null spelled", Config{Brokers: []string{"a:1", "b:2"}}, self},
		{"MSK, null left out", Config{Brokers: []string{"a:1"}, EventSourceARN: "arn:aws:kafka:x", OmitNull: true},
			strings.NewReplacer(`"key":null,`, "", `"value":null,`, "", `"eventSource":"SelfManagedKafka","bootstrapServers":"a:1,b:2"`,
				`"eventSource":"aws:kafka","eventSourceArn":"arn:aws:kafka:x","bootstrapServers":"a:1"`).Replace(self)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := format(t, tt.cfg)
			first, second := records()
			ready := []*partition{partitionOf(f, "a-b-1", 0, first, second), partitionOf(f, "a-b-1", 1, &kgo.Record{Offset: 3, Key: []byte{}})}
			ev := cut(ready, f, 100, MaxPayloadBytes)
			require.Equal(t, tt.want, string(f.event(&ev)))
			require.Equal(t, len(tt.want), f.size(&ev))
			require.True(t, json.Valid([]byte(tt.want)))
		})
	}
}

// The size is known without building the payload, and cut keeps to its limits.
func TestCutKeepsItsLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := format(t, Config{Brokers: []string{"a:1"}, OmitNull: rapid.Bool().Draw(t, "omit null")})
		var ready []*partition
		for i := range rapid.IntRange(1, 4).Draw(t, "partitions") {
			var records []*kgo.Record
			for o := range rapid.IntRange(1, 20).Draw(t, "records") {
				records = append(records, &kgo.Record{
					Offset: int64(o * 3), Timestamp: time.UnixMilli(rapid.Int64Range(0, 1<<42).Draw(t, "timestamp")),
					Key: rapid.SliceOfN(rapid.Byte(), -1, 5).Draw(t, "key"), Value: bytes.Repeat([]byte{'v'}, rapid.IntRange(0, 400).Draw(t, "value")),
					Headers: []kgo.RecordHeader{{Key: "h", Value: rapid.SliceOfN(rapid.Byte(), 0, 5).Draw(t, "header")}},
				})
			}
			ready = append(ready, partitionOf(f, "t", int32(i), records...))
		}
		maxRecords := rapid.IntRange(1, 60).Draw(t, "max records")
		maxBytes := rapid.IntRange(500, 5000).Draw(t, "max bytes")
		ev := cut(ready, f, maxRecords, maxBytes)
		payload := f.event(&ev)
		require.Len(t, payload, f.size(&ev))
		require.True(t, json.Valid(payload))
		require.LessOrEqual(t, ev.records(), maxRecords)
		if ev.oversize {
			require.Greater(t, len(payload), maxBytes)
			require.Equal(t, 1, ev.records())
			return
		}
		require.LessOrEqual(t, len(payload), maxBytes)
		for _, q := range ev.parts {
			require.Equal(t, q.items, q.p.queue[:len(q.items)], "the head of the queue, in order")
			require.True(t, q.p.busy)
		}
	})
}

func TestCutSharesEvenly(t *testing.T) {
	f := format(t, Config{Brokers: []string{"a:1"}})
	queue := func(number int32, n int) *partition {
		var records []*kgo.Record
		for o := range n {
			records = append(records, &kgo.Record{Offset: int64(o)})
		}
		return partitionOf(f, "t", number, records...)
	}
	for _, tt := range []struct{ have, want []int }{
		{[]int{10, 10}, []int{5, 5}},
		{[]int{2, 10}, []int{2, 8}},
		{[]int{10, 2}, []int{8, 2}},
		{[]int{1, 1, 1}, []int{1, 1, 1}},
		{[]int{100, 100, 100}, []int{4, 4, 2}},
	} {
		t.Run(fmt.Sprint(tt.have), func(t *testing.T) {
			var ready []*partition
			for i, n := range tt.have {
				ready = append(ready, queue(int32(i), n))
			}
			ev := cut(ready, f, 10, MaxPayloadBytes)
			var got []int
			for _, q := range ev.parts {
				got = append(got, len(q.items))
			}
			require.Equal(t, tt.want, got)
		})
	}
	p := queue(0, 10)
	p.cut = 3
	ev := cut([]*partition{p}, f, 10, MaxPayloadBytes)
	require.Equal(t, 3, ev.records(), "the size that Recut chose")
}

func TestAnswers(t *testing.T) {
	f := format(t, Config{Brokers: []string{"a:1"}})
	ready := []*partition{
		partitionOf(f, "t", 0, &kgo.Record{Offset: 10}, &kgo.Record{Offset: 11}, &kgo.Record{Offset: 15}),
		partitionOf(f, "t", 1, &kgo.Record{Offset: 7}),
	}
	ev := cut(ready, f, 10, MaxPayloadBytes)
	for _, tt := range []struct {
		name, answer string
		want         []int
		err          string
	}{
		{"empty", ``, []int{3, 1}, ""},
		{"null", `null`, []int{3, 1}, ""},
		{"no list", `{}`, []int{3, 1}, ""},
		{"null list", `{"batchItemFailures":null}`, []int{3, 1}, ""},
		{"empty list", `{"batchItemFailures":[]}`, []int{3, 1}, ""},
		{"last of one", `{"batchItemFailures":[{"itemIdentifier":{"partition":"t-0","offset":15}}]}`, []int{2, 1}, ""},
		{"lowest counts", `{"batchItemFailures":[{"itemIdentifier":{"partition":"t-0","offset":15}},{"itemIdentifier":{"partition":"t-0","offset":11}}]}`, []int{1, 1}, ""},
		{"both", `{"batchItemFailures":[{"itemIdentifier":{"partition":"t-1","offset":7}},{"itemIdentifier":{"partition":"t-0","offset":10}}]}`, []int{0, 0}, ""},
		{"offset in a gap", `{"batchItemFailures":[{"itemIdentifier":{"partition":"t-0","offset":12}}]}`, nil, "offset 12 of t-0, which is not in the event"},
		{"offset above", `{"batchItemFailures":[{"itemIdentifier":{"partition":"t-0","offset":16}}]}`, nil, "offset 16"},
		{"partition of another", `{"batchItemFailures":[{"itemIdentifier":{"partition":"t-2","offset":10}}]}`, nil, `partition "t-2"`},
		{"null identifier", `{"batchItemFailures":[{"itemIdentifier":null}]}`, nil, "names no record"},
		{"no offset", `{"batchItemFailures":[{"itemIdentifier":{"partition":"t-0"}}]}`, nil, "names no record"},
		{"offset as text", `{"batchItemFailures":[{"itemIdentifier":{"partition":"t-0","offset":"10"}}]}`, nil, "read the batch item failures"},
		{"not JSON", `done`, nil, "read the batch item failures"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := failures(&ev, []byte(tt.answer))
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

// An event may be as large as the limit, and a record that just fits is not
// called too large.
func TestCutFillsToTheLimit(t *testing.T) {
	f := format(t, Config{Brokers: []string{"a:1"}})
	ready := func() []*partition {
		return []*partition{
			partitionOf(f, "t", 0, &kgo.Record{Offset: 0, Value: []byte("v")}, &kgo.Record{Offset: 1, Value: []byte("v")}),
			partitionOf(f, "t", 1, &kgo.Record{Offset: 0, Value: []byte("v")}),
		}
	}
	whole := cut(ready(), f, 10, MaxPayloadBytes)
	require.Equal(t, 3, whole.records())
	exact := cut(ready(), f, 10, f.size(&whole))
	require.Equal(t, 3, exact.records())
	less := cut(ready(), f, 10, f.size(&whole)-1)
	require.Equal(t, 2, less.records())

	one := cut(ready()[:1], f, 1, MaxPayloadBytes)
	require.False(t, cut(ready()[:1], f, 1, f.size(&one)).oversize)
	require.True(t, cut(ready()[:1], f, 1, f.size(&one)-1).oversize)
}
