package delivery

import (
	"errors"
	"fmt"
	"time"

	"oncehouse/shared/offsets"
)

func (m *Machine) load() Step { return m.ask(Step{Op: OpLoad}, (*Machine).onLoaded) }

func (m *Machine) onLoaded(a Answer) Step {
	if a.Err != nil {
		return m.failLedger("read the entry", a.Err)
	}
	m.accept(a.Entry)
	return m.consider()
}

// accept takes an entry as the truth of now and forgets all that was derived
// from an older one.
func (m *Machine) accept(e Entry) {
	if e.Version == 0 {
		e = NewEntry(m.rules.Guarantee)
	}
	m.entry, m.loaded = e, true
	m.present, m.probed, m.topicOK, m.asked = nil, false, false, false
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
func (m *Machine) consider() Step {
	m.pass = Tally{}
	if m.entry.Guarantee == AtLeastOnce {
		return m.refuse(&Error{
			Kind: Fatal, Reason: ReasonNeedsRebase,
			Message: fmt.Sprintf("the ledger stopped at offset %d when the pipeline went on as at-least-once", m.entry.Next),
			Remedy:  "re-base the lane (" + m.action("rebase") + "), or begin a new generation on an emptied table",
		})
	}
	if a, b := m.entry.ServerUUID, m.inv.Traits.ServerUUID; a != "" && a != b && (b != "" || m.entry.Intent != nil) {
		return m.refuse(&Error{
			Kind: Fatal, Reason: ReasonServerChanged,
			Message: fmt.Sprintf("the lane was written to the plain table of server %s, and this is not it (%q): a plain MergeTree table lives on one server", a, b),
			Remedy:  "point the pipeline back at its server until no intent is open; then move to a Replicated table, or begin a new generation",
		})
	}
	switch m.proof() {
	case proofRecreated:
		return m.recreated("")
	case proofMissing:
		if !m.inv.Route {
			return m.failUnproven(Fatal, errors.New("no route to Kafka is configured"))
		}
		return m.ask(Step{Op: OpTopicID}, (*Machine).onTopicID)
	}
	if m.entry.TopicID == "" && m.inv.Route && m.inv.Cached == nil && !m.asked {
		return m.ask(Step{Op: OpTopicID}, (*Machine).onFirstTopicID)
	}
	return m.proceed()
}

func (m *Machine) proof() topicProof {
	if m.topicOK {
		return proofUnneeded
	}
	return m.entry.proveTopic(m.batch)
}

// onFirstTopicID learns the id of the lane's topic. The topic that the broker has
// now may be another than the one that the lane's records came from, so one of
// these must stand in it. What cannot be learned is no fault: the lane is then
// known by its samples alone.
func (m *Machine) onFirstTopicID(a Answer) Step {
	m.asked = true
	if a.Err != nil {
		return m.proceed()
	}
	m.topicID = a.TopicID
	return m.ask(Step{Op: OpFetch, Offsets: offsets.Of(m.witness().Offset)}, (*Machine).onWitness)
}

func (m *Machine) onWitness(a Answer) Step {
	if a.Err == nil && len(a.Records) == 1 && hashOne(&a.Records[0]) == m.witness().Hash {
		m.entry.TopicID = m.topicID
	}
	return m.proceed()
}

// onProof: a batch that nothing else proves to be of the lane's topic is, when the
// topic that the broker has now is the lane's.
func (m *Machine) onProof(a Answer) Step {
	switch {
	case a.Err != nil:
		return m.failUnproven(Retryable, a.Err)
	case len(a.Records) != 1 || hashOne(&a.Records[0]) != m.witness().Hash:
		return m.failUnproven(Fatal, errUnlearned)
	}
	m.entry.TopicID, m.topicOK = m.topicID, true
	return m.proceed()
}

var errUnlearned = errors.New("the ledger does not know the topic's id, and its latest record is not in Kafka to learn it by")

// witness is the latest record that is known to be of the lane's topic. An open
// intent speaks for the lane before the batch does: what stands in the ledger may
// be of a topic that the batch is no longer of.
func (m *Machine) witness() Sample {
	if n := len(m.entry.Samples); n > 0 {
		return m.entry.Samples[n-1]
	}
	if in := m.entry.Intent; in != nil && in.Last != nil {
		return *in.Last
	}
	last := &m.batch[len(m.batch)-1]
	return Sample{Offset: last.Offset, Hash: hashOne(last)}
}

func (m *Machine) onTopicID(a Answer) Step {
	switch {
	case a.Err != nil:
		return m.failUnproven(Retryable, a.Err)
	case m.entry.TopicID == "" && len(m.entry.Samples) == 0:
		return m.failUnproven(Fatal, errUnlearned)
	case m.entry.TopicID == "":
		m.topicID = a.TopicID
		return m.ask(Step{Op: OpFetch, Offsets: offsets.Of(m.witness().Offset)}, (*Machine).onProof)
	case a.TopicID != m.entry.TopicID:
		return m.recreated(a.TopicID)
	}
	m.topicOK = true
	return m.proceed()
}

// proceed finishes what is open, then looks below the floor, then goes on with
// what is left of the batch.
func (m *Machine) proceed() Step {
	if m.entry.Intent != nil {
		return m.finish()
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
		return m.refuse(&Error{
			Kind: Fatal, Reason: ReasonPositionUnproven,
			Message: fmt.Sprintf("offset %d comes late and its outbox position is not above what its source has settled: it may be a repeat or a first", s.undecided.Offset),
			Remedy:  "compare the outbox row named by header id with the table; then begin a new generation, or invoke the function with an event of that record without its oncehouse-* headers",
		})
	}
	m.pass.DuplicatesSuppressed, m.pass.AbortedDuplicatesSuppressed, m.pass.ForeignPositions = s.suppressed, s.aborted, s.foreign
	m.keep, m.moved = s.keep, s.positions
	return m.cut()
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
	if ghosts := m.ghosts(a.Offsets); len(ghosts) > 0 {
		return m.failUnproven(Fatal, fmt.Errorf("there are rows at offsets %s, and they may be those of an earlier generation", ghosts))
	}
	missing := m.belowFloor().Minus(a.Offsets)
	if len(missing) > 0 && !m.inv.Traits.RowsStay && !m.inv.Traits.ResendHarmless {
		return m.failUnproven(Fatal, fmt.Errorf("offsets %s are not in the table, but rows of this engine can disappear", missing))
	}
	m.present, m.probed = a.Offsets, true
	return m.proceed()
}

func (m *Machine) recreated(topicID string) Step {
	m.mine = nil // an intent of the old topic settled no record of this batch
	what := fmt.Sprintf("the topic was deleted and made again: its offsets start over, the ledger stands at %d", m.entry.Next)
	switch {
	case m.entry.Intent != nil:
		return m.refuse(&Error{
			Kind: Fatal, Reason: ReasonIntentOrphaned,
			Message: what + ", and an intent of the old topic is open: " + m.entry.Intent.describe(),
			Remedy:  "look for these offsets in the table, store or give up what is missing by hand, then begin a new generation",
		})
	case m.rules.OnRecreate != RecreateNewGeneration:
		return m.refuse(&Error{
			Kind: Fatal, Reason: ReasonOffsetRegression, Message: what,
			Remedy: "begin a new generation (" + m.action("new-generation") + "), or set on_recreate to new-generation",
		})
	}
	if m.entry.Recreation == nil {
		e := m.entry
		e.Recreation = &Recreation{TopicID: topicID, Since: m.now}
		return m.write(e, (*Machine).onRecreationAnnounced)
	}
	begin := m.entry.Recreation.Since.Add(m.rules.FunctionTimeout + m.rules.ClockMargin)
	for _, until := range []time.Time{m.entry.Deadline, m.entry.HeldUntil} {
		if until.After(begin) {
			begin = until
		}
	}
	if !m.now.After(begin) {
		return m.failAnnounced(begin)
	}
	e, err := m.entry.Bump(m.now)
	if err != nil {
		return m.fail(err)
	}
	e.TopicID = topicID
	return m.write(e, (*Machine).onBumped)
}

func (m *Machine) onRecreationAnnounced(Answer) Step {
	return m.failAnnounced(m.now.Add(m.rules.FunctionTimeout + m.rules.ClockMargin))
}

func (m *Machine) failAnnounced(begin time.Time) Step {
	return m.fail(&Error{
		Kind: Retryable, Reason: ReasonOffsetRegression, Until: begin,
		Message: "the topic was made again: a new generation is announced, and begins when no delivery of the old topic can be under way",
	})
}

func (m *Machine) onBumped(Answer) Step { return m.consider() }

// action is what an operator invokes the function with.
func (m *Machine) action(name string) string {
	return fmt.Sprintf(`invoke the function with {"oncehouse":{"action":%q,"cluster":%q,"partition":%d}}`,
		name, m.inv.Lane.Cluster, m.inv.Lane.Partition)
}

// refuse fails, unless the entry that speaks against the batch is only a
// remembered one: then it is read first, and judged again.
func (m *Machine) refuse(err error) Step {
	if !m.loaded {
		return m.load()
	}
	return m.fail(err)
}
