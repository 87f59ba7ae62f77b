package mapping

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncehouse/shared/kafka"
)

// ErrStopped is what waits end with when the mapping is stopped.
var ErrStopped = errors.New("mapping is stopped")

// Mapping is a running event source mapping. Its methods may be called
// concurrently.
type Mapping struct {
	cfg       Config
	format    payloadFormat
	bootstrap string
	client    *kgo.Client
	admin     *kadm.Client

	// ctx ends with Stop; polling ends with Shutdown already.
	ctx      context.Context
	stop     context.CancelFunc
	wake     chan struct{}
	polling  sync.WaitGroup
	workers  sync.WaitGroup
	stopOnce sync.Once

	// committing is held around a commit and when partitions are lost: commits
	// arrive in order, and none of a lost partition comes after.
	committing sync.Mutex

	mu         sync.Mutex
	partitions map[kafka.TopicPartition]*partition
	rewinds    []rewind
	running    int
	draining   bool
	window     *time.Timer
	metrics    Metrics
}

// Start joins the consumer group and begins to poll. ctx bounds the start, not
// the mapping. Errors: every problem of the configuration at once, or no
// broker answers.
func Start(ctx context.Context, cfg Config) (*Mapping, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	format, err := newPayloadFormat(&cfg)
	if err != nil {
		return nil, err
	}
	m := &Mapping{
		cfg: cfg, format: format, bootstrap: strings.Join(cfg.Brokers, ","),
		wake: make(chan struct{}, 1), partitions: map[kafka.TopicPartition]*partition{},
	}
	if m.client, err = kgo.NewClient(append(m.clientOptions(), cfg.Options...)...); err != nil {
		return nil, fmt.Errorf("configure the Kafka client: %w", err)
	}
	if err := m.client.Ping(ctx); err != nil {
		m.client.Close()
		return nil, fmt.Errorf("connect to %s: %w", m.bootstrap, err)
	}
	m.admin = kadm.NewClient(m.client)
	m.ctx, m.stop = context.WithCancel(context.Background())
	m.polling.Go(m.poll)
	return m, nil
}

func (m *Mapping) clientOptions() []kgo.Opt {
	start := kgo.NewOffset().AtStart()
	if !m.cfg.StartingTimestamp.IsZero() {
		start = kgo.NewOffset().AfterMilli(m.cfg.StartingTimestamp.UnixMilli())
	}
	isolation := kgo.ReadUncommitted()
	if m.cfg.ReadCommitted {
		isolation = kgo.ReadCommitted()
	}
	return []kgo.Opt{
		kgo.SeedBrokers(m.cfg.Brokers...),
		kgo.ConsumerGroup(m.cfg.Group),
		kgo.ConsumeTopics(m.cfg.Topic),
		kgo.ConsumeStartOffset(start),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(isolation),
		kgo.FetchMaxWait(500 * time.Millisecond),
		kgo.KeepControlRecords(), // their offsets are part of the position
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(10 * time.Second),
		kgo.HeartbeatInterval(time.Second),
		kgo.OnPartitionsAssigned(m.assigned),
		kgo.OnPartitionsRevoked(m.revoked),
		kgo.OnPartitionsLost(m.revoked),
	}
}

// Stop ends the mapping as a crash would: no more commits, and invocations
// under way are left to themselves. It leaves the group, so that the next
// mapping need not wait for a session to expire.
func (m *Mapping) Stop() {
	m.stopOnce.Do(func() {
		m.mu.Lock()
		m.draining = true
		if m.window != nil {
			m.window.Stop()
		}
		m.mu.Unlock()
		m.stop()
		m.lose(func(*partition) bool { return true })
		m.polling.Wait()
		m.workers.Wait()
		m.client.CloseAllowingRebalance()
	})
}

// Shutdown ends the mapping in order: it sends no more events, waits while ctx
// lasts until those under way are settled and committed, and stops. Error: ctx
// ended first.
func (m *Mapping) Shutdown(ctx context.Context) error {
	m.mu.Lock()
	m.draining = true
	m.mu.Unlock()
	settled := make(chan struct{})
	go func() {
		m.workers.Wait()
		close(settled)
	}()
	var err error
	select {
	case <-settled:
	case <-ctx.Done():
		err = fmt.Errorf("shut down the mapping of %s: %w: events were left unsettled", m.cfg.Topic, ctx.Err())
	}
	m.Stop()
	<-settled
	return err
}

