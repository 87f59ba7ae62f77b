package delivery_test

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "oncehouse/shared/delivery"
	"oncehouse/shared/delivery/world"
	"oncehouse/shared/offsets"
)

var simSeeds = flag.Uint64("sim.seeds", 1000, "how many random schedules TestSimulation runs per kind of table")
var simFrom = flag.Uint64("sim.from", 1, "the first seed")

// failedSeeds keeps every seed that ever failed: a shape and a seed a line.
const failedSeeds = "testdata/seeds.txt"

// TestSimulation runs the machine against random schedules, larger than the
// model's (shared/delivery/model): invocations that overlap, batches cut anew,
// side effects lost, late, halved or never applied, invocations killed between
// any two steps, clocks jumping. After every step the invariants must hold, and
// once the faults stop the lane must drain or be blocked with a named reason
// (I9). A schedule that fails is shrunk and printed as a scenario, and its seed
// is kept and run first from then on.
func TestSimulation(t *testing.T) {
	kept := readSeeds(t)
	for name, shape := range simShapes {
		most := uint64(2) // of ten schedules may end blocked
		if strings.HasPrefix(name, "recreated topic") {
			most = 6 // a look into the table is no proof where old rows stand
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, seed := range kept[name] {
				simulate(t, name, shape, seed)
			}
			var drained uint64
			for seed := *simFrom; seed < *simFrom+*simSeeds; seed++ {
				if simulate(t, name, shape, seed) {
					drained++
				}
			}
			require.Greater(t, drained*10, *simSeeds*(10-most), "most schedules must drain")
		})
	}
}

// simulate runs one seed and reports whether its lane drained.
func simulate(t *testing.T, name string, shape func(*simulation), seed uint64) bool {
	t.Helper()
	s := newSimulation(seed, shape)
	blocked, err := s.run()
	if err == nil {
		return blocked == ""
	}
	keepSeed(t, name, seed)
	least := shrink(s.did, func(did []world.Action) bool { return replay(s.begin, did) != nil })
	require.Fail(t, "an invariant broke", "%s, seed %d: %v\n%d of %d actions are enough; as a scenario:\n\n%s", name, seed, err,
		len(least), len(s.did), world.Story(s.begin, least, fmt.Sprintf("%s, seed %d: %v", name, seed, replay(s.begin, least))))
	return false
}

func readSeeds(t *testing.T) map[string][]uint64 {
	file, err := os.Open(failedSeeds)
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	kept := map[string][]uint64{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if line := lines.Text(); line != "" && !strings.HasPrefix(line, "#") {
			var seed uint64
			name, number, _ := strings.Cut(line, ": ")
			_, err := fmt.Sscan(number, &seed)
			require.NoError(t, err, line)
			require.Contains(t, simShapes, name)
			kept[name] = append(kept[name], seed)
		}
	}
	return kept
}

