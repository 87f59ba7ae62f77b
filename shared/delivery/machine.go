package delivery

import (
	"errors"
	"fmt"
	"time"

	"oncehouse/shared/kafka"
	"oncehouse/shared/offsets"
)

// Op is a side effect that the machine asks for.
type Op int

// The side effects. Every one is answered by exactly one Answer.
const (
	OpLoad    Op = iota + 1 // read the entry consistently
	OpWrite                 // write Step.Entry, conditional on its version - 1
	OpWait                  // do nothing until Step.Until
	OpEncode                // make a chunk of Step.Records, at most Step.Limit
	OpInsert                // send Step.Chunk as Step.Send
	OpProbe                 // which of Step.Offsets are in the table?
	OpFetch                 // read the records at Step.Offsets from Kafka
	OpTopicID               // ask the broker for the topic's id
	OpLetters               // make Step.Letters durable
	OpDone                  // the invocation is over for this lane: Step.Outcome
)

// Step is one side effect to perform.
type Step struct {
	Op      Op
	Entry   Entry
	Until   time.Time
	Records []kafka.Record
	Limit   Limit
	Chunk   *Chunk
	Send    Insert
	Offsets offsets.Set
	Letters []Letter
	Outcome Outcome
}

// Answer is what a side effect came to.
type Answer struct {
	// Now is the clock after the side effect.
	Now     time.Time
	Err     error
	Entry   Entry
	Chunk   *Chunk
	Offsets offsets.Set
	Records []kafka.Record
	TopicID string
}

// Outcome is how the lane's batch ended.
type Outcome struct {
	// Err is nil when every record of the batch is settled, and only then.
	Err error
	// Settled is how many leading records of the batch are settled.
	Settled int
	Tally   Tally
	// Lost says why rows were given up (at-most-once only).
	Lost error
	// Entry is the ledger's entry, if Loaded: read or written by this
	// invocation.
	Entry  Entry
	Loaded bool
	// Token is the last token sent, "" when nothing was.
	Token string
}

// Tally counts what happened, for metrics and the summary line.
type Tally struct {
	Records                     int64 // in the batch
	RowsStored                  int64 // rows whose chunk this invocation committed
	BytesStored                 int64 // encoded bytes of chunks sent
	DuplicatesSuppressed        int64 // records settled by an earlier delivery
	AbortedDuplicatesSuppressed int64 // repeats of aborted outbox attempts
	ForeignPositions            int64 // outbox positions of somebody's copy
	DeadLetters                 int64
	Tombstones                  int64 // skipped by policy
	UnknownFields               int64
	Replays                     int64 // intents finished by sending again under the token
	Probes                      int64 // intents finished by looking into the table
	Conflicts                   int64 // conditional writes lost to another invocation
	Lost                        int64 // rows given up (at-most-once only)
}

func (t *Tally) add(u Tally) {
	t.RowsStored += u.RowsStored
	t.DuplicatesSuppressed += u.DuplicatesSuppressed
	t.AbortedDuplicatesSuppressed += u.AbortedDuplicatesSuppressed
	t.ForeignPositions += u.ForeignPositions
	t.Tombstones += u.Tombstones
	t.UnknownFields += u.UnknownFields
}

// Invocation is what one function invocation brings to one lane.
type Invocation struct {
	Lane  Lane
	Batch []kafka.Record // offsets strictly ascending, not empty
	// Cached is the entry as this environment last saw it; nil for none.
	Cached *Entry
	// Writer is random and unique to this invocation and lane.
	Writer string
	// LastSend is the last moment at which an insert may be sent and still end
	// within the invocation.
	LastSend time.Time
	Traits   Traits
	// Route says that records and topic ids can be had from Kafka.
	Route bool
	// Marked says that this environment has already marked the lane's entry as
	// outrun by at-least-once.
	Marked bool
}

// Machine decides, step by step, what one invocation does to one lane. It does
// no I/O and has no clock and no goroutine: it is told what each side effect
// came to and says what comes next, so that production, the model checker and
// the simulator all run this very code. Copying a Machine forks its future.
type Machine struct {
	rules Rules
	inv   Invocation
	now   time.Time // as of the last answer

	batch   []kafka.Record // what is not settled by this invocation yet
	from    int64          // first raw offset of the next chunk
	entry   Entry
	loaded  bool        // entry was read consistently or written by this invocation
	present offsets.Set // found by a probe below the floor
	probed  bool        // present is known for entry
	topicOK bool        // the batch is proven to be of the entry's topic
	mine    offsets.Set // settled by this invocation, by finishing an open intent

	keep  []kafka.Record      // what the entry leaves of batch
	moved map[string]Position // outbox positions after batch
	pass  Tally               // counted since the entry was last considered
	tally Tally

	intent    *Intent        // the chunk at hand; exactly-once: the entry's own
	own       bool           // intent was cut from this batch by this invocation
	chunk     *Chunk         // the encoded rows of what is sent next
	records   []kafka.Record // the records of intent.Send, when they are at hand
	letterRec []kafka.Record // the records of intent.Letters, when they are at hand
	absent    error          // why records are not at hand
	before    time.Time      // the deadline that stood before the claim
	sendBy    time.Time      // the last moment to send under the present deadline

	pending   Entry // the entry whose write is awaited
	onLanded  func(*Machine, Answer) Step
	writes    int
	restarts  int
	sends     int
	lastErr   error
	lost      error // why rows were given up (at-most-once)
	ownSource []byte

	then func(*Machine, Answer) Step
}

