package world

import (
	"encoding/binary"
	"errors"
	"reflect"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	"oncehouse/shared/offsets"
)

// Key is the hash of a state. Two states of one key have the same futures.
type Key [2]uint64

// Keyer makes keys. A key takes in everything that anything later depends on:
// the whole of every machine, field by field (a new field is in it by itself),
// the ledger, the table with its tokens and what is under way, and the letters.
// What makes no difference is written in one form: moments count from now, and
// those that are over for good are alike; versions count from the ledger's;
// invocations of the same state may change places; names, tallies and texts are
// left out, as nothing is decided by them (see unread).
type Keyer struct {
	fields map[reflect.Type]layout
	buf    []byte
	now    time.Time
	entry  *delivery.Entry
	mark   *mark // being made
	live   []Key
	sorted []int64
}

// layout is which fields of a struct count, and which of them is a version.
type layout struct {
	fields  []int
	version int
}

// mark is what an invocation adds to keys. It is made once, as an invocation
// changes only by its own steps; its moments and versions are those that the
// clock and the ledger move past.
type mark struct {
	shape    Key
	moments  []time.Time
	versions []int64
	writer   string // of the write whose fate it reads, "" when it reads none
}

// NewKeyer returns a keyer.
func NewKeyer() *Keyer { return &Keyer{fields: map[reflect.Type]layout{}} }

// Keys are the key of the whole state, and of the state without its invocations.
func (k *Keyer) Keys(w *World) (state, surroundings Key) {
	k.live = k.live[:0]
	for _, v := range w.Live {
		k.live = append(k.live, k.invocation(w, v))
	}
	slices.SortFunc(k.live, func(a, b Key) int { return slices.Compare(a[:], b[:]) })
	k.surroundings(w)
	surroundings = k.sum()
	k.buf = k.buf[:0]
	k.key(surroundings)
	for _, key := range k.live {
		k.key(key)
	}
	return k.sum(), surroundings
}

func (k *Keyer) sum() Key {
	first := xxhash.Sum64(k.buf)
	k.buf = binary.LittleEndian.AppendUint64(k.buf, first)
	return Key{first, xxhash.Sum64(k.buf)}
}

func (k *Keyer) surroundings(w *World) {
	k.buf, k.now, k.entry = k.buf[:0], w.Now, &w.Entry
	k.value(reflect.ValueOf(&w.Entry).Elem())
	k.counts(w.Table.Rows)
	k.counts(w.Table.Old)
	for _, l := range w.Table.log {
		k.text(l.token)
		k.int(int64(l.half))
		k.moment(l.at, w.Table.Window)
	}
	k.int(-1)
	for _, f := range w.Table.flights {
		k.text(f.Send.Token)
		k.set(f.Send.Chunk.Payload.(payload).of)
		k.int(int64(f.Send.Chunk.Payload.(payload).topic))
		k.flag(f.Send.Chunk.Payload.(payload).double)
		k.moment(f.Until, 0)
		k.value(reflect.ValueOf(f.Left))
	}
	k.int(-2)
	for i := range w.delayed {
		if e := &w.delayed[i]; e.Version == w.Entry.Version+1 { // the condition of others fails
			k.value(reflect.ValueOf(e).Elem())
		}
	}
	for _, o := range ascending(k, w.Letters) {
		k.int(o)
	}
	k.int(-3)
	for _, r := range w.memory {
		k.value(reflect.ValueOf(r.entry).Elem())
	}
	k.int(int64(w.Topic))
	k.int(int64(w.epoch))
	k.int(w.emptied)
	for _, s := range []offsets.Set{w.seen, w.Gone, w.Poison, w.Nulls} {
		k.set(s)
	}
	k.text(w.Traits.ServerUUID)
	k.text(string(w.Rules.Guarantee))
}

// invocation is the key of one invocation as the world is now.
func (k *Keyer) invocation(w *World, v *Invocation) Key {
	k.now, k.entry = w.Now, &w.Entry
	if v.mark == nil {
		v.mark = k.makeMark(v)
	}
	m := v.mark
	k.buf = k.buf[:0]
	k.key(m.shape)
	for _, t := range m.moments {
		k.moment(t, past)
	}
	for _, n := range m.versions {
		k.version(n)
	}
	// Names are left out: whether a write is this one's is all that they are
	// read for.
	k.flag(m.writer != "" && m.writer == w.Entry.Writer)
	for i := range w.delayed {
		k.flag(m.writer != "" && m.writer == w.delayed[i].Writer)
	}
	return k.sum()
}

// field is a field of a field.
func field(v reflect.Value, names ...string) reflect.Value {
	for _, name := range names {
		v = v.FieldByName(name)
	}
	return v
}

func (k *Keyer) makeMark(v *Invocation) *mark {
	k.buf, k.mark = k.buf[:0], &mark{}
	defer func() { k.mark = nil }()
	m := reflect.ValueOf(v.Machine).Elem()
	k.value(m)
	k.flag(field(m, "inv", "Cached").IsNil())
	k.flag(field(m, "absent").IsNil())
	op := v.Step.Op
	k.int(int64(op))
	// What is to be written, and what follows it, counts while it is awaited.
	if op == delivery.OpLoad || op == delivery.OpWrite {
		k.value(field(m, "pending"))
		k.value(field(m, "onLanded"))
		k.flag(errors.Is(*(*error)(field(m, "unwritten").Addr().UnsafePointer()), delivery.ErrConflict))
	}
	if op == delivery.OpLoad {
		k.mark.writer = field(m, "pending", "Writer").String()
	}
	k.moment(v.Step.Until, past)
	k.set(v.Step.Offsets)
	k.moment(v.Ends, past)
	k.text(string(v.rules))
	k.int(int64(v.topic))
	k.int(int64(v.epoch))
	k.int(int64(v.skew))
	k.set(v.Batch)
	k.mark.shape = k.sum()
	return k.mark
}

