package oracle

import (
	"bytes"
	"fmt"
	"io"

	"oncehouse/infra/local/clickstream"
	"oncehouse/shared/deadletter"
	"oncehouse/shared/kafka"
)

// Count is what a run came to: Stored, DeadLetters, Tombstones and Lost are
// records and add up to Produced, Duplicated are rows and letters too many,
// WrongValues are rows and letters that are not what the generator says.
type Count struct {
	Produced    int64 `json:"produced"`
	Stored      int64 `json:"stored"`
	DeadLetters int64 `json:"dead_letters"`
	Tombstones  int64 `json:"tombstones"`
	Lost        int64 `json:"lost"`
	Duplicated  int64 `json:"duplicated"`
	WrongValues int64 `json:"wrong_values"`
}

// Exact reports whether every record has its one row, letter or pass.
func (c Count) Exact() bool {
	return c.Lost == 0 && c.Duplicated == 0 && c.WrongValues == 0 && c.Stored+c.DeadLetters+c.Tombstones == c.Produced
}

// Truth is what the broker acknowledged: which record of the generator has
// which offset. Nothing in it comes from the sink.
type Truth struct {
	Generator clickstream.Generator
	Topic     string
	// Pipeline is what dead letters must name.
	Pipeline string
	// Index of the record, by partition and offset.
	Index [][]int64
}

// examples is how many faults of a run are told one by one.
const examples = 5

// Checker holds rows and letters against the truth.
type Checker struct {
	*Truth
	columns []column
	rows    [][]int32 // how many, by partition and offset
	letters []map[int64]string
	count   Count
	// Problems are the first of what is wrong, for people.
	Problems []string
	want     []byte
}

// NewChecker begins a count.
func NewChecker(t *Truth) *Checker {
	c := &Checker{Truth: t, columns: columns(), rows: make([][]int32, len(t.Index)), letters: make([]map[int64]string, len(t.Index))}
	for p := range t.Index {
		c.rows[p] = make([]int32, len(t.Index[p]))
		c.letters[p] = map[int64]string{}
	}
	return c
}

func (c *Checker) problem(format string, args ...any) {
	if len(c.Problems) < examples {
		c.Problems = append(c.Problems, fmt.Sprintf(format, args...))
	}
}

// known is the generator's index of what claims to be at an offset.
func (c *Checker) known(topic string, partition int32, offset int64) (int64, bool) {
	if topic != c.Topic || partition < 0 || int(partition) >= len(c.Index) || offset < 0 || offset >= int64(len(c.Index[partition])) {
		c.count.WrongValues++
		c.problem("%s-%d offset %d was never produced", topic, partition, offset)
		return 0, false
	}
	return c.Index[partition][offset], true
}

// Rows takes the rows of a table, as RowQuery selects them. Error: the stream is
// not whole.
func (c *Checker) Rows(in io.Reader) error { return readRows(in, c.row) }

// row takes one row of the table, with the columns' RowBinary.
func (c *Checker) row(topic string, partition int32, offset int64, values [][]byte) {
	i, ok := c.known(topic, partition, offset)
	if !ok {
		return
	}
	if c.rows[partition][offset]++; c.rows[partition][offset] > 1 {
		c.count.Duplicated++
		c.problem("%s-%d offset %d is stored %d times", topic, partition, offset, c.rows[partition][offset])
	}
	if kind := c.Generator.Kind(i); kind != clickstream.Good {
		c.count.WrongValues++
		c.problem("%s-%d offset %d is stored and is %s", topic, partition, offset, kind)
		return
	}
	r := record{click: c.Generator.Click(i), timestamp: c.Generator.Timestamp(i), key: c.Generator.Key(nil, i)}
	for k, column := range c.columns {
		if c.want = column.want(c.want[:0], &r); !bytes.Equal(c.want, values[k]) {
			c.count.WrongValues++
			c.problem("%s-%d offset %d: %s is %q, and was produced as %q", topic, partition, offset, column.name, values[k], c.want)
			return
		}
	}
}

// Letter takes one message of the dead letter queue.
func (c *Checker) Letter(body []byte) {
	e, err := deadletter.Parse(body)
	if err != nil {
		c.count.WrongValues++
		c.problem("a dead letter cannot be read: %v", err)
		return
	}
	lane := e.Lane
	i, ok := c.known(lane.Topic, lane.Partition, e.Record.Offset)
	if !ok {
		return
	}
	id := deadletter.ID(e.Letter)
	switch earlier := c.letters[lane.Partition][e.Record.Offset]; earlier {
	case "", id: // the queue may hold a letter twice, under its one id
	default:
		c.count.Duplicated++
		c.problem("%s offset %d has two dead letters, %s and %s", lane.TopicPartition, e.Record.Offset, earlier, id)
	}
	c.letters[lane.Partition][e.Record.Offset] = id
	if wrong := c.wrongLetter(&e, i); wrong != "" {
		c.count.WrongValues++
		c.problem("the dead letter of %s offset %d %s", lane.TopicPartition, e.Record.Offset, wrong)
	}
}

func (c *Checker) wrongLetter(e *deadletter.Envelope, i int64) string {
	produced := c.Generator.Record(i)
	produced.Offset = e.Record.Offset
	switch {
	case e.Lane.Pipeline != c.Pipeline:
		return "is of pipeline " + e.Lane.Pipeline
	case !c.Generator.Kind(i).Poison():
		return "is of a record that fits: " + e.Code + " " + e.Message
	case !e.Complete(produced) || e.Record.Timestamp != produced.Timestamp:
		return "does not hold what was produced"
	}
	return ""
}

// Finish counts what is missing.
func (c *Checker) Finish() Count {
	for p, index := range c.Index {
		for offset, i := range index {
			c.count.Produced++
			tp := kafka.TopicPartition{Topic: c.Topic, Partition: int32(p)}
			kind := c.Generator.Kind(i)
			stored := c.rows[p][offset] > 0
			_, lettered := c.letters[p][int64(offset)]
			switch {
			case kind == clickstream.Good && stored:
				c.count.Stored++
			case kind == clickstream.Tombstone:
				c.count.Tombstones++
			case kind.Poison() && lettered:
				c.count.DeadLetters++
			default:
				c.count.Lost++
				c.problem("%s offset %d (%s) is neither in the table nor in the dead letters", tp, offset, kind)
			}
		}
	}
	return c.count
}
