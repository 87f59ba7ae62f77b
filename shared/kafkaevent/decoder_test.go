package kafkaevent

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/clickstream"
	"oncehouse/shared/kafka"
)

// record is an event of one record with the given fields behind its
// coordinates.
func record(fields string) string {
	return event(`"t-0":[{"topic":"t","partition":0,"offset":5` + fields + `}]`)
}

func event(records string) string {
	return `{"eventSource":"aws:kafka","records":{` + records + `}}`
}

// accepted are payloads that look odd and are right.
var accepted = []struct{ name, payload string }{
	{"any order, any white space", " \n{\"records\" :\t{ \"t-0\" : [ { \"offset\" : 1 , \"partition\" : 0 , \"topic\" : \"t\" } ] } , \"eventSource\" : \"aws:kafka\" } \r\n"},
	{"no records", event(``)},
	{"a partition without records", event(`"t-0":[],"t-1":[{"topic":"t","partition":1,"offset":0}]`)},
	{"null where it means absent", `{"eventSource":"SelfManagedKafka","eventSourceArn":null,"bootstrapServers":null,"records":{"t-0":[{"topic":"t","partition":0,"offset":0,"timestamp":null,"key":null,"value":null,"headers":null,"keySchemaMetadata":null,"valueSchemaMetadata":null}]}}`},
	{"empty, not null", record(`,"key":"","value":"","headers":[],"keySchemaMetadata":{}`)},
	{"a topic with dashes and digits", event(`"a-b-1-0":[{"topic":"a-b-1","partition":0,"offset":0}]`)},
	{"largest partition and offset", event(`"t-2147483647":[{"topic":"t","partition":2147483647,"offset":9223372036854775806,"timestamp":-9223372036854775808}]`)},
	{"minus zero", event(`"t-0":[{"topic":"t","partition":-0,"offset":-0}]`)},
	{"partitions out of order", event(`"t-10":[{"topic":"t","partition":10,"offset":0}],"t-2":[{"topic":"t","partition":2,"offset":0}],"s-9":[{"topic":"s","partition":9,"offset":0}]`)},
	{"escapes in names and base64", event(`"\u0074-0":[{"\u0074opic":"\u0074","partition":0,"offset":1,"value":"\u0051\u0051\u003d=","key":"AA\/\u002b"}]`)},
	{"base64 with bits left over, as in AWS's sample", record(`,"key":"abcDEFghiJKLmnoPQRstuVWXyz1234=="`)},
	{"header bytes of both kinds, null, empty, repeated, several in one", record(`,"headers":[{"h":[-128,-1,0,127,128,255]},{"n":null},{"h":[]},{"a":[1],"a":[2]},{},{"":[3]}]`)},
	{"header names with escapes and beyond ASCII", record(`,"headers":[{"\ud83d\ude00\n":[1]},{"é\ufffd":[2]}]`)},
	{"unknown fields of any shape", record(`,"x":{"a":[1,-2.5e+10,true,false,null,"\\\"]}"],"":{}},"Offset":"7","x":[],"x":0`)},
	{"unknown fields nested 128 deep", record(`,"x":` + strings.Repeat("[", 128) + strings.Repeat("]", 128))},
	{"a lone surrogate and bad UTF-8 in what is passed over", record(`,"x":"\ud800","y` + "\xff" + `":"` + "\xff" + `","\udc00":1`)},
	{"registry metadata with more fields", record(`,"keySchemaMetadata":{"schemaId":"1","more":[{}],"dataFormat":"JSON"},"valueSchemaMetadata":{"dataFormat":null}`)},
	{"a timestamp's type of any shape", record(`,"timestampType":{"a":1}`)},
}

func TestOddButRight(t *testing.T) {
	var d Decoder
	for _, c := range accepted {
		t.Run(c.name, func(t *testing.T) { require.True(t, agree(t, &d, []byte(c.payload))) })
	}
}