func keepSeed(t *testing.T, name string, seed uint64) {
	if slices.Contains(readSeeds(t)[name], seed) {
		return
	}
	file, err := os.OpenFile(failedSeeds, os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	_, err = fmt.Fprintf(file, "%s: %d\n", name, seed)
	require.NoError(t, errors.Join(err, file.Close()))
}

var simShapes = map[string]func(*simulation){
	"plain":               func(*simulation) {},
	"plain with a window": func(s *simulation) { s.set("window=1h") },
	"replicated":          func(s *simulation) { s.set("table=replicated") },
	"replicated by probe": func(s *simulation) { s.set("table=replicated", "replay=probe", "tokens=1") },
	"plain, outbox":       func(s *simulation) { s.outbox() },
	"plain, no route":     func(s *simulation) { s.set("route=no") },
	"at most once":        func(s *simulation) { s.set("guarantee=at-most-once") },
	"small chunks":        func(s *simulation) { s.set("rows=2") },
	"recreated topic": func(s *simulation) {
		s.set("recreate=new-generation")
		s.inOrder, s.recreates = true, true
	},
	"recreated topic, replicated": func(s *simulation) {
		s.set("table=replicated", "recreate=new-generation")
		s.inOrder, s.recreates = true, true
	},
	"new generations": func(s *simulation) { s.bumps = true },
	"re-bases":        func(s *simulation) { s.rebases = true },
	"changing schema": func(s *simulation) { s.alters = true },
}

// simulation is one random schedule: what is left to chance is drawn from rng,
// so that a seed is a list of actions, always the same.
type simulation struct {
	w         *world.World
	rng       *rand.Rand
	settings  []string
	positions map[int64]world.Row
	did       []world.Action
	n         int
	// What happens besides deliveries.
	recreates, bumps, rebases, alters bool
	// inOrder: batches rarely begin ahead of what was committed.
	inOrder bool
}

func newSimulation(seed uint64, shape func(*simulation)) *simulation {
	s := &simulation{rng: rand.New(rand.NewPCG(seed, 7))}
	var exists, poison, nulls offsets.Set
	for o := range int64(10) {
		if s.rng.IntN(6) > 0 {
			exists = exists.Append(o)
		}
	}
	if len(exists) == 0 {
		exists = offsets.Of(3)
	}
	for o := range exists.All() {
		switch s.rng.IntN(12) {
		case 0:
			poison = poison.Append(o)
		case 1:
			nulls = nulls.Append(o)
		}
	}
	s.set("exists="+exists.String(), "poison="+poison.String(), "nulls="+nulls.String())
	shape(s)
	s.w = s.begin()
	return s
}

func (s *simulation) set(settings ...string) { s.settings = append(s.settings, settings...) }

// begin is the world before anything happened.
func (s *simulation) begin() *world.World {
	w := world.New()
	if err := w.Set(s.settings...); err != nil {
		panic(err)
	}
	w.Positions = s.positions
	return w
}

// outbox gives the records positions: windows whose attempts are prefixes, the
// last attempt whole.
func (s *simulation) outbox() {
	s.inOrder, s.positions = true, map[int64]world.Row{}
	var exists offsets.Set
	o := int64(0)
	for window := int64(1); window <= 3; window++ {
		rows := int64(1 + s.rng.IntN(3))
		for attempt := s.rng.IntN(3); attempt >= 0; attempt-- {
			n := rows
			if attempt > 0 {
				n = int64(s.rng.IntN(int(rows) + 1))
			}
			for seq := range n {
				s.positions[o] = world.Row{Window: window, Seq: window*10 + seq}
				exists = exists.Append(o)
				o++
			}
			o++ // the transaction marker
		}
	}
	s.set("exists="+exists.String(), "poison=", "nulls=")
}

// simActions is how many things a schedule tries.
const simActions = 60

func (s *simulation) run() (blocked Reason, err error) {
	for range simActions {
		a, ok := s.act()
		if !ok {
			continue
		}
		err := s.w.Do(a)
		if errors.Is(err, world.ErrImpossible) {
			continue
		}
		s.did = append(s.did, a)
		if err != nil {
			return "", err
		}
	}
	did, blocked, err := s.w.Clone().Drain()
	if err != nil {
		s.did = append(s.did, did...)
	}
	return blocked, err
}

// replay does what can be done of some actions, drains the lane, and returns the
// invariant that broke.
func replay(begin func() *world.World, did []world.Action) error {
	w := begin()
	for _, a := range did {
		if err := w.Do(a); err != nil && !errors.Is(err, world.ErrImpossible) {
			return err
		}
	}
	_, _, err := w.Drain()
	return err
}

// shrink leaves out every action that the failure does not need.
func shrink(did []world.Action, fails func([]world.Action) bool) []world.Action {
	for size := max(1, len(did)/2); ; size = max(1, size/2) {
		smaller := false
		for i := 0; i+size <= len(did); {
			without := slices.Concat(did[:i], did[i+size:])
			if fails(without) {
				did, smaller = without, true
				continue
			}
			i += size
		}
		if size == 1 && !smaller {
			return did
		}
	}
}

// act draws the next action.
func (s *simulation) act() (world.Action, bool) {
	live := s.w.Live
	switch k := s.rng.IntN(20); {
	case k < 3 && len(live) < 3:
		return s.deliver(), true
	case k == 3 && len(live) > 0:
		return world.Action{Do: world.Kill, Name: live[s.rng.IntN(len(live))].Name}, true
	case k == 4:
		by := []time.Duration{time.Second, 20 * time.Second, 90 * time.Second, 20 * time.Minute}[s.rng.IntN(4)]
		return world.Action{Do: world.Clock, By: by}, true
	case k == 5 && s.w.Delayed() > 0 && s.rng.IntN(2) == 0:
		return world.Action{Do: world.LandWrite, Index: s.rng.IntN(s.w.Delayed())}, true
	case k == 5 && len(s.w.Flights()) > 0:
		return world.Action{Do: world.Land, Index: s.rng.IntN(len(s.w.Flights())), Half: s.rng.IntN(3)}, true
	case k == 6:
		return s.event()
	case len(live) > 0:
		v := live[s.rng.IntN(len(live))]
		a := world.Action{Do: world.Step, Name: v.Name}
		if faults := s.w.Faults(v); s.rng.IntN(4) == 0 && len(faults) > 0 {
			a.How = faults[s.rng.IntN(len(faults))]
		}
		return a, true
	}
	return world.Action{}, false
}

// event is something that people do.
func (s *simulation) event() (world.Action, bool) {
	e := s.w.Entry
	switch {
	case s.recreates && e.Next > 0 && len(e.Skipped) == 0 && e.Intent == nil && s.w.Topic < 2:
		return world.Action{Do: world.Recreate}, true
	case s.bumps:
		return world.Action{Do: world.Anew}, true
	case s.rebases:
		return world.Action{Do: world.Rebase}, true
	case s.alters:
		o := offsets.Of(int64(s.rng.IntN(10)))
		poison := s.w.Poison.Union(o)
		if s.w.Poison.Contains(o.First()) {
			poison = s.w.Poison.Minus(o)
		}
		return world.Action{Do: world.Change, Setting: "poison=" + poison.String()}, true
	}
	return world.Action{}, false
}

// deliver begins an invocation with a random run of existing records that
// begins at or below the next one not delivered, as a mapping cuts it.
func (s *simulation) deliver() world.Action {
	exists := s.w.Exists
	first := int64(s.rng.IntN(int(exists.Last()) + 1))
	if s.inOrder && s.rng.IntN(40) > 0 {
		first = min(first, s.w.Entry.Next)
	}
	if s.w.Topic > 1 && s.w.Entry.Generation == 1 {
		first = 0 // the mapping begins the new topic at its start
	}
	batch := exists.Intersect(offsets.Between(first, first+int64(s.rng.IntN(5))))
	if len(batch) == 0 {
		batch = offsets.Of(exists.First())
	}
	s.n++
	a := world.Action{Do: world.Begin, Name: fmt.Sprintf("%c%d", 'A'+s.n%26, s.n), Batch: batch}
	a.Skew = time.Duration(s.rng.Int64N(int64(s.w.Rules.ClockMargin) + 1))
	if memory := s.w.Remembered(); len(memory) > 0 && s.rng.IntN(2) == 0 {
		a.Cached = memory[s.rng.IntN(len(memory))]
	}
	return a
}

// TestASeedIsOneSchedule: the same seed, the same actions.
func TestASeedIsOneSchedule(t *testing.T) {
	for name, shape := range simShapes {
		for seed := range uint64(20) {
			one, other := newSimulation(seed, shape), newSimulation(seed, shape)
			blocked, err := one.run()
			again, errAgain := other.run()
			require.Equal(t, one.did, other.did, "%s, seed %d", name, seed)
			require.Equal(t, blocked, again)
			require.Equal(t, err, errAgain)
			require.Equal(t, one.w.State(), other.w.State())
		}
	}
}

// TestSimulationFindsABrokenLedger: a ledger that does not keep its condition
// breaks an invariant soon; what is left of the schedule after shrinking breaks
// it still, and nothing of it can be left out.
func TestSimulationFindsABrokenLedger(t *testing.T) {
	for seed := range uint64(1000) {
		s := newSimulation(seed, func(s *simulation) { s.set("ledger=unconditional") })
		if _, err := s.run(); err == nil {
			continue
		}
		fails := func(did []world.Action) bool { return replay(s.begin, did) != nil }
		least := shrink(s.did, fails)
		require.Error(t, replay(s.begin, least))
		require.Less(t, len(least), len(s.did))
		for i := range least {
			require.False(t, fails(slices.Concat(least[:i], least[i+1:])), "action %d of %v is not needed", i, least)
		}
		return
	}
	require.Fail(t, "no schedule of 1000 found it")
}
