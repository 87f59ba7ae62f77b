package world

import (
	"slices"
	"strconv"
	"time"

	"oncehouse/shared/delivery"
	"oncehouse/shared/offsets"
)

// Invocation is one running invocation: a machine and the step it waits for.
type Invocation struct {
	Name    string
	Machine *delivery.Machine
	Step    delivery.Step
	Batch   offsets.Set
	Ends    time.Time

	lastSend time.Time
	count    [delivery.OpDone + 1]int // steps performed, by kind
	rules    delivery.Guarantee       // under which it began
	topic    int                      // of the batch's records
	epoch    int
	skew     time.Duration // of its clock, at most the margin
	mark     *mark         // for keys, once made
}

// opNames are the scenarios' words for the steps.
var opNames = [...]string{
	delivery.OpLoad: "load", delivery.OpWrite: "write", delivery.OpWait: "wait", delivery.OpEncode: "encode",
	delivery.OpInsert: "insert", delivery.OpProbe: "probe", delivery.OpFetch: "fetch", delivery.OpTopicID: "topicid",
	delivery.OpLetters: "letters", delivery.OpDone: "done",
}

// The ways a side effect can go.
const (
	Fine    = ""
	Lost    = "lost"    // applied, the answer did not come
	Dropped = "dropped" // not applied, the answer did not come
	Refused = "refused" // not applied, and known so
	Late    = "late"    // not applied yet, the answer did not come
	Half    = "half"    // the first half of the rows landed, the answer did not come
	Odd     = "odd"     // every second row landed (plain tables), the answer did not come
	Hole    = "hole"    // the token was logged, the rows were not stored, no answer
	Stale   = "stale"   // a probe sees none of the rows (in scenarios only: targets look at what is synchronised)
)

// Faults are the ways besides Fine in which the next step of an invocation can
// go in this world.
func (w *World) Faults(v *Invocation) []string {
	switch v.Step.Op {
	case delivery.OpWrite:
		return []string{Lost, Dropped, Refused, Late}
	case delivery.OpInsert:
		if w.Traits.TokensTrusted {
			return []string{Lost, Dropped, Refused, Late, Half}
		}
		return []string{Lost, Dropped, Refused, Late, Half, Odd, Hole}
	case delivery.OpLetters:
		return []string{Lost, Dropped, Half}
	case delivery.OpLoad, delivery.OpProbe, delivery.OpFetch, delivery.OpTopicID:
		return []string{Refused}
	}
	return nil
}

// Invocation returns the live invocation of that name, nil for none.
func (w *World) Invocation(name string) *Invocation {
	for _, v := range w.Live {
		if v.Name == name {
			return v
		}
	}
	return nil
}

// clock is what the invocation takes for now.
func (w *World) clock(v *Invocation) time.Time { return w.Now.Add(v.skew) }

func (w *World) begin(a Action) *Invocation { return w.start(a, w.recall(a.Cached)) }

func (w *World) start(a Action, cached *delivery.Entry) *Invocation {
	v := &Invocation{
		Name: a.Name, Batch: a.Batch, Ends: w.Now.Add(w.Timeout),
		rules: w.Rules.Guarantee, topic: w.Topic, epoch: w.epoch, skew: a.Skew,
	}
	v.lastSend = v.Ends.Add(-w.Rules.InsertTimeout - w.Rules.ClockMargin)
	v.Machine, v.Step = delivery.Start(w.Rules, delivery.Invocation{
		Lane: w.Lane(), Batch: w.Records(a.Batch), Traits: w.Traits, Route: w.Route, Writer: a.Name,
		Cached: cached, LastSend: v.lastSend,
	}, w.clock(v))
	w.seen = w.seen.Union(a.Batch)
	return v
}

// Answer hands an invocation the answer to its step, whatever the world would
// have said.
func (w *World) Answer(v *Invocation, a delivery.Answer) {
	v.count[v.Step.Op]++
	v.mark = nil
	a.Now = w.clock(v)
	v.Step = v.Machine.Next(a)
	w.checkAnswer(v)
}

