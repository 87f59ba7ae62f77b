package world

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	"oncehouse/shared/offsets"
)

// Table is a ClickHouse table as far as delivery depends on it. An insert of
// two rows or more falls into two table partitions, its halves: each has a
// block and an entry in the token log of its own, and they land in any order,
// both, one, or none.
type Table struct {
	Rows map[int64]int // copies of each offset
	Old  map[int64]int // the same, of topics that are gone
	// Window is how long the log remembers a token; 0 remembers none.
	Window time.Duration
	// Tokens is how many tokens the log remembers; 0 is no limit.
	Tokens int

	log     []logged
	flights []Flight
}

// logged is one block in the token log.
type logged struct {
	token string
	half  int
	at    time.Time
}

// Flight is an insert whose caller has no answer and that has not landed.
type Flight struct {
	Send  delivery.Insert
	Until time.Time
	Left  []int // halves that may still land
}

// payload is what the table's chunks carry: the offsets of their rows, the epoch
// of the topic that they are of, and whether at-least-once sends them.
type payload struct {
	of     offsets.Set
	topic  int
	double bool
}

func newTable() Table { return Table{Rows: map[int64]int{}, Old: map[int64]int{}} }

func (t *Table) clone() Table {
	c := *t
	c.Rows, c.Old = maps.Clone(t.Rows), maps.Clone(t.Old)
	c.log, c.flights = slices.Clone(t.log), slices.Clone(t.flights)
	return c
}

// encode makes rows of what the table takes.
func (w *World) encode(records []kafka.Record, limit delivery.Limit, double bool) *delivery.Chunk {
	c, p := &delivery.Chunk{}, payload{topic: w.Topic, double: double}
	for i := range records {
		o := records[i].Offset
		p.topic = 1 + int((records[i].Timestamp-o)/epochOf)
		if c.Rows == limit.Rows {
			break
		}
		switch {
		case records[i].Value == nil:
			c.Skipped = append(c.Skipped, i)
		case w.Poison.Contains(o):
			c.Refused = append(c.Refused, delivery.Refusal{Offset: o, Code: "poison"})
		default:
			c.Rows++
			p.of = p.of.Append(o)
		}
		c.Consumed++
	}
	c.Payload = p
	return c
}

// insert is one insert and how it goes.
func (w *World) insert(in delivery.Insert, how string) error {
	of := in.Chunk.Payload.(payload).of
	if err := w.sent.note(in.Token, of); err != nil {
		w.violate(err)
	}
	both := halves(of)
	switch how {
	case Late:
		w.Table.flights = append(w.Table.flights, Flight{in, w.Now.Add(in.Timeout), both})
	case Half: // plain: the token of the second is logged too, without its rows
		w.land(in, First)
		if !w.Traits.TokensTrusted {
			w.Table.note(in.Token, Second, w.Now)
		}
	case Odd:
		i := 0
		for o := range of.All() {
			if i++; i%2 == 1 && !w.Table.knows(in.Token, First, w.Now) {
				w.store(in, o)
			}
		}
		w.hole(in)
	case Hole:
		w.hole(in)
	default:
		w.land(in, both...)
		return nil
	}
	return errLost
}

func (w *World) hole(in delivery.Insert) {
	w.Table.note(in.Token, First, w.Now)
	w.Table.note(in.Token, Second, w.Now)
}

// The halves of an insert.
const (
	First  = 1
	Second = 2
)

func halves(of offsets.Set) []int {
	if of.Len() < 2 {
		return []int{Second}
	}
	return []int{First, Second}
}

// land applies parts of an insert, as the server does: under a logged token it
// stores nothing and says OK.
func (w *World) land(in delivery.Insert, which ...int) {
	of := in.Chunk.Payload.(payload).of
	for _, half := range which {
		if w.Table.knows(in.Token, half, w.Now) {
			continue
		}
		i, n := int64(0), of.Len()/2
		for o := range of.All() {
			if i++; (i <= n) == (half == First) {
				w.store(in, o)
			}
		}
		w.Table.note(in.Token, half, w.Now)
	}
}

// landFlight lets one half of an insert under way land, or all that is left.
func (w *World) landFlight(i, half int) {
	f := w.Table.flights[i]
	which := f.Left
	if half != 0 {
		which = []int{half}
	}
	w.land(f.Send, which...)
	f.Left = slices.DeleteFunc(slices.Clone(f.Left), func(h int) bool { return slices.Contains(which, h) })
	w.Table.flights[i] = f
	if len(f.Left) == 0 {
		w.Table.flights = slices.Delete(w.Table.flights, i, i+1)
	}
}

// store puts one row of a chunk into the table. A copy that at-least-once makes is
// not counted: it may.
func (w *World) store(in delivery.Insert, o int64) {
	p := in.Chunk.Payload.(payload)
	switch {
	case p.topic < w.Topic:
		w.Table.Old[o]++
		return
	case p.double:
		w.Table.Rows[o] = max(w.Table.Rows[o], 1)
		return
	}
	w.Table.Rows[o]++
	w.checkOrder(o)
}

func (t *Table) note(token string, half int, now time.Time) {
	if token == "" || t.Window == 0 {
		return
	}
	t.log = slices.DeleteFunc(t.log, func(l logged) bool { return l.token == token && l.half == half })
	t.log = append(t.log, logged{token, half, now})
	if t.Tokens == 0 {
		return
	}
	kept := map[string]bool{}
	for i := len(t.log) - 1; i >= 0; i-- {
		if kept[t.log[i].token] = true; len(kept) > t.Tokens {
			t.log = slices.Clone(t.log[i+1:])
			return
		}
	}
}

func (t *Table) knows(token string, half int, now time.Time) bool {
	return slices.ContainsFunc(t.log, func(l logged) bool {
		return l.token == token && l.half == half && now.Sub(l.at) < t.Window
	})
}

// expire forgets what is over.
func (t *Table) expire(now time.Time) {
	t.log = slices.DeleteFunc(t.log, func(l logged) bool { return now.Sub(l.at) >= t.Window })
	t.flights = slices.DeleteFunc(t.flights, func(f Flight) bool { return now.After(f.Until) })
}

// age makes every row one of a topic that is gone.
func (t *Table) age() {
	for o, n := range t.Rows {
		t.Old[o] += n
	}
	clear(t.Rows)
}

// probe is which of the offsets are in the table.
func (t *Table) probe(of offsets.Set) offsets.Set {
	var found offsets.Set
	for o := range of.All() {
		if t.Rows[o] > 0 || t.Old[o] > 0 {
			found = found.Append(o)
		}
	}
	return found
}

// Stored is the set of offsets in the table.
func (t *Table) Stored() offsets.Set { return offsets.Of(slices.Sorted(maps.Keys(t.Rows))...) }

// String is what the table holds, as the scenarios show it.
func (t *Table) String() string {
	out := t.Stored().String()
	if len(t.Old) > 0 {
		out = strings.TrimSpace(out + " (of the old topic " + offsets.Of(slices.Sorted(maps.Keys(t.Old))...).String() + ")")
	}
	if out == "" {
		out = "empty"
	}
	var twice []string
	for _, o := range slices.Sorted(maps.Keys(t.Rows)) {
		if t.Rows[o] > 1 {
			twice = append(twice, fmt.Sprintf("%d x%d", o, t.Rows[o]))
		}
	}
	if len(twice) > 0 {
		out += " DOUBLED " + strings.Join(twice, ", ")
	}
	return out
}
