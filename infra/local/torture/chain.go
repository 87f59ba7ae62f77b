package torture

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncehouse/infra/local/broker"
	"oncehouse/infra/local/demo/chain"
	"oncehouse/infra/local/orders"
	"oncehouse/infra/local/process"
	"oncehouse/infra/local/stack"
	"oncehouse/shared/delivery"
)

// postgres is the whole chain: an order service commits orders and their events
// in PostgreSQL, the poller publishes them, and the sink stores them exactly
// once. It is the sink's subject with three more victims; its mapping sees the
// records of aborted attempts.
//
// What was committed is what the database says afterwards, whatever the service
// believes. The events of an order must arrive in its order, too.
type postgres struct {
	*lambda
	outbox *stack.RunningOutbox
	output *os.File // of the service

	mu      sync.Mutex
	service *process.Process // its latest life
	lives   uint64
	target  int64     // how many events are to be committed so far
	conn    *pgx.Conn // for Progress
	last    Progress
}

func openPostgres(ctx context.Context, l *lab) (Subject, error) {
	s, err := newStream(l, PostgresChain)
	if err != nil {
		return nil, err
	}
	p := &postgres{lambda: &lambda{stream: s, lab: l, hasState: true}}
	if err := p.start(ctx); err != nil {
		p.Stop()
		return nil, err
	}
	return p, nil
}

func (p *postgres) start(ctx context.Context) error {
	st := p.lab.stack
	var err error
	if p.output, err = os.Create(filepath.Join(p.lab.Dir, "log", "orders.log")); err != nil {
		return fmt.Errorf("open the log of the order service: %w", err)
	}
	if err := st.StartPostgres(ctx); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, st.Postgres.URL())
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	if err := errors.Join(orders.Prepare(ctx, conn), conn.Close(ctx)); err != nil {
		return err
	}
	outbox := stack.Outbox{
		Name: p.topic, Template: p.topic + ".${routedByValue}", Partitions: partitions, Fast: true, Timeout: 10 * time.Second,
		Settings: map[string]string{"DEADLINE_MARGIN": "200ms", "RESERVE": "1s", "TRANSACTION_ROWS": strconv.Itoa(batch)},
	}
	if p.outbox, err = st.StartOutbox(ctx, outbox, nil); err != nil {
		return err
	}
	p.topic = outbox.Topics()[0]
	return p.lambda.start(ctx, sink(delivery.ExactlyOnce), "orders", "")
}

// Feed has the service commit at least n more events. Killed, it is started
// again.
func (p *postgres) Feed(ctx context.Context, n int64) error {
	for {
		child, err := p.serve(n)
		if err != nil {
			return err
		}
		n = 0 // they are its successor's to commit, if it dies
		select {
		case <-child.Dead():
		case <-ctx.Done():
			child.Kill()
			return ctx.Err()
		}
		if child.Err() == nil {
			return nil
		}
		if !wait(ctx, look) {
			return ctx.Err()
		}
	}
}

// serve starts a life of the service, which ends when n more events are
// committed. It has a seed of its own, since ids must not come again.
func (p *postgres) serve(n int64) (*process.Process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target += n
	p.lives++
	child, err := process.Start(process.Spec{
		Name: "order service", Path: p.lab.Program, Output: p.output, Args: []string{
			"orders", "--database=" + p.lab.stack.Postgres.URL(), "--events=" + strconv.FormatInt(p.target, 10),
			"--seed=" + strconv.FormatUint(p.lab.Seed+p.lives<<32, 10),
		},
	})
	if err == nil {
		p.service = child
	}
	return child, err
}

// Progress asks PostgreSQL what is committed, and the engine for its rows; while
// one of them is dead, it has as many as before.
func (p *postgres) Progress(ctx context.Context) (Progress, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	within, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if n, err := p.committed(within); err == nil {
		p.last.Produced = n
	}
	p.last.Rows = p.countRows(ctx)
	p.last.Settled = min(p.last.Rows, p.last.Produced)
	return p.last, nil
}