func (w *World) remember(v *Invocation) {
	if out := v.Step.Outcome; w.Memory > 0 && out.Loaded && out.Entry.Version > 0 {
		w.memory = append(slices.Clone(w.memory), remembered{v.Name, &out.Entry})
		w.memory = w.memory[max(0, len(w.memory)-w.Memory):]
	}
}

func (w *World) recall(name string) *delivery.Entry {
	for _, r := range w.memory {
		if r.name == name {
			return r.entry
		}
	}
	return nil
}

// Remembered are the names of the invocations whose entry an environment has,
// oldest first.
func (w *World) Remembered() []string {
	var names []string
	for _, r := range w.memory {
		names = append(names, r.name)
	}
	return names
}

var (
	errLost    = &delivery.Error{Kind: delivery.InDoubt, Reason: delivery.ReasonTarget, Message: "no answer"}
	errRefused = &delivery.Error{Kind: delivery.Retryable, Reason: delivery.ReasonTarget, Message: "refused"}
)

// Perform is what the world answers to an invocation's step.
func (w *World) Perform(v *Invocation, how string) delivery.Answer {
	var a delivery.Answer
	switch how {
	case Refused:
		return delivery.Answer{Err: errRefused}
	case Dropped:
		return delivery.Answer{Err: errLost}
	}
	switch s := v.Step; s.Op {
	case delivery.OpLoad:
		a.Entry = w.Entry
	case delivery.OpWrite:
		if how == Late {
			w.delayed = append(w.delayed, s.Entry)
			return delivery.Answer{Err: errLost}
		}
		a.Err = w.write(s.Entry)
	case delivery.OpWait:
		if now := w.clock(v); s.Until.After(now) {
			w.Advance(s.Until.Sub(now))
		}
	case delivery.OpEncode:
		a.Chunk = w.encode(s.Records, s.Limit, v.rules == delivery.AtLeastOnce)
	case delivery.OpInsert:
		if w.clock(v).After(s.Send.NotAfter) {
			return delivery.Answer{Err: errRefused}
		}
		a.Err = w.insert(s.Send, how)
	case delivery.OpProbe:
		if how != Stale {
			a.Offsets = w.Table.probe(s.Offsets)
		}
	case delivery.OpFetch:
		a.Records = w.Records(s.Offsets.Minus(w.Gone))
	case delivery.OpTopicID:
		a.TopicID = "topic-" + strconv.Itoa(w.Topic)
	case delivery.OpLetters:
		a.Err = w.takeLetters(v, how)
	}
	if how == Lost {
		a = delivery.Answer{Err: errLost}
	}
	return a
}

// write is one conditional write.
func (w *World) write(e delivery.Entry) error {
	if w.Entry.Version != e.Version-1 && !w.unconditional {
		return delivery.ErrConflict
	}
	w.checkHold(w.Entry, e)
	w.checkWrite(w.Entry, e)
	w.Entry = e
	return nil
}

// landWrite lets a write whose caller has no answer reach the ledger at last.
func (w *World) landWrite(i int) {
	e := w.delayed[i]
	w.delayed = slices.Delete(w.delayed, i, i+1)
	_ = w.write(e) // nobody is there to be told that the condition failed
}

func (w *World) takeLetters(v *Invocation, how string) error {
	for i, l := range v.Step.Letters {
		if how == Half && i > 0 {
			return errLost
		}
		if v.topic == w.Topic {
			w.Letters[l.Record.Offset] = l.Code
		}
	}
	if how == Half {
		return errLost
	}
	return nil
}

// Start begins an invocation that only the caller steps, with Next: it is not
// among the live ones.
func (w *World) Start(batch offsets.Set, name string, cached *delivery.Entry) *Invocation {
	return w.start(Action{Name: name, Batch: batch}, cached)
}

// Next performs the step of an invocation that Start began.
func (w *World) Next(v *Invocation, how string) { w.Answer(v, w.Perform(v, how)) }

// Steps is how many steps of a kind an invocation has performed.
func (v *Invocation) Steps(op delivery.Op) int { return v.count[op] }
