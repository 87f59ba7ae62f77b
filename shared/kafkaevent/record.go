package kafkaevent

import (
	"math"

	"oncehouse/shared/kafka"
)

// field is a field of a record that has a meaning here.
type field int

const (
	topic field = iota
	partition
	offset
	timestamp
	timestampType
	key
	value
	headers
	keySchema
	valueSchema
	unknown
)

// written holds the fields as Lambda writes them, in its order: the one that is
// expected next costs one comparison.
var written = [unknown]string{
	`"topic":`, `"partition":`, `"offset":`, `"timestamp":`, `"timestampType":`, `"key":`, `"value":`,
	`"headers":`, `"keySchemaMetadata":`, `"valueSchemaMetadata":`,
}

// decodeRecord reads one record object into a zero record.
func (d *Decoder) decodeRecord(tp kafka.TopicPartition, record *kafka.Record) error {
	start := d.pos
	if d.peek() != '{' {
		return d.refuse(start, "a record is not an object")
	}
	record.Timestamp = -1
	next, seen := topic, 0
	more, err := d.open('}')
	for more && err == nil {
		at := d.pos
		f := next
		if f == unknown || !d.pass(written[f]) {
			var name []byte
			if name, err = d.name(); err != nil {
				return err
			}
			f = fieldNamed(name)
		}
		if f != unknown {
			if seen>>f&1 != 0 {
				return d.refuse(at, "a field is given twice")
			}
			seen |= 1 << f
			next = f + 1
		}
		if err = d.decodeField(f, tp, record); err != nil {
			return err
		}
		more, err = d.more('}')
	}
	if err != nil {
		return err
	}
	const needed = 1<<topic | 1<<partition | 1<<offset
	if seen&needed != needed {
		return d.refuse(start, "a record without topic, partition or offset")
	}
	return nil
}

func fieldNamed(name []byte) field {
	switch string(name) {
	case "topic":
		return topic
	case "partition":
		return partition
	case "offset":
		return offset
	case "timestamp":
		return timestamp
	case "timestampType":
		return timestampType
	case "key":
		return key
	case "value":
		return value
	case "headers":
		return headers
	case "keySchemaMetadata":
		return keySchema
	case "valueSchemaMetadata":
		return valueSchema
	}
	return unknown
}

func (d *Decoder) decodeField(f field, tp kafka.TopicPartition, record *kafka.Record) (err error) {
	switch f {
	case topic:
		return d.checkTopic(tp)
	case partition:
		return d.checkPartition(tp)
	case offset:
		record.Offset, err = d.decodeOffset()
	case timestamp:
		record.Timestamp, err = d.decodeTimestamp()
	case key:
		record.Key, err = d.decodeBytes()
	case value:
		record.Value, err = d.decodeBytes()
	case headers:
		record.Headers, err = d.decodeHeaders()
	case keySchema:
		record.KeySchema, err = d.decodeSchema()
	case valueSchema:
		record.ValueSchema, err = d.decodeSchema()
	default:
		return d.skip(maxDepth)
	}
	return err
}

func (d *Decoder) checkTopic(tp kafka.TopicPartition) error {
	at := d.valueAt()
	end := at + 1 + len(tp.Topic)
	// As Lambda writes it: the topic of the array's name, without escapes.
	if end < len(d.data) && d.data[at] == '"' && d.data[end] == '"' && string(d.data[at+1:end]) == tp.Topic {
		d.pos = end + 1
		return nil
	}
	name, null, err := d.text()
	if err != nil {
		return err
	}
	if null || string(name) != tp.Topic {
		return d.refuse(at, "the record's topic is %s", quote(name))
	}
	return nil
}

func (d *Decoder) checkPartition(tp kafka.TopicPartition) error {
	at := d.valueAt()
	n, err := d.integer()
	if err != nil {
		return err
	}
	if n != int64(tp.Partition) {
		return d.refuse(at, "the record's partition is %d", n)
	}
	return nil
}

// decodeOffset reads an offset that Kafka can have: the end of a partition, one
// above its last offset, is an offset too.
func (d *Decoder) decodeOffset() (int64, error) {
	at := d.valueAt()
	n, err := d.integer()
	if err == nil && (n < 0 || n == math.MaxInt64) {
		return 0, d.refuse(at, "offset %d is none of Kafka's", n)
	}
	return n, err
}

func (d *Decoder) decodeTimestamp() (int64, error) {
	if d.peek() == 'n' {
		return -1, d.literal("null")
	}
	return d.integer()
}

// decodeBytes reads base64 into the arena: nil for null, not nil for "".
func (d *Decoder) decodeBytes() ([]byte, error) {
	switch d.peek() {
	case 'n':
		return nil, d.literal("null")
	case '"':
	default:
		return nil, d.refuse(d.pos, "a key or value is neither base64 nor null")
	}
	start := d.used
	read, length := decodeBase64(d.arena[start:], d.data[d.pos+1:])
	if length < 0 {
		return d.decodeEscapedBytes()
	}
	d.pos += 1 + read
	d.used += length
	return d.arena[start:d.used:d.used], nil
}