// Drained waits until the group has committed everything that the topic held
// at the time of the call. Error: ctx ended first (the message says how much
// was missing), the mapping was stopped, or the broker does not answer.
func (m *Mapping) Drained(ctx context.Context) error {
	end, err := m.ends(ctx)
	if err != nil {
		return err
	}
	const interval = 20 * time.Millisecond
	for missing := int64(-1); ; {
		now, err := m.missing(ctx, end)
		if err == nil {
			missing = now
		}
		switch {
		case missing == 0:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("wait for %s to be drained, %d offsets to go: %w", m.cfg.Topic, missing, ctx.Err())
		case m.ctx.Err() != nil:
			return fmt.Errorf("wait for %s to be drained, %d offsets to go: %w", m.cfg.Topic, missing, ErrStopped)
		case err != nil:
			return err
		}
		select {
		case <-ctx.Done():
		case <-m.ctx.Done():
		case <-time.After(interval):
		}
	}
}

// ends is where each partition that is not empty ends.
func (m *Mapping) ends(ctx context.Context) (map[int32]int64, error) {
	list := m.admin.ListEndOffsets
	if m.cfg.ReadCommitted {
		list = m.admin.ListCommittedOffsets
	}
	end, err := list(ctx, m.cfg.Topic)
	if err != nil {
		return nil, fmt.Errorf("ask for the end of %s: %w", m.cfg.Topic, err)
	}
	start, err := m.admin.ListStartOffsets(ctx, m.cfg.Topic)
	if err != nil {
		return nil, fmt.Errorf("ask for the start of %s: %w", m.cfg.Topic, err)
	}
	out := map[int32]int64{}
	for p, offset := range end[m.cfg.Topic] {
		if err := errors.Join(offset.Err, start[m.cfg.Topic][p].Err); err != nil {
			return nil, fmt.Errorf("ask for the bounds of %s-%d: %w", m.cfg.Topic, p, err)
		}
		if offset.Offset > start[m.cfg.Topic][p].Offset {
			out[p] = offset.Offset
		}
	}
	return out, nil
}

// missing is how many offsets below end are not committed.
func (m *Mapping) missing(ctx context.Context, end map[int32]int64) (int64, error) {
	committed, err := m.admin.FetchOffsetsForTopics(ctx, m.cfg.Group, m.cfg.Topic)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) { // it has committed nothing yet
		return 0, fmt.Errorf("ask for the offsets of group %s: %w", m.cfg.Group, err)
	}
	var missing int64
	for p, offset := range end {
		at := int64(0)
		if c, ok := committed.Lookup(m.cfg.Topic, p); ok && c.Err == nil {
			at = max(0, c.At)
		}
		missing += max(0, offset-at)
	}
	return missing, nil
}

// rewind is a call of Redeliver on its way to the polling goroutine.
type rewind struct {
	tp   kafka.TopicPartition
	n    int64
	done chan error
}

// Redeliver rewinds a partition by n offsets below what is settled, as after a
// rebalance: those records come again, in other batches (Config.Recut is asked
// for the first), and an invocation of the partition under way goes on as a
// zombie whose outcome counts for nothing. Commits may go back too. Errors: the
// partition is not assigned or has nothing settled, or the mapping stopped.
func (m *Mapping) Redeliver(ctx context.Context, partition int32, n int64) error {
	r := rewind{kafka.TopicPartition{Topic: m.cfg.Topic, Partition: partition}, n, make(chan error, 1)}
	m.mu.Lock()
	m.rewinds = append(m.rewinds, r)
	m.mu.Unlock()
	m.wakeUp()
	var err error
	select {
	case err = <-r.done:
	case <-m.ctx.Done():
		err = ErrStopped
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("redeliver %s: %w", r.tp, err)
	}
	return nil
}

// Assigned are the partitions that the mapping reads at the moment, ascending.
func (m *Mapping) Assigned() []int32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]int32, 0, len(m.partitions))
	for tp := range maps.Keys(m.partitions) {
		out = append(out, tp.Partition)
	}
	slices.Sort(out)
	return out
}

func (m *Mapping) assigned(_ context.Context, _ *kgo.Client, added map[string][]int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for topic, partitions := range added {
		for _, p := range partitions {
			tp := kafka.TopicPartition{Topic: topic, Partition: p}
			m.partitions[tp] = newPartition(tp, m.cfg.Pollers)
		}
	}
}

func (m *Mapping) revoked(_ context.Context, _ *kgo.Client, removed map[string][]int32) {
	m.lose(func(p *partition) bool { return slices.Contains(removed[p.tp.Topic], p.tp.Partition) })
}

// lose forgets the state of partitions. After it returns nothing of them is
// committed any more.
func (m *Mapping) lose(match func(*partition) bool) {
	m.committing.Lock()
	defer m.committing.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	for tp, p := range m.partitions {
		if match(p) {
			p.lost = true
			delete(m.partitions, tp)
		}
	}
}

func (m *Mapping) wakeUp() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}
