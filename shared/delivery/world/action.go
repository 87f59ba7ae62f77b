package world

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"oncehouse/shared/delivery"
	"oncehouse/shared/offsets"
)

// Verb is a kind of action.
type Verb string

// What can happen. The words are the scenarios' commands, but for Step, which
// they write as a part of deliver and resume.
const (
	Begin     Verb = "deliver"    // invocation Name begins with Batch
	Step      Verb = "step"       // Name performs its step, which goes How
	Kill      Verb = "kill"       // Name never goes on
	Clock     Verb = "clock"      // By passes
	Land      Verb = "land"       // insert number Index under way lands: half Half of it, or all that is left (0)
	LandWrite Verb = "land-write" // ledger write number Index under way reaches the ledger
	Recreate  Verb = "recreate"   // the topic is deleted and made again
	Truncate  Verb = "truncate"   // the table is emptied
	Bump      Verb = "bump"       // an operator begins a new generation
	Anew      Verb = "anew"       // an operator empties the table and begins a new generation
	Rebase    Verb = "rebase"     // an operator re-bases the lane
	Hold      Verb = "hold"       // a redrive of the lane's letters begins
	Change    Verb = "world"      // the world becomes like Setting
)

// Action is one thing that happens.
type Action struct {
	Do          Verb
	Name        string
	Batch       offsets.Set
	Cached      string // begin from the entry remembered of this invocation
	Skew        time.Duration
	How         string
	By          time.Duration
	Index, Half int
	Setting     string
}

// ErrImpossible says that an action cannot happen now: nothing did.
var ErrImpossible = errors.New("this cannot happen now")

// Do lets one thing happen and returns the first invariant that no longer holds.
// A panic of the machine is a violation, too.
func (w *World) Do(a Action) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	if err := w.do(a); err != nil {
		return err
	}
	return w.Check()
}

func (w *World) do(a Action) error {
	switch a.Do {
	case Begin:
		if w.Invocation(a.Name) != nil || len(a.Batch) == 0 {
			return ErrImpossible
		}
		v := w.begin(a)
		w.Live = append(w.Live, v)
		w.checkAnswer(v)
		w.settle(v, true)
	case Step:
		return w.step(a)
	case Kill:
		if w.Invocation(a.Name) == nil {
			return ErrImpossible
		}
		w.drop(a.Name)
	case Clock:
		w.Advance(a.By)
	case Land:
		if a.Index >= len(w.Table.flights) || a.Half != 0 && !slices.Contains(w.Table.flights[a.Index].Left, a.Half) {
			return ErrImpossible
		}
		w.landFlight(a.Index, a.Half)
	case LandWrite:
		if a.Index >= len(w.delayed) {
			return ErrImpossible
		}
		w.landWrite(a.Index)
	case Recreate:
		w.recreate()
	case Change:
		return w.Set(a.Setting)
	default:
		return w.intervene(a.Do)
	}
	return nil
}

// intervene is what an operator does. What the protocol refuses is no violation.
func (w *World) intervene(do Verb) error {
	if do == Truncate {
		w.truncate()
		return nil
	}
	if do == Hold {
		return w.hold()
	}
	if w.Entry.Version == 0 {
		return ErrImpossible
	}
	if do == Rebase {
		if slices.ContainsFunc(w.Live, w.outruns) {
			return ErrImpossible
		}
		return impossible(w.rebase())
	}
	e, err := w.Entry.Bump(w.Now)
	if err != nil {
		return impossible(err)
	}
	if do == Anew {
		w.truncate()
		e.Ghosts = 0
	}
	w.operate(e)
	return nil
}

// hold is what a redrive writes before it sends a letter; it waits for an insert of
// the lane.
func (w *World) hold() error {
	e := w.Entry
	if e.Intent != nil && !w.Now.After(e.Deadline) {
		return ErrImpossible
	}
	if e.Version == 0 {
		e = delivery.NewEntry(w.Rules.Guarantee)
	}
	w.operate(e.Hold(w.Now.Add(w.Timeout)))
	return nil
}

// outruns reports whether an invocation may still store what the ledger does not
// see: a re-base is asked for one function time-out after the switch (runbook).
func (w *World) outruns(v *Invocation) bool {
	return v.rules == delivery.AtLeastOnce && !w.Now.After(v.Ends)
}

func impossible(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrImpossible, err)
}

