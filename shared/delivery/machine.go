package delivery

import (
	"fmt"
	"math"
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
	Batch []kafka.Record // offsets strictly ascending, from 0
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
// came to and says what comes next, so that production, the scenarios and the
// simulation all run this very code. Copying a Machine forks its future.
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
	asked   bool        // for the topic's id, to learn it
	topicID string      // what the broker said, not yet proven to be the entry's
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
	unwritten error // why that write did not answer
	writes    int
	restarts  int
	sends     int
	sent      string // the last token sent
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
	last := int64(-1)
	for i := range inv.Batch {
		offset := inv.Batch[i].Offset
		if offset <= last || offset == math.MaxInt64 { // next is one above it
			return m, m.fail(&Error{Kind: Fatal, Reason: ReasonOutOfOrder, Message: fmt.Sprintf(
				"offset %d follows %d: a batch must be strictly ascending, from 0, below %d", offset, last, int64(math.MaxInt64))})
		}
		last = offset
	}
	if rules.Guarantee == AtLeastOnce {
		return m, m.startAtLeastOnce()
	}
	if inv.Cached != nil {
		m.entry = *inv.Cached
		return m, m.consider()
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
