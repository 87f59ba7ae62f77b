package outbox

import (
	"errors"
	"strings"
)

// ErrFenced means that another poller of the same shard took over. It is no
// fault: the one that is fenced leaves.
var ErrFenced = errors.New("another poller of this shard took over")

// Refusal is a state in which going on would lose, double or reorder rows. It
// stands until a person has decided: it names everything that is wrong and what
// to do.
type Refusal struct { //nolint:errname // it is a state, and called so everywhere
	// Reason is one word in CamelCase, for alarms and the runbook.
	Reason string
	// Problems say what was found, and where.
	Problems []string
	// Remedy says what a person can do.
	Remedy string
}

// Error implements error.
func (r *Refusal) Error() string {
	return r.Reason + ": " + strings.Join(r.Problems, "; ") + "; remedy: " + r.Remedy
}
