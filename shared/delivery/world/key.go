package world

import (
	"encoding/binary"
	"errors"
	"maps"
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
	fields map[reflect.Type][]int
	buf    []byte
	now    time.Time
	entry  *delivery.Entry
}

// NewKeyer returns a keyer.
func NewKeyer() *Keyer { return &Keyer{fields: map[reflect.Type][]int{}} }

// Key is the key of the whole state.
func (k *Keyer) Key(w *World) Key {
	k.begin(w)
	head := len(k.buf)
	var live [][]byte
	for _, v := range w.Live {
		begun := len(k.buf)
		k.invocation(w, v)
		live = append(live, slices.Clone(k.buf[begun:]))
	}
	k.buf = k.buf[:head]
	slices.SortFunc(live, slices.Compare)
	for _, l := range live {
		k.int(int64(len(l)))
		k.buf = append(k.buf, l...)
	}
	return k.sum()
}

// Surroundings is the key of the state without its invocations.
func (k *Keyer) Surroundings(w *World) Key {
	k.begin(w)
	return k.sum()
}

func (k *Keyer) sum() Key {
	first := xxhash.Sum64(k.buf)
	k.buf = binary.LittleEndian.AppendUint64(k.buf, first)
	return Key{first, xxhash.Sum64(k.buf)}
}

func (k *Keyer) begin(w *World) {
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
		k.moment(f.Until, 0)
		k.value(reflect.ValueOf(f.Left))
	}
	k.int(-2)
	for i := range w.delayed {
		if e := &w.delayed[i]; e.Version == w.Entry.Version+1 { // the condition of others fails
			k.value(reflect.ValueOf(e).Elem())
		}
	}
	for _, o := range slices.Sorted(maps.Keys(w.Letters)) {
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
}

func (k *Keyer) invocation(w *World, v *Invocation) {
	m := reflect.ValueOf(v.Machine).Elem()
	k.value(m)
	k.flag(m.FieldByName("inv").FieldByName("Cached").IsNil())
	k.int(int64(v.Step.Op))
	// What is to be written, and what follows it, counts while it is awaited.
	if op := v.Step.Op; op == delivery.OpLoad || op == delivery.OpWrite {
		for _, field := range []string{"pending", "onLanded", "unwritten"} {
			k.value(m.FieldByName(field))
		}
	}
	k.moment(v.Step.Until, past)
	k.set(v.Step.Offsets)
	k.moment(v.Ends, past)
	k.int(int64(v.topic))
	k.int(int64(v.epoch))
	k.int(int64(v.skew))
	k.set(v.Batch)
	// Names are left out: whether the ledger's writer is this one is all that
	// they are read for.
	writer := m.FieldByName("pending").FieldByName("Writer").String()
	k.flag(v.Step.Op == delivery.OpLoad && writer == w.Entry.Writer)
	for i := range w.delayed {
		k.flag(v.Step.Op == delivery.OpLoad && writer == w.delayed[i].Writer)
	}
}

// unread are the fields that no decision reads.
var unread = map[string][]string{ //nolint:gochecknoglobals // a constant table
	"Machine":    {"rules", "now", "tally", "pass", "sent", "writes", "ownSource", "pending", "onLanded", "unwritten"},
	"Invocation": {"Lane", "Writer", "Cached"},
	"Entry":      {"Writer"},
	"Refusal":    {"Code", "Message", "Column"},
}

// plan is which fields of a struct count.
func (k *Keyer) plan(t reflect.Type) []int {
	if plan, ok := k.fields[t]; ok {
		return plan
	}
	var plan []int
	skip := unread[t.Name()]
	found := 0
	for i := range t.NumField() {
		if slices.Contains(skip, t.Field(i).Name) {
			found++
			continue
		}
		plan = append(plan, i)
	}
	if found != len(skip) {
		panic("unread fields of " + t.Name() + " are not there")
	}
	k.fields[t] = plan
	return plan
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
	for _, i := range k.plan(v.Type()) {
		if v.Type() == entryType && v.Type().Field(i).Name == "Version" {
			k.version(v.Field(i).Int())
			continue
		}
		k.value(v.Field(i))
	}
}

// version counts from the ledger's, and never seen is never seen.
func (k *Keyer) version(n int64) {
	k.flag(n == 0)
	k.int(max(n-k.entry.Version, -3))
}

// past is how long ago a moment must be to be no nearer than any other such
// one: longer than the trust horizon, which is the longest that any rule looks back.
const past = 11 * time.Minute

func (k *Keyer) moment(t time.Time, within time.Duration) {
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
	for _, o := range slices.Sorted(maps.Keys(m)) {
		k.int(o)
		k.int(int64(m[o]))
	}
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

func (k *Keyer) int(n int64) { k.buf = binary.AppendVarint(k.buf, n) }

func (k *Keyer) flag(b bool) {
	if b {
		k.buf = append(k.buf, 1)
	} else {
		k.buf = append(k.buf, 0)
	}
}
