package kafkalog

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncehouse/shared/kafkapartition"
	"oncehouse/shared/outbox"
)

const (
	// firstLook is how many offsets before the end are read at first: a cursor is
	// rarely further away than its own transaction and a few aborted attempts.
	firstLook    = 64
	fetchBytes   = 4 << 20
	stableWithin = 10 * time.Second
)

// extent is what of the cursor partition can be read.
type extent struct{ start, end int64 }

// read finds out where the shard stands.
func (l *Log) read(ctx context.Context) (outbox.Standing, error) {
	e, err := l.stable(ctx)
	if err != nil {
		return outbox.Standing{}, err
	}
	return l.scan(ctx, e)
}

// Cursor reads the committed cursor without fencing anybody; nil if there is none.
// It is for retention and for people: by the time it is returned, it may be old.
func (l *Log) Cursor(ctx context.Context) (*outbox.Cursor, error) {
	client, err := kgo.NewClient(l.config.plain()...)
	if err != nil {
		return nil, fmt.Errorf("connect to Kafka: %w", err)
	}
	defer client.Close()
	reader := &Log{config: l.config, client: client}
	e, _, err := reader.extent(ctx)
	if err != nil {
		return nil, l.explain(err, time.Time{})
	}
	standing, err := reader.scan(ctx, e)
	return standing.Cursor, err
}

// stable waits until no transaction is open in the partition: the fence has ended
// ours, and nobody else may write to it.
func (l *Log) stable(ctx context.Context) (extent, error) {
	begun, pause := time.Now(), 2*time.Millisecond
	for {
		stable, end, err := l.extent(ctx)
		if err != nil {
			return extent{}, err
		}
		if stable.end == end {
			return stable, nil
		}
		if time.Since(begun) > stableWithin {
			return extent{}, fmt.Errorf("a transaction is open in %s-%d from offset %d: another outbox uses the topic, or the broker hangs",
				l.config.CursorTopic, l.config.Shard.Index, stable.end)
		}
		select {
		case <-ctx.Done():
			return extent{}, ctx.Err()
		case <-time.After(pause):
			pause = min(2*pause, 200*time.Millisecond)
		}
	}
}

// extent returns what is stable of the partition, and the end of all of it.
func (l *Log) extent(ctx context.Context) (stable extent, end int64, err error) {
	admin, topic, partition := kadm.NewClient(l.client), l.config.CursorTopic, int32(l.config.Shard.Index)
	var offsets [3]int64
	for i, list := range []func(context.Context, ...string) (kadm.ListedOffsets, error){
		admin.ListStartOffsets, admin.ListCommittedOffsets, admin.ListEndOffsets,
	} {
		listed, err := list(ctx, topic)
		if err != nil {
			return extent{}, 0, fmt.Errorf("list the offsets of %s: %w", topic, err)
		}
		o, ok := listed.Lookup(topic, partition)
		if !ok {
			return extent{}, 0, fmt.Errorf("list the offsets of %s-%d: %w", topic, partition, kerr.UnknownTopicOrPartition)
		}
		if o.Err != nil {
			return extent{}, 0, fmt.Errorf("list the offsets of %s-%d: %w", topic, partition, o.Err)
		}
		offsets[i] = o.Offset
	}
	return extent{offsets[0], offsets[1]}, offsets[2], nil
}

// scan reads backwards, in growing steps, until it has the last committed cursor.
func (l *Log) scan(ctx context.Context, e extent) (outbox.Standing, error) {
	for look := int64(firstLook); ; look *= 16 {
		s := scanner{outbox: l.config.Outbox, from: max(e.start, e.end-look)}
		s.next = s.from
		if err := l.fetch(ctx, s.from, e.end, s.take); err != nil {
			return outbox.Standing{}, fmt.Errorf("read %s-%d from %d: %w", l.config.CursorTopic, l.config.Shard.Index, s.from, err)
		}
		s.skip(e.end)
		if s.standing.Cursor != nil || s.from == e.start {
			return s.result(e)
		}
	}
}

// scanner follows the transactions of a cursor partition. There is one at a time:
// records, then the marker that ends them.
type scanner struct {
	outbox   string
	from     int64
	next     int64 // the offset that comes next, if none is missing
	standing outbox.Standing
	missing  int64 // the first offset that is gone behind the cursor, if lost
	lost     bool

	pending *outbox.Cursor
}

