package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"oncehouse/shared/delivery"
	"oncehouse/shared/delivery/world"
	"oncehouse/shared/offsets"
)

// Config is one small world and how much may happen in it. Everything that can
// happen within these bounds is tried in every order.
type Config struct {
	Name      string
	Settings  []string // of the world, in the words of the scenarios
	Positions map[int64]world.Row
	// Before are batches that were delivered before anything else happens.
	Before []offsets.Set
	Bounds
	// Cuts are the batches; by default every run of what exists.
	Cuts []offsets.Set
	// Skews are how far ahead an invocation's clock may be.
	Skews []time.Duration
	// Eager is World.Eager.
	Eager []delivery.Op
	// Large are the bounds of the large size.
	Large Bounds
	// InOrder: no batch begins above next, and those of a topic made again begin at
	// its start. (A topic made again whose first records come above next, or at
	// offsets that were skipped, is told by nothing: README, what exactly-once
	// assumes.)
	InOrder bool
	// Only are the faults that happen; by default all.
	Only []string
	// Events may happen once each, at any moment.
	Events []world.Action
	// Blocks are the reasons with which a lane may be blocked when faults stop.
	Blocks []delivery.Reason
}

// Bounds are what makes a world finite.
type Bounds struct {
	Invocations int // in all, beside those that drain
	Live        int // at once
	Faults      int // steps that do not go fine
	Jumps       int // of the clock
	Memory      int // entries of ended invocations that a new one may begin from
}

// Result is what came of exploring one world.
type Result struct {
	Name   string
	States int
	Steps  int // actions tried
	Depth  int // of the longest shortest way to a state
	// Drained and Blocked count the surroundings (ledger, table, tokens, what is
	// under way) from which the lane drains, or is blocked and by what.
	Drained int
	Blocked map[delivery.Reason]int
	Elapsed time.Duration
	// Violation is the first rule that broke, on a shortest way.
	Violation error
	Trace     []world.Action
}

// state is a world and what may still happen in it.
type state struct {
	w      *world.World
	begun  int
	faults int
	jumps  int
	events uint32 // those that have happened
	node   int32
}

// node is how a state was reached first.
type node struct {
	parent int32
	choice int32 // which of the parent's actions
}

type explorer struct {
	config   Config
	keys     *world.Keyer
	first    map[world.Key]budget   // with how little a world was reached first
	seen     map[world.Key]struct{} // worlds reached again with another budget
	drains   map[world.Key]struct{}
	nodes    []node
	frontier []state
	next     []state
	result   Result
}

// Explore visits every state of a world, breadth first, and looks in each of
// them at the invariants and at what becomes of the lane when faults stop.
func Explore(ctx context.Context, config Config) Result {
	begun := time.Now()
	x := &explorer{config: config}
	x.init()
	x.run(ctx)
	x.result.States, x.result.Elapsed = len(x.nodes), time.Since(begun)
	return x.result
}

func (x *explorer) init() {
	x.config.Cuts = x.config.cuts()
	x.keys = world.NewKeyer()
	x.first, x.seen, x.drains = map[world.Key]budget{}, map[world.Key]struct{}{}, map[world.Key]struct{}{}
	x.result = Result{Name: x.config.Name, Blocked: map[delivery.Reason]int{}}
}

// begin is the world before anything happened.
func (c Config) begin() *world.World {
	w := world.New()
	if err := w.Set(c.Settings...); err != nil {
		panic(err)
	}
	if c.Positions != nil {
		w.Positions = c.Positions
	}
	w.Memory, w.Eager = c.Memory, c.Eager
	return w
}

// start is the world after the batches of Before, and how it came to be.
func (c Config) start() (*world.World, []world.Action) {
	w := c.begin()
	var did []world.Action
	do := func(a world.Action) {
		if err := w.Do(a); err != nil {
			panic(err)
		}
		did = append(did, a)
	}
	for i, batch := range c.Before {
		name := "before" + strconv.Itoa(i+1)
		do(world.Action{Do: world.Begin, Name: name, Batch: batch})
		for w.Invocation(name) != nil {
			do(world.Action{Do: world.Step, Name: name})
		}
	}
	return w, did
}