// refusals are payloads that are refused, with what the error has to say.
var refusals = []struct{ name, payload, message string }{
	{"nothing", ``, "cut short (byte 0)"},
	{"null", `null`, "not a Kafka event: a JSON object expected (byte 0)"},
	{"an array", `[]`, "not a Kafka event"},
	{"an object of nothing", `{}`, "it has no eventSource"},
	{"another service", `{"eventSource":"aws:sqs","records":{}}`, `not a Kafka event: eventSource is "aws:sqs" (byte 15)`},
	{"source null", `{"eventSource":null,"records":{}}`, "not a Kafka event: eventSource is null"},
	{"source a number", `{"eventSource":1,"records":{}}`, "a string expected (byte 15)"},
	{"no records", `{"eventSource":"aws:kafka"}`, "no records field"},
	{"records null", `{"eventSource":"aws:kafka","records":null}`, "records is not an object"},
	{"records an array", `{"eventSource":"aws:kafka","records":[]}`, "records is not an object"},
	{"records twice", `{"eventSource":"aws:kafka","records":{},"records":{}}`, "records is given twice"},
	{"source twice", `{"eventSource":"aws:kafka","eventSource":"aws:kafka","records":{}}`, "a field is given twice (byte 27)"},
	{"names are not matched without case", `{"EventSource":"aws:kafka","records":{}}`, "it has no eventSource"},
	{"more bytes", event(``) + `{}`, "followed by more bytes"},
	{"a zero byte behind", event(``) + "\x00", "followed by more bytes"},
	{"a byte-order mark", "\ufeff" + event(``), "a JSON object expected"},
	{"a trailing comma", `{"eventSource":"aws:kafka","records":{},}`, "a field's name expected"},
	{"no comma", `{"eventSource":"aws:kafka" "records":{}}`, "a comma or '}' expected"},
	{"no colon", `{"eventSource" "aws:kafka"}`, "a colon expected"},
	{"arn a number", `{"eventSource":"aws:kafka","eventSourceArn":5,"records":{}}`, "a string expected"},
	{"records of a partition null", event(`"t-0":null`), "not an array (partition t-0, byte"},
	{"a record null", event(`"t-0":[null]`), "a record is not an object (partition t-0, record 0, byte"},
	{"a trailing comma in records", event(`"t-0":[{"topic":"t","partition":0,"offset":0},]`), "a record is not an object (partition t-0, record 1,"},
	{"no dash", event(`"t0":[]`), `"t0" is not topic-partition`},
	{"no topic", event(`"-0":[]`), "is not topic-partition"},
	{"a topic of dots", event(`"..-0":[]`), "is not topic-partition"},
	{"a topic with a slash", event(`"a/b-0":[]`), "is not topic-partition"},
	{"a topic of 250 characters", event(`"` + strings.Repeat("a", 250) + `-0":[]`), `"... is not topic-partition`},
	{"a negative partition", event(`"t--1":[{"topic":"t","partition":-1,"offset":0}]`), "the record's topic is"},
	{"a leading zero", event(`"t-01":[]`), "is not topic-partition"},
	{"a partition beyond int32", event(`"t-2147483648":[]`), "is not topic-partition"},
	{"one partition twice", event(`"t-0":[],"t-1":[],"\u0074-0":[]`), "two arrays for one partition (partition t-0"},
	{"another topic", event(`"t-0":[{"topic":"u","partition":0,"offset":0}]`), `the record's topic is "u" (partition t-0, record 0,`},
	{"topic null", event(`"t-0":[{"topic":null,"partition":0,"offset":0}]`), "the record's topic is null"},
	{"another partition", event(`"t-0":[{"topic":"t","partition":1,"offset":0}]`), "the record's partition is 1"},
	{"no topic field", event(`"t-0":[{"partition":0,"offset":0}]`), "a record without topic, partition or offset"},
	{"no partition field", event(`"t-0":[{"topic":"t","offset":0}]`), "a record without topic, partition or offset"},
	{"no offset", event(`"t-0":[{"topic":"t","partition":0}]`), "a record without topic, partition or offset"},
	{"a negative offset", event(`"t-0":[{"topic":"t","partition":0,"offset":-1}]`), "offset -1 is none of Kafka's"},
	{"an offset with none behind it", event(`"t-0":[{"topic":"t","partition":0,"offset":9223372036854775807}]`), "offset 9223372036854775807 is none of Kafka's"},
	{"an offset with a fraction", event(`"t-0":[{"topic":"t","partition":0,"offset":1.0}]`), "not written as an integer"},
	{"an offset with an exponent", event(`"t-0":[{"topic":"t","partition":0,"offset":1E2}]`), "not written as an integer"},
	{"an offset in quotes", event(`"t-0":[{"topic":"t","partition":0,"offset":"1"}]`), "an integer expected"},
	{"an offset null", event(`"t-0":[{"topic":"t","partition":0,"offset":null}]`), "an integer expected"},
	{"an offset beyond int64", event(`"t-0":[{"topic":"t","partition":0,"offset":9223372036854775808}]`), "a number is too large"},
	{"an offset of 21 digits", event(`"t-0":[{"topic":"t","partition":0,"offset":100000000000000000000}]`), "a number is too large"},
	{"an offset with a leading zero", event(`"t-0":[{"topic":"t","partition":0,"offset":01}]`), "a leading zero"},
	{"the same offset twice", event(`"t-0":[{"topic":"t","partition":0,"offset":3},{"topic":"t","partition":0,"offset":3}]`), "offset 3 is not above 3, the one before it (partition t-0, record 1,"},
	{"a lower offset", event(`"t-0":[{"topic":"t","partition":0,"offset":3},{"topic":"t","partition":0,"offset":2}]`), "offset 2 is not above 3"},
	{"an offset twice", record(`,"offset":6`), "a field is given twice (partition t-0, record 0,"},
	{"a value twice", record(`,"value":"","value":null`), "a field is given twice"},
	{"a value twice, by an escape", record(`,"value":"","valu\u0065":""`), "a field is given twice"},
	{"a timestamp with a fraction", record(`,"timestamp":1.5`), "not written as an integer"},
	{"a value that is a number", record(`,"value":1`), "neither base64 nor null"},
	{"a value that is an object", record(`,"value":{}`), "neither base64 nor null"},
	{"base64 without padding", record(`,"value":"QQ"`), "bad base64 (partition t-0, record 0,"},
	{"base64 with too much padding", record(`,"value":"Q==="`), "bad base64"},
	{"base64 behind its padding", record(`,"value":"QQ==QQ=="`), "bad base64"},
	{"base64 with a space", record(`,"value":"QUJD QUJ"`), "bad base64"},
	{"base64 with a line break", record(`,"value":"QUJD\nQUJD"`), "bad base64"},
	{"base64url", record(`,"value":"-_-_"`), "bad base64"},
	{"a quote's escape in base64", record(`,"value":"QUJD\""`), "bad base64"},
	{"headers an object", record(`,"headers":{}`), "headers are not an array"},
	{"a header a string", record(`,"headers":["a"]`), "a header is not an object"},
	{"a header's value a string", record(`,"headers":[{"a":"YQ=="}]`), "not an array of bytes"},
	{"a header's name null", record(`,"headers":[{null:[1]}]`), "a header's name expected"},
	{"a header's name with a lone surrogate", record(`,"headers":[{"\udc00\ud800":[1]}]`), "not valid Unicode"},
	{"a header's name of bad UTF-8", record(`,"headers":[{"` + "\xff" + `":[1]}]`), "not valid Unicode"},
	{"a header's byte too large", record(`,"headers":[{"a":[256]}]`), "256 is no byte"},
	{"a header's byte too small", record(`,"headers":[{"a":[-129]}]`), "-129 is no byte"},
	{"a header's byte a fraction", record(`,"headers":[{"a":[1.0]}]`), "not written as an integer"},
	{"schema metadata a string", record(`,"keySchemaMetadata":"AVRO"`), "schema metadata is not an object"},
	{"a schema's id a number", record(`,"keySchemaMetadata":{"schemaId":1}`), "a string expected"},
	{"a schema's id twice", record(`,"keySchemaMetadata":{"schemaId":"1","schemaId":"1"}`), "a field is given twice"},
	{"unknown fields nested 129 deep", record(`,"x":` + strings.Repeat("[", 129) + strings.Repeat("]", 129)), "nested deeper than 128"},
	{"a bad number in what is passed over", record(`,"x":[01]`), "not a JSON value"},
	{"a bad fraction", record(`,"x":1.`), "no digits behind its point"},
	{"a bad exponent", record(`,"x":1e+`), "no digits in its exponent"},
	{"a bad word", record(`,"x":nul`), "not a JSON value"},
	{"a bad escape", record(`,"x":"\x"`), "a bad escape in a string"},
	{"half an escape", record(`,"x":"\u00g0"`), "a bad escape in a string"},
	{"a control character", record(`,"x":"` + "\n" + `"`), "a control character in a string"},
	{"brackets that do not match", record(`,"x":[}`), "not a JSON value"},
}

