package delivery

import (
	"bytes"
	"math"
	"slices"

	"oncehouse/shared/kafka"
	"oncehouse/shared/offsets"
)

// Headers that the outbox writes (shared/outbox): where a record was first
// published, and its place in the outbox.
const (
	HeaderSource   = "oncehouse-source"
	HeaderPosition = "oncehouse-position"
)

// fate is what an entry says of one offset.
type fate int

const (
	take     fate = iota // not settled yet
	late                 // of a skipped range: not settled, and behind its neighbours
	settled              // stored, lettered or suppressed before
	unproven             // below the floor: only the table knows
)

// fate tells whether the record at an offset is settled (I2).
func (e *Entry) fate(offset int64) fate {
	switch {
	case offset >= e.Next:
		return take
	case e.Skipped.Contains(offset):
		return late
	case offset < e.Floor:
		return unproven
	}
	return settled
}

// topicProof compares the batch with the samples of the entry.
type topicProof int

const (
	proofUnneeded  topicProof = iota // nothing of the batch counts as settled
	proofSame                        // a sampled record is in the batch, unchanged
	proofRecreated                   // another record stands at a sampled offset
	proofMissing                     // no sampled offset in the batch: ask the broker
)

// proveTopic tells whether records that count as settled are the very records
// that were settled. Timestamps prove nothing; hashes at known offsets do.
func (e *Entry) proveTopic(batch []kafka.Record) topicProof {
	needed := false
	for i := range batch {
		if o := batch[i].Offset; o < e.Next && !e.Skipped.Contains(o) {
			needed = true
			break
		}
	}
	if !needed {
		return proofUnneeded
	}
	proof := proofMissing
	for _, s := range e.Samples {
		i, ok := slices.BinarySearchFunc(batch, s.Offset, byOffset)
		if !ok {
			continue
		}
		if hashOne(&batch[i]) != s.Hash {
			return proofRecreated
		}
		proof = proofSame
	}
	return proof
}

func byOffset(r kafka.Record, offset int64) int {
	switch {
	case r.Offset < offset:
		return -1
	case r.Offset > offset:
		return 1
	}
	return 0
}

// at returns the records of an ascending list at the given offsets, and
// whether all are there. It shares memory when the whole list is meant.
func at(records []kafka.Record, of offsets.Set) ([]kafka.Record, bool) {
	n := of.Len()
	if n > int64(len(records)) {
		return nil, false
	}
	if n == int64(len(records)) && (n == 0 || len(of) == 1 && records[0].Offset == of.First() && records[n-1].Offset == of.Last()) {
		return records, true
	}
	out := make([]kafka.Record, 0, n)
	for _, r := range of {
		i, _ := slices.BinarySearchFunc(records, r.First, byOffset)
		for ; i < len(records) && records[i].Offset <= r.Last; i++ {
			out = append(out, records[i])
		}
	}
	return out, int64(len(out)) == n
}

// offsetsOf is the set of the records' offsets.
func offsetsOf(records []kafka.Record) offsets.Set {
	var s offsets.Set
	for i := range records {
		s = s.Append(records[i].Offset)
	}
	return s
}

// sift is the outcome of holding a batch against its entry.
type sift struct {
	keep       []kafka.Record
	suppressed int64
	aborted    int64
	foreign    int64
	// positions of the outbox sources that the records moved; nil for none.
	positions map[string]Position
	// undecided is a late record whose outbox position cannot be compared.
	undecided *kafka.Record
}

// sift drops what is settled (below next and not skipped, or found by a probe
// below the floor) and what is a repeat of our outbox. It decides from the
// entry and the records alone, before any intent, and never again at a replay.
func (m *Machine) sift(batch []kafka.Record) sift {
	out := sift{}
	for i := range batch {
		r := &batch[i]
		f := m.entry.fate(r.Offset)
		drop := f == settled || f == unproven && m.present.Contains(r.Offset)
		switch {
		case drop && !m.mine.Contains(r.Offset):
			out.suppressed++
		case !drop && len(r.Headers) > 0:
			drop = m.repeat(r, f != take, &out)
			if out.undecided != nil {
				return out
			}
		}
		switch {
		case drop && out.keep == nil:
			out.keep = append(make([]kafka.Record, 0, len(batch)-1), batch[:i]...)
		case !drop && out.keep != nil:
			out.keep = append(out.keep, *r)
		}
	}
	if out.keep == nil {
		out.keep = batch
	}
	return out
}

// repeat reports whether a record is a row of our outbox that is settled at
// another offset: an attempt that was aborted and seen all the same, and came
// again. A source's rows come window by window, and every attempt at a window
// is a prefix of its rows in seq order; so what was seen without a gap from
// seq a to seq b holds every row between. A gap ends such a run: rows in it may
// never have come.
func (m *Machine) repeat(r *kafka.Record, late bool, out *sift) bool {
	source, p, ok := m.position(r)
	if !ok {
		return false
	}
	known, moved := out.positions[source]
	if !moved {
		known, ok = m.entry.Positions[source]
	}
	switch seen := known.Seen.Contains(p.Seq); {
	case ok && p.Window < known.Window && late:
		out.undecided = r // that window is over: nothing tells whether it held this row
		return false
	case ok && p.Window < known.Window:
		out.foreign++
		return false
	case ok && p.Window == known.Window && seen:
		out.aborted++
		if late {
			return true
		}
		known.Seq = p.Seq
		out.move(source, known)
		return true
	case !ok || p.Window > known.Window && !late:
		known = Position{Window: p.Window, Seq: p.Seq, Seen: offsets.Of(p.Seq)}
	case p.Window > known.Window:
		return false // behind rows of an older window: not our outbox's order
	case late:
		known.Seen = known.Seen.Union(offsets.Of(p.Seq))
	case p.Seq > known.Seq && (moved || m.from <= m.entry.Next):
		known.Seen = known.Seen.Union(offsets.Between(known.Seq, p.Seq))
		known.Seq = p.Seq
	default:
		known.Seen = known.Seen.Union(offsets.Of(p.Seq))
		known.Seq = p.Seq
	}
	out.move(source, known)
	return false
}

func (s *sift) move(source string, p Position) {
	if s.positions == nil {
		s.positions = make(map[string]Position, 1)
	}
	s.positions[source] = p
}

// position reads the outbox headers of a record that was published to this
// very partition. Records without, with malformed or with foreign headers
// (mirrored, redriven, repartitioned) have none.
func (m *Machine) position(r *kafka.Record) (string, Position, bool) {
	if len(r.Headers) == 0 {
		return "", Position{}, false
	}
	source, ok := r.FindHeader(HeaderSource)
	if !ok || !bytes.HasSuffix(source, m.ownSource) {
		return "", Position{}, false
	}
	text, ok := r.FindHeader(HeaderPosition)
	if !ok {
		return "", Position{}, false
	}
	window, seq, ok := bytes.Cut(text, []byte{'.'})
	if !ok {
		return "", Position{}, false
	}
	w, okW := parseCount(window)
	s, okS := parseCount(seq)
	if !okW || !okS {
		return "", Position{}, false
	}
	return string(source), Position{Window: w, Seq: s}, true
}

// parseCount reads decimal digits; anything else is not ours.
func parseCount(b []byte) (int64, bool) {
	if len(b) == 0 || len(b) > 19 {
		return 0, false
	}
	var n uint64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return int64(n), n <= math.MaxInt64
}