// Start returns the machine for one invocation of one lane and its first step.
func Start(rules Rules, inv Invocation, now time.Time) (*Machine, Step) {
	m := &Machine{rules: rules, inv: inv, batch: inv.Batch, now: now}
	m.tally.Records = int64(len(inv.Batch))
	m.ownSource = fmt.Appendf(nil, "/%s/%d", inv.Lane.Topic, inv.Lane.Partition)
	if len(inv.Batch) == 0 {
		return m, m.done()
	}
	m.from = inv.Batch[0].Offset
	for i := 1; i < len(inv.Batch); i++ {
		if inv.Batch[i].Offset <= inv.Batch[i-1].Offset {
			return m, m.fail(&Error{Kind: Fatal, Reason: ReasonOutOfOrder, Message: fmt.Sprintf(
				"offset %d follows %d: a batch must be strictly ascending", inv.Batch[i].Offset, inv.Batch[i-1].Offset)})
		}
	}
	if rules.Guarantee == AtLeastOnce {
		return m, m.startAtLeastOnce(now)
	}
	if inv.Cached != nil {
		m.entry = *inv.Cached
		return m, m.consider(now)
	}
	return m, m.load()
}

// Next takes the answer to the last step and returns the next one.
func (m *Machine) Next(a Answer) Step {
	m.now = a.Now
	return m.then(m, a)
}

func (m *Machine) ask(step Step, then func(*Machine, Answer) Step) Step {
	m.then = then
	return step
}

// ---- reading and judging the entry ----

func (m *Machine) load() Step { return m.ask(Step{Op: OpLoad}, (*Machine).onLoaded) }

func (m *Machine) onLoaded(a Answer) Step {
	if a.Err != nil {
		return m.failLedger("read the entry", a.Err)
	}
	m.accept(a.Entry)
	return m.consider(a.Now)
}

// accept takes an entry as the truth of now and forgets all that was derived
// from an older one.
func (m *Machine) accept(e Entry) {
	if e.Version == 0 {
		e = newEntry(m.rules.Guarantee)
	}
	m.entry, m.loaded = e, true
	m.present, m.probed, m.topicOK = nil, false, false
	m.dropWork()
}

// dropWork lets go of a chunk and of the records it was made for.
func (m *Machine) dropWork() {
	m.release()
	m.intent, m.own, m.records, m.letterRec, m.absent = nil, false, nil, nil, nil
	m.before, m.sends, m.lastErr = time.Time{}, 0, nil
}

func (m *Machine) release() {
	if m.chunk != nil && m.chunk.Release != nil {
		m.chunk.Release()
	}
	m.chunk = nil
}

// consider judges the batch against the entry: may it be used at all, is the
// topic the same, is an intent open, what of the batch is not settled?
func (m *Machine) consider(now time.Time) Step {
	m.pass = Tally{}
	if m.entry.Guarantee == AtLeastOnce {
		return m.fail(&Error{
			Kind: Fatal, Reason: ReasonNeedsRebase,
			Message: fmt.Sprintf("the ledger stopped at offset %d when the pipeline went on as at-least-once", m.entry.Next),
			Remedy:  `re-base the lane (invoke the function with {"oncehouse":{"action":"rebase"}}), or begin a new generation on an emptied table`,
		})
	}
	if a, b := m.entry.ServerUUID, m.inv.Traits.ServerUUID; a != "" && a != b && (b != "" || m.entry.Intent != nil) {
		return m.fail(&Error{
			Kind: Fatal, Reason: ReasonServerChanged,
			Message: fmt.Sprintf("the lane was written to the plain table of server %s, and this is not it (%q): a plain MergeTree table lives on one server", a, b),
			Remedy:  "point the pipeline back at its server until no intent is open; then move to a Replicated table, or begin a new generation",
		})
	}
	switch m.proof() {
	case proofRecreated:
		return m.recreated("", now)
	case proofMissing:
		if !m.inv.Route {
			return m.failUnproven(Fatal, errors.New("no route to Kafka is configured"))
		}
		return m.ask(Step{Op: OpTopicID}, (*Machine).onTopicID)
	}
	if m.entry.TopicID == "" && m.inv.Route && m.inv.Cached == nil && !m.topicOK {
		return m.ask(Step{Op: OpTopicID}, (*Machine).onFirstTopicID)
	}
	return m.proceed(now)
}

func (m *Machine) proof() topicProof {
	if m.topicOK {
		return proofUnneeded
	}
	return m.entry.proveTopic(m.batch)
}

// onFirstTopicID remembers the topic of a lane seen for the first time. No
// answer is no fault: the lane is then known by its samples alone.
func (m *Machine) onFirstTopicID(a Answer) Step {
	if a.Err == nil {
		m.entry.TopicID = a.TopicID
	}
	m.topicOK = true
	return m.proceed(a.Now)
}

func (m *Machine) onTopicID(a Answer) Step {
	switch {
	case a.Err != nil:
		return m.failUnproven(Retryable, a.Err)
	case m.entry.TopicID == "":
		return m.failUnproven(Fatal, errors.New("the ledger does not know the topic's id"))
	case a.TopicID != m.entry.TopicID:
		return m.recreated(a.TopicID, a.Now)
	}
	m.topicOK = true
	return m.proceed(a.Now)
}

