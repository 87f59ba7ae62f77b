package clickstream

import (
	"encoding/base64"
	"strconv"

	"oncehouse/shared/kafka"
)

// Mapping is what an event says of the event source mapping it comes from.
type Mapping struct {
	// SourceARN is the MSK cluster's; "" makes a self-managed Kafka event.
	SourceARN        string
	BootstrapServers string
}

// Payload appends the event that Lambda makes of the batches: no white space,
// its own order of fields, base64, header bytes as signed numbers, and no field
// for a null key or value. The strings must not need escapes in JSON; topics
// and addresses do not.
func (m Mapping) Payload(dst []byte, batches ...kafka.Batch) []byte {
	if m.SourceARN == "" {
		dst = append(dst, `{"eventSource":"SelfManagedKafka"`...)
	} else {
		dst = append(dst, `{"eventSource":"aws:kafka","eventSourceArn":"`...)
		dst = append(append(dst, m.SourceARN...), '"')
	}
	dst = append(dst, `,"bootstrapServers":"`...)
	dst = append(dst, m.BootstrapServers...)
	dst = append(dst, `","records":{`...)
	for i, batch := range batches {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(append(dst, '"'), batch.String()...), `":[`...)
		for k := range batch.Records {
			if k > 0 {
				dst = append(dst, ',')
			}
			dst = AppendRecord(dst, batch.TopicPartition, &batch.Records[k])
		}
		dst = append(dst, ']')
	}
	return append(dst, "}}"...)
}

// AppendRecord appends one record as it stands in an event.
func AppendRecord(dst []byte, tp kafka.TopicPartition, r *kafka.Record) []byte {
	dst = append(append(dst, `{"topic":"`...), tp.Topic...)
	dst = append(dst, `","partition":`...)
	dst = strconv.AppendInt(dst, int64(tp.Partition), 10)
	dst = append(dst, `,"offset":`...)
	dst = strconv.AppendInt(dst, r.Offset, 10)
	dst = append(dst, `,"timestamp":`...)
	dst = strconv.AppendInt(dst, r.Timestamp, 10)
	if r.Timestamp < 0 {
		dst = append(dst, `,"timestampType":"NO_TIMESTAMP_TYPE"`...)
	} else {
		dst = append(dst, `,"timestampType":"CREATE_TIME"`...)
	}
	dst = appendBase64(dst, `,"key":"`, r.Key)
	dst = appendBase64(dst, `,"value":"`, r.Value)
	dst = append(dst, `,"headers":[`...)
	for i, h := range r.Headers {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(append(dst, `{"`...), h.Key...), `":[`...)
		for k, b := range h.Value {
			if k > 0 {
				dst = append(dst, ',')
			}
			dst = strconv.AppendInt(dst, int64(int8(b)), 10)
		}
		dst = append(dst, "]}"...)
	}
	dst = append(dst, ']')
	dst = appendSchema(dst, `,"keySchemaMetadata":`, r.KeySchema)
	dst = appendSchema(dst, `,"valueSchemaMetadata":`, r.ValueSchema)
	return append(dst, '}')
}

func appendBase64(dst []byte, name string, b []byte) []byte {
	if b == nil {
		return dst
	}
	dst = base64.StdEncoding.AppendEncode(append(dst, name...), b)
	return append(dst, '"')
}

func appendSchema(dst []byte, name string, s *kafka.Schema) []byte {
	if s == nil {
		return dst
	}
	dst = append(append(dst, name...), `{"dataFormat":"`...)
	dst = append(append(dst, s.DataFormat...), `","schemaId":"`...)
	return append(append(dst, s.ID...), `"}`...)
}
