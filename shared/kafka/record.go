// Package kafka holds the record as Kafka knows it: the one shape that the
// event decoder produces, the source fetches, the delivery core settles and the
// target encodes. It imports nothing.
package kafka

import "strconv"

// Record is one Kafka record. Key, Value and header bytes point into a buffer
// that belongs to whoever produced the record (an event decoder, a fetch) and
// are valid until that owner is reused; copy what must live longer.
type Record struct {
	Offset int64
	// Timestamp is in milliseconds since the epoch; -1 where Kafka has none.
	Timestamp int64
	// Key and Value are nil for Kafka's null (no value: a tombstone) and
	// non-nil with length 0 for an empty value. The two are never mixed up.
	Key, Value []byte
	// Headers keep order and repeats, as Kafka does.
	Headers []Header
	// KeySchema and ValueSchema are what a schema registry integration of the
	// event source mapping said of the record; nil where there is none.
	KeySchema, ValueSchema *Schema
}

// Header is one record header. A null value and an empty one are the same
// thing here: the Lambda payload does not tell them apart.
type Header struct {
	Key, Value []byte
}

// Schema is the registry metadata that Lambda attaches to a decoded key or
// value (keySchemaMetadata, valueSchemaMetadata).
type Schema struct {
	DataFormat string // AVRO, JSON or PROTOBUF
	ID         string
}

// TopicPartition names one partition: the unit of order, state and parallelism.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// String is topic-partition, as Kafka's own tools print it.
func (tp TopicPartition) String() string {
	return tp.Topic + "-" + strconv.FormatInt(int64(tp.Partition), 10)
}

// Batch is the records of one partition inside one invocation, offsets
// strictly ascending, gaps allowed (compaction, filters, transaction markers).
type Batch struct {
	TopicPartition
	Records []Record
}

// FindHeader returns the value of the last header named key, as Kafka's
// lastHeader does, and whether there is one.
func (r *Record) FindHeader(key string) ([]byte, bool) {
	for i := len(r.Headers) - 1; i >= 0; i-- {
		if string(r.Headers[i].Key) == key {
			return r.Headers[i].Value, true
		}
	}
	return nil, false
}