// proceed finishes what is open, then looks below the floor, then goes on with
// what is left of the batch.
func (m *Machine) proceed(now time.Time) Step {
	if m.entry.Intent != nil {
		return m.finish(now)
	}
	if !m.probed {
		if below := m.belowFloor(); len(below) > 0 {
			if !m.inv.Traits.Provenance {
				return m.failUnproven(Fatal, errors.New("the table has no provenance columns to look in"))
			}
			return m.ask(Step{Op: OpProbe, Offsets: below}, (*Machine).onFloorProbed)
		}
	}
	s := m.sift(m.batch)
	if s.undecided != nil {
		return m.fail(&Error{
			Kind: Fatal, Reason: ReasonPositionUnproven,
			Message: fmt.Sprintf("offset %d comes late and its outbox position is not above what its source has settled: it may be a repeat or a first", s.undecided.Offset),
			Remedy:  "compare the outbox row named by header id with the table; then begin a new generation, or redrive the record without its oncehouse-* headers",
		})
	}
	m.pass.DuplicatesSuppressed, m.pass.AbortedDuplicatesSuppressed, m.pass.ForeignPositions = s.suppressed, s.aborted, s.foreign
	m.keep, m.moved = s.keep, s.positions
	return m.cut(now)
}

func (m *Machine) belowFloor() offsets.Set {
	var below offsets.Set
	for i := range m.batch {
		if o := m.batch[i].Offset; m.entry.fate(o) == unproven {
			below = below.Append(o)
		}
	}
	return below
}

func (m *Machine) onFloorProbed(a Answer) Step {
	if a.Err != nil {
		return m.fail(wrap(a.Err, ReasonTarget, "look for records below the floor"))
	}
	missing := m.belowFloor().Minus(a.Offsets)
	if len(missing) > 0 && !m.inv.Traits.RowsStay && !m.inv.Traits.ResendHarmless {
		return m.failUnproven(Fatal, fmt.Errorf("offsets %s are not in the table, but rows of this engine can disappear", missing))
	}
	m.present, m.probed = a.Offsets, true
	return m.proceed(a.Now)
}

// ---- a recreated topic ----

func (m *Machine) recreated(topicID string, now time.Time) Step {
	what := fmt.Sprintf("the topic was deleted and made again: its offsets start over, the ledger stands at %d", m.entry.Next)
	switch {
	case m.entry.Intent != nil:
		return m.fail(&Error{
			Kind: Fatal, Reason: ReasonIntentOrphaned,
			Message: what + ", and an intent of the old topic is open: " + m.entry.Intent.describe(),
			Remedy:  "look for these offsets in the table, store or give up what is missing by hand, then begin a new generation",
		})
	case m.rules.OnRecreate != RecreateNewGeneration:
		return m.fail(&Error{
			Kind: Fatal, Reason: ReasonOffsetRegression, Message: what,
			Remedy: `begin a new generation (invoke the function with {"oncehouse":{"action":"new-generation"}}), or set on_recreate to new-generation`,
		})
	}
	if m.entry.Recreation == nil {
		e := m.entry
		e.Recreation = &Recreation{TopicID: topicID, Since: now}
		return m.write(e, (*Machine).onRecreationAnnounced)
	}
	begin := m.entry.Recreation.Since.Add(m.rules.FunctionTimeout + m.rules.ClockMargin)
	if m.entry.Deadline.After(begin) {
		begin = m.entry.Deadline
	}
	if !now.After(begin) {
		return m.failAnnounced(begin)
	}
	e, err := m.entry.Bump(now)
	if err != nil {
		return m.fail(err)
	}
	e.TopicID = topicID
	return m.write(e, (*Machine).onBumped)
}

func (m *Machine) onRecreationAnnounced(a Answer) Step {
	return m.failAnnounced(a.Now.Add(m.rules.FunctionTimeout + m.rules.ClockMargin))
}

func (m *Machine) failAnnounced(begin time.Time) Step {
	return m.fail(&Error{
		Kind: Retryable, Reason: ReasonOffsetRegression, Until: begin,
		Message: "the topic was made again: a new generation is announced, and begins when no delivery of the old topic can be under way",
	})
}

func (m *Machine) onBumped(a Answer) Step { return m.consider(a.Now) }

// ---- a new chunk ----

// cut makes the next chunk, or ends when nothing is left.
func (m *Machine) cut(now time.Time) Step {
	if len(m.keep) == 0 {
		return m.nothingLeft()
	}
	if now.After(m.inv.LastSend) {
		return m.failOutOfTime(nil)
	}
	return m.ask(Step{Op: OpEncode, Records: m.keep, Limit: m.rules.ChunkLimit}, (*Machine).onEncoded)
}

// nothingLeft answers success, but never on an entry that is only remembered,
// and only once next has passed what was suppressed above it.
func (m *Machine) nothingLeft() Step {
	if len(m.batch) == 0 {
		return m.done()
	}
	if in := m.describe(nil, m.batch, nil); in.Through >= m.entry.Next || len(in.Settled) > 0 {
		m.intent, m.own = &in, true
		return m.commit()
	}
	if !m.loaded {
		return m.load()
	}
	return m.done()
}

