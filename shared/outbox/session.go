package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// version is that of the cursors and plans of this package.
const version = 1

// session is the work between opening the log and the first error.
type session struct {
	*Poller
	commitBy time.Time // a transaction that is not committed by then is given up

	cursor Cursor   // as committed last
	left   Standing // what a move found at its start
	// plan is what the window at hand does; durable once it is written as it is.
	plan    *Plan
	durable bool
	// flush has the window's snapshot until it is known to be flushed.
	flush   *Snapshot
	seen    time.Time // when the window's snapshot was taken
	written time.Time // when the cursor was
	keep    time.Duration

	byType map[string]*target // by aggregate type
	topics map[string]*target // by topic, as the plan has them
	batch  batch

	worked     bool // the log was opened, and what was left there finished
	committing bool // a transaction was begun and is not known to be committed
}

// run is the protocol: open, adopt, look, publish.
func (s *session) run(ctx context.Context) error {
	standing, err := s.log.Open(ctx)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	snapshot, err := s.snapshot(ctx)
	if err != nil {
		return err
	}
	if standing.Cursor == nil {
		if err := s.initialise(ctx, s.rules.Initialise, standing, snapshot); err != nil {
			return err
		}
	} else if err := s.adopt(ctx, standing, snapshot); err != nil {
		return err
	}
	s.worked, s.written, s.keep = true, time.Now(), s.rules.Keep
	if end, ok := ctx.Deadline(); ok {
		s.keep = min(s.keep, time.Until(end)/2) // a short run writes its cursor too
	}
	for ctx.Err() == nil {
		found, err := s.look(ctx)
		if err != nil {
			return err
		}
		if !found {
			s.rules.Wait(ctx, s.rules.Poll)
		}
	}
	return nil
}

// snapshot takes a snapshot and remembers what it says of the sequence.
func (s *session) snapshot(ctx context.Context) (Snapshot, error) {
	s.seen = time.Now()
	snapshot, err := s.table.Snapshot(ctx)
	if err != nil {
		return Snapshot{}, fmt.Errorf("take a snapshot: %w", err)
	}
	if s.seqs[0] < 0 {
		s.seqs[0] = snapshot.LastSeq
	}
	s.seqs[1] = snapshot.LastSeq
	return snapshot, nil
}

// adopt takes over what stands in the log, and finishes the window that was left
// open: some of its rows may have been seen.
func (s *session) adopt(ctx context.Context, standing Standing, now Snapshot) error {
	s.cursor = *standing.Cursor
	if err := s.cursor.check(s.shard, now); err != nil {
		return err
	}
	plan := s.cursor.Open
	if standing.Plan != nil {
		plan = standing.Plan
	}
	if plan == nil {
		return nil
	}
	if err := plan.check(&s.cursor, s.router.Hash(), now); err != nil {
		return err
	}
	s.worked = true // a long window may take the whole run
	s.begin(plan, true, nil)
	_, err := s.publish(ctx)
	return err
}

// look publishes what became visible since the cursor. It reports whether there
// was anything.
func (s *session) look(ctx context.Context) (found bool, err error) {
	now, err := s.snapshot(ctx)
	if err != nil {
		return false, err
	}
	if err := s.cursor.check(s.shard, now); err != nil {
		return false, err
	}
	if now.Text == s.cursor.Done {
		return false, nil
	}
	return s.window(ctx, now)
}

// window publishes up to a snapshot.
func (s *session) window(ctx context.Context, to Snapshot) (found bool, err error) {
	s.begin(s.planTo(to), false, &to)
	found, err = s.publish(ctx)
	if err == nil && !found && time.Since(s.written) >= s.keep {
		return false, s.advance(ctx)
	}
	return found, err
}