func (s *scanner) skip(to int64) {
	if to > s.next && !s.lost {
		s.missing, s.lost = s.next, true
	}
	s.next = max(s.next, to)
}

// entry is one offset of the cursor partition.
type entry struct {
	offset        int64
	transactional bool
	marker        bool // that ends a transaction
	commit        bool // of a marker
	key, value    []byte
	outbox        string // whose it is
}

func entryOf(r *kgo.Record) entry {
	e := entry{offset: r.Offset, transactional: r.Attrs.IsTransactional(), marker: r.Attrs.IsControl(), key: r.Key, value: r.Value}
	// The key of a marker is its version and its type; 1 is commit.
	e.commit = e.marker && len(r.Key) >= 4 && binary.BigEndian.Uint16(r.Key[2:]) == 1
	for _, h := range r.Headers {
		if h.Key == headerOutbox {
			e.outbox = string(h.Value)
		}
	}
	return e
}

func (s *scanner) take(e entry) error {
	s.skip(e.offset)
	s.next = e.offset + 1
	switch {
	case e.marker:
		if e.commit && s.pending != nil {
			s.standing, s.lost = outbox.Standing{Cursor: s.pending}, false
		}
		s.pending = nil
	case !e.transactional:
		return foreign(e, errors.New("it is in no transaction"))
	case e.outbox != s.outbox:
		return foreign(e, fmt.Errorf("it is of outbox %q, not of %q", e.outbox, s.outbox))
	case string(e.key) == keyCursor:
		s.pending = &outbox.Cursor{}
		if err := json.Unmarshal(e.value, s.pending); err != nil {
			return foreign(e, err)
		}
	case string(e.key) == keyPlan:
		s.standing.Plan = &outbox.Plan{}
		if err := json.Unmarshal(e.value, s.standing.Plan); err != nil {
			return foreign(e, err)
		}
	default:
		return foreign(e, fmt.Errorf("its key is %q", e.key))
	}
	return nil
}

func foreign(e entry, err error) error {
	return &outbox.Refusal{
		Reason: ReasonCursorForeign, Problems: []string{fmt.Sprintf("the record at offset %d of the cursor partition is no cursor and no plan of this outbox: %v", e.offset, err)},
		Remedy: "give the outbox a cursor topic that nobody else writes to",
	}
}

// result refuses what cannot be known: a plan may have stood where an offset is
// gone.
func (s *scanner) result(e extent) (outbox.Standing, error) {
	switch {
	case s.standing.Cursor == nil:
		s.standing.Expired = e.start > 0 || s.lost
		return s.standing, nil
	case s.lost:
		return outbox.Standing{}, &outbox.Refusal{
			Reason: outbox.ReasonPlanLost, Problems: []string{fmt.Sprintf("offset %d of the cursor partition, behind the last cursor, is gone: a plan may have stood there", s.missing)},
			Remedy: "reset the cursor and keep its position: rows that consumers saw uncommitted come again; and raise min.compaction.lag.ms",
		}
	}
	return s.standing, nil
}

// fetch hands every record of a range to take, markers and aborted ones too.
func (l *Log) fetch(ctx context.Context, from, to int64, take func(entry) error) error {
	if from >= to {
		return nil
	}
	partition, err := l.locate(ctx, l.client)
	if err != nil {
		return err
	}
	for idle := 0; from < to; {
		part, err := partition.Ask(ctx, from, fetchBytes)
		if err != nil {
			return err
		}
		fetched, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
			KeepControlRecords: true, Offset: from, Topic: l.config.CursorTopic, Partition: int32(l.config.Shard.Index),
			IsolationLevel: kgo.ReadUncommitted(),
		}, part, kgo.DefaultDecompressor(), nil)
		if fetched.Err != nil {
			return fetched.Err
		}
		for _, r := range fetched.Records {
			if r.Offset >= to {
				return nil
			}
			if err := take(entryOf(r)); err != nil {
				return err
			}
		}
		if idle++; next > from {
			idle = 0
		}
		if idle == 10 {
			return fmt.Errorf("the broker returns nothing from offset %d, below its end %d", from, to)
		}
		from = next
	}
	return nil
}

// locate finds the leader of the shard's partition.
func (l *Log) locate(ctx context.Context, client *kgo.Client) (*kafkapartition.Partition, error) {
	return kafkapartition.Locate(ctx, client, l.config.CursorTopic, int32(l.config.Shard.Index))
}
