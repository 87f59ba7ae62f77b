package kafkaevent

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"testing"

	"github.com/aws/aws-lambda-go/events"
	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/clickstream"
	"oncehouse/shared/kafka"
)

// rawBytes is what Lambda's 6 MB payload has room for after base64.
const rawBytes = 4_000_000

// clicks is a full event of values of one size over three partitions, and the
// bytes and number of its values.
func clicks(b *testing.B, size int) (payload []byte, values int64, records int) {
	g := clickstream.Generator{Seed: 1, Size: size, TombstoneEvery: 1000}
	var batches []kafka.Batch
	perPartition := rawBytes / (size + 130) / 3
	for p := range int64(3) {
		tp := kafka.TopicPartition{Topic: "clicks", Partition: int32(p)}
		batch := g.Batch(tp, 1_000_000, p*int64(perPartition), perPartition)
		for _, r := range batch.Records {
			values += int64(len(r.Value))
		}
		batches = append(batches, batch)
	}
	mapping := clickstream.Mapping{SourceARN: "arn:aws:kafka:eu-west-1:111122223333:cluster/clicks/1", BootstrapServers: "b-1:9098"}
	payload = mapping.Payload(nil, batches...)
	require.Less(b, len(payload), 6<<20)
	return payload, values, 3 * perPartition
}

// bench reports MB/s of values before base64 and records/s.
func bench(b *testing.B, size int, run func(payload []byte, records int)) {
	payload, values, records := clicks(b, size)
	run(payload, records)
	b.SetBytes(values)
	b.ReportAllocs()
	for b.Loop() {
		run(payload, records)
	}
	perRecord := float64(b.Elapsed().Nanoseconds()) / float64(b.N) / float64(records)
	b.ReportMetric(perRecord, "ns/record")
	b.ReportMetric(1e9/perRecord, "records/s")
}

func benchDecode(b *testing.B, size int) {
	var d Decoder
	bench(b, size, func(payload []byte, records int) {
		event, err := d.Decode(payload)
		if err != nil || len(event.Batches) != 3 || len(event.Batches[2].Records) != records/3 {
			b.Fatal(err)
		}
	})
}

func BenchmarkDecode300(b *testing.B)  { benchDecode(b, 300) }
func BenchmarkDecode1600(b *testing.B) { benchDecode(b, 1600) }

// benchFloor finds the values and decodes them: what nobody can leave out, by
// the means of the standard library.
func benchFloor(b *testing.B, size int) {
	var arena []byte
	var slices [][]byte
	bench(b, size, func(payload []byte, records int) {
		arena, slices = arena[:0], slices[:0]
		for rest := payload; ; {
			i := bytes.Index(rest, []byte(`"value":"`))
			if i < 0 {
				break
			}
			rest = rest[i+9:]
			end := bytes.IndexByte(rest, '"')
			var err error
			start := len(arena)
			if arena, err = base64.StdEncoding.AppendDecode(arena, rest[:end]); err != nil {
				b.Fatal(err)
			}
			slices = append(slices, arena[start:])
			rest = rest[end:]
		}
		if len(slices) > records || len(slices) < records*9/10 {
			b.Fatal(len(slices))
		}
	})
}

func BenchmarkFloor300(b *testing.B)  { benchFloor(b, 300) }
func BenchmarkFloor1600(b *testing.B) { benchFloor(b, 1600) }

// benchTyped is how a Go function usually reads the event.
func benchTyped(b *testing.B, size int) {
	bench(b, size, func(payload []byte, records int) {
		var event events.KafkaEvent
		if err := json.Unmarshal(payload, &event); err != nil {
			b.Fatal(err)
		}
		n := 0
		for _, batch := range event.Records {
			for _, r := range batch {
				for _, text := range []string{r.Key, r.Value} {
					if _, err := base64.StdEncoding.DecodeString(text); err != nil {
						b.Fatal(err)
					}
				}
				n++
			}
		}
		if n != records {
			b.Fatal(n)
		}
	})
}

func BenchmarkTyped300(b *testing.B)  { benchTyped(b, 300) }
func BenchmarkTyped1600(b *testing.B) { benchTyped(b, 1600) }

// BenchmarkBase64 compares the two ways over one value's text.
func BenchmarkBase64(b *testing.B) {
	text := append(base64.StdEncoding.AppendEncode(nil, make([]byte, 1600)), '"')
	dst := make([]byte, len(text)+arenaSlack)
	b.Run("onepass", func(b *testing.B) {
		b.SetBytes(1600)
		for b.Loop() {
			decodeBase64(dst, text)
		}
	})
	b.Run("standard", func(b *testing.B) {
		b.SetBytes(1600)
		for b.Loop() {
			_, _ = base64.StdEncoding.Decode(dst, text[:bytes.IndexByte(text, '"')])
		}
	})
}
