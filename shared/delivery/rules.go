package delivery

import (
	"errors"
	"fmt"
	"time"
)

// Rules are what a pipeline asked for. They do not change while a function
// lives; what the table is like (Traits) is read at every invocation.
type Rules struct {
	Guarantee  Guarantee
	Replay     Replay
	OnRecreate OnRecreate
	// TrustHorizon is how old an intent may be for its token to be trusted.
	TrustHorizon time.Duration
	// InsertTimeout bounds one insert, at the server too.
	InsertTimeout time.Duration
	// SendWindow is how soon after the ledger's write an insert must be sent;
	// later it takes another write. A crashed invocation's lane is undecided
	// for SendWindow + InsertTimeout + ClockMargin.
	SendWindow time.Duration
	// ClockMargin is the greatest difference between any two clocks involved.
	ClockMargin time.Duration
	// FunctionTimeout is the longest an invocation can live.
	FunctionTimeout time.Duration
	// ChunkLimit bounds one insert. One insert must stay one block.
	ChunkLimit Limit
	// AcceptIncompleteViews: a view may miss or double a chunk whose insert
	// was in doubt. By name only.
	AcceptIncompleteViews bool
	// PoisonShare of a batch, from PoisonAtLeast records on, is a schema fault.
	PoisonShare   float64
	PoisonAtLeast int
	// MaxAttempts is how often missing rows are sent, each time under a new
	// token, before somebody is called; from then on it is once an invocation.
	MaxAttempts int
}

// DefaultRules are the rules of a pipeline that asked for nothing.
func DefaultRules() Rules {
	return Rules{
		Guarantee:       ExactlyOnce,
		Replay:          ReplayAuto,
		OnRecreate:      RecreateBlock,
		TrustHorizon:    10 * time.Minute,
		InsertTimeout:   30 * time.Second,
		SendWindow:      5 * time.Second,
		ClockMargin:     2 * time.Second,
		FunctionTimeout: 2 * time.Minute,
		ChunkLimit:      Limit{Rows: 500_000, Bytes: 64 << 20},
		PoisonShare:     0.5,
		PoisonAtLeast:   100,
		MaxAttempts:     3,
	}
}

// Validate returns every rule that cannot hold, joined.
func (r Rules) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(r.Guarantee == AtMostOnce || r.Guarantee == AtLeastOnce || r.Guarantee == ExactlyOnce,
		"guarantee %q: one of %s, %s, %s", r.Guarantee, AtMostOnce, AtLeastOnce, ExactlyOnce)
	check(r.Replay == ReplayAuto || r.Replay == ReplayToken || r.Replay == ReplayProbe,
		"replay %q: one of %s, %s, %s", r.Replay, ReplayAuto, ReplayToken, ReplayProbe)
	check(r.OnRecreate == RecreateBlock || r.OnRecreate == RecreateNewGeneration,
		"on_recreate %q: one of %s, %s", r.OnRecreate, RecreateBlock, RecreateNewGeneration)
	check(r.InsertTimeout >= time.Second, "insert timeout %s: at least 1s", r.InsertTimeout)
	check(r.SendWindow > 0, "send window %s: more than 0", r.SendWindow)
	check(r.ClockMargin > 0, "clock margin %s: more than 0", r.ClockMargin)
	check(r.TrustHorizon >= 0, "trust horizon %s: 0 or more", r.TrustHorizon)
	check(r.FunctionTimeout > r.InsertTimeout+r.ClockMargin,
		"function timeout %s: more than insert timeout + clock margin (%s), or nothing could be sent",
		r.FunctionTimeout, r.InsertTimeout+r.ClockMargin)
	check(r.ChunkLimit.Rows > 0 && r.ChunkLimit.Rows < MaxBlockRows, "chunk rows %d: 1 to %d", r.ChunkLimit.Rows, MaxBlockRows-1)
	check(r.ChunkLimit.Bytes > 0 && r.ChunkLimit.Bytes < MaxBlockBytes, "chunk bytes %d: 1 to %d", r.ChunkLimit.Bytes, MaxBlockBytes-1)
	check(r.PoisonShare > 0 && r.PoisonShare <= 1, "poison share %g: more than 0, at most 1", r.PoisonShare)
	check(r.PoisonAtLeast > 0, "poison at least %d: 1 or more", r.PoisonAtLeast)
	check(r.MaxAttempts > 0, "max attempts %d: 1 or more", r.MaxAttempts)
	return errors.Join(errs...)
}

// One insert stays one block below these: a larger one is split by the server,
// and the parts of a split insert do not share the fate of their token.
const (
	MaxBlockRows  = 1_000_000
	MaxBlockBytes = 256 << 20
)

// maxSkipped is how many ranges an entry remembers as skipped.
const maxSkipped = 64

// maxSamples is how many chunks an entry can recognise its topic by.
const maxSamples = 32

// maxSources is how many outbox sources an entry has positions of.
const maxSources = 64

// maxLetterText bounds the messages of one intent's letters, so that the entry
// stays far below the ledger's item size; the codes are always kept.
const maxLetterText = 32 << 10
