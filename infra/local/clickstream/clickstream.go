// Package clickstream makes up the click stream that the demo, the benchmarks
// and the sample events use. The index of a record determines everything in it,
// so that whoever verifies a table recomputes what a row must hold instead of
// remembering it:
//
//	g := clickstream.Generator{Seed: 1, Size: 300, PoisonEvery: 500, TombstoneEvery: 1000}
//	for i := range int64(1_000_000) {
//		produce(g.Record(i)) // key, value, headers and timestamp
//	}
//	...
//	switch kind := g.Kind(i); {
//	case kind == clickstream.Good:
//		want := g.Click(i) // one row, with exactly these values
//	case kind.Poison():
//		// one dead letter, no row
//	}
//
// The table is events/clicks.sql.
package clickstream

import (
	"encoding/hex"
	"slices"
	"strconv"
	"time"

	"oncehouse/shared/kafka"
)

// MinSize is the smallest size of a value that holds every field.
const MinSize = 300

// Generator makes records from their index. It is a value, safe for concurrent
// use; two with equal fields make equal records.
type Generator struct {
	Seed uint64
	// Size is the exact length in bytes of a good record's value; below
	// MinSize it is MinSize.
	Size int
	// PoisonEvery: about one record in so many does not fit the table, the
	// kinds of poison taking turns. 0: none.
	PoisonEvery uint64
	// TombstoneEvery: about one record in so many has a null value. 0: none.
	TombstoneEvery uint64
}

// Click is what a good record's value says.
type Click struct {
	EventID    [16]byte
	UserID     uint64
	Session    string
	URL        string
	Referrer   string    // "" is null
	Time       time.Time // UTC, whole milliseconds
	DurationMS uint32
	PriceCents int64
	Tags       []string
	Props      []Prop
}

// Prop is one member of props.
type Prop struct{ Name, Value string }

// UUID is the event id as text.
func (c *Click) UUID() string { return string(appendUUID(nil, c.EventID)) }

// Price is the price as decimal text with two fraction digits.
func (c *Click) Price() string { return string(appendPrice(nil, c.PriceCents)) }

// start is chosen so that a million records cross the end of a month: the
// table has one part for each.
var start = time.Date(2025, 6, 30, 18, 0, 0, 0, time.UTC).UnixMilli()

const millisBetween = 37

// The texts that clicks are made of. No text of filler needs an escape in JSON.
var (
	paths     = []string{"/", "/cart", "/search?q=shoes", "/search?q=b&sort=asc", "/checkout", "/help/returns"}
	referrers = []string{"", "", "https://duck.example/", "https://mail.example/", "https://shop.example/"}
	tagSets   = [][]string{{}, {"new"}, {"mobile"}, {"sale", "mobile"}, {"vip", "sale"}, {"café"}}
	devices   = []string{"phone", "tablet", "desk"}
	cities    = []string{"Zürich", "Lagos", "Quito", "東京", "Leeds"}
	fillers   = []struct {
		name string
		most int
	}{{"ua", 120}, {"title", 80}, {"search", 140}, {"cookie", 280}, {"experiments", 280}, {"trace", 1 << 30}}
)

const filler = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Safari/537.36; " +
	"sid=7d1e90c2a4; theme=dark; lang=en-GB; consent=analytics+ads; cart=3; last=/p/48213; " +
	"Running shoes, waterproof, size 42 - free returns within ~30 days; exp_checkout=b; exp_nav=a; " +
	"exp_price_badge=control; utm_source=newsletter+utm_campaign=summer; span=00f067aa0ba902b7; "

// Click is the content of record i, also where Kind says that its value was
// then spoiled.
func (g Generator) Click(i int64) Click {
	h := g.hash(i, saltClick)
	user := g.hash(i, saltUser) % 2_000_000
	c := Click{
		UserID:     user + 1,
		Session:    hex8(mix(user ^ uint64(i>>16))),
		URL:        g.url(i),
		Referrer:   pick(referrers, h),
		Time:       time.UnixMilli(g.Timestamp(i) - int64(h>>8%5000)).UTC(),
		DurationMS: uint32(h >> 24 % 100_000),
		PriceCents: int64(h >> 40 % 100_000),
		Tags:       pick(tagSets, h>>12),
	}
	for b := range 8 {
		c.EventID[b] = byte(h >> (8 * b))
		c.EventID[8+b] = byte(mix(h) >> (8 * b))
	}
	c.EventID[6] = c.EventID[6]&0x0f | 0x40 // RFC 9562: version 4
	c.EventID[8] = c.EventID[8]&0x3f | 0x80 // and its variant
	c.Props = g.props(h, c)
	return c
}

// props fills the value up to the generator's size.
func (g Generator) props(h uint64, c Click) []Prop {
	props := make([]Prop, 0, 8)
	props = append(props, Prop{"device", pick(devices, h>>16)})
	size := max(g.Size, MinSize)
	if size >= 2*MinSize {
		props = append(props, Prop{"city", pick(cities, h>>20)})
	}
	c.Props = props
	room := size - len(appendClick(make([]byte, 0, 512), &c))
	at := int(h>>28) % len(filler)
	for _, f := range fillers {
		room -= len(`,"":""`) + len(f.name)
		take := min(room, f.most)
		if room-take < 40 { // too little for the next one
			take = room
		}
		props = append(props, Prop{f.name, text(at, take)})
		at = (at + take) % len(filler)
		if room -= take; room == 0 {
			break
		}
	}
	return props
}