// onEncoded announces the chunk before anything of it is sent. Which of its
// records are refused is decided here, once.
func (m *Machine) onEncoded(a Answer) Step {
	if a.Err != nil {
		return m.fail(wrap(a.Err, ReasonTarget, "encode"))
	}
	m.chunk = a.Chunk
	if err := m.schemaFault(); err != nil {
		return m.fail(err)
	}
	kept := m.keep[:m.chunk.Consumed]
	in := m.describe(kept, m.rawPart(), m.chunk)
	in.Created = a.Now.Truncate(time.Millisecond)
	m.intent, m.own = &in, true
	m.records = rowsOf(kept, m.chunk)
	m.letterRec, _ = at(kept, refusedOffsets(in.Letters))
	m.pass.Tombstones = int64(len(m.chunk.Skipped))
	m.pass.UnknownFields = m.chunk.UnknownFields
	switch {
	case m.rules.Guarantee == AtMostOnce:
		return m.write(m.entry.settle(in).extendDeadline(m.openWindow()), (*Machine).onWrittenOff)
	case m.rules.Guarantee == AtLeastOnce:
		m.sendBy = m.inv.LastSend
		return m.send(a.Now)
	case in.Count == 0 && len(in.Letters) == 0:
		return m.commit()
	}
	e := m.entry.extendDeadline(m.openWindow())
	e.Intent = &in
	return m.write(e, (*Machine).onAnnounced)
}

// rawPart is the part of the batch that the chunk settles: up to its last
// record, and what was dropped behind that.
func (m *Machine) rawPart() []kafka.Record {
	if m.chunk.Consumed == len(m.keep) {
		return m.batch
	}
	next := m.keep[m.chunk.Consumed].Offset
	n := 0
	for m.batch[n].Offset < next {
		n++
	}
	return m.batch[:n]
}

// schemaFault tells a table that changed from a few bad records.
func (m *Machine) schemaFault() error {
	bad, all := len(m.chunk.Refused), m.chunk.Consumed
	if bad < m.rules.PoisonAtLeast || float64(bad) <= m.rules.PoisonShare*float64(all) {
		return nil
	}
	return &Error{
		Kind: Fatal, Reason: ReasonSchemaFault,
		Message: fmt.Sprintf("%d of %d records do not fit the table; the first: offset %d: %s: %s",
			bad, all, m.chunk.Refused[0].Offset, m.chunk.Refused[0].Code, m.chunk.Refused[0].Message),
		Remedy: "mend the table or the producer; if these are really bad records, raise the poison share",
	}
}

// describe is the intent of a chunk: kept is what it was made of, raw the part
// of the batch that it settles.
func (m *Machine) describe(kept, raw []kafka.Record, chunk *Chunk) Intent {
	last := raw[len(raw)-1]
	in := Intent{From: m.from, Through: last.Offset, Attempt: 1}
	in.Last = &Sample{Offset: last.Offset, Hash: hashOne(&last)}
	if len(m.entry.Skipped) > 0 {
		in.Settled = m.entry.Skipped.Intersect(offsetsOf(raw))
	}
	if in.Positions = m.moved; len(raw) < len(m.batch) && m.moved != nil {
		in.Positions = m.sift(raw).positions
	}
	if chunk == nil {
		return in
	}
	in.Letters = boundText(chunk.Refused)
	rows := rowsOf(kept, chunk)
	in.Offsets = offsetsOf(rows)
	in.Count, in.Hash = int64(len(rows)), hashRecords(rows)
	in.Send = Send{Offsets: in.Offsets, Count: in.Count, Hash: in.Hash}
	in.Token = m.token(in)
	return in
}

// token names the present attempt. The two guarantees that do not use the
// server's deduplication have none: it would swallow rows that only look alike.
func (m *Machine) token(in Intent) string {
	if in.Send.Count == 0 || m.rules.Guarantee != ExactlyOnce && m.entry.Intent == nil {
		return ""
	}
	o := in.Send.Offsets
	return m.inv.Lane.token(m.entry.Generation, o.First(), o.Last(), in.Send.Hash, in.Attempt)
}

// rowsOf is kept without what the chunk skipped or refused.
func rowsOf(kept []kafka.Record, chunk *Chunk) []kafka.Record {
	if len(chunk.Skipped) == 0 && len(chunk.Refused) == 0 {
		return kept
	}
	out := make([]kafka.Record, 0, chunk.Rows)
	s, r := 0, 0
	for i := range kept {
		switch {
		case s < len(chunk.Skipped) && chunk.Skipped[s] == i:
			s++
		case r < len(chunk.Refused) && chunk.Refused[r].Offset == kept[i].Offset:
			r++
		default:
			out = append(out, kept[i])
		}
	}
	return out
}

// boundText keeps every code and drops messages beyond the ledger's room.
func boundText(refused []Refusal) []Refusal {
	if len(refused) == 0 {
		return nil
	}
	out := make([]Refusal, len(refused))
	room := maxLetterText
	for i, r := range refused {
		out[i] = r
		if room -= len(r.Message); room < 0 {
			out[i].Message = ""
		}
	}
	return out
}

func refusedOffsets(letters []Refusal) offsets.Set {
	var s offsets.Set
	for _, l := range letters {
		s = s.Append(l.Offset)
	}
	return s
}

func (m *Machine) onAnnounced(a Answer) Step { return m.send(a.Now) }

// onWrittenOff sends rows that already count as settled (at-most-once): what
// goes wrong from here on is lost, and counted.
func (m *Machine) onWrittenOff(a Answer) Step { return m.send(a.Now) }

// ---- sending ----

