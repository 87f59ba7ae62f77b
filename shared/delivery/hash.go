package delivery

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"oncehouse/shared/kafka"
)

// hashRecords hashes what Kafka holds of the records: offset, timestamp, key,
// value and headers, each with its length, null apart from empty. What the
// function makes of a record does not enter, so a deployment that decodes
// differently does not change the identity of a chunk.
func hashRecords(records []kafka.Record) Hash {
	var d xxhash.Digest
	d.Reset()
	for i := range records {
		hashRecord(&d, &records[i])
	}
	return Hash(d.Sum64())
}

func hashOne(record *kafka.Record) Hash {
	var d xxhash.Digest
	d.Reset()
	hashRecord(&d, record)
	return Hash(d.Sum64())
}

func hashRecord(d *xxhash.Digest, r *kafka.Record) {
	var head [40]byte
	binary.LittleEndian.PutUint64(head[0:], uint64(r.Offset))
	binary.LittleEndian.PutUint64(head[8:], uint64(r.Timestamp))
	binary.LittleEndian.PutUint64(head[16:], hashLen(r.Key))
	binary.LittleEndian.PutUint64(head[24:], hashLen(r.Value))
	binary.LittleEndian.PutUint64(head[32:], uint64(len(r.Headers)))
	write(d, head[:])
	write(d, r.Key)
	write(d, r.Value)
	for i := range r.Headers {
		h := &r.Headers[i]
		binary.LittleEndian.PutUint64(head[0:], uint64(len(h.Key)))
		binary.LittleEndian.PutUint64(head[8:], uint64(len(h.Value)))
		write(d, head[:16])
		write(d, h.Key)
		write(d, h.Value)
	}
}

// hashLen tells null (0) from empty (1).
func hashLen(b []byte) uint64 {
	if b == nil {
		return 0
	}
	return uint64(len(b)) + 1
}

func write(d *xxhash.Digest, b []byte) {
	_, _ = d.Write(b) // a Digest never fails
}
