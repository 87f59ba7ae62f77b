package delivery

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

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
		return m.onCommitted(Answer{})
	}
	return m.write(m.entry.settle(*m.intent), (*Machine).onCommitted)
}

// onCommitted goes on with what is left of the batch.
func (m *Machine) onCommitted(Answer) Step {
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
		return m.cut()
	}
	return m.consider()
}

func (m *Machine) startAtLeastOnce() Step {
	m.keep = m.batch
	if m.inv.Marked {
		return m.cut()
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
		return m.cut()
	}
	m.entry, m.loaded = a.Entry, true
	return m.write(a.Entry, (*Machine).onMarked)
}

func (m *Machine) onMarked(Answer) Step { return m.cut() }

// onGeneration learns what a letter of at-least-once has to name: the generation
// that its record was read in. Since the lane was marked, an operator may have begun
// another. It is asked before the insert: what is read again after that is none of it.
func (m *Machine) onGeneration(a Answer) Step {
	if a.Err != nil {
		return m.failLedger("read the generation of dead letters", a.Err)
	}
	m.entry.Generation = max(a.Entry.Generation, NewEntry(AtLeastOnce).Generation)
	return m.send()
}

// write stamps and writes an entry; then runs once it is known to have landed.
func (m *Machine) write(e Entry, then func(*Machine, Answer) Step) Step {
	m.writes++
	e.Guarantee = m.rules.Guarantee
	e.Version = m.entry.Version + 1
	e.Writer = m.inv.Writer + "-" + strconv.Itoa(m.writes)
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
// the ledger's client may have lost the condition to itself. Reading tells. A
// fatal one (no such table, an entry too large) is not mended by trying again.
func (m *Machine) onWritten(a Answer) Step {
	switch {
	case a.Err == nil:
		return m.landed()
	case KindOf(a.Err) == Fatal:
		return m.failLedger("write the entry", a.Err)
	}
	m.unwritten = a.Err
	return m.ask(Step{Op: OpLoad}, (*Machine).onResolved)
}

func (m *Machine) landed() Step {
	m.entry, m.loaded = m.pending, true
	return m.onLanded(m, Answer{})
}

// onResolved decides by the writer id whether the write landed. Whatever else
// is found is somebody else's, also when it looks like ours (I6): everything
// derived from the old entry goes, and the batch is considered anew.
func (m *Machine) onResolved(a Answer) Step {
	if a.Err != nil {
		return m.failWrite("read back a write whose answer was lost", a.Err)
	}
	if a.Entry.Version == m.pending.Version && a.Entry.Writer == m.pending.Writer {
		return m.landed()
	}
	m.restarts++
	overtaken := errors.Is(m.unwritten, ErrConflict) || a.Entry.Version >= m.pending.Version
	if overtaken {
		m.tally.Conflicts++
	}
	switch {
	case m.restarts > 2 && !overtaken:
		return m.failWrite("write the entry", m.unwritten)
	case m.restarts > 2:
		return m.fail(&Error{
			Kind: Fenced, Reason: ReasonFenced,
			Message: fmt.Sprintf("another invocation writes this lane (version %d by %s)", a.Entry.Version, a.Entry.Writer),
		})
	}
	if m.rules.Guarantee == AtLeastOnce {
		return m.onUnmarked(a)
	}
	m.accept(a.Entry)
	return m.consider()
}

func (m *Machine) done() Step {
	m.tally.add(m.pass)
	return m.end(nil)
}

func (m *Machine) fail(err error) Step { return m.end(err) }

func (m *Machine) end(err error) Step {
	out := Outcome{Err: err, Lost: m.lost, Tally: m.tally, Entry: m.entry, Loaded: m.loaded, Token: m.sent}
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

// failLedger keeps the kind and the remedy that the ledger gave. Without one it
// is Retryable: nothing is applied by reading.
func (m *Machine) failLedger(what string, err error) Step {
	out := wrap(err, ReasonLedger, what)
	if !errors.As(err, new(*Error)) {
		out.Kind = Retryable
	}
	return m.fail(out)
}

// failWrite is failLedger for a write that may have landed, or still may.
func (m *Machine) failWrite(what string, err error) Step {
	out := wrap(err, ReasonLedger, what)
	if out.Kind == Retryable {
		out.Kind = InDoubt
	}
	return m.fail(out)
}

func (m *Machine) failUnproven(kind Kind, err error) Step {
	m.mine = nil // what was settled may be another topic's
	return m.refuse(&Error{
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