// openWindow begins the time in which the next send may start and returns the
// latest moment at which it can land. The window is short, so that whoever
// finds the intent after a crash waits for an insert and not for an invocation.
func (m *Machine) openWindow() time.Time {
	m.sendBy = m.now.Add(m.rules.SendWindow)
	if m.inv.LastSend.Before(m.sendBy) {
		m.sendBy = m.inv.LastSend
	}
	return m.sendBy.Add(m.rules.InsertTimeout + m.rules.ClockMargin)
}

// send sends the present attempt. Under exactly-once every path to it is a
// conditional write by this invocation that covered it by the deadline.
func (m *Machine) send(now time.Time) Step {
	in := m.intent
	if in.Send.Count == 0 {
		return m.letters()
	}
	if now.After(m.sendBy) {
		return m.onSent(Answer{Now: now, Err: &Error{Kind: Retryable, Reason: ReasonOutOfTime, Message: "no time left to send", Err: m.lastErr}})
	}
	m.sends++
	m.tally.BytesStored += int64(m.chunk.Bytes)
	return m.ask(Step{Op: OpInsert, Chunk: m.chunk, Send: Insert{
		Lane: m.inv.Lane, Chunk: m.chunk, First: in.Send.Offsets.First(), Last: in.Send.Offsets.Last(),
		Token: in.Token, Attempt: in.Attempt, NotAfter: m.sendBy, Timeout: m.rules.InsertTimeout,
	}}, (*Machine).onSent)
}

// onSent goes on after an OK. After an error it sends again only what may be
// sent again: what was surely not applied, or what a trusted token protects.
func (m *Machine) onSent(a Answer) Step {
	if a.Err == nil {
		return m.letters()
	}
	m.lastErr = a.Err
	if m.rules.Guarantee == AtMostOnce && m.own {
		m.giveUp(m.intent.Count, wrap(a.Err, ReasonTarget, "insert"))
		m.tally.RowsStored -= m.intent.Count
		return m.letters()
	}
	kind := KindOf(a.Err)
	again := kind == Retryable || kind == InDoubt && (m.rules.Guarantee == AtLeastOnce || m.trusts(a.Now))
	until := a.Now.Add(backoff(m.sends))
	switch {
	case kind == InDoubt && !again && m.undecidable() == nil:
		return m.reconcile() // there is time to wait and look
	case !again || until.After(m.inv.LastSend):
		return m.failSend(a.Err)
	}
	return m.ask(Step{Op: OpWait, Until: until}, (*Machine).onWaited)
}

// onWaited claims again, so that what is sent twice belongs to an intent that
// is still ours.
func (m *Machine) onWaited(a Answer) Step {
	if a.Err != nil {
		return m.failSend(m.lastErr)
	}
	if m.rules.Guarantee == AtLeastOnce {
		return m.send(a.Now)
	}
	return m.claim((*Machine).onAnnounced)
}

// claim raises version and deadline: who reads the entry from now on knows
// that a send of this invocation may be under way, and whoever read it before
// can no longer commit.
func (m *Machine) claim(then func(*Machine, Answer) Step) Step {
	return m.write(m.entry.extendDeadline(m.openWindow()), then)
}

func backoff(sends int) time.Duration {
	return min(100*time.Millisecond<<min(max(sends-1, 0), 6), 5*time.Second)
}

func (m *Machine) giveUp(rows int64, why error) {
	m.tally.Lost += rows
	m.lost = errors.Join(m.lost, why)
}

// trusts reports whether the token of the intent decides at the given moment:
// the server's token log can be believed, and cannot have forgotten it yet.
func (m *Machine) trusts(now time.Time) bool {
	if m.intent.Token == "" || m.rules.Replay == ReplayProbe {
		return false
	}
	if m.rules.Replay == ReplayAuto && !m.inv.Traits.TokensTrusted {
		return false
	}
	return now.Before(m.intent.Created.Add(m.rules.TrustHorizon))
}

// ---- finishing an open intent ----

// finish settles an intent that was found in the entry: somebody announced it
// and nobody has said how it ended. First it gets hold of the records.
func (m *Machine) finish(now time.Time) Step {
	m.intent, m.own = m.entry.Intent, false
	if !m.trusts(now) && m.intent.Send.Count > 0 {
		if err := m.undecidable(); err != nil {
			return m.fail(err)
		}
	}
	if m.take(m.batch) {
		return m.onRecords(now)
	}
	if !m.inv.Route {
		m.absent = errors.New("the batch holds only a part of them and no route to Kafka is configured")
		return m.onRecords(now)
	}
	wanted := m.intent.Send.Offsets.Union(refusedOffsets(m.intent.Letters))
	return m.ask(Step{Op: OpFetch, Offsets: wanted}, (*Machine).onFetched)
}

// take looks for the intent's records in a list. They are at hand only whole
// and unchanged: the hash of what was announced decides.
func (m *Machine) take(list []kafka.Record) bool {
	rows, okRows := at(list, m.intent.Send.Offsets)
	letters, okLetters := at(list, refusedOffsets(m.intent.Letters))
	okRows = okRows && hashRecords(rows) == m.intent.Send.Hash
	if okRows {
		m.records = rows
	}
	if okLetters {
		m.letterRec = letters
	}
	return okRows && okLetters
}

