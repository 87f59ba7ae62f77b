package delivery

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"oncehouse/shared/kafka"
	"oncehouse/shared/offsets"
)

// world is everything around the machine, in memory and under a virtual clock:
// one lane's ledger entry, the table with its token log, Kafka, and the dead
// letters. It can apply a side effect and lose its answer, land an insert late,
// land a part of it, or log a token without its rows, as a killed plain
// MergeTree does. Its check knows the invariants by number.
type world struct {
	rules   Rules
	traits  Traits
	route   bool
	now     time.Time
	timeout time.Duration

	entry   Entry
	history []Entry

	rows    map[int64]int        // copies of each offset in the table
	old     map[int64]int        // the same, of topics that are gone
	tokens  map[string]time.Time // the server's deduplication log
	forgets time.Duration        // how long the log remembers a token; 0 remembers none
	sent    map[string]string    // every token ever sent -> its record set (I5)
	late    []flight             // sent, answered in doubt, not landed yet
	letters map[int64]string

	epoch     int              // grows when what was delivered counts no longer
	emptied   int64            // the generation in which the table was emptied on purpose
	topic     int              // epoch of the topic
	gone      offsets.Set      // no longer in Kafka
	poison    offsets.Set      // refused by the table
	nulls     offsets.Set      // tombstones
	positions map[int64]row    // outbox position by offset
	unfit     offsets.Set      // refused since a schema change
	settledBy map[int64]string // why an offset without a row is settled
	outboxRow map[row]int      // rows stored per outbox position
	delivered map[int64]bool   // offsets ever answered with success
}

const (
	testLane  = "p"
	testTopic = "t"
)

func newWorld() *world {
	w := &world{
		rules: DefaultRules(), now: time.UnixMilli(1_800_000_000_000).UTC(), timeout: 60 * time.Second, route: true,
		rows: map[int64]int{}, old: map[int64]int{}, tokens: map[string]time.Time{}, sent: map[string]string{}, letters: map[int64]string{},
		positions: map[int64]row{}, settledBy: map[int64]string{}, outboxRow: map[row]int{}, delivered: map[int64]bool{},
		topic: 1,
	}
	w.rules.InsertTimeout, w.rules.ClockMargin, w.rules.FunctionTimeout = 10*time.Second, time.Second, w.timeout
	w.rules.PoisonAtLeast = 10
	w.traits = Traits{Provenance: true, RowsStay: true, ServerUUID: "s1"}
	return w
}

func (w *world) lane() Lane {
	return Lane{Pipeline: testLane, Cluster: "c", TopicPartition: kafka.TopicPartition{Topic: testTopic, Partition: 0}}
}

// record is what Kafka holds at an offset in the topic's present epoch.
func (w *world) record(o int64) kafka.Record {
	r := kafka.Record{Offset: o, Timestamp: o + int64(w.topic-1)*1000, Key: []byte("k"), Value: fmt.Appendf(nil, "%d.%d", w.topic, o)}
	if w.nulls.Contains(o) {
		r.Value = nil
	}
	if p, ok := w.positions[o]; ok {
		r.Headers = []kafka.Header{
			{Key: []byte(HeaderSource), Value: []byte("i/0-of-1/" + testTopic + "/0")},
			{Key: []byte(HeaderPosition), Value: fmt.Appendf(nil, "%d.%d", p.Window, p.Seq)},
		}
	}
	return r
}

func (w *world) records(of offsets.Set) []kafka.Record {
	var out []kafka.Record
	for o := range of.All() {
		out = append(out, w.record(o))
	}
	return out
}

// invocation is one running invocation: a machine and the step it waits for.
type invocation struct {
	m     *Machine
	step  Step
	batch offsets.Set
	ends  time.Time
	count map[Op]int
	topic int // of the batch's records
	epoch int
	skew  time.Duration // of its clock, at most the margin
}

// clock is what the invocation takes for now.
func (w *world) clock(v *invocation) time.Time { return w.now.Add(v.skew) }

func (w *world) start(batch offsets.Set, name string, cached *Entry) *invocation {
	return w.startSkewed(batch, name, cached, 0)
}

