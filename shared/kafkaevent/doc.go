// Package kafkaevent reads the event that AWS Lambda's Kafka event source
// mapping sends (Amazon MSK and self-managed Kafka alike), straight from the
// payload's bytes:
//
//	var decoder kafkaevent.Decoder // on the handler: it lives over warm invocations
//
//	event, err := decoder.Decode(payload)
//	if err != nil {
//		return err // refused whole: err says what is wrong, and where
//	}
//	for _, batch := range event.Batches { // one per partition, sorted
//		settle(batch.TopicPartition, batch.Records) // offsets strictly ascending
//	}
//
// # Why not encoding/json and events.KafkaEvent
//
// That type cannot tell a null value (a tombstone) from an empty one, fails on
// header bytes above 127, matches field names without regard to case, lets the
// second of two equal fields win, and costs many times what the work needs. A
// Decoder makes one pass, decodes base64 as it goes, and allocates nothing per
// record: all bytes of an event go into one buffer, all records into one
// slice, all headers into another, and the next Decode uses the three again.
//
// # What is accepted
//
// Any JSON with any order of fields, white space and escapes in any string.
// Fields that this package has never heard of are checked to be JSON and passed
// over, to a depth of 128. Of a record,
//
//   - topic, partition and offset must be there; the record's own topic and
//     partition rule, and the name of the array they stand in, topic-partition,
//     must say the same;
//   - key and value are base64, or null or absent, which both mean Kafka's null;
//   - timestamp is milliseconds, -1 when it is null or absent; its type is
//     passed over;
//   - headers is a list of objects of one name and one list of bytes, each
//     written as -128..127 (Java's bytes) or 0..255. Order and repeats are
//     kept, also where one object holds several names; null is an empty value;
//   - keySchemaMetadata and valueSchemaMetadata are what a schema registry
//     integration adds.
//
// An event with "records":{} holds no batches; so does an array without
// records. AWS is not known to send "records":null, so it is refused like
// records of any other wrong type.
//
// # What is refused
//
// Everything else, and always the whole event, with a *RefusedError: an event
// that is not Kafka's, cut short, or followed by more bytes; a field given
// twice (names of fields that are passed over aside); base64 that is bad; an
// offset that is no integer, negative, or not above the one before it; a topic
// that Kafka would not allow; two arrays for one partition. A record of such an
// event has no coordinates that could be trusted, so that no part of it can be
// stored or dead-lettered by itself.
//
// Lambda's payload is described in AWS's Lambda developer guide, "Using Lambda
// with Apache Kafka"; bytes of headers as signed numbers are seen in its
// samples and in those of aws-lambda-go.
package kafkaevent