func (m *Machine) onFetched(a Answer) Step {
	if a.Err != nil {
		m.absent = fmt.Errorf("fetch them from Kafka: %w", a.Err)
	} else if !m.take(a.Records) {
		m.absent = errors.New("they are no longer in Kafka as they were announced")
	}
	return m.onRecords(a.Now)
}

// onRecords chooses the way: by token while it is trusted and the whole set is
// at hand, else by looking into the table.
func (m *Machine) onRecords(now time.Time) Step {
	switch {
	case m.intent.Send.Count == 0 && !m.lettersAtHand():
		return m.fail(m.inDoubt(fmt.Sprintf("its dead letters cannot be written: %v", m.absent),
			"restore the records of the dead letters in Kafka, or begin a new generation"))
	case m.intent.Send.Count == 0:
		return m.letters()
	case m.trusts(now) && m.atHand():
		return m.reencode(m.records, (*Machine).onReplayEncoded)
	}
	return m.reconcile()
}

func (m *Machine) atHand() bool {
	return int64(len(m.records)) == m.intent.Send.Count && m.lettersAtHand()
}

func (m *Machine) lettersAtHand() bool { return len(m.letterRec) == len(m.intent.Letters) }

// reencode makes rows of records whose fate is decided: all of them, whole.
func (m *Machine) reencode(records []kafka.Record, then func(*Machine, Answer) Step) Step {
	whole := Limit{Rows: MaxBlockRows - 1, Bytes: MaxBlockBytes - 1}
	return m.ask(Step{Op: OpEncode, Records: records, Limit: whole}, then)
}

// keepChunk takes a re-encoded chunk, unless the table has changed so that one
// of the rows no longer is what it was: then it is not to be had.
func (m *Machine) keepChunk(a Answer, count int64) error {
	if a.Err != nil {
		return wrap(a.Err, ReasonTarget, "encode again")
	}
	m.release()
	m.chunk = a.Chunk
	switch {
	case len(a.Chunk.Refused) > 0:
		r := a.Chunk.Refused[0]
		m.absent = fmt.Errorf("offset %d no longer fits the table: %s: %s", r.Offset, r.Code, r.Message)
	case int64(a.Chunk.Rows) != count:
		m.absent = fmt.Errorf("they make %d rows now, %d were announced", a.Chunk.Rows, count)
	}
	return nil
}

func (m *Machine) onReplayEncoded(a Answer) Step {
	if err := m.keepChunk(a, m.intent.Send.Count); err != nil {
		return m.fail(err)
	}
	if m.absent != nil {
		m.records = nil
		return m.reconcile()
	}
	m.tally.Replays++
	return m.claim((*Machine).onAnnounced)
}

// undecidable says why the table cannot be asked now; nil when it can. It is
// asked before anything is written: a claim that cannot be followed up would
// only push the deadline ahead, for ever.
func (m *Machine) undecidable() error {
	if !m.inv.Traits.Provenance {
		return m.inDoubt("the table has no provenance columns to look in", "look for the rows by hand, then begin a new generation; add the provenance columns")
	}
	if !m.entry.Deadline.Before(m.inv.LastSend) {
		return &Error{
			Kind: InDoubt, Reason: ReasonInDoubt, Until: m.entry.Deadline,
			Message: "an earlier insert may still land: " + m.intent.describe(),
		}
	}
	return nil
}

func (m *Machine) reconcile() Step {
	if err := m.undecidable(); err != nil {
		return m.fail(err)
	}
	m.tally.Probes++
	m.before = m.entry.Deadline
	return m.claim((*Machine).onClaimed)
}

// onClaimed waits until nothing that was sent before the claim can land.
func (m *Machine) onClaimed(a Answer) Step {
	if a.Err != nil {
		return m.failOutOfTime(a.Err)
	}
	if !a.Now.After(m.before) {
		return m.ask(Step{Op: OpWait, Until: m.before.Add(time.Millisecond)}, (*Machine).onClaimed)
	}
	m.intent = m.entry.Intent
	return m.ask(Step{Op: OpProbe, Offsets: m.intent.Send.Offsets}, (*Machine).onProbed)
}

func (m *Machine) onProbed(a Answer) Step {
	if a.Err != nil {
		return m.fail(wrap(a.Err, ReasonTarget, "look for the announced rows"))
	}
	t := m.inv.Traits
	missing := m.intent.Send.Offsets.Minus(a.Offsets)
	none := len(missing) > 0 && missing.Equal(m.intent.Send.Offsets)
	if t.Views && !none && !m.rules.AcceptIncompleteViews {
		return m.fail(m.inDoubt("the rows are in the table, but its materialized views may have missed them",
			"compare the views with the table for these offsets and mend them, then accept incomplete views by name for one run"))
	}
	switch {
	case len(missing) == 0 && !m.lettersAtHand():
		return m.fail(m.inDoubt(fmt.Sprintf("the rows are stored, but its dead letters cannot be written: %v", m.absent), "restore the records of the dead letters in Kafka, or begin a new generation"))
	case len(missing) == 0:
		return m.letters()
	case !t.RowsStay && !t.ResendHarmless:
		return m.fail(m.inDoubt(fmt.Sprintf("offsets %s are not in the table, but rows of this engine can disappear", missing),
			"find out by hand whether they were stored; then store them or begin a new generation"))
	case !m.atHand():
		return m.fail(m.inDoubt(fmt.Sprintf("offsets %s are not in the table, and their records are not to be had: %v", missing, m.absent),
			"restore the records in Kafka or store them by hand, then begin a new generation"))
	case t.TokensTrusted && none:
		return m.reencode(m.records, (*Machine).onWholeEncoded)
	case t.TokensTrusted:
		return m.fail(m.inDoubt(fmt.Sprintf("offsets %s of the chunk are not in the table, the others are", missing),
			"store the missing rows by hand from Kafka, then deliver again"))
	case m.intent.Attempt >= m.rules.MaxAttempts:
		return m.fail(&Error{
			Kind: Fatal, Reason: ReasonAttemptsExhausted,
			Message: fmt.Sprintf("offsets %s are still missing after %d attempts: %s", missing, m.intent.Attempt, m.intent.describe()),
			Remedy:  "see the server's error log for the query ids of these offsets; mend the server, then raise the number of attempts by one",
		})
	}
	m.records, _ = at(m.records, missing)
	return m.reencode(m.records, (*Machine).onMissingEncoded)
}

