package demo

import (
	"bytes"
	"encoding/json"
	"fmt"

	"oncehouse/infra/local/clickstream"
	"oncehouse/shared/deadletter"
	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
)

// Proof is what one run came to: Stored, DeadLetters, Tombstones and Lost are
// records and add up to Produced, Duplicated are rows and letters too many,
// WrongValues are rows and letters that are not what the generator says.
type Proof struct {
	Guarantee   delivery.Guarantee `json:"guarantee"`
	Produced    int64              `json:"produced"`
	Stored      int64              `json:"stored"`
	DeadLetters int64              `json:"dead_letters"`
	Tombstones  int64              `json:"tombstones"`
	Lost        int64              `json:"lost"`
	Duplicated  int64              `json:"duplicated"`
	WrongValues int64              `json:"wrong_values"`
	Kills       int64              `json:"kills"`
	Recuts      int64              `json:"recuts"`
	Seconds     float64            `json:"seconds"`
}

// Exact reports whether every record has its one row, letter or pass.
func (p Proof) Exact() bool {
	return p.Lost == 0 && p.Duplicated == 0 && p.WrongValues == 0 && p.Stored+p.DeadLetters+p.Tombstones == p.Produced
}

// String is the line that scripts look for.
func (p Proof) String() string {
	line, err := json.Marshal(p)
	if err != nil { // numbers and a string always marshal
		panic(err)
	}
	return "PROOF " + string(line)
}

// truth is what the broker acknowledged: which record of the generator has
// which offset. Nothing in it comes from the sink.
type truth struct {
	generator clickstream.Generator
	topic     string
	pipeline  string
	// index of the record, by partition and offset.
	index [][]int64
}

// examples is how many faults of a run are told one by one.
const examples = 5

// checker holds rows and letters against the truth.
type checker struct {
	*truth
	columns []column
	rows    [][]int32 // how many, by partition and offset
	letters []map[int64]string
	proof   Proof
	// Problems are the first of what is wrong, for people.
	Problems []string
	want     []byte
}

func newChecker(t *truth) *checker {
	c := &checker{truth: t, columns: columns(), rows: make([][]int32, len(t.index)), letters: make([]map[int64]string, len(t.index))}
	for p := range t.index {
		c.rows[p] = make([]int32, len(t.index[p]))
		c.letters[p] = map[int64]string{}
	}
	return c
}

func (c *checker) problem(format string, args ...any) {
	if len(c.Problems) < examples {
		c.Problems = append(c.Problems, fmt.Sprintf(format, args...))
	}
}

// known is the generator's index of what claims to be at an offset.
func (c *checker) known(topic string, partition int32, offset int64) (int64, bool) {
	if topic != c.topic || partition < 0 || int(partition) >= len(c.index) || offset < 0 || offset >= int64(len(c.index[partition])) {
		c.proof.WrongValues++
		c.problem("%s-%d offset %d was never produced", topic, partition, offset)
		return 0, false
	}
	return c.index[partition][offset], true
}

// row takes one row of the table, with the columns' RowBinary.
func (c *checker) row(topic string, partition int32, offset int64, values [][]byte) {
	i, ok := c.known(topic, partition, offset)
	if !ok {
		return
	}
	if c.rows[partition][offset]++; c.rows[partition][offset] > 1 {
		c.proof.Duplicated++
		c.problem("%s-%d offset %d is stored %d times", topic, partition, offset, c.rows[partition][offset])
	}
	if kind := c.generator.Kind(i); kind != clickstream.Good {
		c.proof.WrongValues++
		c.problem("%s-%d offset %d is stored and is %s", topic, partition, offset, kind)
		return
	}
	r := record{click: c.generator.Click(i), timestamp: c.generator.Timestamp(i), key: c.generator.Key(nil, i)}
	for k, column := range c.columns {
		if c.want = column.want(c.want[:0], &r); !bytes.Equal(c.want, values[k]) {
			c.proof.WrongValues++
			c.problem("%s-%d offset %d: %s is %q, and was produced as %q", topic, partition, offset, column.name, values[k], c.want)
			return
		}
	}
}

// letter takes one message of the dead letter queue.
func (c *checker) letter(body []byte) {
	e, err := deadletter.Parse(body)
	if err != nil {
		c.proof.WrongValues++
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
		c.proof.Duplicated++
		c.problem("%s offset %d has two dead letters, %s and %s", lane.TopicPartition, e.Record.Offset, earlier, id)
	}
	c.letters[lane.Partition][e.Record.Offset] = id
	if wrong := c.wrongLetter(&e, i); wrong != "" {
		c.proof.WrongValues++
		c.problem("the dead letter of %s offset %d %s", lane.TopicPartition, e.Record.Offset, wrong)
	}
}

func (c *checker) wrongLetter(e *deadletter.Envelope, i int64) string {
	produced := c.generator.Record(i)
	produced.Offset = e.Record.Offset
	switch {
	case e.Lane.Pipeline != c.pipeline:
		return "is of pipeline " + e.Lane.Pipeline
	case !c.generator.Kind(i).Poison():
		return "is of a record that fits: " + e.Code + " " + e.Message
	case !e.Complete(produced) || e.Record.Timestamp != produced.Timestamp:
		return "does not hold what was produced"
	}
	return ""
}

// finish counts what is missing.
func (c *checker) finish() Proof {
	for p, index := range c.index {
		for offset, i := range index {
			c.proof.Produced++
			tp := kafka.TopicPartition{Topic: c.topic, Partition: int32(p)}
			kind := c.generator.Kind(i)
			stored := c.rows[p][offset] > 0
			_, lettered := c.letters[p][int64(offset)]
			switch {
			case kind == clickstream.Good && stored:
				c.proof.Stored++
			case kind == clickstream.Tombstone:
				c.proof.Tombstones++
			case kind.Poison() && lettered:
				c.proof.DeadLetters++
			default:
				c.proof.Lost++
				c.problem("%s offset %d (%s) is neither in the table nor in the dead letters", tp, offset, kind)
			}
		}
	}
	return c.proof
}