// planTo is the plan of the next window.
func (s *session) planTo(to Snapshot) *Plan {
	return &Plan{
		Version: version, Incarnation: s.cursor.Incarnation, Number: s.cursor.Window + 1,
		Window: Window{From: s.cursor.Done, To: to.Text}, Topics: map[string]Topic{},
		Routing: s.router.Hash(), Identity: to.Identity,
	}
}

// begin makes a plan the one in force. unflushed is the snapshot that it rests on,
// unless that is known to be flushed: a durable plan's was.
func (s *session) begin(plan *Plan, durable bool, unflushed *Snapshot) {
	s.plan, s.durable, s.flush = plan, durable, unflushed
	s.byType, s.topics = map[string]*target{}, map[string]*target{}
	for name, topic := range plan.Topics {
		s.topics[name] = &target{Topic: topic, name: name, lanes: make([]lane, topic.Partitions)}
	}
	s.batch.reset()
}

// publish writes the window's rows, as many transactions as it takes. The last
// one closes the window.
func (s *session) publish(ctx context.Context) (found bool, err error) {
	after := int64(0)
	if s.cursor.Open != nil {
		after = s.cursor.Seq
	}
	for row, err := range s.table.Rows(ctx, s.plan.Window, after) {
		if err != nil {
			return found, fmt.Errorf("read rows of %s..%s after %d: %w", s.plan.From, s.plan.To, after, err)
		}
		if row.Seq <= after {
			return found, fmt.Errorf("the table gave seq %d after %d", row.Seq, after)
		}
		after, found = row.Seq, true
		if err := s.take(ctx, &row); err != nil {
			return found, err
		}
	}
	if len(s.batch.records) == 0 && !s.durable {
		return found, nil
	}
	return found, s.commit(ctx, true)
}

// take adds a row to the batch, and commits what was there if it is full.
func (s *session) take(ctx context.Context, row *Row) error {
	rec, t, err := s.place(ctx, row)
	if len(s.batch.records) > 0 && (err != nil || !s.batch.fits(&rec, t, &s.rules)) {
		if err := s.commit(ctx, false); err != nil {
			return err
		}
		rec, t, err = s.place(ctx, row) // the batch's memory was used again
	}
	s.await(row)
	if err != nil {
		return err
	}
	s.batch.add(rec, t, row)
	if _, dead := slices.BinarySearch(s.plan.Dead, row.Seq); dead {
		s.batch.dead++
	} else if rec.Value == nil {
		s.batch.tombstones++
	}
	return nil
}

// await remembers since when the oldest unpublished row waits.
func (s *session) await(row *Row) {
	since := s.seen
	if at := time.UnixMilli(row.Timestamp); row.Timestamp > 0 && at.Before(since) {
		since = at // not one from the future
	}
	if s.waiting.IsZero() || since.Before(s.waiting) {
		s.waiting = since
	}
}

// commit writes the batch and the cursor behind it in one transaction.
func (s *session) commit(ctx context.Context, closes bool) error {
	next := s.cursor
	next.Window, next.Seq, next.Open = s.plan.Number, s.batch.lastSeq, s.plan
	if closes {
		next.Seq, next.Open, next.Done = 0, nil, s.plan.To
	}
	if len(s.batch.records) > 0 && s.batch.maxSeq > next.LastSeq {
		next.LastID, next.LastSeq = s.batch.maxID, s.batch.maxSeq
	}
	transaction := Transaction{Records: s.batch.records, Cursor: next}
	if !s.durable {
		transaction.Plan = s.plan
	}
	begun := time.Now()
	if err := s.write(ctx, transaction); err != nil {
		return err
	}
	s.durable = true
	s.count(time.Since(begun))
	s.batch.reset()
	return nil
}

// write performs one transaction, unless the run is over. It waits for the disk
// under the snapshot that it rests on, once a window.
func (s *session) write(ctx context.Context, t Transaction) error {
	if s.flush != nil {
		if err := s.table.Flushed(ctx, *s.flush); err != nil {
			return fmt.Errorf("wait until snapshot %s is flushed: %w", s.flush.Text, err)
		}
		s.flush = nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), s.commitBy)
	defer cancel()
	s.committing = true
	if err := s.log.Commit(ctx, t); err != nil {
		return fmt.Errorf("commit window %d: %w", t.Cursor.Window, err)
	}
	s.committing = false
	s.cursor, s.written = t.Cursor, time.Now()
	return nil
}

