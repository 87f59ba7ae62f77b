package memory

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"oncehouse/shared/kafka"
	"oncehouse/shared/outbox"
)

// Kafka is a broker with topics and transactions. It is safe for concurrent use.
type Kafka struct {
	mu     sync.Mutex
	topics map[string]*topic
	shards map[string]*coordinator
}

type topic struct {
	partitions []*partition
	limits     outbox.Topic // but for its partitions
}

type partition struct{ entries []entry }

// entry is one offset: a record, or the marker of a transaction's end.
type entry struct {
	record outbox.Record
	txn    *txn
	marker bool
}

type txn struct{ open, committed bool }

// coordinator is what the broker keeps of one transactional id, and the cursor
// partition that belongs to it.
type coordinator struct {
	epoch   int
	current *txn
	wrote   map[*partition]bool // partitions of the current transaction
	cursors partition
	cleaned int // offsets of cursors that are gone
}

// NewKafka returns a broker without topics.
func NewKafka() *Kafka {
	return &Kafka{topics: map[string]*topic{}, shards: map[string]*coordinator{}}
}

// Create creates a topic, or changes one: partitions are only ever added.
func (k *Kafka) Create(name string, partitions int, maxMessageBytes int32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.topics[name]
	if t == nil {
		t = &topic{}
		k.topics[name] = t
	}
	for len(t.partitions) < partitions {
		t.partitions = append(t.partitions, &partition{})
	}
	t.limits.MaxMessageBytes = maxMessageBytes
}

// Limit changes what a topic takes. That of MaxMessageBytes is not enforced.
func (k *Kafka) Limit(name string, change func(*outbox.Topic)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(&k.topics[name].limits)
}

// Remove deletes a topic.
func (k *Kafka) Remove(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.topics, name)
}

// Partitions is how many partitions a topic has.
func (k *Kafka) Partitions(name string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t := k.topics[name]; t != nil {
		return len(t.partitions)
	}
	return 0
}

// Clean lets the cleaner take the last records of a shard's cursor partition, as
// far as they were aborted: a wrong setting, or the cursor topic made again.
func (k *Kafka) Clean(name string, shard outbox.Shard) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.coordinator(name, shard)
	for i := len(c.cursors.entries) - 1; i >= 0 && !c.cursors.entries[i].txn.committed; i-- {
		if !c.cursors.entries[i].marker {
			c.cursors.entries[i].record.Value = nil
		}
	}
}

// Expire removes everything from a shard's cursor partition, as a retention does.
func (k *Kafka) Expire(name string, shard outbox.Shard) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.coordinator(name, shard)
	c.cleaned += len(c.cursors.entries)
	c.cursors.entries = nil
}

// Read returns the records of a partition from an offset on: all of them, or the
// committed ones before the first open transaction. next is where to go on.
func (k *Kafka) Read(name string, partition int32, from int64, committed bool) (records []kafka.Record, next int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.topics[name]
	if t == nil || int(partition) >= len(t.partitions) {
		return nil, from
	}
	entries := t.partitions[partition].entries
	for ; from < int64(len(entries)); from++ {
		e := &entries[from]
		if committed && e.txn.open {
			break
		}
		if e.marker || committed && !e.txn.committed {
			continue
		}
		r := kafka.Record{Offset: from, Timestamp: e.record.Timestamp, Key: e.record.Key, Value: e.record.Value}
		for _, h := range e.record.Headers {
			r.Headers = append(r.Headers, kafka.Header{Key: []byte(h.Key), Value: h.Value})
		}
		records = append(records, r)
	}
	return records, from
}

func (k *Kafka) coordinator(name string, shard outbox.Shard) *coordinator {
	id := fmt.Sprintf("%s/%d", name, shard.Index)
	c := k.shards[id]
	if c == nil {
		c = &coordinator{}
		k.shards[id] = c
	}
	return c
}

