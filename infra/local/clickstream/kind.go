package clickstream

import (
	"strconv"
	"strings"
)

// Kind says what a record is, and so what becomes of it.
type Kind int

// Good records become a row, a Tombstone is what the pipeline's policy makes of
// it, and each of the others is one way of not fitting the table: a dead letter.
const (
	Good         Kind = iota
	Tombstone         // the value is null
	NotJSON           // a line of a log
	CutShort          // the end is missing
	NotObject         // an array with the object in it
	Empty             // no byte, which is not null
	TrailingData      // two objects
	BadUTF8           // a byte that is no character, in a string
	DuplicateKey      // user_id twice
	WrongType         // user_id is a word
	NullInColumn      // user_id is null
	OutOfRange        // duration_ms is 2^32
	NoSuchDate        // the 30th of February
	TooPrecise        // a price with three fraction digits
	kinds
)

// Poison reports whether a record of this kind does not fit the table.
func (k Kind) Poison() bool { return k > Tombstone }

// String is the kind in words.
func (k Kind) String() string {
	names := [kinds]string{"good", "tombstone", "not json", "cut short", "not an object", "empty",
		"trailing data", "bad utf-8", "duplicate key", "wrong type", "null in column",
		"out of range", "no such date", "too precise"}
	if k < 0 || k >= kinds {
		return "kind " + strconv.Itoa(int(k))
	}
	return names[k]
}

// Kind is what record i is.
func (g Generator) Kind(i int64) Kind {
	h := g.hash(i, saltKind)
	if g.TombstoneEvery > 0 && h&0xffffffff%g.TombstoneEvery == 0 {
		return Tombstone
	}
	if h >>= 32; g.PoisonEvery > 0 && h%g.PoisonEvery == 0 {
		return NotJSON + Kind(h/g.PoisonEvery%uint64(kinds-NotJSON))
	}
	return Good
}

// spoil makes a good value poison.
func spoil(kind Kind, value string, c *Click) string {
	user := `"user_id":` + strconv.FormatUint(c.UserID, 10)
	switch kind {
	case NotJSON:
		return c.Time.Format("2006-01-02 15:04:05") + " WARN session " + c.Session + " has no cookie"
	case CutShort:
		return value[:len(value)-20]
	case NotObject:
		return "[" + value + "]"
	case TrailingData:
		return value + value
	case BadUTF8:
		return strings.Replace(value, `"session":"`, "\"session\":\"\xff", 1)
	case DuplicateKey:
		return strings.Replace(value, user, user+","+user, 1)
	case WrongType:
		return strings.Replace(value, user, `"user_id":"anonymous"`, 1)
	case NullInColumn:
		return strings.Replace(value, user, `"user_id":null`, 1)
	case OutOfRange:
		return strings.Replace(value, `"duration_ms":`+strconv.FormatUint(uint64(c.DurationMS), 10), `"duration_ms":4294967296`, 1)
	case NoSuchDate:
		return strings.Replace(value, `"ts":"`+c.Time.Format("2006-01-02"), `"ts":"2025-02-30`, 1)
	case TooPrecise:
		return strings.Replace(value, `"price":`+c.Price(), `"price":`+c.Price()+"9", 1)
	default: // Empty
		return ""
	}
}
