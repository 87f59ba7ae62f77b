package queue

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	defaultVisibility = 30 * time.Second
	// dedupWindow is how long a FIFO queue remembers a deduplication id.
	dedupWindow = 5 * time.Minute
)

// store holds the queues and, with a log, writes every change to it before the
// change is answered. What a receive does (visibility, counts) is not kept: after
// a restart every message is visible, which at-least-once allows.
type store struct {
	now     func() time.Time
	mu      sync.Mutex
	log     *os.File // nil in memory
	queues  map[string]*messages
	changed chan struct{} // closed and replaced when a message comes or a wait ends
	ending  bool          // nobody waits any more
	closed  bool          // nothing changes any more
}

type messages struct {
	visibility time.Duration
	list       []*message
	dedup      map[string]repeat
}

type repeat struct {
	id    string
	until time.Time
}

type message struct {
	ID         string               `json:"id"`
	Body       string               `json:"body"`
	Attributes map[string]attribute `json:"attributes,omitempty"`
	Group      string               `json:"group,omitempty"`
	Dedup      string               `json:"dedup,omitempty"`
	Sent       time.Time            `json:"sent"`
	visibleAt  time.Time
	received   int
	first      time.Time
}

func (m *message) receipt() string { return m.ID + "#" + strconv.Itoa(m.received) }

func (m *message) system() map[string]string {
	s := map[string]string{
		"SentTimestamp": strconv.FormatInt(m.Sent.UnixMilli(), 10), "ApproximateReceiveCount": strconv.Itoa(m.received),
		"ApproximateFirstReceiveTimestamp": strconv.FormatInt(m.first.UnixMilli(), 10),
	}
	if m.Group != "" {
		s["MessageGroupId"], s["MessageDeduplicationId"] = m.Group, m.Dedup
	}
	return s
}

// record is one line of the log.
type record struct {
	Op         string        `json:"op"` // create, send, delete, purge
	Queue      string        `json:"queue"`
	Visibility time.Duration `json:"visibility,omitempty"`
	Messages   []*message    `json:"messages,omitempty"`
	ID         string        `json:"id,omitempty"`
}

func openStore(path string, now func() time.Time) (*store, error) {
	s := &store{now: now, queues: map[string]*messages{}, changed: make(chan struct{})}
	if path == "" {
		return s, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the queues' log: %w", err)
	}
	if err := s.replay(f); err != nil {
		return nil, errors.Join(fmt.Errorf("read the queues' log %s: %w", path, err), f.Close())
	}
	s.log = f
	return s, nil
}

// replay applies a log. A last line without its end was never answered: it is
// cut off. Any other damage is an error.
func (s *store) replay(f *os.File) error {
	r := bufio.NewReader(f)
	good := int64(0)
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		var rec record
		if err := json.Unmarshal(line, &rec); err != nil {
			return fmt.Errorf("at byte %d: %w", good, err)
		}
		s.apply(rec)
		good += int64(len(line))
	}
	if err := f.Truncate(good); err != nil {
		return err
	}
	_, err := f.Seek(good, io.SeekStart)
	return err
}

// commit makes a change durable, then applies it. The caller holds the lock.
func (s *store) commit(rec record) error {
	if s.closed {
		return errors.New("queues are closed")
	}
	if s.log != nil {
		var b bytes.Buffer
		if err := json.NewEncoder(&b).Encode(rec); err != nil {
			return err
		}
		if _, err := s.log.Write(b.Bytes()); err != nil {
			s.closed = true // the log may end in half a line: nothing may follow it
			return fmt.Errorf("write the queues' log: %w", err)
		}
		if err := s.log.Sync(); err != nil {
			s.closed = true
			return fmt.Errorf("sync the queues' log: %w", err)
		}
	}
	s.apply(rec)
	return nil
}

func (s *store) apply(rec record) {
	if rec.Op == "create" {
		s.queues[rec.Queue] = &messages{visibility: rec.Visibility, dedup: map[string]repeat{}}
		return
	}
	q := s.queues[rec.Queue]
	switch rec.Op {
	case "send":
		for _, m := range rec.Messages {
			q.list = append(q.list, m)
			if m.Dedup != "" {
				q.dedup[m.Dedup] = repeat{m.ID, m.Sent.Add(dedupWindow)}
			}
		}
	case "delete":
		q.list = slices.DeleteFunc(q.list, func(m *message) bool { return m.ID == rec.ID })
	case "purge":
		q.list = nil
	}
}

func fifo(name string) bool { return strings.HasSuffix(name, ".fifo") }