func (p *postgres) committed(ctx context.Context) (int64, error) {
	if p.conn == nil {
		conn, err := pgx.Connect(ctx, p.lab.stack.Postgres.URL())
		if err != nil {
			return 0, fmt.Errorf("connect to PostgreSQL: %w", err)
		}
		p.conn = conn
	}
	n, err := orders.Committed(ctx, p.conn)
	if err != nil {
		_ = p.conn.Close(ctx) // it is not used again
		p.conn = nil
	}
	return n, err
}

// Spares nothing.
func (p *postgres) Spares(Moment) bool { return false }

// Strike performs a step.
func (p *postgres) Strike(ctx context.Context, step Step) (int, error) {
	switch step.Moment {
	case ServiceAnytime:
		return p.strikeService(ctx, step)
	case DatabaseAnytime:
		p.lab.stack.Postgres.Kill()
		if err := p.lab.stack.Postgres.Restart(ctx); err != nil {
			return 1, fmt.Errorf("start the killed database again: %w", err)
		}
		return 1, nil
	case PollerAnytime, PollerBeforeCommit:
		return p.strikePoller(ctx, step), nil
	}
	return p.lambda.Strike(ctx, step)
}

// strikeService kills the service within its work. Where it has none at the
// moment, it is given some.
func (p *postgres) strikeService(ctx context.Context, step Step) (int, error) {
	p.mu.Lock()
	child := p.service
	p.mu.Unlock()
	if child == nil || isDead(child) {
		var err error
		if child, err = p.serve(portion); err != nil {
			return 0, err
		}
		wait(ctx, time.Duration(step.Dice%300)*time.Millisecond)
	}
	child.Kill()
	return 1, nil
}

func isDead(p *process.Process) bool {
	select {
	case <-p.Dead():
		return true
	default:
		return false
	}
}

// strikePoller kills the poller: at any time, or when its transaction is written
// whole and its end arrives at the broker, which never does it. Only the
// embedded broker can be asked for that; with another one it is any time, too.
func (p *postgres) strikePoller(ctx context.Context, step Step) int {
	t := newTrap(func(*http.Request) int { return killOne(p.outbox.Function) })
	if embedded, ok := p.lab.stack.Broker.(*broker.EmbeddedBroker); ok && step.Moment == PollerBeforeCommit {
		atEndTxn(embedded, t)
	} else {
		t.spring()
	}
	killed := t.await(ctx)
	return killed + killWhere(ctx, killed == 0, p.outbox.Function)
}

// atEndTxn has the trap spring when the next commit of a transaction arrives at
// the broker.
func atEndTxn(b *broker.EmbeddedBroker, t *trap) {
	cluster := b.Cluster()
	cluster.ControlKey(int16(kmsg.EndTxn), func(r kmsg.Request) (kmsg.Response, error, bool) {
		select {
		case <-t.done: // it sprang elsewhere
			cluster.DropControl()
			return nil, nil, false
		default:
		}
		if end, ok := r.(*kmsg.EndTxnRequest); !ok || !end.Commit {
			return nil, nil, false
		}
		t.spring()
		return nil, errors.New("cut by a trap"), true
	})
}

// Finish ends the poller, then the sink, and compares.
func (p *postgres) Finish(ctx context.Context) (Outcome, error) {
	p.outbox.Scheduler.Stop()
	p.mapping.Stop(5 * time.Second)
	within, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := errors.Join(p.outbox.Function.Shutdown(within), p.function.Shutdown(within)); err != nil {
		return Outcome{}, err
	}
	c, err := chain.Compare(ctx, p.lab.stack.Postgres.URL(), p.engine, p.table)
	if err != nil {
		return Outcome{}, err
	}
	o := Outcome{Misordered: c.Misordered, Problems: c.Problems}
	o.Produced, o.Stored, o.Lost, o.Duplicated = c.Committed, c.Stored, c.Lost, c.Duplicated
	return o, nil
}

// Stop ends everything at once; the database ends with the stack.
func (p *postgres) Stop() {
	p.mu.Lock()
	if p.service != nil {
		p.service.Kill()
	}
	if p.conn != nil {
		_ = p.conn.Close(context.Background()) // it only read
		p.conn = nil
	}
	p.mu.Unlock()
	if p.outbox != nil {
		p.outbox.Stop()
	}
	p.lambda.Stop()
	if p.output != nil {
		_ = p.output.Close() // nothing is buffered
	}
}
