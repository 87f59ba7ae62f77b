package mapping

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncehouse/infra/local/lambdahost"
)

// work settles one event, or gives its records back to be cut anew, and frees
// its partitions.
func (m *Mapping) work(ev event) {
	held := ev.parts
	// Halves of the event wait here, the next one last.
	for todo := []event{ev}; len(todo) > 0; {
		next := m.without(todo[len(todo)-1])
		todo = todo[:len(todo)-1]
		if len(next.parts) == 0 {
			continue
		}
		rest, ok := m.deliver(next)
		if !ok {
			break
		}
		todo = append(todo, rest...)
	}
	m.release(held)
}

// without is the event less the partitions that were lost.
func (m *Mapping) without(ev event) event {
	m.mu.Lock()
	defer m.mu.Unlock()
	ev.parts = slices.DeleteFunc(slices.Clone(ev.parts), func(q part) bool { return q.p.lost })
	return ev
}

// deliver sends an event once and settles what succeeded or is given up. It
// returns the events that remain of it, in reverse order, and false when the
// worker has to let go: the mapping stops, or the records are to be cut anew.
func (m *Mapping) deliver(ev event) (rest []event, ok bool) {
	if ev.oversize {
		return nil, m.giveUp(ev, MaximumPayloadSizeExceeded, nil)
	}
	ev, ok = m.dropAged(ev)
	if !ok || len(ev.parts) == 0 {
		return nil, ok
	}
	succeeded, result, err := m.invoke(ev)
	if m.ctx.Err() != nil {
		return nil, false
	}
	remains := m.without(m.settleEvent(ev, succeeded)) // nothing of a zombie is tried again or given up
	if len(remains.parts) == 0 {
		return nil, true
	}
	if err == nil { // the function ran: its failure counts
		if m.mayBisect(remains, succeeded) { // which uses up no attempt
			first, second := remains.split()
			return []event{second, first}, m.backOff(1)
		}
		remains.failed++
		if limit := m.cfg.retries(); limit != Infinite && remains.failed > limit {
			return nil, m.giveUp(remains, RetryAttemptsExhausted, &result)
		}
	}
	if !m.backOff(max(1, remains.failed)) {
		return nil, false
	}
	remains = m.without(remains)
	return []event{remains}, !m.recut(remains)
}

// mayBisect reports whether a failed event is cut in halves: when all of it
// failed and there is something to cut.
func (m *Mapping) mayBisect(remains event, succeeded []int) bool {
	return m.cfg.BisectBatchOnFunctionError && remains.records() > 1 && !slices.ContainsFunc(succeeded, func(n int) bool { return n > 0 })
}

// invoke runs the function. It returns how many records of each part
// succeeded; err is the error of an invocation that did not come about.
func (m *Mapping) invoke(ev event) ([]int, lambdahost.Result, error) {
	payload := m.format.event(&ev)
	batches := ev.batches()
	if m.cfg.Duplicate != nil && m.cfg.Duplicate(batches) {
		m.workers.Go(func() {
			result, err := m.cfg.Function.Invoke(m.ctx, payload)
			m.observe(Delivery{Batches: batches, Attempt: ev.failed + 1, Duplicate: true, Result: result, Err: err})
		})
	}
	result, err := m.cfg.Function.Invoke(m.ctx, payload)
	succeeded := make([]int, len(ev.parts))
	failed := err != nil || result.FunctionError != ""
	if !failed {
		succeeded, failed = m.read(ev, result.Payload)
	}
	settled := 0
	for _, n := range succeeded {
		settled += n
	}
	m.count(func(c *Metrics) {
		c.Invocations++
		c.InvokedEventCount += int64(ev.records())
		if failed {
			c.FailedInvokeEventCount += int64(ev.records() - settled)
		}
		if err != nil {
			c.InvokeErrorCount++
		}
	})
	m.observe(Delivery{Batches: batches, Attempt: ev.failed + 1, Result: result, Err: err, Settled: succeeded})
	return succeeded, result, err
}

// read is what the answer of a function without an error settles.
func (m *Mapping) read(ev event, answer []byte) (succeeded []int, failed bool) {
	if !m.cfg.ReportBatchItemFailures {
		answer = nil // not read: all is well
	}
	succeeded, err := failures(&ev, answer)
	if err != nil {
		m.cfg.Log.Warn("answer not understood, the event failed", "topic", m.cfg.Topic, "error", err)
		return make([]int, len(ev.parts)), true
	}
	for i, q := range ev.parts {
		failed = failed || succeeded[i] < len(q.items)
	}
	return succeeded, failed
}

// settleEvent commits the first records of each part and returns what remains.
// Progress starts the attempts anew.
func (m *Mapping) settleEvent(ev event, succeeded []int) event {
	remains := event{failed: ev.failed}
	var settled []part
	stuck := false
	for i, q := range ev.parts {
		n := succeeded[i]
		if n > 0 {
			settled = append(settled, part{q.p, q.items[:n]})
		}
		if n < len(q.items) {
			remains.parts = append(remains.parts, part{q.p, q.items[n:]})
			stuck = stuck || n == 0
		}
	}
	if !stuck {
		remains.failed = 0
	}
	m.settle(settled)
	return remains
}

