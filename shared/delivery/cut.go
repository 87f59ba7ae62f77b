package delivery

import (
	"fmt"
	"time"

	"oncehouse/shared/kafka"
	"oncehouse/shared/offsets"
)

// cut makes the next chunk, or ends when nothing is left.
func (m *Machine) cut() Step {
	if len(m.keep) == 0 {
		return m.nothingLeft()
	}
	if m.now.After(m.inv.LastSend) {
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
	if m.chunk.Rows > 0 && m.now.After(m.inv.LastSend) {
		return m.failOutOfTime(nil)
	}
	kept := m.keep[:m.chunk.Consumed]
	in := m.describe(kept, m.rawPart(), m.chunk)
	in.Created = m.now.Truncate(time.Millisecond)
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
		if len(in.Letters) > 0 {
			return m.ask(Step{Op: OpLoad}, (*Machine).onGeneration)
		}
		return m.send()
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
	first := m.chunk.Refused[0]
	return &Error{
		Kind: Fatal, Reason: ReasonSchemaFault,
		Message: fmt.Sprintf("%d of %d records do not fit the table; the first: offset %d, column %q: %s",
			bad, all, first.Offset, first.Column, first.Code), // no value: this is logged
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
// Only an intent that at-most-once finishes for exactly-once keeps to its tokens.
func (m *Machine) token(in Intent) string {
	if in.Send.Count == 0 || m.rules.Guarantee == AtLeastOnce || m.rules.Guarantee == AtMostOnce && m.entry.Intent == nil {
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

func (m *Machine) onAnnounced(Answer) Step { return m.send() }

// onWrittenOff sends rows that already count as settled (at-most-once): what
// goes wrong from here on is lost, and counted.
func (m *Machine) onWrittenOff(Answer) Step { return m.send() }