// onWholeEncoded sends the whole set under the same token: on a replicated
// table the token still protects it from an insert that is not visible yet.
func (m *Machine) onWholeEncoded(a Answer) Step {
	if step, ok := m.encodedAgain(a, m.intent.Send.Count); !ok {
		return step
	}
	return m.claim((*Machine).onAnnounced)
}

// onMissingEncoded announces the next attempt: exactly the missing offsets
// under a token of their own (I5). What the commit settles does not change.
func (m *Machine) onMissingEncoded(a Answer) Step {
	if step, ok := m.encodedAgain(a, int64(len(m.records))); !ok {
		return step
	}
	in := *m.intent
	in.Attempt++
	in.Send = Send{Offsets: offsetsOf(m.records), Count: int64(len(m.records)), Hash: hashRecords(m.records)}
	in.Token = m.token(in)
	m.intent = &in
	e := m.entry.extendDeadline(m.openWindow())
	e.Intent = &in
	return m.write(e, (*Machine).onAnnounced)
}

func (m *Machine) encodedAgain(a Answer, count int64) (Step, bool) {
	if err := m.keepChunk(a, count); err != nil {
		return m.fail(err), false
	}
	if m.absent != nil {
		return m.fail(m.inDoubt(fmt.Sprintf("rows are missing and cannot be sent again: %v", m.absent),
			"make the table take these records again, or store them by hand and begin a new generation")), false
	}
	return Step{}, true
}

// ---- after the rows: letters, then the commit ----

func (m *Machine) letters() Step {
	in := m.intent
	if len(in.Letters) == 0 {
		return m.commit()
	}
	letters := make([]Letter, len(in.Letters))
	for i, l := range in.Letters {
		letters[i] = Letter{
			Lane: m.inv.Lane, Generation: m.entry.Generation, Record: m.letterRec[i],
			Code: l.Code, Message: l.Message, Token: in.Token, FirstSeen: in.Created,
		}
	}
	return m.ask(Step{Op: OpLetters, Letters: letters}, (*Machine).onLetters)
}

func (m *Machine) onLetters(a Answer) Step {
	if a.Err == nil {
		return m.commit()
	}
	if m.rules.Guarantee == AtMostOnce && m.own {
		m.giveUp(int64(len(m.intent.Letters)), wrap(a.Err, ReasonLetters, "send dead letters"))
		m.tally.DeadLetters -= int64(len(m.intent.Letters))
		return m.commit()
	}
	return m.fail(wrap(a.Err, ReasonLetters, "send dead letters"))
}

// commit settles the intent whole. At-most-once did so before it sent, and
// at-least-once keeps no account.
func (m *Machine) commit() Step {
	if m.own && m.rules.Guarantee == AtLeastOnce || m.own && m.rules.Guarantee == AtMostOnce && m.chunk != nil {
		return m.onCommitted(Answer{Now: m.intent.Created})
	}
	return m.write(m.entry.settle(*m.intent), (*Machine).onCommitted)
}

// onCommitted goes on with what is left of the batch.
func (m *Machine) onCommitted(a Answer) Step {
	in := m.intent
	m.tally.RowsStored += in.Count
	m.tally.DeadLetters += int64(len(in.Letters))
	if m.own {
		m.tally.add(m.pass)
		n := 0
		for n < len(m.batch) && m.batch[n].Offset <= in.Through {
			n++
		}
		m.batch, m.from = m.batch[n:], in.Through+1
	} else {
		m.mine = m.mine.Union(in.Offsets).Union(refusedOffsets(in.Letters))
	}
	m.dropWork()
	switch {
	case len(m.batch) == 0:
		m.pass = Tally{}
		return m.done()
	case m.rules.Guarantee == AtLeastOnce:
		m.pass, m.keep = Tally{}, m.batch
		return m.cut(a.Now)
	}
	return m.consider(a.Now)
}

// ---- at-least-once: no ledger, but an existing entry must not be trusted again ----

func (m *Machine) startAtLeastOnce(now time.Time) Step {
	m.keep = m.batch
	if m.inv.Marked {
		return m.cut(now)
	}
	return m.ask(Step{Op: OpLoad}, (*Machine).onUnmarked)
}

// onUnmarked marks the entry of a lane that had another guarantee: its next
// says nothing about what is inserted from now on.
func (m *Machine) onUnmarked(a Answer) Step {
	if a.Err != nil {
		return m.failLedger("read the entry", a.Err)
	}
	if a.Entry.Version == 0 || a.Entry.Guarantee == AtLeastOnce {
		return m.cut(a.Now)
	}
	m.entry, m.loaded = a.Entry, true
	return m.write(a.Entry, (*Machine).onMarked)
}

