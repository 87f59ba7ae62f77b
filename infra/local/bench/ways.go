package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	native "github.com/ClickHouse/ch-go/proto"
	"github.com/ClickHouse/clickhouse-go/v2/lib/column"
	"github.com/ClickHouse/clickhouse-go/v2/lib/proto"
	"github.com/aws/aws-lambda-go/events"
	"github.com/google/uuid"
	"github.com/shopspring/decimal"

	"oncehouse/shared/kafkaevent"
	"oncehouse/shared/rowbinary"
)

// way goes from an event's bytes to what an insert sends.
type way interface {
	// run returns the rows it made and calls lap with each part's name when the
	// part is over.
	run(payload []byte, lap func(part string)) (rows int, err error)
}

// sinkWay is the sink's. Like a warm function it keeps its memory.
type sinkWay struct {
	decoder kafkaevent.Decoder
	writer  *rowbinary.Writer
	body    []byte
}

func newSinkWay(columns []rowbinary.Column) (*sinkWay, error) {
	encoder, err := rowbinary.Compile(columns, rowbinary.Options{Provenance: rowbinary.StandardProvenance()})
	if err != nil {
		return nil, fmt.Errorf("compile the table: %w", err)
	}
	return &sinkWay{writer: encoder.NewWriter()}, nil
}

func (w *sinkWay) run(payload []byte, lap func(string)) (rows int, err error) {
	event, err := w.decoder.Decode(payload)
	if err != nil {
		return 0, fmt.Errorf("decode the event: %w", err)
	}
	lap("decode")
	w.body = w.body[:0]
	for _, batch := range event.Batches {
		for i := range batch.Records {
			body, outcome, refusal := w.writer.Append(w.body, batch.Topic, batch.Partition, &batch.Records[i])
			if outcome != rowbinary.Stored {
				return 0, fmt.Errorf("encode offset %d: %v", batch.Records[i].Offset, refusal)
			}
			w.body = body
			rows++
		}
	}
	lap("encode")
	return rows, nil
}

// idiomaticWay is what a Go programmer writes with the libraries at hand. It
// gives the table the same rows, provenance columns too.
type idiomaticWay struct {
	columns []rowbinary.Column
	body    native.Buffer
}

// click is a record's value.
type click struct {
	EventID    uuid.UUID         `json:"event_id"`
	UserID     uint64            `json:"user_id"`
	Session    string            `json:"session"`
	URL        string            `json:"url"`
	Referrer   *string           `json:"referrer"`
	Time       time.Time         `json:"ts"`
	DurationMS uint32            `json:"duration_ms"`
	Price      decimal.Decimal   `json:"price"`
	Tags       []string          `json:"tags"`
	Props      map[string]string `json:"props"`
}

// idiomaticColumns is the order in which run appends.
const idiomaticColumns = "event_id user_id session url referrer ts duration_ms price tags props _topic _partition _offset _timestamp _key"

func newIdiomaticWay(columns []rowbinary.Column) (*idiomaticWay, error) {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.Name
	}
	if !slices.Equal(names, strings.Fields(idiomaticColumns)) {
		return nil, fmt.Errorf("the table has the columns %v, and this way appends %s", names, idiomaticColumns)
	}
	return &idiomaticWay{columns: columns}, nil
}

func (w *idiomaticWay) run(payload []byte, lap func(string)) (rows int, err error) {
	var event events.KafkaEvent
	if err := json.Unmarshal(payload, &event); err != nil {
		return 0, fmt.Errorf("decode the event: %w", err)
	}
	lap("decode")
	block := proto.NewBlock() // as PrepareBatch makes one for each batch
	for _, c := range w.columns {
		if err := block.AddColumn(c.Name, column.Type(c.Type)); err != nil {
			return 0, fmt.Errorf("prepare the batch: %w", err)
		}
	}
	for _, records := range event.Records {
		for i := range records {
			if err := appendRecord(block, &records[i]); err != nil {
				return 0, fmt.Errorf("append offset %d: %w", records[i].Offset, err)
			}
		}
	}
	w.body.Reset()
	if err := block.Encode(&w.body, 0); err != nil { // over HTTP the driver sends revision 0
		return 0, fmt.Errorf("encode the batch: %w", err)
	}
	lap("encode")
	return block.Rows(), nil
}

func appendRecord(block *proto.Block, r *events.KafkaRecord) error {
	value, err := base64.StdEncoding.DecodeString(r.Value)
	if err != nil {
		return err
	}
	key, err := base64.StdEncoding.DecodeString(r.Key)
	if err != nil {
		return err
	}
	var c click
	if err := json.Unmarshal(value, &c); err != nil {
		return err
	}
	return block.Append(c.EventID, c.UserID, c.Session, c.URL, c.Referrer, c.Time, c.DurationMS, c.Price, c.Tags, c.Props,
		r.Topic, int32(r.Partition), r.Offset, r.Timestamp.Time, string(key))
}

// floorWay leaves out everything that can be left out.
type floorWay struct{ value, body []byte }

func (w *floorWay) run(payload []byte, lap func(string)) (rows int, err error) {
	const name = `"value":"`
	w.body = w.body[:0]
	for rest := payload; ; rows++ {
		start := bytes.Index(rest, []byte(name))
		if start < 0 {
			lap("all")
			return rows, nil
		}
		rest = rest[start+len(name):]
		end := bytes.IndexByte(rest, '"')
		if w.value, err = base64.StdEncoding.AppendDecode(w.value[:0], rest[:end]); err != nil {
			return 0, fmt.Errorf("decode a value: %w", err)
		}
		w.body = append(w.body, w.value...)
		rest = rest[end:]
	}
}