// unread are the fields that no decision reads.
var unread = map[string][]string{ //nolint:gochecknoglobals // a constant table
	"Machine":    {"rules", "now", "tally", "pass", "sent", "writes", "ownSource", "pending", "onLanded", "unwritten", "lastErr", "lost", "absent"},
	"Invocation": {"Lane", "Writer", "Cached"},
	"Entry":      {"Writer"},
	"Refusal":    {"Code", "Message", "Column"},
}

// layout is which fields of a struct count.
func (k *Keyer) layout(t reflect.Type) layout {
	if known, ok := k.fields[t]; ok {
		return known
	}
	out := layout{version: -1}
	skip := unread[t.Name()]
	found := 0
	for i := range t.NumField() {
		name := t.Field(i).Name
		if t == entryType && name == "Version" {
			out.version = i
		}
		if slices.Contains(skip, name) {
			found++
			continue
		}
		out.fields = append(out.fields, i)
	}
	if found != len(skip) {
		panic("unread fields of " + t.Name() + " are not there")
	}
	k.fields[t] = out
	return out
}

//nolint:gochecknoglobals // constants
var (
	timeType   = reflect.TypeFor[time.Time]()
	errorType  = reflect.TypeFor[error]()
	recordType = reflect.TypeFor[kafka.Record]()
	entryType  = reflect.TypeFor[delivery.Entry]()
)

// value writes a value field by field, unexported ones too.
func (k *Keyer) value(v reflect.Value) {
	switch v.Type() {
	case timeType:
		k.moment(*(*time.Time)(v.Addr().UnsafePointer()), past) // unexported fields give no Interface
		return
	case errorType:
		k.err(*(*error)(v.Addr().UnsafePointer()))
		return
	case recordType: // its offset and its time, which tells the topic's epoch, are all of it
		k.int(v.Field(0).Int())
		k.int(v.Field(1).Int())
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		k.flag(v.Bool())
	case reflect.Int, reflect.Int32, reflect.Int64:
		k.int(v.Int())
	case reflect.Uint64, reflect.Uint8:
		k.int(int64(v.Uint()))
	case reflect.String:
		k.text(v.String())
	case reflect.Func:
		k.int(int64(v.Pointer()))
	case reflect.Pointer, reflect.Interface:
		if k.flag(!v.IsNil()); !v.IsNil() {
			k.value(v.Elem())
		}
	case reflect.Slice:
		k.int(int64(v.Len()))
		for i := range v.Len() {
			k.value(v.Index(i))
		}
	case reflect.Map:
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int {
			if a.String() < b.String() {
				return -1
			}
			return 1
		})
		k.int(int64(len(keys)))
		for _, key := range keys {
			k.text(key.String())
			k.value(v.MapIndex(key))
		}
	case reflect.Struct:
		k.structure(v)
	default:
		panic("no key of a " + v.Type().String())
	}
}

func (k *Keyer) structure(v reflect.Value) {
	of := k.layout(v.Type())
	for _, i := range of.fields {
		if i == of.version {
			k.version(v.Field(i).Int())
			continue
		}
		k.value(v.Field(i))
	}
}

// version counts from the ledger's, and never seen is never seen.
func (k *Keyer) version(n int64) {
	if k.mark != nil {
		k.mark.versions = append(k.mark.versions, n)
		return
	}
	k.flag(n == 0)
	k.int(max(n-k.entry.Version, -3))
}

// past is how long ago a moment must be to be no nearer than any other such
// one: longer than the trust horizon, which is the longest that any rule looks back.
const past = 11 * time.Minute

func (k *Keyer) moment(t time.Time, within time.Duration) {
	if k.mark != nil {
		if k.flag(t.IsZero()); !t.IsZero() {
			k.mark.moments = append(k.mark.moments, t)
		}
		return
	}
	d := t.Sub(k.now)
	if t.IsZero() {
		d = 1<<63 - 1
	} else if d < -within {
		d = -1 << 62
	}
	k.int(int64(d))
}

func (k *Keyer) err(err error) {
	var e *delivery.Error
	switch {
	case err == nil:
		k.int(0)
	case errors.Is(err, delivery.ErrConflict):
		k.int(1)
	case errors.As(err, &e):
		k.int(int64(e.Kind) + 2)
		k.text(string(e.Reason))
	default:
		k.int(2)
	}
}

func (k *Keyer) counts(m map[int64]int) {
	k.int(int64(len(m)))
	for _, o := range ascending(k, m) {
		k.int(o)
		k.int(int64(m[o]))
	}
}

// ascending are the keys of a map; the slice is the keyer's.
func ascending[V any](k *Keyer, m map[int64]V) []int64 {
	k.sorted = k.sorted[:0]
	for o := range m {
		k.sorted = append(k.sorted, o)
	}
	slices.Sort(k.sorted)
	return k.sorted
}

func (k *Keyer) set(s offsets.Set) {
	k.int(int64(len(s)))
	for _, r := range s {
		k.int(r.First)
		k.int(r.Last)
	}
}

func (k *Keyer) text(s string) {
	k.int(int64(len(s)))
	k.buf = append(k.buf, s...)
}

func (k *Keyer) key(key Key) {
	k.buf = binary.LittleEndian.AppendUint64(k.buf, key[0])
	k.buf = binary.LittleEndian.AppendUint64(k.buf, key[1])
}

func (k *Keyer) int(n int64) { k.buf = binary.AppendVarint(k.buf, n) }

func (k *Keyer) flag(b bool) {
	if b {
		k.buf = append(k.buf, 1)
	} else {
		k.buf = append(k.buf, 0)
	}
}
