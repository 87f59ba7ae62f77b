package kafkaevent

import (
	"bytes"
	"cmp"
	"errors"
	"math"
	"slices"
	"strconv"

	"oncehouse/shared/kafka"
)

// The two values of eventSource.
const (
	SourceMSK         = "aws:kafka"
	SourceSelfManaged = "SelfManagedKafka"
)

// Event is one Lambda event of a Kafka event source mapping.
type Event struct {
	// Source is SourceMSK or SourceSelfManaged.
	Source string
	// SourceARN is the cluster's; "" for a self-managed one.
	SourceARN string
	// BootstrapServers is a list of host:port with commas.
	BootstrapServers string
	// Batches has one batch per partition that has records, sorted by topic
	// and partition.
	Batches []kafka.Batch
}

// maxNames bounds what a Decoder remembers of topics and schemas from one
// event to the next. A topic has a handful.
const maxNames = 1024

// arenaStep is what the arena's size is a multiple of.
const arenaStep = 64 << 10

// Decoder decodes one event at a time; the zero value is ready. It keeps its
// memory, at most about three times the largest payload (Lambda: 6 MB), so
// that a warm function allocates nothing. It is not safe for concurrent use.
type Decoder struct {
	scanner
	event Event
	// arena holds every key, value, header name and header value of the event;
	// it is as long as the payload, which nothing decoded from it exceeds.
	arena []byte
	used  int
	// records and headers may grow while slices of them are handed out: those
	// keep the array they were cut from, and nothing written is written again.
	records []kafka.Record
	headers []kafka.Header
	batches []kafka.Batch

	topics  map[string]string
	schemas map[string]*kafka.Schema
	// format and id are those of the schema metadata that is being read.
	format, id []byte
}

// Decode decodes a payload. The event is valid until the next Decode; of the
// payload nothing is kept. Error: a *RefusedError.
func (d *Decoder) Decode(payload []byte) (*Event, error) {
	d.reset(payload)
	defer func() { d.data = nil }()
	if err := d.decodeEvent(); err != nil {
		return nil, err
	}
	if d.peek(); d.pos != len(d.data) {
		return nil, d.refuse(d.pos, "the event is followed by more bytes")
	}
	if err := d.sortBatches(); err != nil {
		return nil, err
	}
	return &d.event, nil
}

func (d *Decoder) reset(payload []byte) {
	d.data, d.pos = payload, 0
	if need := len(payload) + arenaSlack; len(d.arena) < need {
		// Rounded up: full events differ by little, and one that is a few bytes
		// longer than all before it should not need another arena.
		d.arena = make([]byte, (need+arenaStep-1)/arenaStep*arenaStep)
	}
	d.used = 0
	d.records, d.headers, d.batches = d.records[:0], d.headers[:0], d.batches[:0]
	if d.topics == nil || len(d.topics) > maxNames {
		d.topics = make(map[string]string)
	}
	if d.schemas == nil || len(d.schemas) > maxNames {
		d.schemas = make(map[string]*kafka.Schema)
	}
}

const (
	seenSource = 1 << iota
	seenSourceARN
	seenServers
	seenRecords
)

func (d *Decoder) decodeEvent() error {
	if d.peek() != '{' {
		return d.refuse(d.pos, "not a Kafka event: a JSON object expected")
	}
	seen := 0
	more, err := d.open('}')
	for more && err == nil {
		at := d.pos
		var name []byte
		if name, err = d.name(); err != nil {
			return err
		}
		var field int
		switch string(name) {
		case "eventSource":
			field, err = seenSource, d.decodeSource()
		case "eventSourceArn":
			field, err = seenSourceARN, d.decodeText(&d.event.SourceARN)
		case "bootstrapServers":
			field, err = seenServers, d.decodeText(&d.event.BootstrapServers)
		case "records":
			field, err = seenRecords, d.decodeRecords(seen&seenRecords != 0)
		default:
			err = d.skip(maxDepth)
		}
		if err != nil {
			return err
		}
		if seen&field != 0 {
			return d.refuse(at, "a field is given twice")
		}
		seen |= field
		more, err = d.more('}')
	}
	if err != nil {
		return err
	}
	return d.checkSeen(seen)
}

// checkSeen asks for the fields an event cannot do without and clears those
// that the last event had and this one has not.
func (d *Decoder) checkSeen(seen int) error {
	if seen&seenSource == 0 {
		return d.refuse(0, "not a Kafka event: it has no eventSource")
	}
	if seen&seenRecords == 0 {
		return d.refuse(0, "the event has no records field")
	}
	if seen&seenSourceARN == 0 {
		d.event.SourceARN = ""
	}
	if seen&seenServers == 0 {
		d.event.BootstrapServers = ""
	}
	return nil
}

