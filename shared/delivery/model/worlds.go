package main

import (
	"slices"
	"time"

	"oncehouse/shared/delivery"
	"oncehouse/shared/delivery/world"
	"oncehouse/shared/offsets"
)

// bounds are so many invocations in all, so many at once, faults and clock jumps.
func bounds(invocations, live, faults, jumps int) Bounds {
	return Bounds{Invocations: invocations, Live: live, Faults: faults, Jumps: jumps}
}

// worlds are the small worlds of the standard size: together they hold every
// kind of table and everything that can go wrong. What one of them bounds
// tightly, another does not.
func worlds() []Config {
	return slices.Concat(overlapping(), sequential(), changing(), outboxes())
}

// steady are the steps before which nothing makes a difference in a world whose
// topic, records and schema stay.
func steady() []delivery.Op {
	return []delivery.Op{delivery.OpLoad, delivery.OpEncode, delivery.OpTopicID, delivery.OpFetch}
}

var (
	inDoubt = []delivery.Reason{delivery.ReasonInDoubt}
	one     = []string{"exists=0"}
	two     = []string{"exists=0-1"}
)

// overlapping are invocations of one lane that run at the same time.
func overlapping() []Config {
	replicated := []string{"table=replicated", "exists=0-1"}
	return []Config{
		{Name: "plain", Settings: two, Eager: steady(), Bounds: bounds(2, 2, 0, 0), Large: bounds(2, 2, 1, 0)},
		{Name: "plain, faults", Settings: one, Eager: steady(), Bounds: bounds(2, 2, 1, 0), Large: bounds(2, 2, 2, 0)},
		{Name: "plain, clock jumps", Settings: one, Eager: steady(), Bounds: bounds(2, 2, 0, 1), Large: bounds(2, 2, 1, 1)},
		{Name: "plain, two at once and a third", Settings: one, Eager: steady(), Bounds: bounds(3, 2, 0, 0), Large: bounds(3, 3, 0, 0)},
		{Name: "plain, no eager steps", Settings: one, Bounds: bounds(2, 2, 0, 0), Large: bounds(2, 2, 1, 0)},
		{Name: "replicated", Settings: replicated, Eager: steady(), Bounds: bounds(2, 2, 1, 0), Large: bounds(2, 2, 1, 1), Blocks: inDoubt},
		{Name: "replicated, clock jumps", Settings: []string{"table=replicated", "exists=0"}, Eager: steady(), Bounds: bounds(2, 2, 0, 1), Large: bounds(2, 2, 1, 1), Blocks: inDoubt},
		{Name: "replicated, three at once", Settings: []string{"table=replicated", "exists=0"}, Eager: steady(), Bounds: bounds(3, 3, 0, 0), Large: bounds(3, 3, 1, 0), Blocks: inDoubt},
		{
			Name: "replicated, tokens forgotten", Settings: []string{"table=replicated", "replay=probe", "tokens=1", "exists=0"}, Eager: steady(),
			Bounds: bounds(2, 2, 1, 0), Large: bounds(2, 2, 1, 1), Blocks: inDoubt,
		},
		{Name: "at-most-once", Settings: []string{"guarantee=at-most-once", "exists=0-1"}, Eager: steady(), Bounds: bounds(2, 2, 1, 0), Large: bounds(3, 3, 1, 1)},
		{
			Name: "clocks apart", Settings: one, Eager: steady(), Bounds: bounds(2, 1, 1, 1), Large: bounds(3, 1, 1, 1),
			Skews: []time.Duration{time.Second}, Only: []string{world.Late},
		},
		{Name: "remembered entries", Settings: one, Eager: steady(), Bounds: Bounds{Invocations: 3, Live: 2, Memory: 1}, Large: Bounds{Invocations: 3, Live: 2, Memory: 2}},
	}
}