// text is n bytes of the filler from at on, over and over.
func text(at, n int) string {
	if at+n <= len(filler) {
		return filler[at : at+n]
	}
	b := make([]byte, 0, n)
	for len(b) < n {
		b = append(b, filler[at:min(len(filler), at+n-len(b))]...)
		at = 0
	}
	return string(b)
}

func (g Generator) url(i int64) string {
	h := g.hash(i, saltURL)
	if h%4 == 0 {
		return pick(paths, h>>8)
	}
	return "/product/" + strconv.FormatUint(h>>8%1_000_000, 10)
}

// Timestamp is the record's, in milliseconds.
func (Generator) Timestamp(i int64) int64 { return start + i*millisBetween }

// Key appends the key of record i: its user.
func (g Generator) Key(dst []byte, i int64) []byte {
	dst = append(dst, "user-"...)
	return strconv.AppendUint(dst, g.hash(i, saltUser)%2_000_000+1, 10)
}

// Headers are those of record i: where it comes from, and in one of eight
// records a trace id of any eight bytes.
func (g Generator) Headers(i int64) []kafka.Header {
	headers := []kafka.Header{{Key: []byte("source"), Value: []byte("web")}}
	if h := g.hash(i, saltTrace); h%8 == 0 {
		id := mix(h)
		trace := make([]byte, 8)
		for b := range trace {
			trace[b] = byte(id >> (8 * b))
		}
		headers = append(headers, kafka.Header{Key: []byte("trace"), Value: trace})
	}
	return headers
}

// Value appends the value of record i as its Kind says; nothing for a
// Tombstone, whose value is null, and for Empty.
func (g Generator) Value(dst []byte, i int64) []byte {
	kind := g.Kind(i)
	if kind == Tombstone || kind == Empty {
		return dst
	}
	c := g.Click(i)
	if kind == Good {
		return appendClick(dst, &c)
	}
	return append(dst, spoil(kind, string(appendClick(nil, &c)), &c)...)
}

// Record is record i. Its offset is for whoever produces it.
func (g Generator) Record(i int64) kafka.Record {
	r := kafka.Record{Timestamp: g.Timestamp(i), Key: g.Key(nil, i), Headers: g.Headers(i)}
	if g.Kind(i) != Tombstone {
		r.Value = g.Value(make([]byte, 0, max(g.Size, MinSize)), i)
	}
	return r
}

// Batch is the records first..first+n-1 at the offsets from offset on.
func (g Generator) Batch(tp kafka.TopicPartition, offset, first int64, n int) kafka.Batch {
	batch := kafka.Batch{TopicPartition: tp, Records: make([]kafka.Record, n)}
	for k := range batch.Records {
		batch.Records[k] = g.Record(first + int64(k))
		batch.Records[k].Offset = offset + int64(k)
	}
	return batch
}

func appendClick(dst []byte, c *Click) []byte {
	dst = append(dst, `{"event_id":"`...)
	dst = appendUUID(dst, c.EventID)
	dst = append(dst, `","user_id":`...)
	dst = strconv.AppendUint(dst, c.UserID, 10)
	dst = appendMember(dst, `,"session":`, c.Session)
	dst = appendMember(dst, `,"url":`, c.URL)
	if c.Referrer == "" {
		dst = append(dst, `,"referrer":null`...)
	} else {
		dst = appendMember(dst, `,"referrer":`, c.Referrer)
	}
	dst = append(dst, `,"ts":"`...)
	dst = c.Time.AppendFormat(dst, "2006-01-02T15:04:05.000Z")
	dst = append(dst, `","duration_ms":`...)
	dst = strconv.AppendUint(dst, uint64(c.DurationMS), 10)
	dst = append(dst, `,"price":`...)
	dst = appendPrice(dst, c.PriceCents)
	dst = append(dst, `,"tags":[`...)
	for i, tag := range c.Tags {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, tag)
	}
	dst = append(dst, `],"props":{`...)
	for i, p := range c.Props {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, p.Name)
		dst = appendMember(dst, ":", p.Value)
	}
	return append(dst, "}}"...)
}

func appendMember(dst []byte, name, value string) []byte {
	return appendString(append(dst, name...), value)
}

// appendString writes & as an escape, as encoding/json does: an encoder that
// does not resolve escapes would show.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := range len(s) {
		if s[i] == '&' {
			dst = append(dst, `\u0026`...)
			continue
		}
		dst = append(dst, s[i])
	}
	return append(dst, '"')
}

func appendUUID(dst []byte, id [16]byte) []byte {
	for i, part := range [][]byte{id[:4], id[4:6], id[6:8], id[8:10], id[10:]} {
		if i > 0 {
			dst = append(dst, '-')
		}
		dst = hex.AppendEncode(dst, part)
	}
	return dst
}

func appendPrice(dst []byte, cents int64) []byte {
	dst = strconv.AppendInt(dst, cents/100, 10)
	return append(dst, '.', byte('0'+cents/10%10), byte('0'+cents%10))
}

func hex8(h uint64) string {
	return hex.EncodeToString([]byte{byte(h), byte(h >> 8), byte(h >> 16), byte(h >> 24)})
}

const (
	saltKind = iota + 1
	saltClick
	saltUser
	saltURL
	saltTrace
)

func (g Generator) hash(i int64, salt uint64) uint64 {
	return mix(mix(g.Seed+salt<<56) + uint64(i))
}

// mix is the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func pick[T any](from []T, h uint64) T { return from[h%uint64(len(from))] }

// Kinds are all kinds of record, Good first.
func Kinds() []Kind {
	return slices.Collect(func(yield func(Kind) bool) {
		for k := Good; k < kinds && yield(k); k++ {
		}
	})
}
