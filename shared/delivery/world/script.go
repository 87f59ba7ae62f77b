package world

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"oncehouse/shared/delivery"
	"oncehouse/shared/offsets"
)

// Script plays a scenario's commands in a world:
//
//	world table=plain|replicated|replacing|summing [route=no] [provenance=no]
//	      [guarantee=at-most-once] [replay=probe] [recreate=new-generation]
//	      [rows=2] [views] [accept-views] [poison=3] [nulls=4] [exists=0-9]
//	      [tokens=1] [window=1h] [ledger=unconditional]
//	deliver 10-19 [as=A] [stop=before:insert] [fault=insert:lost,write2:dropped]
//	      [cached=B] [skew=1s]           begin from the entry that B left, clock ahead
//	resume A [stop=...] [fault=...]      go on with a stopped invocation
//	kill A                               it never goes on
//	clock 40s | recreate | gone 10-14 | server s2
//	bump | truncate | anew | rebase      what operators do; anew is both at once
//	hold                                 a redrive of the lane's letters begins
//	land [0 [half=1]] | land-write [0]   an insert under way (half of it), a ledger write
//	outbox 10=1.5 11=1.6                 outbox positions window.seq
//
// A fault names the n-th such side effect of the invocation (the first when
// there is no number) and how it goes: lost, dropped, refused, late, half, odd,
// hole, stale.
type Script struct {
	World *World
	n     int
}

// Arg is one argument of a command: key, key=value or key=(value,value).
type Arg struct {
	Key  string
	Vals []string
}

func (a Arg) value() string { return strings.Join(a.Vals, ",") }

func (a Arg) String() string {
	if len(a.Vals) == 0 {
		return a.Key
	}
	return a.Key + "=" + a.value()
}

// Command plays one command and returns what came of it. An error is a command
// that cannot be played; Broken says whether an invariant is.
func (s *Script) Command(command string, args []Arg) (string, error) {
	first := ""
	if len(args) > 0 {
		first = args[0].String()
	}
	w := s.World
	switch command {
	case "world":
		for _, a := range args {
			if err := w.Set(a.String()); err != nil {
				return "", err
			}
		}
		return "", nil
	case "outbox":
		return "", s.outbox(args)
	case "deliver":
		return s.deliver(first, args)
	case "resume":
		v := w.Invocation(first)
		if v == nil {
			return "", fmt.Errorf("no invocation %s is stopped", first)
		}
		return s.run(v, args)
	case "kill":
		w.drop(first)
		return "", nil
	case "gone", "server":
		if err := w.Set(command + "=" + first); err != nil {
			return "", err
		}
		return w.State(), nil
	}
	return s.happen(command, first, args)
}

// happen plays the commands that are actions of the same name.
func (s *Script) happen(command, first string, args []Arg) (string, error) {
	a := Action{Do: Verb(command)}
	var err error
	switch a.Do {
	case Clock:
		a.By, err = time.ParseDuration(first)
	case Land, LandWrite:
		if first != "" {
			a.Index, err = strconv.Atoi(first)
		}
		if a.Half = int(number(args, "half")); first == "" && a.Do == Land {
			for range s.World.Flights() {
				_ = s.World.do(a)
			}
			return s.World.State(), nil
		}
	case Recreate, Truncate, Bump, Anew, Rebase, Hold:
	default:
		return "", fmt.Errorf("unknown command %s", command)
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", command, first, err)
	}
	if err := s.World.do(a); err != nil {
		return strings.TrimPrefix(err.Error(), ErrImpossible.Error()+": "), nil
	}
	return s.World.State(), nil
}

func number(args []Arg, key string) int64 {
	for _, a := range args {
		if a.Key == key {
			n, _ := strconv.ParseInt(a.value(), 10, 64)
			return n
		}
	}
	return 0
}

func (s *Script) outbox(args []Arg) error {
	for _, a := range args {
		var o int64
		var r Row
		if _, err := fmt.Sscanf(a.String(), "%d=%d.%d", &o, &r.Window, &r.Seq); err != nil {
			return fmt.Errorf("outbox %s: %w", a, err)
		}
		s.World.Positions[o] = r
	}
	return nil
}

func (s *Script) deliver(batch string, args []Arg) (string, error) {
	s.n++
	a := Action{Do: Begin, Name: "invocation" + strconv.Itoa(s.n)}
	var err error
	if a.Batch, err = offsets.Parse(batch); err != nil {
		return "", err
	}
	for _, arg := range args {
		switch arg.Key {
		case "as":
			a.Name = arg.value()
		case "cached":
			a.Cached = arg.value()
		case "skew":
			if a.Skew, err = time.ParseDuration(arg.value()); err != nil {
				return "", err
			}
		}
	}
	v := s.World.begin(a)
	s.World.checkAnswer(v)
	return s.run(v, args)
}

// run performs the steps of one invocation until it ends or its stop.
func (s *Script) run(v *Invocation, args []Arg) (string, error) {
	w := s.World
	w.drop(v.Name)
	stop, faults, err := plan(args)
	if err != nil {
		return "", err
	}
	used := 0
	for v.Step.Op != delivery.OpDone {
		op := opNames[v.Step.Op]
		nth := op + strconv.Itoa(v.count[v.Step.Op]+1)
		if stop == "before:"+op || stop == "before:"+nth {
			w.Live = append(w.Live, v)
			return v.Name + " stands before " + op + "\n" + w.State(), nil
		}
		how, ok := faults[nth]
		if !ok && v.count[v.Step.Op] == 0 {
			how, ok = faults[op]
		}
		if ok {
			used++
		}
		w.Answer(v, w.Perform(v, how))
		if err := w.Check(); err != nil {
			w.violate(err)
		}
		if stop == "after:"+op || stop == "after:"+nth {
			w.Live = append(w.Live, v)
			return v.Name + " stands after " + op + "\n" + w.State(), nil
		}
	}
	w.remember(v)
	if stop != "" || used < len(faults) {
		return "", fmt.Errorf("the invocation ended before its stop %q, or not every fault of %v was met", stop, faults)
	}
	out := "ok"
	if err := v.Step.Outcome.Err; err != nil {
		out = err.Error()
	}
	return out + tallyText(v.Step.Outcome.Tally) + "\n" + w.State(), nil
}

func plan(args []Arg) (stop string, faults map[string]string, err error) {
	faults = map[string]string{}
	for _, a := range args {
		switch a.Key {
		case "stop":
			stop = a.value()
		case "fault":
			for f := range strings.SplitSeq(a.value(), ",") {
				at, how, _ := strings.Cut(f, ":")
				if !slices.Contains([]string{Lost, Dropped, Refused, Late, Half, Odd, Hole, Stale}, how) {
					return "", nil, fmt.Errorf("fault %s: unknown", f)
				}
				faults[at] = how
			}
		}
	}
	return stop, faults, nil
}

// tallyText is what of a tally is not zero, records aside.
func tallyText(t delivery.Tally) string {
	var out strings.Builder
	for _, c := range []struct {
		name string
		n    int64
	}{
		{"stored", t.RowsStored}, {"suppressed", t.DuplicatesSuppressed}, {"aborted", t.AbortedDuplicatesSuppressed},
		{"foreign", t.ForeignPositions}, {"letters", t.DeadLetters}, {"tombstones", t.Tombstones},
		{"replays", t.Replays}, {"probes", t.Probes}, {"conflicts", t.Conflicts}, {"lost", t.Lost},
	} {
		if c.n > 0 {
			fmt.Fprintf(&out, " %s=%d", c.name, c.n)
		}
	}
	return out.String()
}