func (x *explorer) run(ctx context.Context) {
	w, _ := x.config.start()
	x.visit(state{w: w}, -1, 0)
	for len(x.next) > 0 {
		if x.result.Violation = ctx.Err(); x.result.Violation != nil {
			return
		}
		x.result.Depth++
		x.frontier, x.next = x.next, x.frontier[:0]
		for i := range x.frontier {
			if x.expand(&x.frontier[i]); x.result.Violation != nil {
				return
			}
			x.frontier[i] = state{}
		}
	}
	x.result.Depth--
}

// expand does everything that can happen in a state.
func (x *explorer) expand(s *state) {
	for choice, a := range x.config.actions(s) {
		x.result.Steps++
		after := *s
		after.w = s.w.Clone()
		x.config.spend(&after, a)
		err := after.w.Do(a)
		switch {
		case errors.Is(err, world.ErrImpossible):
			continue
		case err != nil:
			x.violate(err, append(x.trace(s.node), a))
			return
		}
		if x.visit(after, s.node, choice); x.result.Violation != nil {
			return
		}
	}
}

// visit takes in a state that is new.
func (x *explorer) visit(s state, parent int32, choice int) {
	key, surroundings := x.keys.Keys(s.w)
	if first, ok := x.first[key]; ok && first.covers(s.budget()) {
		return
	} else if !ok {
		x.first[key] = s.budget()
	} else {
		key = s.key(key)
		if _, ok := x.seen[key]; ok {
			return
		}
		x.seen[key] = struct{}{}
	}
	s.node = int32(len(x.nodes))
	x.nodes = append(x.nodes, node{parent, int32(choice)})
	x.next = append(x.next, s)
	x.drain(&s, surroundings)
}

// budget is what was spent on the way to a state.
type budget struct{ begun, faults, jumps, events uint8 }

func (s *state) budget() budget {
	return budget{uint8(s.begun), uint8(s.faults), uint8(s.jumps), uint8(s.events)}
}

// covers: who has spent no more can do all that the other can.
func (b budget) covers(o budget) bool {
	return b.begun <= o.begun && b.faults <= o.faults && b.jumps <= o.jumps && b.events&^o.events == 0
}

// key is that of the world and the budget.
func (s *state) key(of world.Key) world.Key {
	b := s.budget()
	n := uint64(b.begun) | uint64(b.faults)<<8 | uint64(b.jumps)<<16 | uint64(b.events)<<24
	return world.Key{of[0] ^ n*0x9e3779b97f4a7c15, of[1] + n*0xc2b2ae3d27d4eb4f}
}

// drain looks at progress: once faults stop and whoever runs is dead, the lane
// drains or is blocked for a reason that this world may have. The invocations
// that run make no difference, so every surrounding is looked at once.
func (x *explorer) drain(s *state, key world.Key) {
	if _, ok := x.drains[key]; ok {
		return
	}
	x.drains[key] = struct{}{}
	did, blocked, err := s.w.Clone().Drain()
	switch {
	case err != nil:
	case blocked == "":
		x.result.Drained++
		return
	case slices.Contains(x.config.Blocks, blocked):
		x.result.Blocked[blocked]++
		return
	default:
		err = errors.New("I9: the lane is blocked and may not be: " + string(blocked))
	}
	x.violate(err, append(x.trace(s.node), did...))
}

func (x *explorer) violate(err error, trace []world.Action) {
	x.result.Violation, x.result.Trace = err, trace
}

