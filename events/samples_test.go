package events

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"regexp"
	"strings"

	"oncehouse/infra/local/clickstream"
	"oncehouse/shared/kafka"
	"oncehouse/shared/kafkaevent"
)

// sample is one file of this folder: how it is made and what is in it.
type sample struct {
	file, shows string
	content     func() []byte
	source      string
	// Offsets by lane, as offsets.Set prints them: all, those whose value is
	// null, and those that do not fit the table.
	lanes, tombstones, poison lanes
	// refused is a part of the error; "" for an event that is taken.
	refused string
}

type lanes map[string]string

var samples = []sample{
	{
		file: "msk.json", shows: "Amazon MSK, three partitions in one payload, as Lambda writes it",
		content: func() []byte {
			return msk(batch(0, 100, good(4)...), batch(1, 40, good(2)...), batch(5, 0, good(1)...))
		},
		source: kafkaevent.SourceMSK,
		lanes:  lanes{"clicks-0": "100-103", "clicks-1": "40-41", "clicks-5": "0"},
	},
	{
		file: "self-managed.json", shows: "self-managed Apache Kafka: another eventSource, no ARN",
		content: func() []byte {
			return indent(clickstream.Mapping{BootstrapServers: servers}.Payload(nil, batch(2, 7_000_000_000, good(3)...)))
		},
		source: kafkaevent.SourceSelfManaged,
		lanes:  lanes{"clicks-2": "7000000000-7000000002"},
	},
	{
		file: "tombstones.json", shows: "null values in both spellings (no `value`, `\"value\":null`), a null and an empty key, and an empty value, which is no tombstone",
		content: tombstones,
		source:  kafkaevent.SourceMSK, lanes: lanes{"clicks-0": "200-205"},
		tombstones: lanes{"clicks-0": "201-202"}, poison: lanes{"clicks-0": "204"},
	},
	{
		file: "registry.json", shows: "what a schema registry integration adds to each record",
		content: registry,
		source:  kafkaevent.SourceMSK, lanes: lanes{"clicks-0": "300-302"},
	},
	{
		file: "headers.json", shows: "header bytes -128..127 and 0..255, a header twice, an empty and a null one, none, several in one object",
		content: headers,
		source:  kafkaevent.SourceMSK, lanes: lanes{"clicks-0": "400-402"},
	},
	{
		file: "poison.json", shows: "records that do not fit the table among good ones",
		content: func() []byte { return msk(batch(0, 500, poison()...), batch(1, 60, good(2)...)) },
		source:  kafkaevent.SourceMSK, lanes: lanes{"clicks-0": "500-513", "clicks-1": "60-61"},
		poison: lanes{"clicks-0": "501-512"},
	},
	{
		file: "gaps.json", shows: "offsets with gaps: compaction, transaction markers",
		content: func() []byte {
			b := batch(0, 0, good(5)...)
			for i, offset := range []int64{600, 601, 617, 618, 1002} {
				b.Records[i].Offset = offset
			}
			return msk(b)
		},
		source: kafkaevent.SourceMSK, lanes: lanes{"clicks-0": "600-601,617-618,1002"},
	},
	{
		file: "timestamps.json", shows: "timestamps 0 and -1 (none), and times of log append",
		content: timestamps,
		source:  kafkaevent.SourceMSK, lanes: lanes{"clicks-0": "700-702"},
	},
	{
		file: "dashes.json", shows: "a topic with dashes: its record says where the name ends",
		content: func() []byte {
			a, b := batch(0, 9, good(1)...), batch(12, 3, good(2)...)
			a.Topic, b.Topic = "clicks-eu-1", "clicks-eu-1"
			return msk(a, b)
		},
		source: kafkaevent.SourceMSK, lanes: lanes{"clicks-eu-1-0": "9", "clicks-eu-1-12": "3-4"},
	},
	{
		file: "future-fields.json", shows: "fields that no decoder has heard of, in an order that Lambda does not use",
		content: futureFields,
		source:  kafkaevent.SourceMSK, lanes: lanes{"clicks-0": "800-801"},
	},
	{
		file: "escapes.json", shows: "escapes in names, topics and base64, no white space",
		content: escapes,
		source:  kafkaevent.SourceMSK, lanes: lanes{"clicks-0": "900-901"},
	},
	{
		file: "empty.json", shows: "no records at all",
		content: func() []byte { return msk() },
		source:  kafkaevent.SourceMSK, lanes: lanes{},
	},
	{
		file: "refused/sqs.json", shows: "an event of another service",
		content: sqs,
		refused: "not a Kafka event: it has no eventSource",
	},
	{
		file: "refused/cut-short.json", shows: "an event whose end is missing",
		content: func() []byte { all := msk(batch(0, 100, good(2)...)); return all[:len(all)*2/3] },
		refused: "the event is cut short (partition clicks-0, record 1,",
	},
	{
		file: "refused/other-partition.json", shows: "a record that says another partition than its array",
		content: func() []byte {
			return bytes.Replace(msk(batch(0, 100, good(2)...)), []byte(`"clicks-0"`), []byte(`"clicks-3"`), 1)
		},
		refused: "the record's partition is 0 (partition clicks-3, record 0,",
	},
	{
		file: "refused/descending.json", shows: "offsets that do not ascend",
		content: func() []byte {
			b := batch(0, 100, good(3)...)
			b.Records[2].Offset = 101
			return msk(b)
		},
		refused: "offset 101 is not above 101, the one before it (partition clicks-0, record 2,",
	},
}