func (m *Machine) onMarked(a Answer) Step { return m.cut(a.Now) }

// ---- writing the ledger ----

// write stamps and writes an entry; then runs once it is known to have landed.
func (m *Machine) write(e Entry, then func(*Machine, Answer) Step) Step {
	m.writes++
	e.Guarantee = m.rules.Guarantee
	e.Version = m.entry.Version + 1
	e.Writer = m.inv.Writer + "-" + itoa(m.writes)
	e.ServerUUID = m.inv.Traits.ServerUUID
	e.Deadline = ceilMillis(e.Deadline)
	m.pending, m.onLanded = e, then
	return m.ask(Step{Op: OpWrite, Entry: e}, (*Machine).onWritten)
}

// ceilMillis is the ledger's resolution, never earlier.
func ceilMillis(t time.Time) time.Time {
	if r := t.Truncate(time.Millisecond); r.Before(t) {
		return r.Add(time.Millisecond).UTC()
	}
	return t.UTC()
}

// onWritten: an error is a lost condition or a lost answer, and a retry inside
// the ledger's client may have lost the condition to itself. Reading tells.
func (m *Machine) onWritten(a Answer) Step {
	if a.Err != nil {
		return m.ask(Step{Op: OpLoad}, (*Machine).onResolved)
	}
	return m.landed(a)
}

func (m *Machine) landed(a Answer) Step {
	m.entry, m.loaded = m.pending, true
	return m.onLanded(m, Answer{Now: a.Now})
}

// onResolved decides by the writer id whether the write landed. Whatever else
// is found is somebody else's, also when it looks like ours (I6): everything
// derived from the old entry goes, and the batch is considered anew.
func (m *Machine) onResolved(a Answer) Step {
	if a.Err != nil {
		return m.failLedger("read back a write whose answer was lost", a.Err)
	}
	if a.Entry.Version == m.pending.Version && a.Entry.Writer == m.pending.Writer {
		return m.landed(a)
	}
	m.restarts++
	m.tally.Conflicts++
	if m.restarts > 2 {
		return m.fail(&Error{
			Kind: Fenced, Reason: ReasonFenced,
			Message: fmt.Sprintf("another invocation writes this lane (version %d by %s)", a.Entry.Version, a.Entry.Writer),
		})
	}
	if m.rules.Guarantee == AtLeastOnce {
		return m.onUnmarked(a)
	}
	m.accept(a.Entry)
	return m.consider(a.Now)
}

// ---- the end ----

func (m *Machine) done() Step {
	m.tally.add(m.pass)
	return m.end(nil)
}

func (m *Machine) fail(err error) Step { return m.end(err) }

func (m *Machine) end(err error) Step {
	out := Outcome{Err: err, Lost: m.lost, Tally: m.tally, Entry: m.entry, Loaded: m.loaded}
	out.Settled = len(m.inv.Batch) - len(m.batch)
	for _, r := range m.batch {
		if !m.mine.Contains(r.Offset) {
			break
		}
		out.Settled++
	}
	if err == nil {
		out.Settled = len(m.inv.Batch)
	}
	if m.intent != nil {
		out.Token = m.intent.Token
	}
	m.dropWork()
	return Step{Op: OpDone, Outcome: out}
}

func (m *Machine) failOutOfTime(cause error) Step {
	return m.fail(&Error{Kind: Retryable, Reason: ReasonOutOfTime, Err: cause,
		Message: "no time is left in this invocation to send anything"})
}

func (m *Machine) failLedger(what string, err error) Step {
	return m.fail(&Error{Kind: Retryable, Reason: ReasonLedger, Message: what, Err: err})
}

func (m *Machine) failUnproven(kind Kind, err error) Step {
	return m.fail(&Error{
		Kind: kind, Reason: ReasonOffsetUnproven, Err: err,
		Message: fmt.Sprintf("offset %d was settled once, but nothing proves that this is the same record (the ledger stands at %d)", m.batch[0].Offset, m.entry.Next),
		Remedy:  "give the function a route to Kafka, so that it can tell a redelivery from a recreated topic; or begin a new generation",
	})
}

func (m *Machine) inDoubt(what, remedy string) error {
	return &Error{Kind: InDoubt, Reason: ReasonInDoubt, Message: what + ": " + m.intent.describe(), Remedy: remedy}
}

// failSend: the intent stays; the next invocation finishes it.
func (m *Machine) failSend(err error) Step {
	out := *wrap(err, ReasonTarget, "insert offsets "+m.intent.Send.Offsets.String())
	if out.Kind == InDoubt {
		out.Reason = ReasonInDoubt
	}
	if out.Kind == InDoubt && out.Until.IsZero() && m.rules.Guarantee == ExactlyOnce && !m.inv.Traits.TokensTrusted {
		out.Until = m.entry.Deadline
	}
	return m.fail(&out)
}

// wrap says what was being done when err happened, keeping its kind and reason.
func wrap(err error, reason Reason, what string) *Error {
	var e *Error
	if !errors.As(err, &e) {
		return &Error{Kind: KindOf(err), Reason: reason, Message: what, Err: err}
	}
	out := *e
	if out.Message == "" {
		out.Message = what
	} else {
		out.Message = what + ": " + out.Message
	}
	return &out
}
