package mapping

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncehouse/shared/kafka"
)

// pollInterval is how long polling waits for records before it looks after
// offsets that could not be committed.
const pollInterval = time.Second

// poll is the one goroutine that polls, rewinds and pauses, so that no record
// polled before a rewind is taken for one after it.
func (m *Mapping) poll() {
	for m.ctx.Err() == nil {
		m.pause()
		fetches := m.pollOnce()
		m.take(fetches)
		m.rewind()
		m.client.AllowRebalance()
		m.commitIdle()
		m.dispatch()
	}
	m.client.AllowRebalance()
}

func (m *Mapping) pollOnce() kgo.Fetches {
	ctx, cancel := context.WithTimeout(m.ctx, pollInterval)
	defer cancel()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-m.wake:
			cancel()
		case <-ctx.Done():
		}
	}()
	fetches := m.client.PollRecords(ctx, MaxBatchSize)
	cancel()
	<-watched
	return fetches
}

// take puts polled records into their queues.
func (m *Mapping) take(fetches kgo.Fetches) {
	now := time.Now()
	fetches.EachError(func(topic string, p int32, err error) {
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, kgo.ErrClientClosed) {
			return
		}
		m.count(func(c *Metrics) { c.PollingErrorCount++ })
		m.cfg.Log.Warn("poll failed", "topic", topic, "partition", p, "error", err)
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	fetches.EachPartition(func(f kgo.FetchTopicPartition) {
		p := m.partitions[kafka.TopicPartition{Topic: f.Topic, Partition: f.Partition}]
		if p == nil || f.Err != nil {
			return
		}
		p.highWatermark = f.HighWatermark
		if len(p.queue) == p.inFlight {
			p.since = now
		}
		for _, r := range f.Records {
			if p.polled < 0 && p.committed < 0 {
				p.committed = r.Offset // nothing below it is ours to settle
			}
			p.polled = r.Offset + 1
			if r.Attrs.IsControl() {
				continue
			}
			it := item{r, m.format.recordSize(r)}
			p.queue = append(p.queue, it)
			p.bytes += it.size
			m.metrics.PolledEventCount++
		}
	})
}

// pause stops fetching for partitions with enough records at hand and goes on
// with those that ran low: one that waits for a retry does not fill the memory,
// and does not hold up the others.
func (m *Mapping) pause() {
	stop, resume := map[string][]int32{}, map[string][]int32{}
	m.mu.Lock()
	enough := 2 * max(m.cfg.BatchSize, 500)
	for tp, p := range m.partitions {
		full := len(p.queue) >= enough || p.bytes >= 2*m.cfg.PayloadLimit
		low := len(p.queue) < enough/2 && p.bytes < m.cfg.PayloadLimit
		switch {
		case !p.paused && full:
			stop[tp.Topic] = append(stop[tp.Topic], tp.Partition)
			p.paused = true
		case p.paused && low:
			resume[tp.Topic] = append(resume[tp.Topic], tp.Partition)
			p.paused = false
		}
	}
	m.mu.Unlock()
	if len(stop) > 0 {
		m.client.PauseFetchPartitions(stop)
	}
	if len(resume) > 0 {
		m.client.ResumeFetchPartitions(resume)
	}
}

// rewind performs the calls of Redeliver.
func (m *Mapping) rewind() {
	m.mu.Lock()
	todo := m.rewinds
	m.rewinds = nil
	m.mu.Unlock()
	for _, r := range todo {
		r.done <- m.rewindOne(r)
	}
}

func (m *Mapping) rewindOne(r rewind) error {
	start, err := m.admin.ListStartOffsets(m.ctx, r.tp.Topic)
	if err != nil {
		return fmt.Errorf("ask for the start: %w", err)
	}
	m.mu.Lock()
	old := m.partitions[r.tp]
	settled := int64(-1)
	if old != nil {
		settled = old.next()
	}
	m.mu.Unlock()
	if old == nil {
		return errors.New("the partition is not assigned")
	}
	if settled < 0 {
		return errors.New("nothing of the partition is settled yet")
	}
	to := settled - r.n
	if s, ok := start.Lookup(r.tp.Topic, r.tp.Partition); ok && s.Err == nil {
		to = max(to, s.Offset)
	}
	to = max(to, 0)
	m.lose(func(p *partition) bool { return p == old })
	fresh := newPartition(r.tp, m.cfg.Pollers)
	fresh.polled, fresh.committed, fresh.highWatermark, fresh.paused = to, to, old.highWatermark, old.paused
	if m.cfg.Recut != nil && to < settled {
		again := Batch{TopicPartition: r.tp, First: to, Last: settled - 1, Count: int(settled - to)}
		fresh.cut = max(0, m.cfg.Recut(Redelivery{Batch: again}))
	}
	m.mu.Lock()
	m.partitions[r.tp] = fresh
	m.mu.Unlock()
	m.client.SetOffsets(map[string]map[int32]kgo.EpochOffset{r.tp.Topic: {r.tp.Partition: {Epoch: -1, Offset: to}}})
	return nil
}

// commitIdle commits where polling went on without a record to deliver
// (transaction markers) and where a commit failed before.
func (m *Mapping) commitIdle() {
	var idle []*partition
	m.mu.Lock()
	for _, p := range m.partitions {
		if !p.busy && p.next() > p.committed {
			idle = append(idle, p)
		}
	}
	m.mu.Unlock()
	m.commit(idle)
}

// dispatch sends what can be sent.
func (m *Mapping) dispatch() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for poller := range m.cfg.Pollers {
		m.dispatchPoller(poller)
	}
}

func (m *Mapping) dispatchPoller(poller int) {
	for !m.draining {
		if m.cfg.MaxConcurrency > 0 && m.running >= m.cfg.MaxConcurrency {
			return
		}
		ready := m.ready(poller)
		if len(ready) == 0 || !m.enough(ready) {
			return
		}
		ev := cut(ready, &m.format, m.cfg.BatchSize, m.cfg.PayloadLimit)
		m.running++
		m.workers.Go(func() { m.work(ev) })
	}
}

// ready are the poller's partitions with records to send, those that waited
// longest first.
func (m *Mapping) ready(poller int) []*partition {
	var out []*partition
	for _, p := range m.partitions {
		if p.poller == poller && p.ready() {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *partition) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.tp.Partition, b.tp.Partition))
	})
	return out
}

// enough reports whether an event may be sent now. When it has to wait for the
// batching window, the end of the window is set to dispatch again.
func (m *Mapping) enough(ready []*partition) bool {
	records, bytes, again := 0, len(m.format.head), false
	for _, p := range ready {
		records += len(p.queue)
		bytes += p.bytes
		again = again || p.failed > 0 || p.cut > 0 // records that waited before do not wait again
	}
	wait := time.Until(ready[0].since.Add(m.cfg.MaximumBatchingWindow))
	if again || wait <= 0 || records >= m.cfg.BatchSize || bytes >= m.cfg.PayloadLimit {
		return true
	}
	if m.window == nil {
		m.window = time.AfterFunc(wait, m.dispatch)
	} else {
		m.window.Reset(wait)
	}
	return false
}
