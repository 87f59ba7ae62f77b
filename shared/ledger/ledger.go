// Package ledger holds what the adapters of delivery.Ledger have in common: the
// entries that none of them takes.
//
// A ledger is one small document per lane, replaced by writes that are
// conditional on its version. There are two adapters:
//
//   - shared/ledger/dynamo keeps it in a DynamoDB table: what runs in production
//     and, against an emulator, on one machine.
//   - shared/ledger/memory keeps it in the process, with faults on request: for
//     tests.
//
// Both pass shared/ledger/ledgertest, so a test that passes on the second says
// something about the first.
package ledger

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"oncehouse/shared/delivery"
	"oncehouse/shared/offsets"
)

// Check says what keeps entry from being written. An entry that fails it is a
// fault of the caller: nothing was sent, and trying again does not help.
func Check(lane delivery.Lane, entry delivery.Entry) error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if entry.Version < 1 {
		bad("version is %d: the first write has 1", entry.Version)
	}
	if entry.Writer == "" {
		bad("writer is empty: without it a lost answer cannot be resolved")
	}
	if entry.Generation < 1 {
		bad("generation is %d: a lane starts at 1", entry.Generation)
	}
	switch entry.Guarantee {
	case delivery.AtMostOnce, delivery.AtLeastOnce, delivery.ExactlyOnce:
	default:
		bad("guarantee is %q", entry.Guarantee)
	}
	if entry.Next < 0 || entry.Floor < 0 || entry.Ghosts < 0 {
		bad("next is %d, floor %d and ghosts %d: offsets start at 0", entry.Next, entry.Floor, entry.Ghosts)
	}
	sets := map[string]offsets.Set{"skipped": entry.Skipped}
	times := map[string]time.Time{"deadline": entry.Deadline, "held_until": entry.HeldUntil}
	if in := entry.Intent; in != nil {
		sets["intent.offsets"], sets["intent.settled"], sets["intent.send"] = in.Offsets, in.Settled, in.Send.Offsets
		times["intent.created"] = in.Created
	}
	if entry.Recreation != nil {
		times["recreation.since"] = entry.Recreation.Since
	}
	for name, text := range texts(entry) {
		if !utf8.ValidString(text) {
			bad("%s is not UTF-8: %q", name, text)
		}
	}
	for name, s := range sets {
		if err := ordered(s); err != nil {
			bad("%s: %w", name, err)
		}
	}
	for name, at := range times {
		if y := at.UTC().Year(); y < 0 || y > 9999 {
			bad("%s is in the year %d: it has no RFC 3339 text", name, y)
		}
	}
	if len(problems) > 0 {
		return fmt.Errorf("write ledger entry of lane %s: %w", lane.Key(), errors.Join(problems...))
	}
	return nil
}

// texts are the texts of an entry that stand for themselves. A refusal's message
// is not among them: it is for people, and Clean makes it text.
func texts(e delivery.Entry) map[string]string {
	m := map[string]string{"topic_id": e.TopicID, "server_uuid": e.ServerUUID, "writer": e.Writer}
	if e.Recreation != nil {
		m["recreation.topic_id"] = e.Recreation.TopicID
	}
	for source := range e.Positions {
		m["positions "+source] = source
	}
	if in := e.Intent; in != nil {
		m["intent.token"] = in.Token
		for source := range in.Positions {
			m["intent.positions "+source] = source
		}
		for _, l := range in.Letters {
			m["intent.letters "+l.Code] = l.Code
		}
	}
	return m
}

// Clean is message with every byte that is not UTF-8 (a value cut in the middle
// of a rune, say) as U+FFFD: a ledger holds text, and a message that is hard to
// read is no reason to stop a lane.
func Clean(message string) string { return strings.ToValidUTF8(message, "\uFFFD") }

// ordered checks what a Set promises: its text could not be read back otherwise.
func ordered(s offsets.Set) error {
	for i, r := range s {
		if r.First < 0 || r.Last < r.First || (i > 0 && r.First <= s[i-1].Last+1) {
			return fmt.Errorf("range %d-%d is out of order", r.First, r.Last)
		}
	}
	return nil
}
