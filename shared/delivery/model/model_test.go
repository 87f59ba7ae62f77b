package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"oncehouse/shared/delivery"
	"oncehouse/shared/delivery/world"
	"oncehouse/shared/offsets"
)

// TestWorlds explores every world, most of them smaller than make model does.
func TestWorlds(t *testing.T) {
	for _, c := range worlds() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			hold(t, smaller(c))
		})
	}
}

// smaller is the same world within seconds: two ways to cut, and two invocations
// that overlap only where nothing else happens.
func smaller(c Config) Config {
	if exists := c.begin().Exists; c.Cuts == nil && exists.Len() > 1 {
		c.Cuts = []offsets.Set{exists, offsets.Of(exists.First())}
	}
	if c.Invocations = 2; c.Faults+c.Jumps+len(c.Events)+len(c.Only) > 0 {
		c.Live, c.Faults, c.Jumps = 1, min(c.Faults, 1), min(c.Jumps, 1)
	} else {
		c.Live = min(c.Live, 2)
	}
	return c
}

func hold(t *testing.T, c Config) {
	t.Helper()
	r := Explore(t.Context(), c)
	require.NoError(t, r.Violation, "%s", world.Story(c.begin, r.Trace, c.Name))
	require.Positive(t, r.Drained)
}

// A ledger that does not keep its condition breaks an invariant; the trace is the
// shortest, and as a scenario it breaks the same one.
func TestABrokenLedgerIsFound(t *testing.T) {
	for name, settings := range map[string][]string{
		"plain":      {"ledger=unconditional", "exists=0-1"},
		"replicated": {"ledger=unconditional", "exists=0-1", "table=replicated"},
	} {
		t.Run(name, func(t *testing.T) {
			c := Config{Name: name, Settings: settings, Eager: steady(), Bounds: bounds(2, 2, 0, 0), Blocks: inDoubt}
			r := Explore(t.Context(), c)
			require.Error(t, r.Violation)
			story := world.Story(c.begin, r.Trace, "A ledger that takes every write.")
			require.ErrorContains(t, play(t, story), strings.SplitN(r.Violation.Error(), ":", 2)[0], "%s", story)
		})
	}
}

// play plays a scenario and returns the first invariant that broke.
func play(t *testing.T, story string) (broken error) {
	s := world.Script{World: world.New()}
	datadriven.RunTestFromString(t, story, func(t *testing.T, d *datadriven.TestData) string {
		var args []world.Arg
		for _, a := range d.CmdArgs {
			args = append(args, world.Arg{Key: a.Key, Vals: a.Vals})
		}
		_, err := s.Command(d.Cmd, args)
		require.NoError(t, err, "%s: %s", d.Pos, d.Cmd)
		if broken == nil {
			broken = s.World.Check()
		}
		return ""
	})
	return broken
}

// A token log that forgets what the rules trust doubles rows, and the model sees it:
// a window shorter than the trust horizon is a broken promise of the table.
func TestAForgetfulTableIsFound(t *testing.T) {
	c := Config{
		Name: "forgetful", Settings: []string{"exists=0", "table=replicated", "window=1m"}, Eager: steady(),
		Bounds: bounds(2, 1, 1, 1), Blocks: inDoubt, Only: []string{world.Lost},
	}
	r := Explore(t.Context(), c)
	require.ErrorContains(t, r.Violation, "I1")
	require.ErrorContains(t, play(t, world.Story(c.begin, r.Trace, c.Name)), "I1")
}

// On a plain table two attempts under one token would find the hole (D27): the rows
// of the second vanish, and the lane never drains.
func TestTokenHole(t *testing.T) {
	hold(t, Config{
		Name: "hole", Settings: []string{"exists=0", "window=1h"}, Eager: steady(),
		Bounds: bounds(1, 1, 1, 0), Only: []string{world.Hole},
	})
}

// The two guarantees that do not ask the server to deduplicate send no token.
func TestNoTokenWithoutTheGuarantee(t *testing.T) {
	for _, guarantee := range []delivery.Guarantee{delivery.AtLeastOnce, delivery.AtMostOnce} {
		w := world.New()
		require.NoError(t, w.Set("guarantee="+string(guarantee), "exists=0-4"))
		_, _, err := w.Drain()
		require.NoError(t, err)
		require.Equal(t, w.Exists.String(), w.Table.Stored().String())
		require.Empty(t, w.Sent())
	}
}

// TestKeysAreSound: two states of one key have the same futures. Every way in which
// a state is reached again, the keys of its successors are those of the first way.
func TestKeysAreSound(t *testing.T) {
	for _, c := range []Config{
		{Settings: one, Bounds: bounds(2, 2, 1, 1)},
		{Settings: []string{"exists=0-1", "table=replicated"}, Eager: steady(), Bounds: bounds(2, 2, 1, 1)},
		{Settings: []string{"exists=0-1", "recreate=new-generation"}, Bounds: bounds(2, 2, 0, 1), Events: []world.Action{{Do: world.Recreate}}},
		{Settings: []string{"exists=0-1", "poison=1"}, Bounds: Bounds{Invocations: 3, Live: 2, Faults: 1, Memory: 1}},
	} {
		c.Cuts = c.cuts()
		successors := map[world.Key][]world.Key{}
		keys := world.NewKeyer()
		level := []state{{w: c.begin()}}
		again := 0
		for len(successors) < 1000 && len(level) > 0 {
			var next []state
			for _, s := range level {
				key, _ := keys.Keys(s.w)
				key = s.key(key)
				var after []world.Key
				first := successors[key] == nil
				for _, a := range c.actions(&s) {
					t := s
					t.w = s.w.Clone()
					c.spend(&t, a)
					if t.w.Do(a) != nil {
						continue
					}
					k, _ := keys.Keys(t.w)
					if after = append(after, t.key(k)); first {
						next = append(next, t)
					}
				}
				slices.SortFunc(after, func(a, b world.Key) int { return slices.Compare(a[:], b[:]) })
				if first {
					successors[key] = after
					continue
				}
				again++
				require.Equal(t, successors[key], after, "%v", c.Settings)
			}
			level = next
		}
		require.Greater(t, again, 100)
	}
}

// What Eager joins leaves out no state of ledger and table: without it the same ones
// are reached.
func TestEagerStepsLeaveNothingOut(t *testing.T) {
	for name, c := range map[string]Config{
		"plain":      {Settings: one, Bounds: bounds(2, 2, 0, 0)},
		"replicated": {Settings: []string{"exists=0", "table=replicated"}, Bounds: bounds(2, 2, 0, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			every := explorer{config: c}
			every.init()
			every.run(t.Context())
			c.Eager = steady()
			joined := explorer{config: c}
			joined.init()
			joined.run(t.Context())
			require.Less(t, len(joined.nodes), len(every.nodes))
			for key := range joined.drains {
				require.Contains(t, every.drains, key)
			}
			require.Len(t, joined.drains, len(every.drains))
		})
	}
}