// append stores records in a partition, within the current transaction. The
// caller holds the lock.
func (c *coordinator) append(to *partition, records ...outbox.Record) {
	if c.current == nil {
		c.current, c.wrote = &txn{open: true}, map[*partition]bool{}
	}
	c.wrote[to] = true
	for _, r := range records {
		to.entries = append(to.entries, entry{record: clone(r), txn: c.current})
	}
}

// end commits or aborts the current transaction. The caller holds the lock.
func (c *coordinator) end(commit bool) {
	if c.current == nil {
		return
	}
	c.current.open, c.current.committed = false, commit
	for p := range c.wrote {
		p.entries = append(p.entries, entry{txn: c.current, marker: true})
	}
	c.current, c.wrote = nil, nil
}

// clone copies what belongs to the producer.
func clone(r outbox.Record) outbox.Record {
	r.Key, r.Value = bytes.Clone(r.Key), bytes.Clone(r.Value)
	headers := make([]outbox.Header, len(r.Headers))
	for i, h := range r.Headers {
		headers[i] = outbox.Header{Key: h.Key, Value: bytes.Clone(h.Value)}
	}
	r.Headers = headers
	return r
}

// Log is a shard's log in this Kafka.
type Log struct {
	Kafka *Kafka
	Name  string
	Shard outbox.Shard
	// Effects may be set before use.
	Effects Effects
	// BatchRows splits what a transaction writes to one partition into batches
	// that are stored, or not, each by itself; 0 is one batch.
	BatchRows int
	// Careless goes on after a failed batch: a control that must fail.
	Careless bool

	epoch int
	open  bool
	dirty bool // a transaction may be open
}

var _ outbox.Log = (*Log)(nil)

// Log returns the log of a shard of an outbox.
func (k *Kafka) Log(name string, shard outbox.Shard) *Log {
	return &Log{Kafka: k, Name: name, Shard: shard}
}

// locked applies an effect to the shard's coordinator, if this log is its newest.
func (l *Log) locked(ctx context.Context, name string, apply func(*coordinator) error) error {
	return l.Effects.perform(ctx, name, func() error {
		l.Kafka.mu.Lock()
		defer l.Kafka.mu.Unlock()
		c := l.Kafka.coordinator(l.Name, l.Shard)
		if l.epoch != c.epoch {
			return outbox.ErrFenced
		}
		return apply(c)
	})
}

func (l *Log) fence(ctx context.Context, name string) error {
	return l.Effects.perform(ctx, name, func() error {
		l.Kafka.mu.Lock()
		defer l.Kafka.mu.Unlock()
		c := l.Kafka.coordinator(l.Name, l.Shard)
		c.end(false)
		c.epoch++
		l.epoch, l.dirty = c.epoch, false
		return nil
	})
}

// Open implements outbox.Log.
func (l *Log) Open(ctx context.Context) (s outbox.Standing, err error) {
	l.open = false
	if err := l.fence(ctx, "init"); err != nil {
		return s, err
	}
	err = l.locked(ctx, "read", func(c *coordinator) error {
		s, err = c.standing()
		return err
	})
	l.open = err == nil
	return s, err
}

// standing reads the cursor partition.
func (c *coordinator) standing() (s outbox.Standing, err error) {
	lost := false
	for _, e := range c.cursors.entries {
		switch {
		case e.marker:
		case e.record.Value == nil:
			lost = true
		case string(e.record.Key) == "plan":
			s.Plan = &outbox.Plan{}
			err = json.Unmarshal(e.record.Value, s.Plan)
		case e.txn.committed:
			s = outbox.Standing{Cursor: &outbox.Cursor{}}
			err = json.Unmarshal(e.record.Value, s.Cursor)
			lost = false
		}
		if err != nil {
			return s, fmt.Errorf("read the cursor partition: %w", err)
		}
	}
	s.Expired = s.Cursor == nil && c.cleaned > 0
	if lost {
		return s, &outbox.Refusal{
			Reason: outbox.ReasonPlanLost, Problems: []string{"offsets behind the cursor are gone"},
			Remedy: "reset the cursor and keep its position",
		}
	}
	return s, nil
}

