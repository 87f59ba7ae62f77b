package torture

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncehouse/infra/local/broker"
	"oncehouse/infra/local/clickstream"
	"oncehouse/infra/local/engine"
	"oncehouse/infra/local/oracle"
)

const (
	partitions = 12
	// valueSize is a click's, in bytes.
	valueSize = 300
)

// stream is what all subjects have: a topic, a consumer group, and a table.
type stream struct {
	name, topic, group, table string
	// engine is the URL of the engine that holds the table.
	engine string
	client *kgo.Client
	admin  *kadm.Client
	rows   atomic.Int64
	// producer writes the records of clicks; nil where another part does.
	producer *oracle.Producer
}

func newStream(l *lab, name string) (*stream, error) {
	s := &stream{
		name: name, table: "stored_" + strings.ReplaceAll(name, "-", "_"), group: "oncehouse-" + name + "-v1", engine: l.stack.Engine.URL(),
		topic: fmt.Sprintf("torture-%s-%x", name, time.Now().UnixMilli()), // no other run has it, wherever the broker is
	}
	var err error
	if s.client, err = kgo.NewClient(kgo.SeedBrokers(l.stack.Broker.Addrs()...)); err != nil {
		return nil, fmt.Errorf("connect to the broker: %w", err)
	}
	s.admin = kadm.NewClient(s.client)
	return s, nil
}

// openClicks makes a topic for clicks. With poison, some records do not fit the
// table and some have no value: only for a subject that has somewhere to put
// them.
func openClicks(ctx context.Context, l *lab, name string, poison bool) (*stream, error) {
	generator := clickstream.Generator{Seed: l.Seed, Size: valueSize}
	if poison {
		generator.PoisonEvery, generator.TombstoneEvery = 500, 500
	}
	s, err := newStream(l, name)
	if err != nil {
		return nil, err
	}
	topic := broker.Topic{Name: s.topic, Partitions: partitions, Config: map[string]string{"retention.ms": "-1"}}
	if err := broker.CreateTopics(ctx, l.stack.Broker, topic); err != nil {
		s.client.Close()
		return nil, err
	}
	producer := &oracle.Producer{Generator: generator, Topic: s.topic, Partitions: partitions, Pick: repeat}
	if err := producer.Open(l.stack.Broker.Addrs()); err != nil {
		s.client.Close()
		return nil, err
	}
	s.producer = producer
	return s, nil
}

// repeat picks the record at place n of the stream: one in eight is, once more,
// one that may have been among the thousand before it.
func repeat(n int64) int64 {
	h := uint64(n) * 0x9e3779b97f4a7c15
	h = (h ^ h>>29) * 0xbf58476d1ce4e5b9
	if h ^= h >> 32; n > 0 && h%8 == 0 {
		return n - 1 - int64(h>>8%uint64(min(n, 1000)))
	}
	return n
}

// Feed produces the next n records.
func (s *stream) Feed(ctx context.Context, n int64) error { return s.producer.Produce(ctx, n) }

// Progress asks the broker what the group has committed, and the engine for its
// rows; while that is dead, it has as many as before.
func (s *stream) Progress(ctx context.Context) (Progress, error) {
	p := Progress{Produced: s.producer.Acknowledged()}
	committed, err := s.admin.FetchOffsetsForTopics(ctx, s.group, s.topic)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) { // it has committed nothing yet
		return p, fmt.Errorf("ask for the offsets of group %s: %w", s.group, err)
	}
	for partition := range int32(partitions) {
		if c, ok := committed.Lookup(s.topic, partition); ok && c.Err == nil {
			p.Settled += max(0, c.At)
		}
	}
	p.Rows = s.countRows(ctx)
	return p, nil
}

// countRows is how many rows there are; as many as before while the engine is
// dead.
func (s *stream) countRows(ctx context.Context) int64 {
	within, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if n, err := engine.Count(within, s.engine, s.table); err == nil {
		s.rows.Store(n)
	}
	return s.rows.Load()
}

// createTable makes the table of events/<kind>.sql under the subject's name.
func (s *stream) createTable(ctx context.Context, root, kind, settings string) error {
	return engine.CreateTable(ctx, s.engine, filepath.Join(root, "events", kind+".sql"), s.table, settings)
}

// count holds the table and the letters against what was produced.
func (s *stream) count(ctx context.Context, letters [][]byte) (Outcome, error) {
	truth, err := s.producer.Truth(ctx, s.name)
	if err != nil {
		return Outcome{}, err
	}
	c := oracle.NewChecker(truth)
	rows, err := engine.Query(ctx, s.engine, fmt.Sprintf(oracle.RowQuery, s.table))
	if err != nil {
		return Outcome{}, err
	}
	defer func() { _ = rows.Close() }()
	if err := c.Rows(rows); err != nil {
		return Outcome{}, err
	}
	for _, body := range letters {
		c.Letter(body)
	}
	return Outcome{Count: c.Finish(), Repeats: repeats(truth), Problems: c.Problems}, nil
}

// repeats is how many records are equal to one before them.
func repeats(t *oracle.Truth) int64 {
	seen := map[int64]struct{}{}
	var records int64
	for _, index := range t.Index {
		records += int64(len(index))
		for _, i := range index {
			seen[i] = struct{}{}
		}
	}
	return records - int64(len(seen))
}

// close gives the broker its room back. One that does not want to is not a
// fault of the subject.
func (s *stream) close() {
	within, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, _ = s.admin.DeleteTopics(within, s.topic)
	if s.producer != nil {
		s.producer.Close()
	}
	s.client.Close()
}

// expel ends a dead consumer's membership of the group, as the end of its
// session would some seconds later, and moves committed offsets back by so many
// records in one partition, as a commit that was lost in a rebalance does.
func (s *stream) expel(ctx context.Context, instance string, partition int32, back int64) error {
	if _, err := s.admin.LeaveGroup(ctx, kadm.LeaveGroup(s.group).InstanceIDs(instance)); err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return fmt.Errorf("expel the dead consumer from %s: %w", s.group, err)
	}
	if back == 0 {
		return nil
	}
	committed, err := s.admin.FetchOffsetsForTopics(ctx, s.group, s.topic)
	if err != nil {
		return fmt.Errorf("ask for the offsets of group %s: %w", s.group, err)
	}
	at, ok := committed.Lookup(s.topic, partition)
	if !ok || at.At <= 0 { // nothing of it is settled yet
		return at.Err
	}
	var offsets kadm.Offsets
	offsets.AddOffset(s.topic, partition, max(0, at.At-back), -1)
	if _, err := s.admin.CommitOffsets(ctx, s.group, offsets); err != nil {
		return fmt.Errorf("move %s-%d back: %w", s.topic, partition, err)
	}
	return nil
}

func (s *stream) query(ctx context.Context, text string) (string, error) {
	return engine.QueryText(ctx, s.engine, text)
}