// trace is the way to a state: its choices, made again.
func (x *explorer) trace(n int32) []world.Action {
	var choices []int32
	for ; n > 0; n = x.nodes[n].parent {
		choices = append(choices, x.nodes[n].choice)
	}
	w, did := x.config.start()
	s := state{w: w}
	for _, choice := range slices.Backward(choices) {
		a := x.config.actions(&s)[choice]
		x.config.spend(&s, a)
		did = append(did, a)
		_ = s.w.Do(a)
	}
	return did
}

// spend books what an action costs.
func (c Config) spend(s *state, a world.Action) {
	switch {
	case a.Do == world.Begin:
		s.begun++
	case a.Do == world.Step && a.How != world.Fine:
		s.faults++
	case a.Do == world.Clock:
		s.jumps++
	}
	for i, e := range c.Events {
		if e.Do == a.Do && e.Setting == a.Setting && a.Do != world.Step {
			s.events |= 1 << i
		}
	}
}

// actions are all that can happen in a state.
func (c Config) actions(s *state) []world.Action {
	var out []world.Action
	for _, v := range s.w.Live {
		out = append(out, world.Action{Do: world.Step, Name: v.Name})
		if s.faults == c.Faults {
			continue
		}
		for _, how := range s.w.Faults(v) {
			if len(c.Only) > 0 && !slices.Contains(c.Only, how) {
				continue
			}
			out = append(out, world.Action{Do: world.Step, Name: v.Name, How: how})
		}
	}
	for i, left := range s.w.Flights() {
		out = append(out, world.Action{Do: world.Land, Index: i})
		if len(left) > 1 {
			out = append(out, world.Action{Do: world.Land, Index: i, Half: world.First}, world.Action{Do: world.Land, Index: i, Half: world.Second})
		}
	}
	for i := range s.w.Delayed() {
		out = append(out, world.Action{Do: world.LandWrite, Index: i})
	}
	for i, e := range c.Events {
		if s.events&(1<<i) == 0 {
			out = append(out, e)
		}
	}
	if s.jumps < c.Jumps {
		for _, at := range s.w.Moments(c.Skews...) {
			out = append(out, world.Action{Do: world.Clock, By: at.Sub(s.w.Now)})
		}
	}
	return append(out, c.begins(s)...)
}

// begins are the ways in which another invocation can begin. To kill one is the
// same as never to step it again, so that a kill is an action of its own only
// when it makes room for another.
func (c Config) begins(s *state) []world.Action {
	var out []world.Action
	if s.begun == c.Invocations {
		return nil
	}
	if len(s.w.Live) == c.Live {
		for _, v := range s.w.Live {
			out = append(out, world.Action{Do: world.Kill, Name: v.Name})
		}
		return out
	}
	name := string(rune('A' + s.begun))
	for _, cut := range c.Cuts {
		if c.InOrder && cut.First() > c.latest(s.w) {
			continue
		}
		for _, skew := range append([]time.Duration{0}, c.Skews...) {
			for _, cached := range append([]string{""}, s.w.Remembered()...) {
				out = append(out, world.Action{Do: world.Begin, Name: name, Batch: cut, Skew: skew, Cached: cached})
			}
		}
	}
	return out
}

// latest is where a batch in order begins at the latest.
func (c Config) latest(w *world.World) int64 {
	if w.Topic > 1 && w.Entry.Generation == 1 {
		return w.Exists.First()
	}
	return max(w.Entry.Next, w.Exists.First())
}

// cuts are all batches that a mapping may make of what exists.
func (c Config) cuts() []offsets.Set {
	if c.Cuts != nil {
		return c.Cuts
	}
	all := slices.Collect(c.begin().Exists.All())
	var cuts []offsets.Set
	for i := range all {
		for j := i; j < len(all); j++ {
			cuts = append(cuts, offsets.Of(all[i:j+1]...))
		}
	}
	return cuts
}

// blockedBy is the reasons, the commonest first.
func (r Result) blockedBy() []delivery.Reason {
	return slices.SortedFunc(maps.Keys(r.Blocked), func(a, b delivery.Reason) int { return r.Blocked[b] - r.Blocked[a] })
}