// step performs the step that an invocation waits for, on a copy of it: the
// world may be a clone.
func (w *World) step(a Action) error {
	i := slices.IndexFunc(w.Live, func(v *Invocation) bool { return v.Name == a.Name })
	if i < 0 {
		return ErrImpossible
	}
	if w.Live[i].topic < w.Topic && w.Now.After(w.Live[i].Ends) {
		w.drop(a.Name) // its time was over before the new topic's was
		return nil
	}
	v, machine := *w.Live[i], *w.Live[i].Machine
	v.Machine = &machine
	w.Live[i] = &v
	idle := v.Step.Op == delivery.OpWrite && (a.How == Dropped || a.How == Refused || a.How != Late && v.Step.Entry.Version != w.Entry.Version+1)
	w.Answer(&v, w.Perform(&v, a.How))
	w.settle(&v, idle)
	return nil
}

// settle ends an invocation that is done. It also performs the steps of Eager.
// To encode, to ask the broker and to fetch records depends on nothing that other
// invocations change: whoever knows that schema, topic and records stay may have
// them done at once. The same is true of a first load, and of the load after a
// write that came to nothing (idle): what others do before it they could as well
// have done before the invocation began, or before that write, which would still
// have come to nothing. Other loads are never eager.
func (w *World) settle(v *Invocation, idle bool) {
	for slices.Contains(w.Eager, v.Step.Op) && (idle || v.Step.Op != delivery.OpLoad) {
		idle = false
		w.Answer(v, w.Perform(v, Fine))
	}
	if v.Step.Op == delivery.OpDone {
		w.remember(v)
		w.drop(v.Name)
	}
}

func (w *World) drop(name string) {
	w.Live = slices.DeleteFunc(slices.Clone(w.Live), func(v *Invocation) bool { return v.Name == name })
}

// Flights is how many inserts are under way, and which halves of each may still land.
func (w *World) Flights() [][]int {
	var out [][]int
	for _, f := range w.Table.flights {
		out = append(out, f.Left)
	}
	return out
}

// Delayed is how many ledger writes are under way.
func (w *World) Delayed() int { return len(w.delayed) }

// Drain stops all faults and delivers what exists until it is settled. It
// returns the reason that blocks the lane, "" when none does, and an error when
// an invariant breaks or the lane goes on in circles (I9). did are the actions.
func (w *World) Drain() (did []Action, blocked delivery.Reason, err error) {
	do := func(a Action) error {
		did = append(did, a)
		return w.Do(a)
	}
	for _, v := range w.Live {
		did = append(did, Action{Do: Kill, Name: v.Name})
	}
	w.Live = nil
	var last *Invocation
	for round := range drainRounds {
		if err := do(Action{Do: Clock, By: 2 * w.Timeout}); err != nil {
			return did, "", err
		}
		begin := Action{Do: Begin, Name: fmt.Sprintf("drain%d", round+1), Batch: w.Exists}
		did = append(did, begin)
		last = w.begin(begin)
		w.Live = []*Invocation{last}
		for last.Step.Op != delivery.OpDone {
			did = append(did, Action{Do: Step, Name: last.Name})
			w.Answer(last, w.Perform(last, Fine))
			if err := w.Check(); err != nil {
				return did, "", err
			}
		}
		w.Live = nil
		if last.Step.Outcome.Err == nil {
			return did, "", w.Check()
		}
	}
	var e *delivery.Error
	if !errors.As(last.Step.Outcome.Err, &e) || e.Reason == delivery.ReasonFenced || e.Reason == delivery.ReasonOutOfTime {
		return did, "", fmt.Errorf("I9: no progress without faults: %w", last.Step.Outcome.Err)
	}
	return did, e.Reason, nil
}

const drainRounds = 12

// String is the action as people read it.
func (a Action) String() string {
	parts := []string{string(a.Do)}
	for _, p := range []string{a.Name, a.Batch.String(), a.How, a.Setting} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	if a.By > 0 {
		parts = append(parts, a.By.String())
	}
	if a.Do == Land || a.Do == LandWrite {
		parts = append(parts, fmt.Sprint(a.Index))
	}
	if a.Half > 0 {
		parts = append(parts, fmt.Sprintf("half=%d", a.Half))
	}
	if a.Cached != "" {
		parts = append(parts, "cached="+a.Cached)
	}
	if a.Skew > 0 {
		parts = append(parts, "skew="+a.Skew.String())
	}
	return strings.Join(parts, " ")
}