// Topics implements outbox.Log.
func (l *Log) Topics(ctx context.Context, names []string) (map[string]outbox.Topic, error) {
	found := map[string]outbox.Topic{}
	err := l.Effects.perform(ctx, "topics", func() error {
		l.Kafka.mu.Lock()
		defer l.Kafka.mu.Unlock()
		for _, name := range names {
			if t := l.Kafka.topics[name]; t != nil {
				described := t.limits
				described.Partitions = int32(len(t.partitions))
				found[name] = described
			}
		}
		return nil
	})
	return found, err
}

// Commit implements outbox.Log.
func (l *Log) Commit(ctx context.Context, t outbox.Transaction) error {
	if !l.open {
		return errors.New("the log is not open")
	}
	l.open, l.dirty = false, true
	if err := l.commit(ctx, t); err != nil {
		l.dirty = !errors.Is(err, outbox.ErrFenced) // then the other one has ended it
		return err
	}
	l.open, l.dirty = true, false
	return nil
}

func (l *Log) commit(ctx context.Context, t outbox.Transaction) error {
	if t.Plan != nil {
		if err := l.control(ctx, "plan", t.Plan); err != nil {
			return err
		}
	}
	if err := l.produce(ctx, t.Records); err != nil {
		return err
	}
	if err := l.control(ctx, "cursor", t.Cursor); err != nil {
		return err
	}
	return l.locked(ctx, "end", func(c *coordinator) error {
		c.end(true)
		return nil
	})
}

// control appends a plan or a cursor to the cursor partition.
func (l *Log) control(ctx context.Context, key string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode the %s: %w", key, err)
	}
	return l.locked(ctx, key, func(c *coordinator) error {
		c.append(&c.cursors, outbox.Record{Key: []byte(key), Value: text})
		return nil
	})
}

// produce stores the records partition by partition, nothing after the first
// batch that fails.
func (l *Log) produce(ctx context.Context, records []outbox.Record) error {
	batches := map[kafka.TopicPartition][]outbox.Record{}
	for _, r := range records {
		p := kafka.TopicPartition{Topic: r.Topic, Partition: r.Partition}
		batches[p] = append(batches[p], r)
	}
	order := slices.SortedFunc(maps.Keys(batches), func(a, b kafka.TopicPartition) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	for _, p := range order {
		size := len(batches[p])
		if l.BatchRows > 0 {
			size = l.BatchRows
		}
		for batch := range slices.Chunk(batches[p], size) {
			if err := l.append(ctx, p, batch); err != nil && !l.Careless {
				return err
			}
		}
	}
	return nil
}

func (l *Log) append(ctx context.Context, to kafka.TopicPartition, batch []outbox.Record) error {
	return l.locked(ctx, "produce", func(c *coordinator) error {
		t := l.Kafka.topics[to.Topic]
		if t == nil || int(to.Partition) >= len(t.partitions) {
			return fmt.Errorf("there is no partition %s", to)
		}
		if slices.ContainsFunc(batch, func(r outbox.Record) bool { return refuses(t.limits, r) }) {
			return &outbox.Refusal{Reason: outbox.ReasonHalted, Problems: []string{to.String() + " does not take a record"}, Remedy: "let it take the record"}
		}
		c.append(t.partitions[to.Partition], batch...)
		return nil
	})
}

// refuses tells whether a broker refuses a record for what it is.
func refuses(t outbox.Topic, r outbox.Record) bool {
	early := r.Timestamp > 0 && r.Timestamp < t.Earliest
	late := r.Timestamp > 0 && t.Latest > 0 && r.Timestamp > t.Latest
	return early || late || t.Compacted && r.Key == nil
}

// Close implements outbox.Log.
func (l *Log) Close(ctx context.Context) error {
	l.open = false
	if !l.dirty {
		return nil
	}
	return l.fence(ctx, "close")
}
