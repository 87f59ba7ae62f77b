package world

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Story writes actions as a scenario, as testdata/scenarios holds them: what
// they broke becomes a file. begin returns the world as it was before them.
// What each command must come to is left open (go test -rewrite fills it in).
func Story(begin func() *World, actions []Action, title string) string {
	s := story{w: begin()}
	for line := range strings.SplitSeq(strings.TrimSpace(title), "\n") {
		fmt.Fprintf(&s.out, "# %s\n", line)
	}
	s.setting()
	for _, a := range actions {
		s.add(a)
	}
	s.close()
	return s.out.String()
}

type story struct {
	w       *World
	out     strings.Builder
	line    string   // the command under way
	name    string   // of the invocation that it steps
	faults  []string // of its steps
	stop    string   // where the invocation stands now
	pending bool
}

func (s *story) command(text string) { fmt.Fprintf(&s.out, "%s\n----\n\n", text) }

func (s *story) setting() {
	if len(s.w.settings) > 0 {
		s.command("world " + strings.Join(s.w.settings, " "))
	}
	if len(s.w.Positions) == 0 {
		return
	}
	var places []string
	for _, o := range slices.Sorted(maps.Keys(s.w.Positions)) {
		p := s.w.Positions[o]
		places = append(places, fmt.Sprintf("%d=%d.%d", o, p.Window, p.Seq))
	}
	s.command("outbox " + strings.Join(places, " "))
}

// close writes the command under way.
func (s *story) close() {
	if !s.pending {
		return
	}
	s.pending = false
	line := s.line
	if s.stop != "" {
		line += " stop=" + s.stop
	}
	if len(s.faults) > 0 {
		line += " fault=" + list(s.faults)
	}
	s.command(line)
}

// list is how datadriven writes one value or several.
func list(values []string) string {
	if len(values) == 1 {
		return values[0]
	}
	return "(" + strings.Join(values, ",") + ")"
}

func (s *story) open(line, name string) {
	s.close()
	s.pending, s.line, s.name, s.faults, s.stop = true, line, name, nil, ""
}

func (s *story) add(a Action) {
	switch a.Do {
	case Begin:
		s.begin(a)
		return
	case Step:
		s.step(a)
		return
	case Kill:
		s.close()
		s.command("kill " + a.Name)
	case Clock:
		s.close()
		s.command("clock " + a.By.String())
	case Land:
		s.close()
		line := "land " + strconv.Itoa(a.Index)
		if a.Half > 0 {
			line += fmt.Sprintf(" half=%d", a.Half)
		}
		s.command(line)
	case LandWrite:
		s.close()
		s.command("land-write " + strconv.Itoa(a.Index))
	case Change:
		s.close()
		s.command("world " + a.Setting)
	default:
		s.close()
		s.command(string(a.Do))
	}
	_ = s.w.do(a)
}

func (s *story) begin(a Action) {
	line := "deliver " + a.Batch.String() + " as=" + a.Name
	if a.Cached != "" {
		line += " cached=" + a.Cached
	}
	if a.Skew > 0 {
		line += " skew=" + a.Skew.String()
	}
	s.open(line, a.Name)
	if err := s.w.do(a); err == nil {
		s.stand()
	}
}

// stand notes where the invocation is, "" when it is done.
func (s *story) stand() {
	s.stop = ""
	if v := s.w.Invocation(s.name); v != nil {
		s.stop = "before:" + opNames[v.Step.Op] + strconv.Itoa(v.count[v.Step.Op]+1)
	}
}

func (s *story) step(a Action) {
	v := s.w.Invocation(a.Name)
	if v == nil {
		return
	}
	if !s.pending || s.name != a.Name {
		s.open("resume "+a.Name, a.Name)
	}
	op, nth := v.Step.Op, v.count[v.Step.Op]+1
	if a.How != Fine {
		s.faults = append(s.faults, opNames[op]+strconv.Itoa(nth)+":"+a.How)
	}
	over := v.topic < s.w.Topic && s.w.Now.After(v.Ends)
	_ = s.w.do(a)
	if s.stand(); over {
		s.pending = false
		s.command("kill " + a.Name)
	}
}
