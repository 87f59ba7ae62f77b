// Package world is everything around one lane's delivery.Machine, in memory and
// under a virtual clock: the ledger's entry, the table with its token log,
// Kafka, the dead letters, and the invocations that run. Every way in which a
// side effect can go is there (applied and its answer lost, landing late, in
// part, or not at all), and so is every schedule of them: nothing happens but
// by an [Action].
//
//	w := world.New()
//	err := w.Set("table=replicated", "poison=3")
//	err = w.Do(world.Action{Do: world.Begin, Name: "A", Batch: offsets.Between(0, 4)})
//	err = w.Do(world.Action{Do: world.Step, Name: "A", How: world.Lost})
//
// Do returns the first invariant of ARCHITECTURE.md that no longer holds. A World
// can be cloned, so that a schedule is continued in every way: the model
// (shared/delivery/model) does that. The scenarios (shared/delivery/testdata)
// and the simulation play in the same world, and [Story] writes a list of
// actions as a scenario.
package world

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	"oncehouse/shared/offsets"
)

// World is one lane and all that it meets.
type World struct {
	Rules   delivery.Rules
	Traits  delivery.Traits
	Route   bool
	Now     time.Time
	Timeout time.Duration // of an invocation
	Memory  int           // how many ended invocations' entries there are to begin from

	Exists    offsets.Set   // what Kafka holds, for whoever cuts batches
	Gone      offsets.Set   // no longer in Kafka
	Poison    offsets.Set   // refused by the table
	Nulls     offsets.Set   // tombstones
	Positions map[int64]Row // outbox position by offset
	Topic     int           // how often it was made

	Entry   delivery.Entry
	Table   Table
	Letters map[int64]string
	Live    []*Invocation

	// Eager are steps before which nothing can happen that makes a difference,
	// so that they are a part of the step before them: see settle.
	Eager []delivery.Op

	unconditional bool // the ledger takes every write

	settings []string // as set, for the scenario
	delayed  []delivery.Entry
	seen     offsets.Set // offsets that were ever part of a batch
	memory   []remembered
	epoch    int   // grows when what was delivered counts no longer
	emptied  int64 // the generation in which the table was emptied on purpose
	sent     *sent
	broken   error // the first rule that an action broke
}

// Row is the place of a record in its outbox.
type Row struct{ Window, Seq int64 }

// remembered is the entry that an environment keeps of an invocation.
type remembered struct {
	name  string
	entry *delivery.Entry
}

// New returns a world with a plain table and a route to Kafka.
func New() *World {
	w := &World{
		Rules: delivery.DefaultRules(), Traits: delivery.Traits{Provenance: true, RowsStay: true, ServerUUID: "s1"}, Route: true,
		Now: time.UnixMilli(1_800_000_000_000).UTC(), Timeout: time.Minute, Topic: 1,
		Positions: map[int64]Row{}, Letters: map[int64]string{}, Table: newTable(), Memory: 3, sent: &sent{of: map[string]string{}},
	}
	w.Rules.InsertTimeout, w.Rules.ClockMargin, w.Rules.FunctionTimeout = 10*time.Second, time.Second, w.Timeout
	w.Rules.PoisonAtLeast = 10
	return w
}

// Clone forks the world's future.
func (w *World) Clone() *World {
	c := *w
	c.Letters = maps.Clone(w.Letters)
	c.Table = w.Table.clone()
	c.Live = slices.Clone(w.Live)
	c.delayed = slices.Clone(w.delayed)
	c.memory = slices.Clone(w.memory)
	return &c
}

// Set changes what the world is like. The words are those of the scenarios'
// command world.
func (w *World) Set(settings ...string) error {
	for _, setting := range settings {
		if err := w.set(setting); err != nil {
			return err
		}
		w.settings = append(slices.Clip(w.settings), setting)
	}
	return nil
}

func (w *World) set(setting string) error {
	key, value, _ := strings.Cut(setting, "=")
	if ok := w.setTable(key, value) || w.setRules(key, value); ok {
		return nil
	}
	set, err := offsets.Parse(value)
	if err != nil {
		return fmt.Errorf("setting %s: %w", setting, err)
	}
	switch key {
	case "exists":
		w.Exists = set
	case "poison":
		w.Poison = set
	case "nulls":
		w.Nulls = set
	case "gone":
		w.Gone = set
	default:
		return fmt.Errorf("unknown setting %s", setting)
	}
	return nil
}

func (w *World) setTable(key, value string) bool {
	switch key + "=" + value {
	case "table=plain":
	case "table=replicated":
		w.Traits.TokensTrusted, w.Traits.ServerUUID = true, ""
		w.Table.Window = w.Rules.TrustHorizon + w.Timeout + w.Rules.InsertTimeout + 5*time.Second
	case "table=replacing":
		w.Traits.RowsStay, w.Traits.ResendHarmless = false, true
	case "table=summing":
		w.Traits.RowsStay = false
	case "provenance=no":
		w.Traits.Provenance = false
	case "views=":
		w.Traits.Views = true
	case "ledger=unconditional":
		w.unconditional = true
	default:
		return w.setNumber(key, value)
	}
	return true
}