// advance moves the cursor over a window without rows.
func (s *session) advance(ctx context.Context) error {
	next := s.cursor
	next.Done = s.plan.To
	return s.write(ctx, Transaction{Cursor: next})
}

func (s *session) count(took time.Duration) {
	b := &s.batch
	if len(b.records) == 0 {
		return
	}
	s.tally.Transactions++
	s.tally.Rows += int64(len(b.records))
	s.tally.Bytes += int64(b.bytes)
	s.tally.DeadLetters += b.dead
	s.tally.Tombstones += b.tombstones
	if s.rules.Observe != nil {
		s.rules.Observe(Commit{Rows: len(b.records), Bytes: b.bytes, Took: took, Lag: time.Since(s.waiting)})
	}
	s.waiting = time.Time{}
}

// unfit is what is wrong with a row that cannot be published, and how to mend it.
type unfit struct {
	error
	remedy string
}

const remedyTopic = "let the topic take it, or mend the row"

// place makes the record of a row, for its topic or for the dead letters.
func (s *session) place(ctx context.Context, row *Row) (Record, *target, error) {
	_, dead := slices.BinarySearch(s.plan.Dead, row.Seq)
	rec, t, err := s.route(ctx, row)
	var fault unfit
	if errors.As(err, &fault) && t != nil && s.deadTopic() == "" {
		err = s.widen(ctx, t, &rec)
	}
	switch {
	case errors.As(err, &fault):
		return s.bury(ctx, row, fault, dead)
	case err != nil:
		return rec, t, err
	case dead:
		return s.bury(ctx, row, unfit{errors.New("an attempt before this one could not publish it"), remedyTopic}, dead)
	}
	return rec, t, nil
}

// route makes the record of a row for its topic.
func (s *session) route(ctx context.Context, row *Row) (Record, *target, error) {
	t := s.byType[row.AggregateType]
	if t == nil {
		name, err := s.router.Topic(row.AggregateType)
		if err != nil {
			return Record{}, nil, unfit{err, "mend the row's aggregate type"}
		}
		if t, err = s.target(ctx, name); err != nil {
			return Record{}, nil, err
		}
		s.byType[row.AggregateType] = t
	}
	if row.Payload == nil && !s.router.routing.Tombstones {
		return Record{}, nil, unfit{errors.New("the payload is NULL, and tombstones are not switched on"), "switch them on (ONCEHOUSE_TOMBSTONES=true), or give the row a payload"}
	}
	rec := s.record(row, t)
	if err := t.takes(&rec); err != nil {
		return rec, t, unfit{err, remedyTopic}
	}
	return rec, t, nil
}

// widen extends the plan by what a topic takes by now, if that is enough for a
// record: it was changed for the row that halted the shard, which no attempt has
// sent. Else the record stays unfit.
func (s *session) widen(ctx context.Context, t *target, rec *Record) error {
	found, err := s.log.Topics(ctx, []string{t.name})
	if err != nil {
		return fmt.Errorf("describe topic %s: %w", t.name, err)
	}
	wider := t.Topic
	if now, ok := found[t.name]; ok {
		wider = wider.or(now)
	}
	if err := wider.takes(rec); err != nil {
		return unfit{err, remedyTopic}
	}
	t.Topic = wider
	s.extend(func(p *Plan) { p.Topics[t.name] = wider })
	return nil
}

// deadTopic is where rows go that cannot be published; "" is nowhere.
func (s *session) deadTopic() string { return cmp.Or(s.plan.DeadTopic, s.rules.DeadLetters) }

