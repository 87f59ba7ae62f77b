package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"oncehouse/infra/local/clickstream"
	"oncehouse/infra/local/lambdahost"
	"oncehouse/shared/kafka"
	"oncehouse/shared/rowbinary"
)

// What Lambda sends at most. https://docs.aws.amazon.com/lambda/latest/dg/with-kafka.html
const (
	maxRecords = 10_000
	maxPayload = lambdahost.MaxRequestBytes
)

const topic = "clicks"

// event is one payload and what is in it.
type event struct {
	payload []byte
	records int
	values  int // bytes of all values before base64
}

// newEvent makes an event of records first.. of the given size, over so many
// partitions: as many as there may be, and as fit. Offsets are the records'
// indices.
func newEvent(size, partitions int, first int64, most int) (event, error) {
	g := clickstream.Generator{Seed: 1, Size: size}
	mapping := clickstream.Mapping{SourceARN: "arn:aws:kafka:eu-west-1:111122223333:cluster/clicks/0b1c2d3e-1", BootstrapServers: "b-1.clicks:9098,b-2.clicks:9098"}
	one := len(mapping.Payload(nil, g.Batch(kafka.TopicPartition{Topic: topic}, first, first, 100)))/100 + 1
	n := min(most, maxPayload/one)
	for ; n > 0; n -= 10 {
		batches := make([]kafka.Batch, 0, partitions)
		e := event{records: n}
		at := first
		for p := range partitions {
			share := n / partitions
			if p < n%partitions {
				share++
			}
			batch := g.Batch(kafka.TopicPartition{Topic: topic, Partition: int32(p)}, at, at, share)
			for i := range batch.Records {
				e.values += len(batch.Records[i].Value)
			}
			batches = append(batches, batch)
			at += int64(share)
		}
		if e.payload = mapping.Payload(nil, batches...); len(e.payload) <= maxPayload {
			return e, nil
		}
	}
	return event{}, fmt.Errorf("no record of %d bytes fits into an event", size)
}

// tableFile is the table that all figures are for.
func tableFile(root string) string { return filepath.Join(root, "events", "clicks.sql") }

// readColumns reads the columns in the file, which has one on each line.
func readColumns(root string) ([]rowbinary.Column, error) {
	text, err := os.ReadFile(tableFile(root))
	if err != nil {
		return nil, fmt.Errorf("read the table: %w", err)
	}
	_, inside, opened := strings.Cut(string(text), "\n(\n")
	inside, _, closed := strings.Cut(inside, "\n)\n")
	if !opened || !closed {
		return nil, fmt.Errorf("read the table: %s has no list of columns in lines of its own", tableFile(root))
	}
	var columns []rowbinary.Column
	for line := range strings.Lines(inside) {
		name, typ, ok := strings.Cut(strings.TrimSpace(line), " ")
		if ok {
			columns = append(columns, rowbinary.Column{Name: name, Type: strings.Trim(typ, " ,")})
		}
	}
	return columns, nil
}