func (w *World) setNumber(key, value string) bool {
	switch key {
	case "server":
		w.Traits.ServerUUID = value
		return true
	case "window":
		d, err := time.ParseDuration(value)
		w.Table.Window = d
		return err == nil
	}
	n, err := strconv.Atoi(value)
	if err != nil {
		return false
	}
	switch key {
	case "rows":
		w.Rules.ChunkLimit.Rows = n
	case "tokens":
		w.Table.Tokens = n
	default:
		return false
	}
	return true
}

func (w *World) setRules(key, value string) bool {
	switch key {
	case "guarantee":
		w.Rules.Guarantee = delivery.Guarantee(value)
	case "replay":
		w.Rules.Replay = delivery.Replay(value)
		w.Table.Window = max(w.Table.Window, time.Hour)
	case "recreate":
		w.Rules.OnRecreate = delivery.OnRecreate(value)
	case "route":
		w.Route = value != "no"
	case "accept-views":
		w.Rules.AcceptIncompleteViews = true
	default:
		return false
	}
	return true
}

// Lane is the lane that the world is about.
func (w *World) Lane() delivery.Lane {
	return delivery.Lane{Pipeline: "p", Cluster: "c", TopicPartition: kafka.TopicPartition{Topic: "t", Partition: 0}}
}

// Records are what Kafka holds at the offsets in the topic's present epoch.
func (w *World) Records(of offsets.Set) []kafka.Record {
	out := make([]kafka.Record, 0, of.Len())
	for o := range of.All() {
		out = append(out, w.record(o))
	}
	return out
}

// epochOf are the milliseconds by which a record's time tells its topic's epoch.
const epochOf = 1000

func (w *World) record(o int64) kafka.Record {
	r := kafka.Record{Offset: o, Timestamp: o + int64(w.Topic-1)*epochOf, Key: []byte("k"), Value: fmt.Appendf(nil, "%d.%d", w.Topic, o)}
	if w.Nulls.Contains(o) {
		r.Value = nil
	}
	if p, ok := w.Positions[o]; ok {
		r.Headers = []kafka.Header{
			{Key: []byte(delivery.HeaderSource), Value: []byte("i/0-of-1/t/0")},
			{Key: []byte(delivery.HeaderPosition), Value: fmt.Appendf(nil, "%d.%d", p.Window, p.Seq)},
		}
	}
	return r
}

// Advance moves the clock. An insert under way lands before its time is over
// or never.
func (w *World) Advance(d time.Duration) {
	w.Now = w.Now.Add(d)
	w.Table.expire(w.Now)
}

// recreate deletes the topic and makes it again. Its rows stay in the table.
func (w *World) recreate() {
	w.Topic++
	w.epoch++
	w.Table.age()
	clear(w.Letters)
	w.seen, w.emptied = nil, max(1, w.Entry.Generation)
}

// truncate empties the table on purpose; the server forgets its tokens with it.
func (w *World) truncate() {
	w.epoch++
	w.Table.log = nil
	clear(w.Table.Rows)
	clear(w.Table.Old)
	clear(w.Letters)
	w.seen, w.emptied = nil, w.Entry.Generation
}

// operate writes an entry as an operator's action does.
func (w *World) operate(e delivery.Entry) {
	e.Version, e.Writer = w.Entry.Version+1, "operator"
	w.checkHold(w.Entry, e)
	w.Entry = e
}

// rebase is the operator's action of the same name.
func (w *World) rebase() error {
	highest, stored := int64(-1), offsets.Set{}
	for _, o := range slices.Sorted(maps.Keys(w.Table.Rows)) {
		highest = max(highest, o)
		if w.Entry.Skipped.Contains(o) {
			stored = stored.Append(o)
		}
	}
	e, err := w.Entry.Rebase(w.Now, highest, stored)
	if err == nil {
		w.operate(e)
	}
	return err
}

// ledgerText is the entry in one line.
func (w *World) ledgerText() string {
	e := w.Entry
	out := fmt.Sprintf("generation=%d next=%d", e.Generation, e.Next)
	if len(e.Skipped) > 0 {
		out += " skipped=" + e.Skipped.String()
	}
	if e.Floor > 0 {
		out += fmt.Sprintf(" floor=%d", e.Floor)
	}
	if e.Ghosts > 0 {
		out += fmt.Sprintf(" ghosts=%d", e.Ghosts)
	}
	if in := e.Intent; in != nil {
		out += fmt.Sprintf(" intent=%s attempt=%d send=%s through=%d", in.Offsets, in.Attempt, in.Send.Offsets, in.Through)
		var letters offsets.Set
		for _, l := range in.Letters {
			letters = letters.Append(l.Offset)
		}
		if len(letters) > 0 {
			out += " letters=" + letters.String()
		}
	}
	return out
}

// State is the world in lines, as the scenarios show it.
func (w *World) State() string {
	out := "table " + w.Table.String() + "\nledger " + w.ledgerText()
	if len(w.Letters) > 0 {
		out += "\nletters " + offsets.Of(slices.Sorted(maps.Keys(w.Letters))...).String()
	}
	return out
}
