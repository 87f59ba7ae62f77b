package chain

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"oncehouse/infra/local/demo/schedule"
	"oncehouse/infra/local/mapping"
	"oncehouse/infra/local/scheduler"
)

// chaos kills whatever is on the way, spread over the run by what is committed.
type chaos struct {
	run       *run
	random    *rand.Rand
	committed atomic.Int64 // in PostgreSQL: the clock of the schedule

	writer, database, poller, sink, engine atomic.Int64 // kills

	lastPoller, lastSink atomic.Pointer[string]
}

func newChaos(r *run) *chaos { return &chaos{run: r, random: newRandom(r.Seed)} }

func (c *chaos) kills() int64 {
	return c.writer.Load() + c.database.Load() + c.poller.Load() + c.sink.Load() + c.engine.Load()
}

// schedule is the order of the kills. The one that matters is aimed: a poller that
// dies when its rows and its cursor are written, and the transaction is not ended,
// leaves a whole attempt that is aborted, and that one of the two readers sees.
func (c *chaos) schedule() []schedule.Fault {
	all := []schedule.Fault{
		c.killBeforeCommit, c.killPoller, c.killWriter, c.killSink, c.killBeforeCommit,
		c.crashDatabase, c.killPoller, c.killSink, c.killBeforeCommit, c.killEngine,
		c.killWriter, c.killPoller, c.crashDatabase, c.killSink, c.killBeforeCommit,
	}
	for i, kill := range all {
		all[i] = c.soon(kill)
	}
	return all
}

// soon waits a moment before it kills, so that no two runs kill in the same place.
func (c *chaos) soon(kill schedule.Fault) schedule.Fault {
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Duration(c.random.IntN(100)) * time.Millisecond):
			return kill(ctx)
		}
	}
}

func (c *chaos) killWriter(_ context.Context) error {
	if c.run.service.kill() {
		c.writer.Add(1)
	}
	return nil
}

func (c *chaos) killPoller(_ context.Context) error {
	if c.run.outbox.Function.KillAny() {
		c.poller.Add(1)
	}
	return nil
}

// killBeforeCommit kills the poller when its next transaction is written whole,
// and swallows the request that would commit it. A broker that is not in this
// process has no place for that: there it is any moment.
func (c *chaos) killBeforeCommit(ctx context.Context) error {
	embedded := c.run.embedded()
	if embedded == nil {
		return c.killPoller(ctx)
	}
	embedded.Cluster().ControlKey(int16(kmsg.EndTxn), func(request kmsg.Request) (kmsg.Response, error, bool) {
		if end, ok := request.(*kmsg.EndTxnRequest); !ok || !end.Commit || !c.run.outbox.Function.KillAny() {
			return nil, nil, false
		}
		c.poller.Add(1)
		return nil, errors.New("the poller is dead"), true
	})
	return nil
}

func (c *chaos) killSink(_ context.Context) error {
	for _, reader := range c.run.readers {
		if reader.running.Function.KillAny() {
			c.sink.Add(1)
		}
	}
	return nil
}

// crashDatabase ends every process of PostgreSQL where it stands.
func (c *chaos) crashDatabase(ctx context.Context) error {
	c.run.stack.Postgres.Crash()
	c.database.Add(1)
	if err := c.run.stack.Postgres.Restart(ctx); err != nil {
		return fmt.Errorf("start the crashed database again: %w", err)
	}
	return nil
}

func (c *chaos) killEngine(ctx context.Context) error {
	c.run.stack.Engine.Kill()
	c.engine.Add(1)
	if err := c.run.stack.Engine.Restart(ctx); err != nil {
		return fmt.Errorf("start the killed engine again: %w", err)
	}
	return nil
}

// polled keeps what the poller says last.
func (c *chaos) polled(i scheduler.Invocation) {
	if i.Result.ErrorMessage != "" {
		c.lastPoller.Store(&i.Result.ErrorMessage)
	}
}

// delivered keeps what the sinks say last.
func (c *chaos) delivered(d mapping.Delivery) {
	if d.Result.ErrorMessage != "" {
		c.lastSink.Store(&d.Result.ErrorMessage)
	}
}

func (c *chaos) pollerError() string { return textOf(&c.lastPoller) }

func (c *chaos) sinkError() string { return textOf(&c.lastSink) }

func textOf(p *atomic.Pointer[string]) string {
	if text := p.Load(); text != nil {
		return *text
	}
	return "none"
}