func (w *world) startSkewed(batch offsets.Set, name string, cached *Entry, skew time.Duration) *invocation {
	v := &invocation{batch: batch, ends: w.now.Add(w.timeout), count: map[Op]int{}, topic: w.topic, epoch: w.epoch, skew: skew}
	v.m, v.step = Start(w.rules, Invocation{
		Lane: w.lane(), Batch: w.records(batch), Traits: w.traits, Route: w.route, Writer: name, Cached: cached,
		LastSend: v.ends.Add(-w.rules.InsertTimeout - w.rules.ClockMargin),
	}, w.clock(v))
	return v
}

var opNames = map[Op]string{
	OpLoad: "load", OpWrite: "write", OpWait: "wait", OpEncode: "encode", OpInsert: "insert",
	OpProbe: "probe", OpFetch: "fetch", OpTopicID: "topicid", OpLetters: "letters", OpDone: "done",
}

// The ways a side effect can go.
const (
	fine    = ""
	lost    = "lost"    // applied, the answer did not come
	dropped = "dropped" // not applied, the answer did not come
	refused = "refused" // not applied, and known so
	flying  = "late"    // not applied yet, the answer did not come
	half    = "half"    // the first half of the rows landed, the answer did not come
	odd     = "odd"     // every second row landed (plain tables), the answer did not come
	hole    = "hole"    // the token was logged, the rows were not stored, no answer
)

// step performs the step an invocation waits for.
func (w *world) step(v *invocation, how string) {
	v.count[v.step.Op]++
	a := w.perform(v, how)
	a.Now = w.clock(v)
	v.step = v.m.Next(a)
	if v.step.Op == OpDone && v.step.Outcome.Err == nil && v.epoch == w.epoch {
		for o := range v.batch.All() {
			w.delivered[o] = true
		}
	}
}

var errLost = &Error{Kind: InDoubt, Reason: ReasonTarget, Message: "no answer"}
var errRefused = &Error{Kind: Retryable, Reason: ReasonTarget, Message: "refused"}

func (w *world) perform(v *invocation, how string) Answer {
	var a Answer
	s := v.step
	switch how {
	case refused:
		return Answer{Err: errRefused}
	case dropped:
		return Answer{Err: errLost}
	}
	switch s.Op {
	case OpLoad:
		a.Entry = w.entry
	case OpWrite:
		if w.entry.Version != s.Entry.Version-1 {
			a.Err = ErrConflict
			break
		}
		w.history = append(w.history, w.entry)
		w.entry = s.Entry
		w.noteSettled(w.history[len(w.history)-1], w.entry)
	case OpWait:
		if now := w.clock(v); s.Until.After(now) {
			w.advance(s.Until.Sub(now))
		}
	case OpEncode:
		a.Chunk = w.encode(s.Records, s.Limit)
	case OpInsert:
		if w.clock(v).After(s.Send.NotAfter) {
			return Answer{Err: errRefused}
		}
		a.Err = w.insert(s.Send, how)
	case OpProbe:
		for o := range s.Offsets.All() {
			if w.rows[o] > 0 || w.old[o] > 0 {
				a.Offsets = a.Offsets.Append(o)
			}
		}
	case OpFetch:
		a.Records = w.records(s.Offsets.Minus(w.gone))
	case OpTopicID:
		a.TopicID = "topic-" + strconv.Itoa(w.topic)
	case OpLetters:
		for i, l := range s.Letters {
			if how == half && i > 0 {
				return Answer{Err: errLost}
			}
			if v.topic == w.topic {
				w.letters[l.Record.Offset] = l.Code
			}
		}
	}
	if how == lost {
		a = Answer{Err: errLost}
	}
	return a
}

// payload is what the fake table's chunks carry: their records, and of which
// topic they are.
type payload struct {
	of    offsets.Set
	topic int
}

// store puts one row of a chunk into the table.
func (w *world) store(in Insert, o int64) {
	if in.Chunk.Payload.(payload).topic < w.topic {
		w.old[o]++
		return
	}
	w.rows[o]++
}