// sequential are invocations that die at any step, each followed by another with
// another batch.
func sequential() []Config {
	return []Config{
		{Name: "recut", Settings: []string{"exists=0-2"}, Eager: steady(), Bounds: bounds(2, 1, 1, 0), Large: bounds(3, 1, 1, 0)},
		{Name: "six records in chunks", Settings: []string{"exists=0-5", "rows=2"}, Eager: steady(), Bounds: bounds(2, 1, 0, 0), Large: bounds(2, 1, 1, 0)},
		{Name: "six records, replicated", Settings: []string{"table=replicated", "exists=0-5", "rows=3"}, Eager: steady(), Bounds: bounds(2, 1, 1, 0), Large: bounds(2, 1, 1, 0), Blocks: inDoubt},
		{Name: "crash, and long after", Settings: two, Eager: steady(), Bounds: bounds(2, 1, 1, 1), Large: bounds(2, 1, 2, 1)},
		{Name: "letters in skipped ranges", Settings: []string{"exists=0-2", "poison=0", "nulls=1"}, Eager: steady(), Bounds: bounds(3, 1, 1, 0), Large: bounds(3, 1, 1, 1)},
		{
			Name: "forgotten ranges", Settings: []string{"exists=0-131"}, Before: []offsets.Set{offsets.Of(131), odd(129)}, Eager: steady(), Bounds: bounds(3, 1, 1, 0), Large: bounds(3, 1, 1, 1),
			Cuts: []offsets.Set{offsets.Of(0), offsets.Of(1), offsets.Of(2), offsets.Between(0, 2), offsets.Between(1, 4), offsets.Of(1, 5)},
		},
		{Name: "letters and tombstones", Settings: []string{"exists=0-3", "poison=1", "nulls=2"}, Eager: steady(), Bounds: bounds(2, 1, 1, 0), Large: bounds(3, 1, 1, 0)},
		{
			Name: "no route to Kafka", Settings: []string{"exists=0-2", "route=no"}, Eager: steady(), Bounds: bounds(2, 1, 1, 0), Large: bounds(3, 1, 1, 0),
			Blocks: []delivery.Reason{delivery.ReasonInDoubt, delivery.ReasonOffsetUnproven},
		},
		{Name: "rows that replace", Settings: []string{"table=replacing", "exists=0-1"}, Eager: steady(), Bounds: bounds(2, 1, 1, 0), Large: bounds(2, 2, 1, 0)},
		{Name: "rows that disappear", Settings: []string{"table=summing", "exists=0-1"}, Eager: steady(), Bounds: bounds(2, 1, 1, 0), Large: bounds(2, 2, 1, 0), Blocks: inDoubt},
	}
}

// odd are the odd offsets up to last.
func odd(last int64) offsets.Set {
	var s offsets.Set
	for o := int64(1); o <= last; o += 2 {
		s = s.Append(o)
	}
	return s
}

// changing are worlds that change under a running invocation.
func changing() []Config {
	recreated := []delivery.Reason{delivery.ReasonInDoubt, delivery.ReasonOffsetUnproven, delivery.ReasonIntentOrphaned, delivery.ReasonOffsetRegression}
	return []Config{
		{
			Name: "records gone, broker away", Settings: two, Eager: []delivery.Op{delivery.OpLoad, delivery.OpEncode},
			Bounds: bounds(2, 1, 1, 0), Large: bounds(3, 1, 1, 0),
			Events: []world.Action{{Do: world.Change, Setting: "gone=0-1"}}, Blocks: inDoubt,
		},
		{
			Name: "schema", Settings: []string{"exists=0-1", "poison=1"}, Eager: []delivery.Op{delivery.OpLoad, delivery.OpTopicID, delivery.OpFetch},
			Bounds: bounds(2, 1, 1, 0), Large: bounds(3, 1, 1, 0),
			Events: []world.Action{{Do: world.Change, Setting: "poison=0"}}, Blocks: inDoubt,
		},
		{
			Name: "recreated topic", Settings: two, Eager: []delivery.Op{delivery.OpLoad, delivery.OpEncode},
			Bounds: bounds(2, 1, 1, 0), Large: bounds(3, 1, 1, 0),
			Events: []world.Action{{Do: world.Recreate}}, Blocks: recreated,
		},
		{
			Name: "recreated topic, two at once", Settings: one, Eager: []delivery.Op{delivery.OpLoad, delivery.OpEncode},
			Bounds: bounds(2, 2, 0, 0), Large: bounds(2, 2, 0, 1),
			Events: []world.Action{{Do: world.Recreate}}, Blocks: recreated,
		},
		{
			Name: "recreated topic, new generation", Settings: []string{"exists=0-1", "recreate=new-generation"}, Eager: []delivery.Op{delivery.OpLoad, delivery.OpEncode},
			Bounds: bounds(3, 1, 0, 1), Large: bounds(3, 1, 1, 1), InOrder: true,
			Events: []world.Action{{Do: world.Recreate}}, Blocks: recreated,
		},
		{
			Name: "recreated topic, no route", Settings: []string{"exists=0-1", "route=no"}, Eager: []delivery.Op{delivery.OpLoad, delivery.OpEncode},
			Bounds: bounds(3, 1, 0, 1), Large: bounds(3, 1, 1, 1), InOrder: true,
			Events: []world.Action{{Do: world.Recreate}}, Blocks: recreated,
		},
		{
			Name: "guarantee switched", Settings: two, Before: []offsets.Set{offsets.Of(0)}, Eager: steady(), Bounds: bounds(2, 1, 1, 1), Large: bounds(3, 1, 1, 1),
			Only: []string{world.Lost, world.Dropped, world.Half, world.Odd},
			Events: []world.Action{
				{Do: world.Change, Setting: "guarantee=at-least-once"}, {Do: world.Change, Setting: "guarantee=exactly-once"}, {Do: world.Rebase},
			},
			Blocks: []delivery.Reason{delivery.ReasonInDoubt, delivery.ReasonNeedsRebase},
		},
		{
			Name: "letters redriven", Settings: one, Eager: steady(), Bounds: bounds(2, 2, 0, 0), Large: bounds(2, 2, 1, 0),
			Events: []world.Action{{Do: world.Hold}, {Do: world.Anew}}, Blocks: inDoubt,
		},
		{
			Name: "letters redriven of a recreated topic", Settings: []string{"exists=0-1", "recreate=new-generation"}, Eager: []delivery.Op{delivery.OpLoad, delivery.OpEncode},
			Bounds: bounds(3, 1, 0, 1), Large: bounds(3, 1, 1, 1), InOrder: true,
			Events: []world.Action{{Do: world.Recreate}, {Do: world.Hold}}, Blocks: recreated,
		},
		{
			Name: "operators", Settings: two, Eager: steady(), Bounds: bounds(2, 1, 1, 1), Large: bounds(3, 1, 1, 1),
			Events: []world.Action{{Do: world.Anew}, {Do: world.Rebase}}, Blocks: inDoubt,
		},
	}
}