// settle takes records off their queues and commits. For a lost partition that
// changes a state that nobody reads any more.
func (m *Mapping) settle(parts []part) {
	done := make([]*partition, 0, len(parts))
	m.mu.Lock()
	for _, q := range parts {
		q.p.settle(len(q.items))
		q.p.failed = 0
		done = append(done, q.p)
	}
	m.mu.Unlock()
	m.commit(done)
	m.wakeUp() // paused partitions may have run low
}

// commit commits what is settled of the given partitions, unless they were
// lost. A failure is counted and made good by commitIdle.
func (m *Mapping) commit(partitions []*partition) {
	m.committing.Lock()
	defer m.committing.Unlock()
	offsets := map[int32]kgo.EpochOffset{}
	m.mu.Lock()
	for _, p := range partitions {
		if !p.lost && p.next() >= 0 {
			offsets[p.tp.Partition] = kgo.EpochOffset{Epoch: -1, Offset: p.next()}
		}
	}
	m.mu.Unlock()
	if len(offsets) == 0 {
		return
	}
	var failed error
	m.client.CommitOffsetsSync(m.ctx, map[string]map[int32]kgo.EpochOffset{m.cfg.Topic: offsets},
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
			failed = commitError(resp, err)
		})
	if failed != nil {
		if m.ctx.Err() == nil {
			m.count(func(c *Metrics) { c.CommitErrorCount++ })
			m.cfg.Log.Warn("commit failed", "topic", m.cfg.Topic, "error", failed)
		}
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range partitions {
		if at, ok := offsets[p.tp.Partition]; ok {
			p.committed = at.Offset
		}
	}
}

// dropAged gives up the records at the head of each partition that are too old.
func (m *Mapping) dropAged(ev event) (event, bool) {
	if m.cfg.MaximumRecordAge == 0 {
		return ev, true
	}
	oldest := time.Now().Add(-m.cfg.MaximumRecordAge)
	young := event{failed: ev.failed}
	aged := event{failed: ev.failed}
	for _, q := range ev.parts {
		n := slices.IndexFunc(q.items, func(it item) bool { return !it.Timestamp.Before(oldest) })
		if n < 0 {
			n = len(q.items)
		}
		if n > 0 {
			aged.parts = append(aged.parts, part{q.p, q.items[:n]})
		}
		if n < len(q.items) {
			young.parts = append(young.parts, part{q.p, q.items[n:]})
		}
	}
	if len(aged.parts) > 0 && !m.giveUp(aged, RecordAgeExceeded, nil) {
		return ev, false
	}
	return young, true
}

// giveUp sends the event's metadata to the destination, for as long as it
// takes, and settles its records. false: the mapping stopped first.
func (m *Mapping) giveUp(ev event, condition string, last *lambdahost.Result) bool {
	if m.cfg.OnFailure != nil {
		metadata := m.failureMetadata(&ev, condition, last)
		for failed := 1; ; failed++ {
			err := m.cfg.OnFailure.Send(m.ctx, metadata)
			if err == nil {
				break
			}
			m.cfg.Log.Warn("on-failure destination failed", "topic", m.cfg.Topic, "error", err)
			if !m.backOff(failed) {
				return false
			}
		}
	}
	n := int64(ev.records())
	m.count(func(c *Metrics) {
		c.DroppedEventCount += n
		if m.cfg.OnFailure != nil {
			c.OnFailureDestinationDeliveredEventCount += n
		}
	})
	m.settle(ev.parts)
	return true
}

// recut asks for other boundaries. true: at least one partition gets some, and
// the records go back to their queues.
func (m *Mapping) recut(ev event) bool {
	if m.cfg.Recut == nil {
		return false
	}
	sizes := make([]int, len(ev.parts))
	other := false
	for i, q := range ev.parts {
		sizes[i] = max(0, m.cfg.Recut(Redelivery{Batch: q.batch(), Attempt: ev.failed}))
		other = other || (sizes[i] != 0 && sizes[i] != len(q.items))
	}
	if !other {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, q := range ev.parts {
		q.p.failed = ev.failed
		q.p.cut = cmp.Or(sizes[i], len(q.items))
	}
	return true
}

// release frees the partitions; what they have left in flight is queued again.
func (m *Mapping) release(parts []part) {
	m.mu.Lock()
	now := time.Now()
	for _, q := range parts {
		q.p.busy, q.p.inFlight, q.p.since = false, 0, now
	}
	m.running--
	m.mu.Unlock()
	m.dispatch()
}

// backOff waits after the nth failure in a row. false: the mapping stopped.
func (m *Mapping) backOff(n int) bool {
	pause := m.cfg.MaxBackoff
	if n < 30 { // beyond it would overflow
		pause = min(pause, m.cfg.Backoff<<(n-1))
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-m.ctx.Done():
		return false
	}
}

func (m *Mapping) observe(d Delivery) {
	if errors.Is(d.Err, context.Canceled) && m.ctx.Err() != nil {
		return // the mapping stopped: nobody knows how it ended
	}
	if m.cfg.OnDelivery != nil {
		m.cfg.OnDelivery(d)
	}
}

func commitError(resp *kmsg.OffsetCommitResponse, err error) error {
	if err != nil {
		return err
	}
	for _, topic := range resp.Topics {
		for _, p := range topic.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return fmt.Errorf("partition %d: %w", p.Partition, err)
			}
		}
	}
	return nil
}