const (
	arn     = "arn:aws:kafka:eu-west-1:111122223333:cluster/clickstream/0c5f2a4e-8f0b-4f8b-9d0e-6f1d1a2b3c4d-2"
	servers = "b-1.clickstream.example.com:9098,b-2.clickstream.example.com:9098"
)

// stream has enough poison that each kind of it is found quickly.
var stream = clickstream.Generator{Seed: 20250630, Size: 320, PoisonEvery: 4, TombstoneEvery: 50}

// firstOf is the index of the first records of a kind.
func firstOf(kind clickstream.Kind, n int) (indices []int64) {
	for i := int64(0); len(indices) < n; i++ {
		if stream.Kind(i) == kind {
			indices = append(indices, i)
		}
	}
	return indices
}

func good(n int) []int64 { return firstOf(clickstream.Good, n) }

func poison() []int64 {
	indices := good(1)
	for _, kind := range clickstream.Kinds() {
		if kind.Poison() {
			indices = append(indices, firstOf(kind, 1)...)
		}
	}
	return append(indices, good(2)[1])
}

func batch(partition int32, offset int64, indices ...int64) kafka.Batch {
	b := kafka.Batch{TopicPartition: kafka.TopicPartition{Topic: "clicks", Partition: partition}}
	for _, i := range indices {
		r := stream.Record(i)
		r.Offset = offset + int64(len(b.Records))
		b.Records = append(b.Records, r)
	}
	return b
}

func msk(batches ...kafka.Batch) []byte {
	return indent(clickstream.Mapping{SourceARN: arn, BootstrapServers: servers}.Payload(nil, batches...))
}

var numbers = regexp.MustCompile(`\[[\s,\d-]+\]`)

// indent lays an event out for people, lists of bytes on one line.
func indent(payload []byte) []byte {
	var out bytes.Buffer
	if err := json.Indent(&out, payload, "", "  "); err != nil {
		panic(err)
	}
	out.WriteByte('\n')
	return numbers.ReplaceAllFunc(out.Bytes(), func(list []byte) []byte {
		return bytes.ReplaceAll(bytes.Join(bytes.Fields(list), nil), []byte(","), []byte(", "))
	})
}

// lines are values for a producer, one a line; the last does not fit the table.
func lines() []byte {
	var out []byte
	for _, i := range append(good(20), firstOf(clickstream.OutOfRange, 1)...) {
		out = append(stream.Value(out, i), '\n')
	}
	return out
}

func tombstones() []byte {
	b := batch(0, 200, good(6)...)
	b.Records[1].Value, b.Records[2].Value = nil, []byte("NULL")
	b.Records[3].Key = nil
	b.Records[4].Value = []byte{}
	b.Records[5].Key = []byte{}
	return replace(msk(b), `"`+base64.StdEncoding.EncodeToString([]byte("NULL"))+`"`, "null")
}

func registry() []byte {
	b := batch(0, 300, good(3)...)
	for i := range b.Records {
		b.Records[i].KeySchema = &kafka.Schema{DataFormat: "JSON", ID: "17"}
		b.Records[i].ValueSchema = &kafka.Schema{DataFormat: "AVRO", ID: "3f6c8a52-0d7e-4b1e-9a52-6b9c1c0f7f11"}
	}
	b.Records[2].KeySchema = nil
	return msk(b)
}