// record is the record of a row in a topic.
func (s *session) record(row *Row, t *target) Record {
	a := &s.batch.arena
	rec := Record{Topic: t.name, Value: row.Payload, Timestamp: row.Timestamp}
	if row.AggregateID != nil {
		rec.Key = a.text(*row.AggregateID)
		rec.Partition = partitionOf(rec.Key, t.Partitions)
	} else {
		rec.Partition = partitionOf(a.number(row.Seq), t.Partitions)
	}
	l := &t.lanes[rec.Partition]
	if l.source == nil {
		l.source = []byte(s.cursor.source(t.name, rec.Partition))
	}
	from := len(s.batch.headers)
	s.batch.headers = s.router.appendHeaders(s.batch.headers, a, row, l.source, s.plan.Number)
	rec.Headers = slices.Clip(s.batch.headers[from:])
	return rec
}

// bury makes the record of a row for the dead letters, or halts the shard. That
// the row goes there is in the plan before it does.
func (s *session) bury(ctx context.Context, row *Row, why unfit, planned bool) (Record, *target, error) {
	topic := s.deadTopic()
	if topic == "" {
		return Record{}, nil, haltedAt(row, why)
	}
	t, err := s.target(ctx, topic)
	if err != nil {
		return Record{}, nil, err
	}
	rec := s.record(row, t)
	rec.Headers = append(rec.Headers, Header{HeaderDead, []byte(why.Error())})
	if t.takesTime(&rec) != nil {
		rec.Headers = append(rec.Headers, Header{HeaderDeadTimestamp, s.batch.arena.number(rec.Timestamp)})
		rec.Timestamp = 0
	}
	if batchOverhead+rec.size() > int(t.MaxMessageBytes) {
		rec.Headers = append(rec.Headers, Header{HeaderDeadBytes, s.batch.arena.number(int64(len(rec.Value)))})
		rec.Value = []byte{}
	}
	if t.takes(&rec) != nil {
		err = s.widen(ctx, t, &rec)
	}
	var fault unfit
	switch {
	case errors.As(err, &fault):
		return Record{}, nil, haltedAt(row, unfit{fmt.Errorf("%w; nor can its dead letter be: %w", why, fault), fault.remedy})
	case err != nil:
		return Record{}, nil, err
	}
	if !planned {
		s.extend(func(p *Plan) {
			p.DeadTopic = topic
			if s.cursor.Open != nil {
				p.Dead = slices.DeleteFunc(p.Dead, func(seq int64) bool { return seq <= s.cursor.Seq })
			}
			p.Dead = append(p.Dead, row.Seq)
		})
	}
	return rec, t, nil
}

// target is a topic as the plan has it, or as it is now: then the plan is
// extended by it.
func (s *session) target(ctx context.Context, name string) (*target, error) {
	if t := s.topics[name]; t != nil {
		return t, nil
	}
	found, err := s.log.Topics(ctx, []string{name})
	if err != nil {
		return nil, fmt.Errorf("describe topic %s: %w", name, err)
	}
	topic, ok := found[name]
	if !ok || topic.Partitions < 1 {
		return nil, &Refusal{
			Reason:   ReasonTopicMissing,
			Problems: []string{fmt.Sprintf("topic %s does not exist, or must not be described", name)},
			Remedy:   "create it, or allow it; nothing was published behind the row that needs it",
		}
	}
	s.extend(func(p *Plan) { p.Topics[name] = topic })
	t := &target{Topic: topic, name: name, lanes: make([]lane, topic.Partitions)}
	s.topics[name] = t
	return t, nil
}

// extend changes the plan: the next transaction writes it first. One that is written
// stays as it is: the cursor has it.
func (s *session) extend(change func(*Plan)) {
	if s.durable {
		p := *s.plan
		p.Topics, p.Dead = maps.Clone(p.Topics), slices.Clone(p.Dead)
		s.plan, s.durable = &p, false
	}
	change(s.plan)
}
