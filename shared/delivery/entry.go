package delivery

import (
	"fmt"
	"strconv"
	"time"

	"oncehouse/shared/offsets"
)

// Entry is what the ledger knows of one lane. It changes only by writes that
// are conditional on Version (I6). The zero Entry is a lane never seen.
type Entry struct {
	Generation int64     `json:"generation"`
	Guarantee  Guarantee `json:"guarantee"`
	// Next: every offset below it is settled, those in Skipped aside (I2).
	Next int64 `json:"next"`
	// Skipped holds the offsets between an old Next and the first offset of a
	// batch that arrived above it. They are not settled: a record of them is
	// taken when it comes.
	Skipped offsets.Set `json:"skipped,omitempty"`
	// Floor rises when Skipped would need more than maxSkipped ranges: below
	// it, what is not in Skipped is unproven and has to be probed.
	Floor int64 `json:"floor,omitempty"`
	// Ghosts: rows of an earlier generation may stand in the table at the
	// offsets below it. Of these, a probe that finds one proves nothing.
	Ghosts int64 `json:"ghosts,omitempty"`
	// Intent is the one chunk that is, or may be, on its way (I4).
	Intent *Intent `json:"intent,omitempty"`
	// Deadline is the latest moment at which any insert sent for this lane may
	// still land. It survives the commit.
	Deadline time.Time `json:"deadline,omitzero"`
	// HeldUntil is the moment before which no new generation begins, because
	// letters of this one are being redriven.
	HeldUntil time.Time `json:"held_until,omitzero"`
	// Samples are the offset and hash of the last record of the last chunks:
	// a redelivery that holds one of them proves that the topic is the same.
	Samples []Sample `json:"samples,omitempty"`
	// Positions is what is settled of each outbox source's latest window.
	Positions map[string]Position `json:"positions,omitempty"`
	// TopicID is the broker's id of the topic, "" while no broker was asked.
	TopicID string `json:"topic_id,omitempty"`
	// ServerUUID is the one server of a plain MergeTree table, "" elsewhere.
	ServerUUID string `json:"server_uuid,omitempty"`
	// Recreation announces a new generation for a recreated topic.
	Recreation *Recreation `json:"recreation,omitempty"`
	// Version is 0 for an entry not yet in the ledger and grows by 1 a write.
	Version int64 `json:"version"`
	// Writer is the random id of the write that made this version.
	Writer string `json:"writer"`
}

// Intent is a chunk that was announced and is not yet settled. It only ever
// leaves the ledger by being settled whole (I4).
type Intent struct {
	// Offsets are the records to be stored, Hash and Count of those.
	Offsets offsets.Set `json:"offsets,omitempty"`
	Count   int64       `json:"count"`
	Hash    Hash        `json:"hash"`
	// From..Through is the raw range that the commit settles: from the batch's
	// first offset before any drop to the chunk's last, with the records
	// dropped behind it.
	From    int64 `json:"from"`
	Through int64 `json:"through"`
	// Settled are the offsets inside From..Through that the commit takes out
	// of Skipped: everything the batch held there, stored or not.
	Settled offsets.Set `json:"settled,omitempty"`
	// Letters are the records that go to the dead letters. Decided once: a
	// replay never decides again.
	Letters []Refusal `json:"letters,omitempty"`
	// Send is what the present attempt sends: at first all of Offsets.
	Send Send `json:"send"`
	// Positions the commit moves.
	Positions map[string]Position `json:"positions,omitempty"`
	// Last is the sample the commit adds.
	Last    *Sample   `json:"last,omitempty"`
	Attempt int       `json:"attempt"`
	Token   string    `json:"token"`
	Created time.Time `json:"created"`
}

// Send is the record set of one attempt.
type Send struct {
	Offsets offsets.Set `json:"offsets,omitempty"`
	Count   int64       `json:"count"`
	Hash    Hash        `json:"hash"`
}

// Refusal is one record that does not fit its table.
type Refusal struct {
	Offset int64 `json:"offset"`
	// Code is a word of a small fixed set ("out_of_range", "not_json", ...).
	Code string `json:"code"`
	// Column is the column that does not take it, "" where it is the record.
	Column string `json:"column,omitempty"`
	// Message names the column, the value (truncated) and the reason.
	Message string `json:"message,omitempty"`
}

// Sample is the hash of one record at one offset.
type Sample struct {
	Offset int64 `json:"offset"`
	Hash   Hash  `json:"hash"`
}

// Position is how far an outbox source was seen in this lane: Window is the
// latest one, Seen the rows of it that are settled, Seq the last that came.
type Position struct {
	Window int64       `json:"window"`
	Seq    int64       `json:"seq"`
	Seen   offsets.Set `json:"seen,omitempty"`
}

// Recreation is the announcement of a new generation.
type Recreation struct {
	TopicID string    `json:"topic_id,omitempty"`
	Since   time.Time `json:"since"`
}

// Hash is a 64-bit hash over raw records.
type Hash uint64

// String is the hash in 16 hexadecimal digits.
func (h Hash) String() string { return fmt.Sprintf("%016x", uint64(h)) }

// MarshalText writes what String shows.
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (h *Hash) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 16, 64)
	if err != nil || len(text) != 16 {
		return fmt.Errorf("bad hash %q: 16 hexadecimal digits expected", text)
	}
	*h = Hash(n)
	return nil
}