// decodeEscapedBytes is the slow way of decodeBytes: the string has escapes,
// such as \/ or \u002b, is no base64, or is cut short.
func (d *Decoder) decodeEscapedBytes() ([]byte, error) {
	at, start := d.pos, d.used
	text, _, err := d.text()
	if err != nil {
		return nil, err
	}
	d.scratch = append(append(d.scratch[:0], text...), '"')
	read, length := decodeBase64(d.arena[start:], d.scratch)
	if length < 0 || read != len(d.scratch) {
		return nil, d.refuse(at, "bad base64")
	}
	d.used += length
	return d.arena[start:d.used:d.used], nil
}

// decodeHeaders reads a list of objects; each name in one is a header.
func (d *Decoder) decodeHeaders() ([]kafka.Header, error) {
	switch d.peek() {
	case 'n':
		return nil, d.literal("null")
	case '[':
	default:
		return nil, d.refuse(d.pos, "headers are not an array")
	}
	first := len(d.headers)
	more, err := d.open(']')
	for more && err == nil {
		if d.peek() != '{' {
			return nil, d.refuse(d.pos, "a header is not an object")
		}
		var another bool
		another, err = d.open('}')
		for another && err == nil {
			if err = d.decodeHeader(); err != nil {
				return nil, err
			}
			another, err = d.more('}')
		}
		if err != nil {
			return nil, err
		}
		more, err = d.more(']')
	}
	if err != nil || len(d.headers) == first {
		return nil, err
	}
	return d.headers[first:len(d.headers):len(d.headers)], nil
}

// decodeHeader reads "name": [bytes] of a header object.
func (d *Decoder) decodeHeader() error {
	if d.peek() != '"' {
		return d.refuse(d.pos, "a header's name expected")
	}
	name, _, err := d.text()
	if err != nil {
		return err
	}
	start := d.used
	d.used += copy(d.arena[start:], name)
	header := kafka.Header{Key: d.arena[start:d.used:d.used]}
	if err := d.colon(); err != nil {
		return err
	}
	if header.Value, err = d.decodeNumbers(); err != nil {
		return err
	}
	d.headers = append(d.headers, header)
	return nil
}

// decodeNumbers reads a list of bytes written as numbers. Java's are signed;
// a writer that means 0..255 says the same byte.
func (d *Decoder) decodeNumbers() ([]byte, error) {
	switch d.peek() {
	case 'n':
		return d.arena[d.used:d.used:d.used], d.literal("null")
	case '[':
	default:
		return nil, d.refuse(d.pos, "a header's value is not an array of bytes")
	}
	start := d.used
	more, err := d.open(']')
	for more && err == nil {
		at := d.pos
		var n int64
		if n, err = d.integer(); err != nil {
			return nil, err
		}
		if n < math.MinInt8 || n > math.MaxUint8 {
			return nil, d.refuse(at, "%d is no byte", n)
		}
		d.arena[d.used] = byte(n)
		d.used++
		more, err = d.more(']')
	}
	return d.arena[start:d.used:d.used], err
}

const (
	seenFormat = 1 << iota
	seenID
)

// decodeSchema reads a registry's metadata. Equal ones share one Schema.
func (d *Decoder) decodeSchema() (*kafka.Schema, error) {
	switch d.peek() {
	case 'n':
		return nil, d.literal("null")
	case '{':
	default:
		return nil, d.refuse(d.pos, "schema metadata is not an object")
	}
	d.format, d.id = d.format[:0], d.id[:0]
	seen := 0
	more, err := d.open('}')
	for more && err == nil {
		at := d.pos
		var name []byte
		if name, err = d.name(); err != nil {
			return nil, err
		}
		var field int
		switch string(name) {
		case "dataFormat":
			field = seenFormat
			d.format, err = d.appendText(d.format)
		case "schemaId":
			field = seenID
			d.id, err = d.appendText(d.id)
		default:
			err = d.skip(maxDepth)
		}
		if err != nil {
			return nil, err
		}
		if seen&field != 0 {
			return nil, d.refuse(at, "a field is given twice")
		}
		seen |= field
		more, err = d.more('}')
	}
	if err != nil {
		return nil, err
	}
	return d.schema(), nil
}

func (d *Decoder) appendText(to []byte) ([]byte, error) {
	text, _, err := d.text()
	return append(to, text...), err
}

// schema returns the one Schema of d.format and d.id. A zero byte, which no
// name of a format holds, keeps the two apart.
func (d *Decoder) schema() *kafka.Schema {
	length := len(d.format)
	d.format = append(append(d.format, 0), d.id...)
	if known := d.schemas[string(d.format)]; known != nil {
		return known
	}
	schema := &kafka.Schema{DataFormat: string(d.format[:length]), ID: string(d.id)}
	d.schemas[string(d.format)] = schema
	return schema
}