func TestRefused(t *testing.T) {
	var d Decoder
	for _, c := range refusals {
		t.Run(c.name, func(t *testing.T) {
			require.False(t, agree(t, &d, []byte(c.payload)))
			_, err := d.Decode([]byte(c.payload))
			require.ErrorContains(t, err, "refuse kafka event: ")
			require.ErrorContains(t, err, c.message)
		})
	}
}

// TestEveryPrefixIsRefused: wherever an event is cut, the error says that.
func TestEveryPrefixIsRefused(t *testing.T) {
	var d Decoder
	for _, sample := range sampleEvents(t) {
		sample = bytes.TrimSpace(sample)
		if _, err := d.Decode(sample); err != nil || len(sample) > 4000 {
			continue // the long ones have nothing that the short ones have not
		}
		for n := range sample {
			if _, err := d.Decode(sample[:n:n]); err == nil || !strings.Contains(err.Error(), "the event is cut short") {
				require.Fail(t, "not cut short", "%v: %s", err, sample[:n])
			}
		}
	}
}

// TestWarmDecodeAllocatesNothing, whatever the records hold.
func TestWarmDecodeAllocatesNothing(t *testing.T) {
	g := clickstream.Generator{Seed: 4, Size: 400, PoisonEvery: 9, TombstoneEvery: 7}
	batch := g.Batch(kafka.TopicPartition{Topic: "clicks", Partition: 1}, 10, 0, 500)
	for i := range batch.Records {
		batch.Records[i].KeySchema = &kafka.Schema{DataFormat: "JSON", ID: fmt.Sprint(i % 3)}
	}
	payload := clickstream.Mapping{SourceARN: "arn", BootstrapServers: "b:9092"}.Payload(nil, batch)
	payloads := [][]byte{payload, bytes.ReplaceAll(payload, []byte(`"topic":"clicks"`), []byte(`"topic":"cl\u0069cks"`))}
	for _, sample := range sampleEvents(t) {
		if _, err := new(Decoder).Decode(sample); err == nil && bytes.Contains(sample, []byte(`"aws:kafka"`)) {
			payloads = append(payloads, sample)
		}
	}
	var d Decoder
	for _, payload := range payloads {
		allocations := testing.AllocsPerRun(5, func() {
			if _, err := d.Decode(payload); err != nil {
				panic(err)
			}
		})
		require.Zero(t, allocations, "%.300s", payload)
	}
}

