package outbox

import "strconv"

// Sizes of a record in a batch of Kafka's format 2, from above: lengths are
// varints of at most 5 bytes, and the batch has a header of 61.
const (
	batchOverhead  = 80
	recordOverhead = 36
	headerOverhead = 10
)

// maxDead bounds the dead letters of one transaction, and so what a plan lists of
// them: at most those of this attempt and as many of one before it. Each takes up to 20
// bytes of a record of the cursor topic, to which Kafka allows 1 MiB.
const maxDead = 10_000

// size is how many bytes a record takes in a batch, at most.
func (r *Record) size() int {
	n := recordOverhead + len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += headerOverhead + len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return n
}

// arena holds the small texts of one transaction's records.
type arena struct{ b []byte }

// begin is where the next text starts. A slice of it is never nil: an empty key
// is another one than none.
func (a *arena) begin() int {
	if a.b == nil {
		a.b = make([]byte, 0, 4096)
	}
	return len(a.b)
}

// since cuts off what was appended from a length on. A later growth moves the
// arena and leaves what was cut where it is.
func (a *arena) since(from int) []byte { return a.b[from:len(a.b):len(a.b)] }

func (a *arena) text(s string) []byte {
	from := a.begin()
	a.b = append(a.b, s...)
	return a.since(from)
}

func (a *arena) number(n int64) []byte {
	from := a.begin()
	a.b = strconv.AppendInt(a.b, n, 10)
	return a.since(from)
}

func (a *arena) position(window, seq int64) []byte {
	from := a.begin()
	a.b = strconv.AppendInt(a.b, window, 10)
	a.b = append(a.b, '.')
	a.b = strconv.AppendInt(a.b, seq, 10)
	return a.since(from)
}

// lane is one partition as a window writes it.
type lane struct {
	source []byte // the value of the source header
	bytes  int    // of the batch at hand
}

// target is a topic of the plan, as a window writes it.
type target struct {
	Topic
	name  string
	lanes []lane
}

// batch collects the records of one transaction. Its memory is used again by the
// next one: whoever commits it keeps nothing of it.
type batch struct {
	records []Record
	headers []Header
	arena   arena
	bytes   int
	used    []*lane // those with bytes
	// dead and tombstones count records of these kinds.
	dead, tombstones int64
	lastSeq          int64
	maxSeq           int64
	maxID            string
}

// fits tells whether a record may be added. Each partition's records stay within
// one batch of Kafka's, which is stored whole or not at all: so no record of a
// transaction can be stored behind one that was not (O33).
func (b *batch) fits(rec *Record, t *target, rules *Rules) bool {
	n := rec.size()
	return len(b.records) < rules.Rows && b.dead < maxDead && b.bytes+n <= rules.Bytes &&
		batchOverhead+t.lanes[rec.Partition].bytes+n <= int(t.MaxMessageBytes)
}

func (b *batch) add(rec Record, t *target, row *Row) {
	n := rec.size()
	l := &t.lanes[rec.Partition]
	if l.bytes == 0 {
		b.used = append(b.used, l)
	}
	l.bytes += n
	b.bytes += n
	b.records = append(b.records, rec)
	b.lastSeq = row.Seq
	if len(b.records) == 1 || row.Seq > b.maxSeq {
		b.maxSeq, b.maxID = row.Seq, row.ID
	}
}

func (b *batch) reset() {
	for _, l := range b.used {
		l.bytes = 0
	}
	clear(b.records)
	clear(b.headers)
	*b = batch{records: b.records[:0], headers: b.headers[:0], arena: arena{b.arena.b[:0]}, used: b.used[:0]}
}
