package mapping

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// payloadFormat writes events as Lambda does.
// https://docs.aws.amazon.com/lambda/latest/dg/with-msk.html
type payloadFormat struct {
	// head is everything up to the records: the same for each event.
	head     []byte
	omitNull bool
}

const payloadTail = "}}"

func newPayloadFormat(cfg *Config) (payloadFormat, error) {
	source := struct {
		EventSource      string `json:"eventSource"`
		EventSourceArn   string `json:"eventSourceArn,omitempty"`
		BootstrapServers string `json:"bootstrapServers"`
	}{"aws:kafka", cfg.EventSourceARN, strings.Join(cfg.Brokers, ",")}
	if cfg.EventSourceARN == "" {
		source.EventSource = "SelfManagedKafka"
	}
	head, err := json.Marshal(source)
	if err != nil {
		return payloadFormat{}, fmt.Errorf("describe the event source: %w", err)
	}
	head = append(head[:len(head)-1], `,"records":{`...)
	return payloadFormat{head: head, omitNull: cfg.OmitNull}, nil
}

// event is the payload of ev.
func (f *payloadFormat) event(ev *event) []byte {
	b := make([]byte, 0, f.size(ev))
	b = append(b, f.head...)
	for i, part := range ev.parts {
		if i > 0 {
			b = append(b, ',')
		}
		b = f.appendKey(b, part.p)
		for j, r := range part.items {
			if j > 0 {
				b = append(b, ',')
			}
			b = f.appendRecord(b, r.Record)
		}
		b = append(b, ']')
	}
	return append(b, payloadTail...)
}

// size is len(event(ev)), without building it.
func (f *payloadFormat) size(ev *event) int {
	n := len(f.head) + len(payloadTail) + max(0, len(ev.parts)-1)
	for _, part := range ev.parts {
		n += f.partSize(part.p) + len(part.items) - 1
		for _, r := range part.items {
			n += r.size
		}
	}
	return n
}

// partSize is the size of a partition's array without its records.
func (f *payloadFormat) partSize(p *partition) int { return len(f.appendKey(nil, p)) + len("]") }

func (f *payloadFormat) appendKey(b []byte, p *partition) []byte {
	b = append(append(b, '"'), p.tp.String()...) // a topic's name needs no escape
	return append(b, `":[`...)
}

// appendRecord is one record, in the order of the documented example.
func (f *payloadFormat) appendRecord(b []byte, r *kgo.Record) []byte {
	b = append(append(b, `{"topic":"`...), r.Topic...)
	b = strconv.AppendInt(append(b, `","partition":`...), int64(r.Partition), 10)
	b = strconv.AppendInt(append(b, `,"offset":`...), r.Offset, 10)
	b = strconv.AppendInt(append(b, `,"timestamp":`...), timestamp(r), 10)
	b = append(append(b, `,"timestampType":"`...), timestampType(r)...)
	b = append(b, '"')
	b = f.appendBytes(b, `,"key":`, r.Key)
	b = f.appendBytes(b, `,"value":`, r.Value)
	b = append(b, `,"headers":[`...)
	for i, h := range r.Headers {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendHeader(b, h)
	}
	return append(b, "]}"...)
}

// appendBytes is a key or a value: base64, null for Kafka's null.
func (f *payloadFormat) appendBytes(b []byte, name string, v []byte) []byte {
	if v == nil {
		if f.omitNull {
			return b
		}
		return append(append(b, name...), "null"...)
	}
	b = append(append(b, name...), '"')
	b = base64.StdEncoding.AppendEncode(b, v)
	return append(b, '"')
}

// appendHeader is {"name":[bytes]}, the bytes signed as Java's are.
func appendHeader(b []byte, h kgo.RecordHeader) []byte {
	name, err := json.Marshal(h.Key)
	if err != nil { // a string always marshals
		panic(err)
	}
	b = append(append(b, '{'), name...)
	b = append(b, ":["...)
	for i, c := range h.Value {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(int8(c)), 10)
	}
	return append(b, "]}"...)
}

// recordSize is len(appendRecord(nil, r)), without its allocations for what is
// large: the key and the value.
func (f *payloadFormat) recordSize(r *kgo.Record) int {
	small := *r
	small.Key, small.Value = emptied(r.Key), emptied(r.Value)
	var buf [512]byte
	return len(f.appendRecord(buf[:0], &small)) +
		base64.StdEncoding.EncodedLen(len(r.Key)) + base64.StdEncoding.EncodedLen(len(r.Value))
}

func emptied(v []byte) []byte {
	if v == nil {
		return nil
	}
	return v[:0]
}

// timestamp is in milliseconds; -1 where Kafka has none.
func timestamp(r *kgo.Record) int64 {
	if r.Timestamp.IsZero() {
		return -1
	}
	return r.Timestamp.UnixMilli()
}

func timestampType(r *kgo.Record) string {
	if r.Attrs.TimestampType() == 1 {
		return "LOG_APPEND_TIME"
	}
	return "CREATE_TIME"
}
