package mapping

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncehouse/shared/kafka"
)

// item is a polled record with its size in an event.
type item struct {
	*kgo.Record
	size int
}

// partition is the state of one partition while it is assigned. A rewind or a
// rebalance replaces it: an invocation that still holds the old one is a
// zombie. Guarded by Mapping.mu; tp and poller never change.
type partition struct {
	tp     kafka.TopicPartition
	poller int
	// queue holds the polled records that are not settled, ascending. The
	// first inFlight of them are part of an event.
	queue    []item
	inFlight int
	// bytes is the size of the queue's records in an event.
	bytes int
	// busy: an event holds the partition, back-off included.
	busy bool
	// lost: the state was replaced; nothing of it counts any more.
	lost bool
	// polled is the offset after the last polled record, transaction markers
	// included, committed the one that the group holds. -1: not yet known.
	polled, committed int64
	// failed is how often the head of the queue failed, for events that are
	// cut anew.
	failed int
	// cut is the size that Recut chose for the next batch; 0 for none.
	cut int
	// since is when the records at hand began to wait.
	since         time.Time
	highWatermark int64
	paused        bool
}

func newPartition(tp kafka.TopicPartition, pollers int) *partition {
	return &partition{tp: tp, poller: int(tp.Partition) % pollers, polled: -1, committed: -1}
}

// ready reports whether records can be sent.
func (p *partition) ready() bool { return !p.busy && len(p.queue) > 0 }

// next is the offset to commit: that of the first unsettled record, or where
// polling goes on.
func (p *partition) next() int64 {
	if len(p.queue) > 0 {
		return p.queue[0].Offset
	}
	return p.polled
}

// settle takes the first n records off the queue.
func (p *partition) settle(n int) {
	for _, it := range p.queue[:n] {
		p.bytes -= it.size
	}
	clear(p.queue[:n]) // events hold copies
	p.queue = p.queue[n:]
	p.inFlight -= n
}

// part is the records of one partition in one event, in order.
type part struct {
	p     *partition
	items []item
}

// batch describes the part to hooks and observers.
func (q part) batch() Batch {
	return Batch{TopicPartition: q.p.tp, First: q.items[0].Offset, Last: q.items[len(q.items)-1].Offset, Count: len(q.items)}
}

// event is what one invocation gets: no part is empty.
type event struct {
	parts []part
	// failed is how often it failed.
	failed int
	// oversize: its one record does not fit into any event.
	oversize bool
}

func (ev *event) batches() []Batch {
	out := make([]Batch, len(ev.parts))
	for i, q := range ev.parts {
		out[i] = q.batch()
	}
	return out
}

func (ev *event) records() int {
	n := 0
	for _, q := range ev.parts {
		n += len(q.items)
	}
	return n
}

// split cuts the event in halves. The second begins in the partition in which
// the first ends, or in the one after it.
func (ev *event) split() (first, second event) {
	left := ev.records() / 2
	first.failed, second.failed = ev.failed, ev.failed
	for _, q := range ev.parts {
		n := min(left, len(q.items))
		left -= n
		if n > 0 {
			first.parts = append(first.parts, part{q.p, q.items[:n]})
		}
		if n < len(q.items) {
			second.parts = append(second.parts, part{q.p, q.items[n:]})
		}
	}
	return first, second
}

// cut makes an event of the ready partitions' records and marks them in
// flight. Each gets an even share first; what is left goes to those that have
// more. The result is empty when nothing is ready.
func cut(ready []*partition, format *payloadFormat, maxRecords, maxBytes int) event {
	var ev event
	// A comma is counted behind every record; the last one of an event has none.
	room := maxBytes - len(format.head) - len(payloadTail) + len(",")
	taken := make([]int, len(ready))
	left := maxRecords
	share := (maxRecords + len(ready) - 1) / max(1, len(ready))
	for _, quota := range []int{share, maxRecords} {
		for i, p := range ready {
			n, bytes := p.take(taken[i], min(quota-taken[i], left), room, format)
			taken[i] += n
			left -= n
			room -= bytes
		}
	}
	for i, p := range ready {
		if taken[i] == 0 {
			continue
		}
		ev.parts = append(ev.parts, p.fly(taken[i]))
		ev.failed = max(ev.failed, p.failed)
	}
	if len(ev.parts) == 0 && len(ready) > 0 { // its first record alone is too large
		ev = event{parts: []part{ready[0].fly(1)}, oversize: true}
	}
	return ev
}

// take counts how many records after the first skip fit, and their bytes with
// all that goes around them.
func (p *partition) take(skip, most, room int, format *payloadFormat) (n, bytes int) {
	if p.cut > 0 {
		most = min(most, p.cut-skip)
	}
	for n < most && skip+n < len(p.queue) {
		size := p.queue[skip+n].size + len(",")
		if skip+n == 0 {
			size += format.partSize(p)
		}
		if bytes+size > room {
			break
		}
		bytes += size
		n++
	}
	return n, bytes
}

// fly marks the first n records in flight.
func (p *partition) fly(n int) part {
	p.busy, p.inFlight, p.cut = true, n, 0
	return part{p, append([]item(nil), p.queue[:n]...)}
}