func (d *Decoder) decodeSource() error {
	at := d.valueAt()
	text, null, err := d.text()
	if err != nil {
		return err
	}
	switch {
	case !null && string(text) == SourceMSK:
		d.event.Source = SourceMSK
	case !null && string(text) == SourceSelfManaged:
		d.event.Source = SourceSelfManaged
	default:
		return d.refuse(at, "not a Kafka event: eventSource is %s", quote(text))
	}
	return nil
}

// decodeText reads a string, or null for none, into to, and allocates only if
// it is not what is there from the last event.
func (d *Decoder) decodeText(to *string) error {
	text, _, err := d.text()
	if err != nil {
		return err
	}
	if string(text) != *to {
		*to = string(text)
	}
	return nil
}

// decodeRecords reads the object of arrays, one per partition.
func (d *Decoder) decodeRecords(again bool) error {
	if again {
		return d.refuse(d.pos, "records is given twice")
	}
	if d.peek() != '{' {
		return d.refuse(d.pos, "records is not an object of partitions")
	}
	more, err := d.open('}')
	for more && err == nil {
		at := d.pos
		var name []byte
		if name, err = d.name(); err != nil {
			return err
		}
		var tp kafka.TopicPartition
		if tp, err = d.partitionName(name, at); err != nil {
			return err
		}
		if err = d.decodePartition(tp); err != nil {
			return err
		}
		more, err = d.more('}')
	}
	return err
}

// partitionName takes topic-partition apart. A topic may hold dashes, but a
// partition is never negative: the last dash is the one.
func (d *Decoder) partitionName(name []byte, at int) (kafka.TopicPartition, error) {
	dash := bytes.LastIndexByte(name, '-')
	if dash < 0 || !isTopic(name[:dash]) {
		return kafka.TopicPartition{}, d.refuse(at, "%s is not topic-partition", quote(name))
	}
	digits := name[dash+1:]
	partition, ok := parseIndex(digits)
	if !ok {
		return kafka.TopicPartition{}, d.refuse(at, "%s is not topic-partition", quote(name))
	}
	topic, known := d.topics[string(name[:dash])]
	if !known {
		topic = string(name[:dash])
		d.topics[topic] = topic
	}
	return kafka.TopicPartition{Topic: topic, Partition: partition}, nil
}

// isTopic is Kafka's own rule (org.apache.kafka.common.internals.Topic).
// Names of lanes and tokens rely on it: no slash, no colon.
func isTopic(name []byte) bool {
	if len(name) == 0 || len(name) > 249 || string(name) == "." || string(name) == ".." {
		return false
	}
	for _, c := range name {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// parseIndex reads a partition as Kafka prints it: no sign, no leading zero.
func parseIndex(digits []byte) (int32, bool) {
	if len(digits) == 0 || len(digits) > 10 || (digits[0] == '0' && len(digits) > 1) {
		return 0, false
	}
	n := int64(0)
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return int32(n), n <= math.MaxInt32
}

// decodePartition reads the array of one partition's records.
func (d *Decoder) decodePartition(tp kafka.TopicPartition) error {
	if d.peek() != '[' {
		return inside(tp, -1, d.refuse(d.pos, "the records of a partition are not an array"))
	}
	first := len(d.records)
	more, err := d.open(']')
	for last := int64(-1); more && err == nil; {
		index := len(d.records) - first
		at := d.pos
		d.records = append(d.records, kafka.Record{})
		record := &d.records[len(d.records)-1]
		if err = d.decodeRecord(tp, record); err != nil {
			return inside(tp, index, err)
		}
		if record.Offset <= last {
			return inside(tp, index, d.refuse(at, "offset %d is not above %d, the one before it", record.Offset, last))
		}
		last = record.Offset
		more, err = d.more(']')
	}
	if err != nil {
		return inside(tp, -1, err)
	}
	d.batches = append(d.batches, kafka.Batch{TopicPartition: tp, Records: d.records[first:len(d.records):len(d.records)]})
	return nil
}

// sortBatches orders the batches, refuses a partition that has two, and leaves
// out those without records.
func (d *Decoder) sortBatches() error {
	slices.SortFunc(d.batches, func(a, b kafka.Batch) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	for i, batch := range d.batches {
		if i > 0 && batch.TopicPartition == d.batches[i-1].TopicPartition {
			return &RefusedError{Partition: batch.String(), Record: -1, Message: "two arrays for one partition"}
		}
	}
	d.batches = slices.DeleteFunc(d.batches, func(b kafka.Batch) bool { return len(b.Records) == 0 })
	d.event.Batches = d.batches
	return nil
}

// inside adds the place to an error from below.
func inside(tp kafka.TopicPartition, record int, err error) error {
	var refused *RefusedError
	if errors.As(err, &refused) {
		refused.Partition, refused.Record = tp.String(), record
	}
	return err
}

// quote is text for an error message, cut to what a person reads; nil is null.
func quote(text []byte) string {
	if text == nil {
		return "null"
	}
	if len(text) > 64 {
		return strconv.Quote(string(text[:64])) + "..."
	}
	return strconv.Quote(string(text))
}
