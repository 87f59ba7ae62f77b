package delivery

import (
	"errors"
	"time"
)

// openWindow begins the time in which the next send may start and returns the
// latest moment at which it can land. The window is short, so that whoever
// finds the intent after a crash waits for an insert and not for an invocation.
//
// It ends by the wall clock, as the deadline does: the monotonic one stands
// still while the machine under the function is frozen.
func (m *Machine) openWindow() time.Time {
	m.sendBy = m.now.Round(0).Add(m.rules.SendWindow)
	if m.inv.LastSend.Before(m.sendBy) {
		m.sendBy = m.inv.LastSend
	}
	return m.sendBy.Add(m.rules.InsertTimeout + m.rules.ClockMargin)
}

// send sends the present attempt. Under exactly-once every path to it is a
// conditional write by this invocation that covered it by the deadline.
func (m *Machine) send() Step {
	in := m.intent
	if in.Send.Count == 0 {
		return m.letters()
	}
	if m.now.After(m.sendBy) {
		return m.onSent(Answer{Err: &Error{Kind: Retryable, Reason: ReasonOutOfTime, Message: "no time left to send", Err: m.lastErr}})
	}
	m.sends++
	m.sent = in.Token
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
	again := kind == Retryable || kind == InDoubt && (m.rules.Guarantee == AtLeastOnce || m.trusts())
	until := m.now.Add(backoff(m.sends))
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
		return m.send()
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

// trusts reports whether the token of the intent decides now: the server's token
// log can be believed, and cannot have forgotten it yet.
func (m *Machine) trusts() bool {
	if m.intent.Token == "" || m.rules.Replay == ReplayProbe {
		return false
	}
	if m.rules.Replay == ReplayAuto && !m.inv.Traits.TokensTrusted {
		return false
	}
	return m.now.Before(m.intent.Created.Add(m.rules.TrustHorizon))
}