// outboxes are lanes whose records have positions. The records of an attempt that
// was aborted are in a batch or are not.
func outboxes() []Config {
	retried := map[int64]world.Row{0: {Window: 1, Seq: 1}, 1: {Window: 1, Seq: 1}, 2: {Window: 1, Seq: 2}, 3: {Window: 2, Seq: 5}}
	twice := map[int64]world.Row{0: {Window: 1, Seq: 1}, 1: {Window: 1, Seq: 2}, 2: {Window: 1, Seq: 1}, 3: {Window: 1, Seq: 2}, 4: {Window: 1, Seq: 3}, 5: {Window: 2, Seq: 5}}
	blocks := []delivery.Reason{delivery.ReasonPositionUnproven}
	committed := []offsets.Set{offsets.Between(2, 5), offsets.Between(2, 4), offsets.Between(2, 3), offsets.Between(4, 5), offsets.Of(2), offsets.Of(5)}
	aborted := map[int64]world.Row{0: {Window: 1, Seq: 1}, 1: {Window: 1, Seq: 1}, 3: {Window: 1, Seq: 2}}
	window := map[int64]world.Row{0: {Window: 1, Seq: 1}, 1: {Window: 1, Seq: 1}, 3: {Window: 2, Seq: 2}}
	return []Config{
		{Name: "outbox, a gap in a window", Settings: []string{"exists=0-1,3"}, Positions: aborted, Eager: steady(), Bounds: bounds(3, 1, 1, 0), Large: bounds(3, 1, 1, 1), Blocks: blocks},
		{Name: "outbox, a gap between windows", Settings: []string{"exists=0-1,3"}, Positions: window, Eager: steady(), Bounds: bounds(3, 1, 1, 0), Large: bounds(3, 1, 1, 1), Blocks: blocks},
		{Name: "outbox", Settings: []string{"exists=0-3"}, Positions: retried, Eager: steady(), Bounds: bounds(2, 1, 1, 0), Large: bounds(3, 1, 1, 0), Blocks: blocks},
		{
			Name: "outbox, aborted attempt seen or not", Settings: []string{"exists=0-5"}, Positions: twice, Eager: steady(), Bounds: bounds(3, 1, 0, 0), Large: bounds(3, 1, 1, 0),
			Cuts:   append(committed, offsets.Between(0, 5), offsets.Between(0, 3), offsets.Between(0, 1), offsets.Of(0), offsets.Between(1, 4)),
			Blocks: blocks,
		},
	}
}