func (s *store) create(name string, attributes map[string]string) error {
	if base := strings.TrimSuffix(name, ".fifo"); base == "" || len(name) > 80 ||
		strings.Trim(base, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" {
		return refuse("InvalidParameterValue", "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length: %q", name)
	}
	visibility := defaultVisibility
	if v := attributes["VisibilityTimeout"]; v != "" {
		seconds, err := strconv.Atoi(v)
		if err != nil || seconds < 0 || seconds > 12*60*60 {
			return refuse("InvalidAttributeValue", "VisibilityTimeout is %q.", v)
		}
		visibility = time.Duration(seconds) * time.Second
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.queues[name]; ok {
		return nil
	}
	return s.commit(record{Op: "create", Queue: name, Visibility: visibility})
}

func (s *store) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.queues))
}

func (s *store) exists(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queues[name] != nil
}

func (s *store) visibility(name string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queues[name].visibility
}

type counts struct{ visible, received, delayed int }

func (c counts) total() int { return c.visible + c.received + c.delayed }

func (s *store) count(name string) counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	var c counts
	q := s.queues[name]
	if q == nil {
		return c
	}
	for _, m := range q.list {
		switch {
		case !m.visibleAt.After(s.now()):
			c.visible++
		case m.received > 0:
			c.received++
		default:
			c.delayed++
		}
	}
	return c
}

// add stores messages and returns their ids; one that a FIFO queue has seen
// before gets the id it had.
func (s *store) add(name string, entries []entry) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := record{Op: "send", Queue: name}
	ids := make([]string, len(entries))
	fresh := map[string]string{}
	now := s.now()
	for i, e := range entries {
		m := &message{ID: newID(), Body: e.MessageBody, Attributes: e.MessageAttributes, Sent: now, visibleAt: now.Add(time.Duration(e.DelaySeconds) * time.Second)}
		if fifo(name) {
			m.Group, m.Dedup = e.MessageGroupID, e.MessageDeduplicationID
			if seen, ok := s.queues[name].dedup[m.Dedup]; ok && seen.until.After(now) {
				ids[i] = seen.id
				continue
			}
			if id, ok := fresh[m.Dedup]; ok {
				ids[i] = id
				continue
			}
			fresh[m.Dedup] = m.ID
		}
		ids[i] = m.ID
		rec.Messages = append(rec.Messages, m)
	}
	if len(rec.Messages) == 0 {
		return ids, nil
	}
	if err := s.commit(rec); err != nil {
		return nil, err
	}
	s.broadcast()
	return ids, nil
}

// take receives up to most messages; with none there, it waits.
func (s *store) take(ctx context.Context, name string, most int, visibility, wait time.Duration) []message {
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for {
		s.mu.Lock()
		got, next := s.takeVisible(name, most, visibility)
		changed, ending := s.changed, s.ending
		s.mu.Unlock()
		if len(got) > 0 || wait == 0 || ending {
			return got
		}
		again := time.NewTimer(next)
		select {
		case <-changed:
		case <-again.C:
		case <-timeout.C:
			wait = 0
		case <-ctx.Done():
			wait = 0
		}
		again.Stop()
	}
}

// takeVisible also says after which time the next message becomes visible.
func (s *store) takeVisible(name string, most int, visibility time.Duration) ([]message, time.Duration) {
	now, next := s.now(), time.Hour
	var got []message
	busy := map[string]bool{}
	q := s.queues[name]
	if q == nil {
		return nil, next
	}
	for _, m := range q.list {
		if m.visibleAt.After(now) {
			next = min(next, m.visibleAt.Sub(now))
			busy[m.Group] = true
			continue
		}
		if len(got) == most || (fifo(name) && busy[m.Group]) {
			continue
		}
		m.received++
		if m.received == 1 {
			m.first = now
		}
		m.visibleAt = now.Add(visibility)
		got = append(got, *m)
	}
	return got, next
}

// remove deletes the message of a receipt. One that is gone is no error; as in
// the service, an old receipt still deletes.
func (s *store) remove(name, receipt string) error {
	id, _, ok := strings.Cut(receipt, "#")
	if !ok {
		return refuse("ReceiptHandleIsInvalid", "The input receipt handle %q is not a valid receipt handle.", receipt)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.ContainsFunc(s.queues[name].list, func(m *message) bool { return m.ID == id }) {
		return nil
	}
	err := s.commit(record{Op: "delete", Queue: name, ID: id})
	s.broadcast() // a FIFO group may be free
	return err
}

// hide sets how long from now the message of a receipt is not to be seen.
func (s *store) hide(name, receipt string, visibility time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.queues[name].list {
		if m.receipt() == receipt {
			if !m.visibleAt.After(s.now()) {
				return refuse("MessageNotInflight", "The specified message isn't in flight.")
			}
			m.visibleAt = s.now().Add(visibility)
			s.broadcast()
			return nil
		}
	}
	return refuse("ReceiptHandleIsInvalid", "The input receipt handle %q is not a valid receipt handle.", receipt)
}

func (s *store) purge(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commit(record{Op: "purge", Queue: name})
}

// endWaits ends all waits, for good.
func (s *store) endWaits() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
	s.broadcast()
}

func (s *store) broadcast() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *store) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.log == nil {
		return nil
	}
	return s.log.Close()
}

func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (Go 1.24)
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
