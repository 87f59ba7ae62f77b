package delivery

import (
	"errors"
	"fmt"
	"time"

	"oncehouse/shared/kafka"
	"oncehouse/shared/offsets"
)

// finish settles an intent that was found in the entry: somebody announced it
// and nobody has said how it ended. First it gets hold of the records.
func (m *Machine) finish() Step {
	m.intent, m.own = m.entry.Intent, false
	if !m.trusts() && m.intent.Send.Count > 0 {
		if err := m.undecidable(); err != nil {
			return m.fail(err)
		}
	}
	if m.take(m.batch) {
		return m.onRecords()
	}
	if !m.inv.Route {
		m.absent = errors.New("the batch holds only a part of them and no route to Kafka is configured")
		return m.onRecords()
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
	return m.onRecords()
}

// onRecords chooses the way: by token while it is trusted and the whole set is
// at hand, else by looking into the table.
func (m *Machine) onRecords() Step {
	switch {
	case m.intent.Send.Count == 0 && !m.lettersAtHand():
		return m.fail(m.inDoubt(fmt.Sprintf("its dead letters cannot be written: %v", m.absent),
			"restore the records of the dead letters in Kafka, or begin a new generation"))
	case m.intent.Send.Count == 0:
		return m.letters()
	case m.trusts() && m.atHand():
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
		m.absent = fmt.Errorf("offset %d no longer fits the table: column %q: %s", r.Offset, r.Column, r.Code)
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
	if !m.now.After(m.before) {
		return m.ask(Step{Op: OpWait, Until: m.before.Add(time.Millisecond)}, (*Machine).onClaimed)
	}
	m.intent = m.entry.Intent
	return m.ask(Step{Op: OpProbe, Offsets: m.intent.Send.Offsets}, (*Machine).onProbed)
}

func (m *Machine) onProbed(a Answer) Step {
	if a.Err != nil {
		return m.fail(wrap(a.Err, ReasonTarget, "look for the announced rows"))
	}
	if ghosts := m.ghosts(a.Offsets); len(ghosts) > 0 {
		return m.fail(m.inDoubt(fmt.Sprintf("there are rows at offsets %s, and they may be those of an earlier generation", ghosts),
			"move the lane's rows at these offsets into another table, so that none is left here; on a Replicated or Shared table wait until its deduplication window is over; then deliver again"))
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
	case m.intent.Attempt >= m.rules.MaxAttempts && m.sends > 0:
		// Enough for this invocation. The next one may look and send once more:
		// that is exact, and an outage ends without anybody's help.
		return m.fail(&Error{
			Kind: Fatal, Reason: ReasonAttemptsExhausted,
			Message: fmt.Sprintf("offsets %s are still missing after %d attempts: %s", missing, m.intent.Attempt, m.intent.describe()),
			Remedy:  "see the server's error log for the query ids of these offsets and mend the server; every delivery sends the missing rows once more",
		})
	}
	m.records, _ = at(m.records, missing)
	return m.reencode(m.records, (*Machine).onMissingEncoded)
}

// ghosts are those of the offsets found in the table that prove nothing.
func (m *Machine) ghosts(found offsets.Set) offsets.Set {
	if m.entry.Ghosts == 0 {
		return nil
	}
	return found.Intersect(offsets.Between(0, m.entry.Ghosts-1))
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
