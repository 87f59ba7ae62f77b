package rowbinary

import (
	"time"
	"unicode"
	"unicode/utf8"
)

// op says how a type is read and written.
type op uint8

const (
	opString op = iota + 1
	opFixedString
	opInt     // 8 to 256 bits, signed or not
	opDecimal // an opInt with digits behind the point
	opFloat32
	opFloat64
	opBFloat16
	opBool
	opDate
	opDate32
	opDateTime
	opDateTime64
	opEnum
	opUUID
	opIPv4
	opIPv6
	opArray
	opMap
	opTuple   // with names: an object
	opUnnamed // a Tuple without names: an array
	opNested  // an Array of a named Tuple that may come as an object of arrays
	opJSON
	opRaw // a String that takes the JSON text of any value
)

// node is a compiled type. It never changes.
type node struct {
	op       op
	nullable bool
	// typ is the type as the table writes it, for messages.
	typ string
	// size is the number of bytes of a value of fixed width.
	size int
	// scale is the number of digits behind the point: of a Decimal, and of the
	// ticks of a DateTime64.
	scale int
	// max and min are the greatest coefficient above and below zero.
	max, min wide
	// unit is the power of ten that makes a number a tick: number * 10^unit.
	unit     int
	truncate bool
	// zone is the column's; nil is UTC.
	zone    *time.Location
	enum    map[string]int16
	key     *node // of a Map
	elem    *node // of an Array, a Map, a Nested
	members *object
	unnamed []*node
	// types is how many types a JSON keeps of a path (max_dynamic_types).
	types int64
	// zero is the type's default, encoded.
	zero []byte
}

// object is a JSON object whose keys are known: a named Tuple, or the row.
type object struct {
	// row: each value has a default marker before it.
	row     bool
	members []member
	keys    lookup
	groups  []group
	// dotted are all places that a key with dots addresses, roots those of them
	// that are whole columns.
	dotted []*dotted
	roots  []*dotted
}

// member is one column of the row or one member of a Tuple.
type member struct {
	name string
	typ  *node
	// absent is what stands for a member that has no key; nil refuses the record.
	absent []byte
	// defaulted: the column has an expression for its default.
	defaulted bool
}

// group is columns that share the name before the first dot: a Nested as
// system.columns shows it, if all are arrays.
type group struct {
	name string
	// slot is where the Writer notes that the name itself was given.
	slot    int
	keys    lookup
	members []int
	nested  bool
}

// dotted is a place inside a Tuple or Nested column that a key with dots can
// address: "t.a". The tree follows the type.
type dotted struct {
	column int    // index of the member of the row
	slot   int    // where the Writer keeps the value's place; -1 at the top
	name   string // with all its dots
	typ    *node
	absent []byte
	// members are those of a Tuple, or of the Tuple in a Nested.
	members []*dotted
}

// target is what a key addresses.
type target struct {
	kind  targetKind
	index int
	// place is the index among the members of a group, for toMember.
	place int
}

type targetKind uint8

const (
	toUnknown targetKind = iota
	toMember
	toGroup
	toDotted
)

// lookup finds what a key addresses. It is a hash table with open addressing:
// keys come from the table's columns, so nobody can make it long.
type lookup struct {
	slots []lookupSlot
	mask  uint64
	// fold: keys are looked up in lower case.
	fold bool
	// predicts: the object's own members are looked up, and which of them came
	// behind which is kept in Writer.follow, from follow on. Their names stand in
	// a record as they are: none needs an escape.
	predicts bool
	follow   int
}

type lookupSlot struct {
	name   string
	target target
}

// newLookup makes a table with room for n keys.
func newLookup(n int, fold bool) lookup {
	size := 4
	for size < 2*n {
		size *= 2
	}
	return lookup{slots: make([]lookupSlot, size), mask: uint64(size - 1), fold: fold}
}

// add enters a key and reports whether it is new.
func (l *lookup) add(name string, to target) bool {
	if l.fold {
		name = string(appendFolded(nil, []byte(name)))
	}
	at := hashKey([]byte(name)) & l.mask
	for l.slots[at].target.kind != toUnknown {
		if l.slots[at].name == name {
			return false
		}
		at = (at + 1) & l.mask
	}
	l.slots[at] = lookupSlot{name, to}
	return true
}

// find looks a key up that is folded already where the table folds.
func (l *lookup) find(key []byte) target {
	at := hashKey(key) & l.mask
	for l.slots[at].target.kind != toUnknown {
		if l.slots[at].name == string(key) {
			return l.slots[at].target
		}
		at = (at + 1) & l.mask
	}
	return target{}
}

// predictable reports whether keys of members can be compared without reading
// them as strings.
func predictable(members []member) bool {
	for _, m := range members {
		if end, _ := run([]byte(m.name), 0); end < len(m.name) {
			return false
		}
	}
	return len(members) > 0
}

// hashKey mixes the length with the first, middle and last bytes (FNV's prime).
func hashKey(key []byte) uint64 {
	const prime = 1099511628211
	h := uint64(len(key)) * prime
	for i, c := range key {
		if i == 16 {
			h = (h ^ uint64(key[len(key)-1])) * prime
			h = (h ^ uint64(key[len(key)/2])) * prime
			break
		}
		h = (h ^ uint64(c)) * prime
	}
	return h ^ h>>32
}

// appendFolded appends key in lower case.
func appendFolded(dst, key []byte) []byte {
	for i := 0; i < len(key); {
		r, size := utf8.DecodeRune(key[i:])
		dst = utf8.AppendRune(dst, unicode.ToLower(r))
		i += size
	}
	return dst
}