// recreate deletes the topic and makes it again. Its rows stay in the table.
func (w *world) recreate() {
	w.topic++
	w.epoch++
	for o, n := range w.rows {
		w.old[o] += n
	}
	clear(w.rows)
	clear(w.delivered)
	clear(w.letters)
	w.emptied = max(1, w.entry.Generation)
}

func (w *world) encode(records []kafka.Record, limit Limit) *Chunk {
	c := &Chunk{}
	p := payload{topic: w.topic}
	for i := range records {
		o := records[i].Offset
		if value := string(records[i].Value); value != "" && !strings.HasPrefix(value, strconv.Itoa(w.topic)+".") {
			p.topic = w.topic - 1
		}
		if c.Rows == limit.Rows {
			break
		}
		switch {
		case records[i].Value == nil:
			c.Skipped = append(c.Skipped, i)
		case w.poison.Contains(o) || w.unfit.Contains(o):
			c.Refused = append(c.Refused, Refusal{Offset: o, Code: "poison"})
		default:
			c.Rows++
			p.of = p.of.Append(o)
		}
		c.Consumed++
	}
	c.Payload = p
	return c
}

func (w *world) insert(in Insert, how string) error {
	of := in.Chunk.Payload.(payload).of
	if old, ok := w.sent[in.Token]; in.Token != "" && ok && old != of.String() {
		panic(fmt.Sprintf("I5: token %s sent for %s and for %s", in.Token, old, of))
	}
	w.sent[in.Token] = of.String()
	switch how {
	case flying:
		w.late = append(w.late, flight{in, w.now.Add(in.Timeout)})
		return errLost
	case odd:
		w.logToken(in.Token)
		i := 0
		for o := range of.All() {
			if i++; i%2 == 1 {
				w.store(in, o)
			}
		}
		return errLost
	case half:
		if w.knows(in.Token) || w.knows(in.Token+"/half") {
			return errLost
		}
		w.logToken(in.Token)
		n := of.Len()
		i := int64(0)
		for o := range of.All() {
			if i++; i <= n/2 {
				w.store(in, o)
			}
		}
		if w.traits.TokensTrusted {
			// The parts that did not land are not in the log of a replicated
			// table: the replay of the whole brings exactly them.
			delete(w.tokens, in.Token)
			w.tokens[in.Token+"/half"] = w.now
		}
		return errLost
	case hole:
		w.logToken(in.Token)
		return errLost
	}
	w.land(in)
	return nil
}

func (w *world) logToken(token string) {
	if token != "" {
		w.tokens[token] = w.now
	}
}

// land applies an insert, as the server does: under a logged token it stores
// nothing and says OK.
func (w *world) land(in Insert) {
	of := in.Chunk.Payload.(payload).of
	if in.Token != "" && w.knows(in.Token) {
		return
	}
	i, n := int64(0), of.Len()
	for o := range of.All() {
		if i++; i <= n/2 && w.knows(in.Token+"/half") {
			continue
		}
		w.store(in, o)
	}
	w.logToken(in.Token)
}

func (w *world) knows(token string) bool {
	at, ok := w.tokens[token]
	return ok && w.now.Sub(at) < w.forgets
}

func (w *world) landAll() {
	for _, in := range w.late {
		w.land(in.Insert)
	}
	w.late = nil
}

// advance moves the clock. An insert under way lands before its time is over
// or never.
func (w *world) advance(d time.Duration) {
	w.now = w.now.Add(d)
	w.late = slices.DeleteFunc(w.late, func(f flight) bool { return w.now.After(f.until) })
}

// row is the place of a record in its outbox.
type row struct{ Window, Seq int64 }

// flight is an insert that was sent and has not landed yet.
type flight struct {
	Insert
	until time.Time
}

// noteSettled remembers offsets that a commit settled without a row.
func (w *world) noteSettled(before, after Entry) {
	if after.Next <= before.Next && after.Generation == before.Generation {
		return
	}
	for o := before.Next; o < after.Next; o++ {
		switch {
		case w.nulls.Contains(o):
			w.settledBy[o] = "tombstone"
		case !w.delivered[o] && w.isOutbox(o):
			w.settledBy[o] = "outbox"
		}
	}
}