func headers() []byte {
	b := batch(0, 400, good(3)...)
	b.Records[0].Headers = []kafka.Header{
		{Key: []byte("signed"), Value: []byte{0x80, 0xff, 0, 1, 0x7f}},
		{Key: []byte("unsigned"), Value: []byte("UNSIGNED")},
	}
	b.Records[1].Headers = []kafka.Header{
		{Key: []byte("hop"), Value: []byte("eu")}, {Key: []byte("hop"), Value: []byte("us")},
		{Key: []byte("empty")}, {Key: []byte("null"), Value: []byte("NULL")},
		{Key: []byte("hop"), Value: []byte("eu")},
	}
	b.Records[2].Headers = []kafka.Header{{Key: []byte("several"), Value: []byte("SEVERAL")}}
	text := msk(b)
	text = replace(text, list("UNSIGNED"), "[128, 255, 0, 200]")
	text = replace(text, list("NULL"), "null")
	return replace(text, list("SEVERAL"), `[1],
              "in one object": [2]`)
}

// list is the bytes of text as they stand in an event.
func list(text string) string {
	var out strings.Builder
	for i := range len(text) {
		out.WriteString(", ")
		digits, _ := json.Marshal(text[i])
		out.Write(digits)
	}
	return "[" + out.String()[2:] + "]"
}

func timestamps() []byte {
	b := batch(0, 700, good(3)...)
	b.Records[0].Timestamp, b.Records[1].Timestamp = 0, -1
	text := msk(b)
	last := bytes.LastIndex(text, []byte("CREATE_TIME"))
	return append(text[:last:last], replace(text[last:], "CREATE_TIME", "LOG_APPEND_TIME")...)
}

func futureFields() []byte {
	text := func(offset string, value, more string) string {
		return `{"value":"` + value + `","leaderEpoch":4,"offset":` + offset + `,"partition":0,` + more +
			`"topic":"clicks","timestamp":1751306400000,"key":"dXNlci0x"}`
	}
	values := make([]string, 2)
	for i, index := range good(2) {
		values[i] = base64.StdEncoding.EncodeToString(stream.Value(nil, index))
	}
	return indent([]byte(`{"schemaVersion":"2.0","records":{"clicks-0":[` +
		text("800", values[0], `"delivery":{"attempt":1,"history":[{"at":1.5e3,"ok":true},[],{}],"note":"\"]}"},`) + "," +
		text("801", values[1], `"Offset":-1,"headers":[],"valueSchemaMetadata":{"dataFormat":"JSON","schemaId":"5","version":[3]},`) +
		`]},"eventSource":"aws:kafka","window":{"start":null,"final":false},"eventSourceArn":"` + arn + `"}`))
}

// slashed is the first good values whose base64 has both a plus and a slash,
// which the base64 of most texts has not.
func slashed(n int) (values [][]byte) {
	long := stream
	long.Size = 2 * clickstream.MinSize
	for _, i := range good(1000) {
		value := long.Value(nil, i)
		text := base64.StdEncoding.EncodeToString(value)
		if len(values) < n && strings.Contains(text, "+") && strings.Contains(text, "/") {
			values = append(values, value)
		}
	}
	return values
}

func escapes() []byte {
	b := batch(0, 900, good(2)...)
	for i, value := range slashed(2) {
		b.Records[i].Value = value
	}
	text := clickstream.Mapping{SourceARN: arn, BootstrapServers: servers}.Payload(nil, b)
	text = replace(text, `"clicks-0"`, `"\u0063licks\u002D0"`)
	text = replace(text, `"clicks"`, `"cl\u0069cks"`)
	text = replace(text, `"aws:kafka"`, `"aws\u003akafka"`)
	text = replace(text, `"offset"`, `"of\u0066set"`)
	text = replace(text, "eyJldmVudF9pZ", `\u0065yJldmVudF9pZ`)
	text = replace(text, "+", `\u002b`)
	return append(replace(text, "/", `\/`), '\n')
}

func sqs() []byte {
	return indent([]byte(`{"Records":[{"messageId":"059f36b4-87a3-44ab-83d2-661975830a7d","receiptHandle":"AQEB",` +
		`"body":"{\"event_id\":\"b20c159d-24e4-4bd4-8fb3-e06a7f65c333\"}","attributes":{"ApproximateReceiveCount":"1"},` +
		`"messageAttributes":{},"eventSource":"aws:sqs","eventSourceARN":"arn:aws:sqs:eu-west-1:111122223333:clicks","awsRegion":"eu-west-1"}]}`))
}

func replace(text []byte, old, with string) []byte {
	return bytes.ReplaceAll(text, []byte(old), []byte(with))
}