// TestColdDecodeAllocatesByEventNotByRecord.
func TestColdDecodeAllocatesByEventNotByRecord(t *testing.T) {
	g := clickstream.Generator{Seed: 4}
	payload := clickstream.Mapping{SourceARN: "arn", BootstrapServers: "b:9092"}.Payload(nil,
		g.Batch(kafka.TopicPartition{Topic: "clicks"}, 0, 0, 1500))
	allocations := testing.AllocsPerRun(3, func() {
		if _, err := new(Decoder).Decode(payload); err != nil {
			panic(err)
		}
	})
	require.Less(t, allocations, 60.0)
}

// TestEqualSchemasAreOne: a target may compare pointers.
func TestEqualSchemasAreOne(t *testing.T) {
	var d Decoder
	payload := []byte(event(`"t-0":[{"topic":"t","partition":0,"offset":0,"valueSchemaMetadata":{"dataFormat":"AVRO","schemaId":"7"}},` +
		`{"topic":"t","partition":0,"offset":1,"keySchemaMetadata":{"schemaId":"7","dataFormat":"AVRO"},"valueSchemaMetadata":{"dataFormat":"A","schemaId":"VRO7"}}]`))
	e, err := d.Decode(payload)
	require.NoError(t, err)
	records := e.Batches[0].Records
	require.Same(t, records[0].ValueSchema, records[1].KeySchema)
	require.NotSame(t, records[0].ValueSchema, records[1].ValueSchema)
	first := records[0].ValueSchema
	e, err = d.Decode(payload)
	require.NoError(t, err)
	require.Same(t, first, e.Batches[0].Records[0].ValueSchema)
}

