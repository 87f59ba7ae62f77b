package outbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// incarnationLength makes two equal ones as good as impossible (80 bits).
const incarnationLength = 16

// initialise writes the first cursor of a shard, if that is allowed.
func (s *session) initialise(ctx context.Context, from Origin, standing Standing, now Snapshot) error {
	switch {
	case standing.Expired || standing.Plan != nil:
		return &Refusal{
			ReasonCursorLost, []string{"the cursor partition was used and has no cursor any more"},
			"find out how far the outbox is published, then reset the cursor; keep the topic compacted, never with a retention",
		}
	case from == "":
		return &Refusal{
			ReasonNotInitialised, []string{fmt.Sprintf("shard %s has no cursor", s.shard)},
			"let the poller initialise it, from the beginning of the table or from now; if it had one, find out where it went first",
		}
	}
	return s.restart(ctx, from, now)
}

// restart begins a new incarnation at an origin.
func (s *session) restart(ctx context.Context, from Origin, now Snapshot) error {
	next := Cursor{
		Version: version, Incarnation: rand.Text()[:incarnationLength],
		Shard: s.shard.Index, Shards: s.shard.Of, By: s.shard.by(), Identity: now.Identity,
	}
	s.flush = nil
	switch from {
	case FromBeginning:
	case FromNow:
		next.Done, s.flush = now.Text, &now
	case FromCursor:
		next.keepPosition(&s.cursor, s.router.Hash())
	default:
		return fmt.Errorf("start from %q: %s, %s or %s", from, FromBeginning, FromNow, FromCursor)
	}
	return s.write(ctx, Transaction{Cursor: next})
}

// Initialise writes the first cursor of the shard; with one there already, it is a
// *Refusal.
func (p *Poller) Initialise(ctx context.Context, from Origin) (Cursor, error) {
	return p.once(ctx, func(s *session, standing Standing, now Snapshot) error {
		if standing.Cursor != nil {
			return &Refusal{ReasonInitialised, []string{fmt.Sprintf("shard %s has a cursor, of incarnation %s", s.shard, standing.Cursor.Incarnation)}, "start the poller; or reset the cursor, if it is meant"}
		}
		return s.initialise(ctx, from, standing, now)
	})
}

// Reset gives the shard a new cursor and a new incarnation, whatever stands in
// its log. It is a person's decision: rows behind the origin are published again,
// rows before it are passed over. It fences every poller of the shard.
func (p *Poller) Reset(ctx context.Context, from Origin) (Cursor, error) {
	return p.once(ctx, func(s *session, standing Standing, now Snapshot) error {
		switch {
		case standing.Cursor != nil:
			s.cursor = *standing.Cursor
		case from == FromCursor:
			return errors.New("there is no cursor whose position could be kept")
		}
		if from == FromCursor {
			if err := s.cursor.canKeep(s.shard, now); err != nil {
				return fmt.Errorf("keep the cursor's position: %w", err)
			}
		}
		return s.restart(ctx, from, now)
	})
}

// once opens the log for one piece of work, and closes it.
func (p *Poller) once(ctx context.Context, work func(*session, Standing, Snapshot) error) (Cursor, error) {
	until := time.Now().Add(time.Minute)
	if end, ok := ctx.Deadline(); ok {
		until = end
	}
	s := &session{Poller: p, commitBy: until}
	standing, err := p.log.Open(ctx)
	if err != nil {
		return Cursor{}, fmt.Errorf("open the log: %w", err)
	}
	now, err := s.snapshot(ctx)
	if err == nil {
		err = work(s, standing, now)
	}
	return s.cursor, errors.Join(err, p.log.Close(context.WithoutCancel(ctx)))
}

// keepPosition takes over how far another incarnation is published. What it had
// planned, and not committed, is planned anew.
func (c *Cursor) keepPosition(old *Cursor, routing string) {
	c.Done, c.LastID, c.LastSeq = old.Done, old.LastID, old.LastSeq
	if old.Open == nil {
		return
	}
	c.Window, c.Seq = old.Window, old.Seq
	c.Open = &Plan{
		Version: version, Incarnation: c.Incarnation, Number: c.Window, Window: old.Open.Window,
		Topics: map[string]Topic{}, Routing: routing, Identity: c.Identity,
	}
}

// canKeep tells whether the cursor's snapshots mean anything in this database, and
// for the rows of this shard. Of its identity, only the timeline may be another.
func (c *Cursor) canKeep(shard Shard, now Snapshot) error {
	same := c.Identity
	same.Timeline = now.Timeline
	switch {
	case c.Shard != shard.Index || c.Shards != shard.Of || c.By != shard.by():
		return fmt.Errorf("the cursor is of shard %d of %d, divided by %q: move the outbox to other shards", c.Shard, c.Shards, c.By)
	case same != now.Identity:
		return errors.New("this is another database cluster, database, table or column: its transaction ids are others")
	}
	snapshots := []string{c.Done}
	if c.Open != nil {
		snapshots = append(snapshots, c.Open.To)
	}
	for _, s := range snapshots {
		if err := notAhead(s, now.Text); err != nil {
			return err
		}
	}
	return nil
}
