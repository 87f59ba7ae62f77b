package clickhouse

import (
	"fmt"

	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	"oncehouse/shared/rowbinary"
)

// buffer is memory that one chunk borrows.
type buffer struct{ rows []byte }

// block is the payload of a chunk: encoded rows and the schema they are for.
type block struct {
	buffer *buffer
	schema *schema
}

// maxKept is the largest buffer that is kept for the next chunk.
const maxKept = 32 << 20

// estimate is about what the rows take: a row is seldom longer than its JSON,
// whose names it does not repeat, and its coordinates. Growing step by step
// would leave five times as much garbage behind, and a small function has to have
// memory for that.
func estimate(records []kafka.Record) int {
	const coordinates = 64
	n := 0
	for i := range records {
		n += len(records[i].Value) + len(records[i].Key) + coordinates
	}
	return n
}

// Encode implements delivery.Target. It needs a Preflight that succeeded.
func (t *Target) Encode(lane delivery.Lane, records []kafka.Record, limit delivery.Limit) (*delivery.Chunk, error) {
	s := t.schema.Load()
	if s == nil {
		return nil, &delivery.Error{Kind: delivery.Fatal, Reason: delivery.ReasonTarget, Message: "encode before a preflight that succeeded"}
	}
	maxRows, maxBytes := min(limit.Rows, delivery.MaxBlockRows-1), min(limit.Bytes, delivery.MaxBlockBytes-1)
	b, _ := t.buffers.Get().(*buffer)
	if b == nil {
		b = &buffer{}
	}
	chunk := &delivery.Chunk{Payload: &block{buffer: b, schema: s}}
	writer, _ := s.writers.Get().(*rowbinary.Writer)
	if writer == nil {
		writer = s.encoder.NewWriter()
	}
	defer s.writers.Put(writer)
	unknown := writer.UnknownFields()
	rows := b.rows[:0]
	if rows == nil {
		rows = make([]byte, 0, min(estimate(records), maxBytes))
	}
	for i := range records {
		if chunk.Rows >= maxRows || len(rows) >= maxBytes {
			break
		}
		out, outcome, refusal := writer.Append(rows, lane.Topic, lane.Partition, &records[i])
		if outcome == rowbinary.Stored && len(out) >= delivery.MaxBlockBytes && chunk.Rows > 0 {
			break // this row begins the next chunk
		}
		rows = out
		chunk.Consumed++
		switch outcome {
		case rowbinary.Stored:
			chunk.Rows++
		case rowbinary.Skipped:
			chunk.Skipped = append(chunk.Skipped, i)
		case rowbinary.Refused:
			chunk.Refused = append(chunk.Refused, delivery.Refusal{
				Offset: records[i].Offset, Code: string(refusal.Code), Column: refusal.Column, Message: refusal.Message,
			})
		default:
			return nil, &delivery.Error{Kind: delivery.Fatal, Reason: delivery.ReasonTarget,
				Message: fmt.Sprintf("encode offset %d: unknown outcome %d", records[i].Offset, outcome)}
		}
	}
	b.rows = rows
	chunk.Bytes = len(rows)
	chunk.UnknownFields = writer.UnknownFields() - unknown
	chunk.Release = func() {
		if cap(b.rows) <= maxKept {
			t.buffers.Put(b)
		}
	}
	return chunk, nil
}
