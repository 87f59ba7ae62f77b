package delivery

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Kind says what an error means for the records, and nothing else does.
type Kind int

const (
	// Retryable: surely not applied; the same again may work.
	Retryable Kind = iota + 1
	// InDoubt: it may have been applied. Nothing is settled until it is known.
	InDoubt
	// Poison: this record does not fit; its neighbours do.
	Poison
	// Fenced: someone newer owns the lane.
	Fenced
	// Fatal: configuration, schema or a broken invariant; a person is needed.
	Fatal
)

// String is the kind as logs and metrics show it.
func (k Kind) String() string {
	switch k {
	case Retryable:
		return "retryable"
	case InDoubt:
		return "in_doubt"
	case Poison:
		return "poison"
	case Fenced:
		return "fenced"
	case Fatal:
		return "fatal"
	}
	return fmt.Sprintf("kind(%d)", int(k))
}

// Reason names why a lane cannot go on; each is a heading of the runbook.
type Reason string

// The reasons that delivery itself gives.
const (
	ReasonInDoubt           Reason = "InDoubt"
	ReasonAttemptsExhausted Reason = "AttemptsExhausted"
	ReasonOffsetRegression  Reason = "OffsetRegression"
	ReasonOffsetUnproven    Reason = "OffsetUnproven"
	ReasonPositionUnproven  Reason = "PositionUnproven"
	ReasonIntentOrphaned    Reason = "IntentOrphaned"
	ReasonNeedsRebase       Reason = "NeedsRebase"
	ReasonSchemaFault       Reason = "SchemaFault"
	ReasonServerChanged     Reason = "ServerChanged"
	ReasonOutOfOrder        Reason = "OutOfOrder"
	ReasonFenced            Reason = "Fenced"
	ReasonOutOfTime         Reason = "OutOfTime"
	ReasonLedger            Reason = "Ledger"
	ReasonTarget            Reason = "Target"
	ReasonLetters           Reason = "Letters"
)

// Error is an error that knows what it means for the records.
type Error struct {
	Kind   Kind
	Reason Reason
	// Message says what is wrong and where.
	Message string
	// Until is the moment after which trying again can decide; zero when time
	// alone does not help.
	Until time.Time
	// Remedy says what a person does about it; "" when trying again is enough.
	Remedy string
	Err    error
}

// Error is one line: reason, message, cause, time and remedy.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(string(e.Reason))
	for _, part := range []string{e.Message, errText(e.Err)} {
		if part != "" {
			b.WriteString(": ")
			b.WriteString(part)
		}
	}
	if !e.Until.IsZero() {
		fmt.Fprintf(&b, " (decidable after %s)", e.Until.UTC().Format(time.RFC3339Nano))
	}
	if e.Remedy != "" {
		b.WriteString("; remedy: ")
		b.WriteString(e.Remedy)
	}
	return b.String()
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf is the kind of err: that of the *Error in it, else InDoubt, because
// what is not known to be safe is not.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return InDoubt
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
