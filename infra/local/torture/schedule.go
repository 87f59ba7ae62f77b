package torture

import (
	"math/rand/v2"
	"time"
)

// Moment is what a step strikes, and when.
type Moment int

// The moments. Proxies see those of an insert, of a write to the ledger and of
// an invocation's answer.
const (
	FunctionAnytime      Moment = iota
	FunctionBeforeLedger        // a write arrives at the ledger, which never does it
	FunctionAfterLedger         // the ledger has done it and has not answered
	FunctionBeforeInsert        // an insert is announced and never reaches the engine
	FunctionDuringInsert        // the engine has a part of it
	FunctionAfterInsert         // the engine has stored it and has not answered
	MappingAnytime
	MappingBeforeCommit // the function has answered, the mapping has not heard it
	EngineAnytime
	EngineDuringInsert
	EngineAfterInsert
	InsertCut        // the connection breaks within the insert
	InsertAnswerLost // the engine has stored it; the function never hears of it
	InsertAnswerCut  // the function hears the head of the answer
	InsertRefused    // the connection breaks before the engine has any of it
	LedgerAnswerLost
	LedgerRefused
	// Those of the chain from PostgreSQL alone.
	ServiceAnytime
	DatabaseAnytime
	PollerAnytime
	PollerBeforeCommit // a Kafka transaction is written whole and not ended
	moments
)

// The victims: whose process dies. A step without one breaks a connection.
const (
	Function = "function"
	Mapping  = "mapping"
	Engine   = "engine"
	Service  = "order service"
	Database = "database"
	Outbox   = "outbox poller"
)

// strikes says of each moment its words, its victim and how often it comes: 0 in
// no schedule but the chain's.
func strikes(m Moment) (name, victim string, weight int) {
	s := [moments]struct {
		name, victim string
		weight       int
	}{
		FunctionAnytime:      {"function, any time", Function, 16},
		FunctionBeforeLedger: {"function, before a ledger write", Function, 7},
		FunctionAfterLedger:  {"function, after a ledger write", Function, 7},
		FunctionBeforeInsert: {"function, before an insert", Function, 8},
		FunctionDuringInsert: {"function, during an insert", Function, 8},
		FunctionAfterInsert:  {"function, after an insert", Function, 12},
		MappingAnytime:       {"mapping, any time", Mapping, 8},
		MappingBeforeCommit:  {"mapping, before a commit", Mapping, 8},
		EngineAnytime:        {"engine, any time", Engine, 8},
		EngineDuringInsert:   {"engine, during an insert", Engine, 6},
		EngineAfterInsert:    {"engine, after an insert", Engine, 6},
		InsertCut:            {"insert cut", "", 5},
		InsertAnswerLost:     {"insert's answer lost", "", 8},
		InsertAnswerCut:      {"insert's answer cut", "", 3},
		InsertRefused:        {"insert refused", "", 3},
		LedgerAnswerLost:     {"ledger's answer lost", "", 6},
		LedgerRefused:        {"ledger refused", "", 3},
		ServiceAnytime:       {"order service, any time", Service, 0},
		DatabaseAnytime:      {"database, any time", Database, 0},
		PollerAnytime:        {"outbox poller, any time", Outbox, 0},
		PollerBeforeCommit:   {"outbox poller, before a commit", Outbox, 0},
	}[m]
	return s.name, s.victim, s.weight
}

// String is the moment in words.
func (m Moment) String() string { name, _, _ := strikes(m); return name }

// Victim is whose process dies; "" for none.
func (m Moment) Victim() string { _, victim, _ := strikes(m); return victim }

// Step is one thing that goes wrong.
type Step struct {
	Moment Moment
	// Pause since the step before.
	Pause time.Duration
	// Dice decides what is left to chance: how far into a body, which partition.
	Dice uint64
}

// opening are the first steps of every schedule: the moments at which each
// control must fail come in the shortest of runs, too.
func opening() []Moment {
	return []Moment{
		FunctionAfterInsert, FunctionBeforeInsert, EngineAfterInsert, MappingBeforeCommit,
		FunctionAfterInsert, EngineDuringInsert, FunctionBeforeInsert, EngineAfterInsert,
	}
}

// Schedule is the steps up to that many kills. A longer one begins with the
// shorter one of the same seed.
func Schedule(seed uint64, kills int) []Step {
	random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a schedule, not a secret
	total := 0
	for m := range moments {
		_, _, weight := strikes(m)
		total += weight
	}
	var steps []Step
	for n := 0; n < kills; {
		m := draw(random.IntN(total))
		if len(steps) < len(opening()) {
			m = opening()[len(steps)]
		}
		steps = append(steps, Step{m, time.Duration(20+random.IntN(180)) * time.Millisecond, random.Uint64()})
		if m.Victim() != "" {
			n++
		}
	}
	return steps
}

// chainSchedule is Schedule with a step at a part of the outbox before every
// third of its kills, up to that many kills in all.
func chainSchedule(seed uint64, kills int) []Step {
	random := rand.New(rand.NewPCG(seed, 3)) //nolint:gosec // a schedule, not a secret
	parts := []Moment{PollerBeforeCommit, DatabaseAnytime, PollerAnytime, ServiceAnytime, PollerBeforeCommit, PollerAnytime}
	var steps []Step
	n, own := 0, 0
	for _, step := range Schedule(seed, kills) {
		if n == kills {
			break
		}
		kill := step.Moment.Victim() != ""
		if kill && n%3 == 0 {
			steps = append(steps, Step{parts[own%len(parts)], time.Duration(20+random.IntN(180)) * time.Millisecond, random.Uint64()})
			n++
			own++
			if n == kills {
				break
			}
		}
		steps = append(steps, step)
		if kill {
			n++
		}
	}
	return steps
}

// draw is the moment at a place on the line of all weights.
func draw(at int) Moment {
	for m := range moments {
		_, _, weight := strikes(m)
		if at -= weight; at < 0 {
			return m
		}
	}
	return FunctionAnytime // unreachable: the weights add up
}
