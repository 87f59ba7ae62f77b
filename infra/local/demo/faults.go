package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"

	"oncehouse/infra/local/demo/schedule"
	"oncehouse/infra/local/engine"
	"oncehouse/infra/local/engine/faults"
	"oncehouse/infra/local/lambdahost"
	"oncehouse/infra/local/mapping"
)

// chaos breaks a run: the same faults for each guarantee, spread over the run
// by its progress.
type chaos struct {
	engine   *engine.Server
	proxy    *faults.Proxy // between the sink and the engine
	function *lambdahost.Function
	mapping  *mapping.Mapping
	// environments is how many processes the function may have.
	environments int
	batchSize    int

	mu     sync.Mutex
	random *rand.Rand

	kills, recuts atomic.Int64
	settled       atomic.Int64
	lastError     atomic.Pointer[string]
}

// schedule is the order in which things go wrong. The two that matter are aimed:
// a process is killed when its insert has landed and its answer has not (whoever
// sends again doubles), and when its insert is announced and has not landed
// (whoever does not send again loses).
func (c *chaos) schedule() []schedule.Fault {
	return []schedule.Fault{
		c.killAfterInsert, c.rewind, c.killAny, c.killBeforeInsert,
		c.rewind, c.killAny, c.killEngine, c.killAfterInsert,
		c.rewind, c.killBeforeInsert, c.killAny, c.rewind,
	}
}

// delivered counts what the mapping settled: the clock of the schedule.
func (c *chaos) delivered(d mapping.Delivery) {
	for _, n := range d.Settled {
		c.settled.Add(int64(n))
	}
	if d.Result.ErrorMessage != "" {
		c.lastError.Store(&d.Result.ErrorMessage)
	}
}

// between is a random number, at least low and below high.
func (c *chaos) between(low, high int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return low + c.random.IntN(max(1, high-low))
}

func (c *chaos) killAny(_ context.Context) error {
	if c.function.KillAny() {
		c.kills.Add(1)
	}
	return nil
}

// killAll kills every process of the function, as the end of a host does: the
// one whose insert is held is among them.
func (c *chaos) killAll() {
	for range c.environments {
		if c.function.KillAny() {
			c.kills.Add(1)
		}
	}
}

// killAfterInsert: the engine has stored the next insert, and nobody hears of it.
func (c *chaos) killAfterInsert(_ context.Context) error {
	c.proxy.Next(faults.HoldAnswer(c.killAll, closed()))
	return nil
}

// killBeforeInsert: the next insert is announced, and the engine never sees it.
func (c *chaos) killBeforeInsert(_ context.Context) error {
	c.proxy.When(func(r *http.Request, query string) bool {
		insert := faults.Inserts(r, query)
		if insert {
			c.killAll()
		}
		return insert
	}, faults.Refuse())
	return nil
}

func closed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// killEngine kills the ClickHouse engine in the middle of its work and starts
// it again on its data directory.
func (c *chaos) killEngine(ctx context.Context) error {
	c.engine.Kill()
	c.kills.Add(1)
	if err := c.engine.Restart(ctx); err != nil {
		return fmt.Errorf("start the killed engine again: %w", err)
	}
	return nil
}

// rewind delivers settled records of one partition again, as a rebalance does:
// an invocation under way becomes a zombie beside the new one.
func (c *chaos) rewind(ctx context.Context) error {
	partitions := c.mapping.Assigned()
	if len(partitions) == 0 {
		return nil
	}
	p := partitions[c.between(0, len(partitions))]
	if err := c.mapping.Redeliver(ctx, p, int64(c.between(1, c.batchSize/2))); err != nil {
		return nil //nolint:nilerr // nothing of the partition is settled yet: there is nothing to rewind
	}
	c.recuts.Add(1)
	return nil
}

// recut gives a batch that comes again other boundaries, twice; after that it
// comes as it is, as at Lambda, so that no batch is cut to pieces.
func (c *chaos) recut(r mapping.Redelivery) int {
	if r.Attempt > 2 {
		return 0
	}
	n := c.between(max(1, r.Count/2), r.Count*3/2+2)
	if n != r.Count {
		c.recuts.Add(1)
	}
	return n
}

func (c *chaos) lastErrorText() string {
	if text := c.lastError.Load(); text != nil {
		return *text
	}
	return "none"
}
