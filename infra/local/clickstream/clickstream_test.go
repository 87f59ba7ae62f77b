package clickstream_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/clickstream"
	"oncehouse/shared/kafka"
	"oncehouse/shared/kafkaevent"
)

// TestValueSaysWhatClickSays reads values back with encoding/json: a verifier
// may rely on Click.
func TestValueSaysWhatClickSays(t *testing.T) {
	for _, size := range []int{0, 300, 301, 599, 600, 777, 1600, 5000} {
		g := clickstream.Generator{Seed: 7, Size: size}
		for i := range int64(500) {
			value := g.Value(nil, i)
			require.Len(t, value, max(size, clickstream.MinSize), "record %d", i)
			var v struct {
				EventID    string            `json:"event_id"`
				UserID     uint64            `json:"user_id"`
				Session    string            `json:"session"`
				URL        string            `json:"url"`
				Referrer   *string           `json:"referrer"`
				TS         time.Time         `json:"ts"`
				DurationMS uint32            `json:"duration_ms"`
				Price      json.Number       `json:"price"`
				Tags       []string          `json:"tags"`
				Props      map[string]string `json:"props"`
			}
			require.NoError(t, json.Unmarshal(value, &v), "%s", value)
			c := g.Click(i)
			require.Equal(t, c.UUID(), v.EventID)
			require.Equal(t, c.UserID, v.UserID)
			require.Equal(t, c.Session, v.Session)
			require.Equal(t, c.URL, v.URL)
			require.Equal(t, c.Referrer == "", v.Referrer == nil)
			if v.Referrer != nil {
				require.Equal(t, c.Referrer, *v.Referrer)
			}
			require.True(t, c.Time.Equal(v.TS))
			require.Equal(t, c.DurationMS, v.DurationMS)
			require.Equal(t, c.Price(), v.Price.String())
			require.Equal(t, c.Tags, v.Tags)
			require.Len(t, v.Props, len(c.Props))
			for _, p := range c.Props {
				require.Equal(t, p.Value, v.Props[p.Name])
			}
			require.Equal(t, "user-"+strconv.FormatUint(c.UserID, 10), string(g.Key(nil, i)))
		}
	}
}

// TestSizeIsExact looks for a click whose fields leave no room.
func TestSizeIsExact(t *testing.T) {
	g := clickstream.Generator{Seed: 5, Size: clickstream.MinSize}
	var value []byte
	for i := range int64(30_000) {
		if value = g.Value(value[:0], i); len(value) != clickstream.MinSize {
			require.Len(t, value, clickstream.MinSize, "record %d: %s", i, value)
		}
	}
}

func TestIndexDeterminesEverything(t *testing.T) {
	g := clickstream.Generator{Seed: 1, Size: 400, PoisonEvery: 5, TombstoneEvery: 7}
	other := g
	other.Seed = 2
	ids := map[string]bool{}
	for i := range int64(2000) {
		once, again := g.Record(i), g.Record(i)
		require.Equal(t, once, again)
		require.NotEqual(t, g.Click(i), other.Click(i))
		c := g.Click(i)
		ids[c.UUID()] = true
	}
	require.Len(t, ids, 2000)
}

// TestKindIsWhatTheValueIs: the good ones are JSON, and each poison is spoiled.
func TestKindIsWhatTheValueIs(t *testing.T) {
	g := clickstream.Generator{Seed: 3, PoisonEvery: 4, TombstoneEvery: 10}
	count := map[clickstream.Kind]int{}
	for i := range int64(6000) {
		kind := g.Kind(i)
		count[kind]++
		r := g.Record(i)
		c := g.Click(i)
		text := string(r.Value)
		var object map[string]any
		isJSON := json.Unmarshal(r.Value, &object) == nil && utf8.Valid(r.Value)
		switch kind {
		case clickstream.Tombstone:
			require.Nil(t, r.Value)
		case clickstream.Empty:
			require.NotNil(t, r.Value)
			require.Empty(t, r.Value)
		case clickstream.Good:
			require.True(t, isJSON, "%s", text)
		case clickstream.NotJSON, clickstream.CutShort, clickstream.NotObject, clickstream.TrailingData, clickstream.BadUTF8:
			require.False(t, isJSON, "%s: %s", kind, text)
		case clickstream.DuplicateKey:
			require.Equal(t, 2, strings.Count(text, `"user_id":`))
		case clickstream.WrongType:
			require.Equal(t, "anonymous", object["user_id"])
		case clickstream.NullInColumn:
			require.Contains(t, object, "user_id")
			require.Nil(t, object["user_id"])
		case clickstream.OutOfRange:
			require.InDelta(t, 1<<32, object["duration_ms"], 0)
		case clickstream.NoSuchDate:
			require.True(t, strings.HasPrefix(object["ts"].(string), "2025-02-30T"))
		case clickstream.TooPrecise:
			require.Contains(t, text, `"price":`+c.Price()+"9,")
		default:
			require.Fail(t, "a kind this test does not know", "%s", kind)
		}
	}
	for _, kind := range clickstream.Kinds() {
		require.Positive(t, count[kind], "%s", kind)
		require.Equal(t, kind != clickstream.Good && kind != clickstream.Tombstone, kind.Poison())
	}
	require.InDelta(t, 600, count[clickstream.Tombstone], 100)
	require.InDelta(t, 6000*0.9*0.75, count[clickstream.Good], 250)
	require.Equal(t, "kind 99", clickstream.Kind(99).String())
}

func TestNoPoisonUnlessAskedFor(t *testing.T) {
	g := clickstream.Generator{Seed: 3}
	for i := range int64(1000) {
		require.Equal(t, clickstream.Good, g.Kind(i))
	}
}

// TestPayloadIsDecoded sends batches through an event and back.
func TestPayloadIsDecoded(t *testing.T) {
	g := clickstream.Generator{Seed: 9, Size: 333, PoisonEvery: 6, TombstoneEvery: 9}
	batches := []kafka.Batch{
		g.Batch(kafka.TopicPartition{Topic: "clicks", Partition: 0}, 100, 0, 50),
		g.Batch(kafka.TopicPartition{Topic: "clicks", Partition: 3}, 7, 50, 31),
	}
	batches[0].Records[3].Timestamp = -1
	batches[0].Records[4].Key = nil
	batches[1].Records[5].ValueSchema = &kafka.Schema{DataFormat: "AVRO", ID: "17"}
	for source, mapping := range map[string]clickstream.Mapping{
		kafkaevent.SourceMSK:         {SourceARN: "arn:aws:kafka:eu-west-1:111122223333:cluster/clicks/1", BootstrapServers: "b-1:9098"},
		kafkaevent.SourceSelfManaged: {BootstrapServers: "b-1:9092,b-2:9092"},
	} {
		payload := mapping.Payload(nil, batches...)
		require.True(t, json.Valid(payload))
		var d kafkaevent.Decoder
		event, err := d.Decode(payload)
		require.NoError(t, err)
		require.Equal(t, source, event.Source)
		require.Equal(t, mapping.SourceARN, event.SourceARN)
		require.Equal(t, mapping.BootstrapServers, event.BootstrapServers)
		require.Equal(t, batches, event.Batches)
	}
}

func BenchmarkValue(b *testing.B) {
	g := clickstream.Generator{Seed: 1, Size: 300, PoisonEvery: 500, TombstoneEvery: 1000}
	dst := make([]byte, 0, 1024)
	b.ReportAllocs()
	for i := range b.N {
		dst = g.Value(dst[:0], int64(i))
	}
}