// check returns the first invariant that does not hold, nil when all do.
// batches are the offsets that were ever part of a batch.
func (w *world) check(batches offsets.Set) error {
	if w.rules.Guarantee == AtLeastOnce {
		return nil
	}
	perPosition := map[row]int{}
	for o, n := range w.rows {
		if n > 1 {
			return fmt.Errorf("I1: offset %d is stored %d times", o, n)
		}
		if w.letters[o] != "" && n > 0 {
			return fmt.Errorf("I1: offset %d is stored and lettered", o)
		}
		if p, ok := w.positions[o]; ok {
			if perPosition[p]++; perPosition[p] > 1 {
				return fmt.Errorf("I1: outbox position %v is stored twice", p)
			}
		}
	}
	for o := range batches.All() {
		below := o < w.entry.Next && !w.entry.Skipped.Contains(o) && o >= w.entry.Floor
		if (below || w.delivered[o]) && w.rules.Guarantee == ExactlyOnce && w.entry.Generation > w.emptied && !w.isSettled(o, perPosition) {
			return fmt.Errorf("I2: offset %d counts as settled and is nowhere", o)
		}
	}
	for i := 1; i <= len(w.history); i++ {
		after := w.entry
		if i < len(w.history) {
			after = w.history[i]
		}
		before := w.history[i-1]
		if after.Generation != before.Generation {
			continue
		}
		if after.Next < before.Next {
			return fmt.Errorf("I3: next went from %d to %d", before.Next, after.Next)
		}
		if before.Intent != nil && after.Intent == nil && after.Next <= before.Intent.Through {
			return fmt.Errorf("I4: intent %s left without being settled", before.Intent.describe())
		}
		if before.Intent != nil && after.Intent != nil && !before.Intent.Offsets.Equal(after.Intent.Offsets) {
			return fmt.Errorf("I4: intent %s became %s", before.Intent.describe(), after.Intent.describe())
		}
	}
	return nil
}

func (w *world) isSettled(o int64, perPosition map[row]int) bool {
	if w.rows[o] > 0 || w.letters[o] != "" || w.nulls.Contains(o) {
		return true
	}
	p, ok := w.positions[o]
	return ok && perPosition[p] > 0
}

func (w *world) isOutbox(o int64) bool { _, ok := w.positions[o]; return ok }

func (w *world) table() string {
	var s offsets.Set
	var twice []string
	for _, o := range slices.Sorted(maps.Keys(w.rows)) {
		s = s.Append(o)
		if w.rows[o] > 1 {
			twice = append(twice, fmt.Sprintf("%d x%d", o, w.rows[o]))
		}
	}
	out := s.String()
	if len(w.old) > 0 {
		out = strings.TrimSpace(out + " (of the old topic " + offsets.Of(slices.Sorted(maps.Keys(w.old))...).String() + ")")
	}
	if out == "" {
		out = "empty"
	}
	if len(twice) > 0 {
		out += " DOUBLED " + strings.Join(twice, ", ")
	}
	return out
}

func (w *world) ledgerText() string {
	e := w.entry
	out := fmt.Sprintf("generation=%d next=%d", e.Generation, e.Next)
	if len(e.Skipped) > 0 {
		out += " skipped=" + e.Skipped.String()
	}
	if e.Floor > 0 {
		out += fmt.Sprintf(" floor=%d", e.Floor)
	}
	if e.Ghosts > 0 {
		out += fmt.Sprintf(" ghosts=%d", e.Ghosts)
	}
	if e.Intent != nil {
		out += fmt.Sprintf(" intent=%s attempt=%d send=%s through=%d", e.Intent.Offsets, e.Intent.Attempt, e.Intent.Send.Offsets, e.Intent.Through)
		if l := refusedOffsets(e.Intent.Letters); len(l) > 0 {
			out += " letters=" + l.String()
		}
	}
	return out
}
