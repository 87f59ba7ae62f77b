package outbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// Reshard moves the outbox from the shards that its cursors name to others: to
// to.Of of them, divided by to.By. poller makes the poller of any shard, old or new;
// the pollers of the old shards are fenced, and must not be started again meanwhile.
//
// All old shards are brought to one snapshot and closed there; only when the last
// of them is closed do the new ones start from it, under an incarnation of their
// own. A move that ends early, by an error or by until, loses nothing: run it
// again. Until the first shard is closed, the old pollers may go on instead.
func Reshard(ctx context.Context, to Shard, poller func(Shard) (*Poller, error), until time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	m := &move{to: to, poller: poller, commitBy: until}
	err := m.run(ctx)
	for _, s := range m.opened {
		err = errors.Join(err, s.log.Close(context.WithoutCancel(ctx)))
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.Join(err, &Refusal{
			ReasonMoveTime, []string{fmt.Sprintf("the move to %d shards did not fit into the time it had", to.Of)},
			"let the old pollers work the backlog off, stop them, and run the move again; if a shard is closed already, run it again with more time",
		})
	}
	return err
}

// move is one run of Reshard.
type move struct {
	to       Shard // any of the new ones
	poller   func(Shard) (*Poller, error)
	commitBy time.Time
	opened   []*session
}

// run does what is left of the move. Shard 0 is the last to change: what its
// cursor says is what the whole outbox has.
func (m *move) run(ctx context.Context) error {
	if m.to.Of < 1 {
		return fmt.Errorf("move to %d shards: at least 1", m.to.Of)
	}
	if _, err := m.open(ctx, m.shard(m.to.Of-1)); err != nil { // is there a partition for it?
		return err
	}
	first, err := m.open(ctx, m.shard(0))
	switch {
	case err != nil:
		return err
	case first.cursor.Version == 0:
		return &Refusal{ReasonNotInitialised, []string{"shard 0 has no cursor"}, "start the outbox with the number of shards that it shall have"}
	case first.cursor.Shards == m.to.Of && first.cursor.By == m.to.by() && first.cursor.Move == nil:
		return nil
	}
	var old []*session
	for i := range first.cursor.Shards {
		s, err := m.open(ctx, Shard{i, first.cursor.Shards, first.cursor.By})
		if err != nil {
			return err
		}
		old = append(old, s)
	}
	mark := old[0].cursor.Move
	if m.isOther(mark) {
		return old[0].cursor.moving()
	}
	if mark == nil || !closed(old, mark) {
		if mark, err = m.close(ctx, old); err != nil {
			return err
		}
	}
	return m.start(ctx, old, mark)
}

// shard is one of the new ones.
func (m *move) shard(index int) Shard { return Shard{index, m.to.Of, m.to.By} }

// isOther tells whether a mark is that of a move to somewhere else.
func (m *move) isOther(mark *Move) bool {
	return mark != nil && (mark.Shards != m.to.Of || mark.By != m.to.by())
}

// open fences a shard and reads where it stands.
func (m *move) open(ctx context.Context, shard Shard) (*session, error) {
	p, err := m.poller(shard)
	if err != nil {
		return nil, err
	}
	s := &session{Poller: p, commitBy: m.commitBy}
	m.opened = append(m.opened, s)
	if s.left, err = p.log.Open(ctx); err != nil {
		return nil, fmt.Errorf("open the log of shard %s: %w", shard, err)
	}
	if s.left.Cursor != nil {
		s.cursor = *s.left.Cursor
	}
	return s, nil
}

// closed tells whether every old shard bears the mark, or was replaced since.
func closed(old []*session, mark *Move) bool {
	for _, s := range old {
		marked := s.cursor.Move != nil && *s.cursor.Move == *mark
		if !marked && !s.cursor.isNew(mark) {
			return false
		}
	}
	return true
}

// isNew tells whether the cursor is one that the move has started.
func (c *Cursor) isNew(mark *Move) bool {
	return c.Shards == mark.Shards && c.Incarnation == mark.Incarnation && c.Move == nil
}

// close brings all old shards to one snapshot, and then marks them.
func (m *move) close(ctx context.Context, old []*session) (*Move, error) {
	at, err := old[0].snapshot(ctx)
	if err != nil {
		return nil, err
	}
	if err := old[0].table.Flushed(ctx, at); err != nil {
		return nil, fmt.Errorf("wait until snapshot %s is flushed: %w", at.Text, err)
	}
	for _, s := range old {
		if m.isOther(s.cursor.Move) {
			return nil, s.cursor.moving()
		}
		s.cursor.Move = nil // a mark that not all have closes nothing
		if err := s.bringTo(ctx, at); err != nil {
			return nil, fmt.Errorf("bring shard %s to %s: %w", s.shard, at.Text, err)
		}
	}
	mark := &Move{Shards: m.to.Of, By: m.to.by(), Incarnation: rand.Text()[:incarnationLength], At: at.Text}
	for _, s := range old {
		next := s.cursor
		next.Done, next.Move = at.Text, mark
		if err := s.write(ctx, Transaction{Cursor: next}); err != nil {
			return nil, fmt.Errorf("close shard %s: %w", s.shard, err)
		}
	}
	return mark, nil
}

// bringTo publishes everything up to a snapshot that is flushed.
func (s *session) bringTo(ctx context.Context, at Snapshot) error {
	if s.left.Cursor == nil {
		return &Refusal{ReasonCursorLost, []string{fmt.Sprintf("shard %s has no cursor", s.shard)}, "find out how far it is published, and reset its cursor"}
	}
	cursor := s.cursor
	if err := s.adopt(ctx, Standing{Cursor: &cursor, Plan: s.left.Plan}, at); err != nil {
		return err
	}
	s.begin(s.planTo(at), false, nil)
	_, err := s.publish(ctx)
	return err
}

// start writes the cursors of the new shards, shard 0 last.
func (m *move) start(ctx context.Context, old []*session, mark *Move) error {
	last := old[0].cursor
	for _, s := range old {
		if s.cursor.LastSeq > last.LastSeq {
			last = s.cursor
		}
	}
	for j := m.to.Of - 1; j >= 0; j-- {
		s, err := m.open(ctx, m.shard(j))
		if err != nil {
			return err
		}
		if s.cursor.isNew(mark) {
			continue
		}
		now, err := s.snapshot(ctx)
		if err != nil {
			return err
		}
		// Of what the old shards had, only the type that divides may change.
		identity := last.Identity
		identity.KeyType = now.KeyType
		if err := identity.check(now.Identity); err != nil {
			return err
		}
		next := Cursor{
			Version: version, Incarnation: mark.Incarnation, Shard: j, Shards: m.to.Of, By: mark.By, Done: mark.At,
			Identity: identity, LastID: last.LastID, LastSeq: last.LastSeq,
		}
		if err := s.write(ctx, Transaction{Cursor: next}); err != nil {
			return fmt.Errorf("start shard %s: %w", s.shard, err)
		}
	}
	return nil
}
