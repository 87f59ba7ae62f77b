package redrive

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"

	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	"oncehouse/shared/offsets"
)

// mark is between a pipeline's name and a letter's coordinates. No pipeline's
// name holds a plus sign.
const mark = "+redrive."

// laneOf is the letter's own lane: its rows are those of its partition, its
// state and its tokens are nobody else's.
func laneOf(l delivery.Letter) delivery.Lane {
	lane := l.Lane
	lane.Pipeline = fmt.Sprintf("%s%s%d.%d", l.Lane.Pipeline, mark, l.Generation, l.Record.Offset)
	return lane
}

// originOf is lane and generation in which the record was first refused: the
// letter's own, or, of one that was redriven before, what its lane is named after.
func originOf(l delivery.Letter) (delivery.Letter, bool) {
	pipeline, coordinates, redriven := strings.Cut(l.Lane.Pipeline, mark)
	if !redriven {
		return l, true
	}
	generation, _, ok := strings.Cut(coordinates, ".")
	n, err := strconv.ParseInt(generation, 10, 64)
	l.Lane.Pipeline, l.Generation = pipeline, n
	return l, ok && err == nil
}

// isOurs is true of the headers by which a lane recognises the outbox's repeats:
// they are of the attempt that failed.
func isOurs(h kafka.Header) bool { return bytes.HasPrefix(h.Key, []byte("oncehouse-")) }

// fetch returns the record at an offset, nil if Kafka no longer has it.
func fetch(ctx context.Context, source delivery.Source, tp kafka.TopicPartition, offset int64) (*kafka.Record, error) {
	records, err := source.Fetch(ctx, tp, offsets.Of(offset))
	if err != nil || len(records) == 0 {
		return nil, err
	}
	return &records[0], nil
}
