package delivery

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"oncehouse/shared/offsets"
)

// TestScenarios plays testdata/scenarios: each file is a story told in
// commands, with what must come of each. A bug report becomes a file.
//
//	world table=plain|replicated|replacing|summing [route=no] [provenance=no]
//	      [guarantee=at-most-once] [replay=probe] [recreate=new-generation]
//	      [rows=2] [views] [accept-views] [poison=3] [nulls=4] [unfit=5]
//	deliver 10-19 [as=A] [stop=before:insert] [fault=insert:lost,write2:dropped]
//	resume A [stop=...] [fault=...]      go on with a stopped invocation
//	kill A                               it never goes on
//	clock 40s | land | recreate | gone 10-14 | server s2
//	outbox 10=1.5 11=1.6                 outbox positions window.seq
//
// A fault names the n-th such side effect of the invocation (the first when
// there is no number) and how it goes: lost, dropped, refused, late, half, odd,
// hole.
// After every command the invariants I1-I5 hold.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		s := &scenario{w: newWorld(), live: map[string]*invocation{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out := s.command(t, d)
			require.NoError(t, s.w.check(s.seen), "%s: %s", d.Pos, d.Cmd)
			return out
		})
	})
}

type scenario struct {
	w    *world
	live map[string]*invocation
	seen offsets.Set
	n    int
}

func (s *scenario) command(t *testing.T, d *datadriven.TestData) string {
	first := func() string {
		require.NotEmpty(t, d.CmdArgs, d.Pos)
		return d.CmdArgs[0].Key
	}
	switch d.Cmd {
	case "world":
		s.configure(t, d)
		return ""
	case "deliver":
		return s.deliver(t, d, parseSet(t, first()))
	case "resume":
		v := s.live[first()]
		require.NotNil(t, v, "%s: nobody is stopped under that name", d.Pos)
		return s.run(t, d, first(), v)
	case "kill":
		delete(s.live, first())
		return ""
	case "clock":
		by, err := time.ParseDuration(first())
		require.NoError(t, err)
		s.w.advance(by)
	case "land":
		s.w.landAll()
	case "recreate":
		s.w.recreate()
		s.seen = nil
	case "gone":
		s.w.gone = parseSet(t, first())
	case "server":
		s.w.traits.ServerUUID = first()
	case "outbox":
		for _, a := range d.CmdArgs {
			var o int64
			var r row
			_, err := fmt.Sscanf(a.String(), "%d=%d.%d", &o, &r.Window, &r.Seq)
			require.NoError(t, err, d.Pos)
			s.w.positions[o] = r
		}
		return ""
	case "bump":
		e, err := s.w.entry.Bump(s.w.now)
		if err != nil {
			return err.Error()
		}
		e.Version++
		s.w.history = append(s.w.history, s.w.entry)
		s.w.entry = e
	case "truncate":
		clear(s.w.rows)
		clear(s.w.old)
		clear(s.w.delivered)
		clear(s.w.letters)
		s.seen, s.w.emptied = nil, s.w.entry.Generation
	case "rebase":
		return s.rebase()
	default:
		t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	}
	return s.state()
}

func (s *scenario) rebase() string {
	highest := int64(-1)
	var stored offsets.Set
	for _, o := range slices.Sorted(maps.Keys(s.w.rows)) {
		highest = max(highest, o)
		if s.w.entry.Skipped.Contains(o) {
			stored = stored.Append(o)
		}
	}
	e, err := s.w.entry.Rebase(s.w.now, highest, stored)
	if err != nil {
		return err.Error()
	}
	e.Version++
	s.w.entry = e
	s.w.history = nil
	return s.state()
}

func parseSet(t *testing.T, text string) offsets.Set {
	set, err := offsets.Parse(text)
	require.NoError(t, err)
	return set
}

func (s *scenario) configure(t *testing.T, d *datadriven.TestData) {
	w := s.w
	for _, a := range d.CmdArgs {
		v := strings.Join(a.Vals, ",")
		switch a.Key + "=" + v {
		case "table=plain":
		case "table=replicated":
			w.traits.TokensTrusted, w.traits.ServerUUID = true, ""
			w.forgets = w.rules.TrustHorizon + w.timeout + w.rules.InsertTimeout + 5*time.Second
		case "table=replacing":
			w.traits.RowsStay, w.traits.ResendHarmless = false, true
		case "table=summing":
			w.traits.RowsStay = false
		case "route=no":
			w.route = false
		case "provenance=no":
			w.traits.Provenance = false
		case "views=":
			w.traits.Views = true
		case "accept-views=":
			w.rules.AcceptIncompleteViews = true
		case "replay=probe", "replay=token":
			w.rules.Replay = Replay(v)
			w.forgets = max(w.forgets, time.Hour)
		case "recreate=new-generation":
			w.rules.OnRecreate = RecreateNewGeneration
		case "rows=2":
			w.rules.ChunkLimit.Rows = 2
		default:
			switch a.Key {
			case "guarantee":
				w.rules.Guarantee = Guarantee(v)
			case "poison":
				w.poison = parseSet(t, v)
			case "nulls":
				w.nulls = parseSet(t, v)
			case "unfit":
				w.unfit = parseSet(t, v)
			default:
				t.Fatalf("%s: unknown setting %s", d.Pos, a)
			}
		}
	}
}

func (s *scenario) deliver(t *testing.T, d *datadriven.TestData, batch offsets.Set) string {
	s.n++
	name := "invocation" + strconv.Itoa(s.n)
	d.MaybeScanArgs(t, "as", &name)
	s.seen = s.seen.Union(batch)
	return s.run(t, d, name, s.w.start(batch, name, nil))
}

// run performs the steps of one invocation until it ends or its stop.
func (s *scenario) run(t *testing.T, d *datadriven.TestData, name string, v *invocation) string {
	stop, faults := "", map[string]string{}
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "stop":
			stop = a.Vals[0]
		case "fault":
			for f := range strings.SplitSeq(strings.Join(a.Vals, ","), ",") {
				at, how, _ := strings.Cut(f, ":")
				require.Contains(t, []string{lost, dropped, refused, flying, half, odd, hole}, how, d.Pos)
				faults[at] = how
			}
		}
	}
	used := 0
	for v.step.Op != OpDone {
		op := opNames[v.step.Op]
		nth := op + strconv.Itoa(v.count[v.step.Op]+1)
		if stop == "before:"+op || stop == "before:"+nth {
			s.live[name] = v
			return name + " stands before " + op + "\n" + s.state()
		}
		how, ok := faults[nth]
		if !ok && v.count[v.step.Op] == 0 {
			how, ok = faults[op]
		}
		if ok {
			used++
		}
		s.w.step(v, how)
		if stop == "after:"+op || stop == "after:"+nth {
			s.live[name] = v
			return name + " stands after " + op + "\n" + s.state()
		}
	}
	delete(s.live, name)
	require.Empty(t, stop, "%s: the invocation ended before its stop", d.Pos)
	require.Equal(t, len(faults), used, "%s: not every fault was met", d.Pos)
	out := "ok"
	if err := v.step.Outcome.Err; err != nil {
		out = err.Error()
	}
	return out + tallyText(v.step.Outcome.Tally) + "\n" + s.state()
}

func tallyText(t Tally) string {
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

func (s *scenario) state() string {
	out := "table " + s.w.table() + "\nledger " + s.w.ledgerText()
	if len(s.w.letters) > 0 {
		out += "\nletters " + offsets.Of(slices.Sorted(maps.Keys(s.w.letters))...).String()
	}
	return out
}