// TestNamesAreForgotten: topics and schemas without end do not fill the memory.
func TestNamesAreForgotten(t *testing.T) {
	var d Decoder
	for i := range 5 * maxNames {
		_, err := d.Decode(fmt.Appendf(nil, `{"eventSource":"aws:kafka","records":{"t%d-0":[{"topic":"t%d","partition":0,"offset":0,"keySchemaMetadata":{"schemaId":"%d"}}]}}`, i, i, i))
		require.NoError(t, err)
		require.LessOrEqual(t, len(d.topics), maxNames+1)
		require.LessOrEqual(t, len(d.schemas), maxNames+1)
	}
}

// TestPayloadMayBeReused: nothing of an event points into its payload.
func TestPayloadMayBeReused(t *testing.T) {
	var d Decoder
	payload := []byte(record(`,"key":"a2V5","value":"dmFsdWU=","headers":[{"name":[1,2]}]`))
	want, err := oracle(payload)
	require.NoError(t, err)
	got, err := d.Decode(payload)
	require.NoError(t, err)
	for i := range payload {
		payload[i] = 'x'
	}
	require.Equal(t, want.Batches, got.Batches)
}

// TestSlicesDoNotReachIntoEachOther: appending to one record's bytes must not
// write over the next one's.
func TestSlicesDoNotReachIntoEachOther(t *testing.T) {
	var d Decoder
	e, err := d.Decode([]byte(record(`,"key":"a2V5","value":"dmFsdWU=","headers":[{"a":[1]},{"b":[2]}]`)))
	require.NoError(t, err)
	r := e.Batches[0].Records[0]
	_ = append(r.Key, "xxxxxxxx"...)
	_ = append(r.Headers[0].Value, 9, 9, 9)
	_ = append(r.Headers[0].Key, 9, 9, 9)
	_ = append(r.Headers[:1:1], kafka.Header{})
	require.Equal(t, "value", string(r.Value))
	require.Equal(t, []kafka.Header{{Key: []byte("a"), Value: []byte{1}}, {Key: []byte("b"), Value: []byte{2}}}, r.Headers)
}

// TestBase64OfEveryLength: each way through decodeBase64, each byte at each
// place that is no digit.
func TestBase64OfEveryLength(t *testing.T) {
	for n := range 26 { // the fast loop, once, with every tail
		plain := make([]byte, n)
		for i := range plain {
			plain[i] = byte(i*37 + n)
		}
		text := append(base64.StdEncoding.AppendEncode(nil, plain), '"')
		dst := make([]byte, len(text)+arenaSlack)
		read, written := decodeBase64(dst, text)
		require.Equal(t, len(text), read)
		require.Equal(t, plain, dst[:written])
		for at := range len(text) - 1 {
			for c := range 256 {
				changed := bytes.Clone(text)
				changed[at] = byte(c)
				want, err := base64.StdEncoding.DecodeString(string(changed[:len(changed)-1]))
				_, written := decodeBase64(dst, changed)
				if c == '"' { // ends there
					continue
				}
				bad := err != nil || c == '\n' || c == '\r'
				if bad != (written < 0) || !bad && !bytes.Equal(want, dst[:written]) {
					require.Fail(t, "decoded otherwise than by encoding/base64", "%q: %d", changed, written)
				}
			}
		}
	}
}

// TestPlainStopsAtEveryStop: eight at a time is the same as one at a time.
func TestPlainStopsAtEveryStop(t *testing.T) {
	for c := range 256 {
		for at := range 20 {
			text := bytes.Repeat([]byte{0x80, 'a', 0xff, ' ', '#', '!', '[', ']'}, 3)
			text[at] = byte(c)
			want := len(text)
			if c < 0x20 || c == '"' || c == '\\' {
				want = at
			}
			if got, cut := plain(text), plain(text[:at+1]); got != want || cut != min(want, at+1) {
				require.Fail(t, "stopped elsewhere", "%q: %d, %d", text, got, cut)
			}
		}
	}
}
