package orders

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// Config of a service. Zero fields take the defaults named here.
type Config struct {
	// Database is PostgreSQL's URL. Required.
	Database string
	// Outbox is the outbox table; default outbox.
	Outbox string
	// Writers work at the same time; default 16.
	Writers int
	// Events to commit in all, those of earlier runs included; 0: without end.
	Events int64
	// Rate is the most transactions a second; 0: as many as there can be.
	Rate int
	// Seed of what happens; it has to be another one after a restart, or the
	// events' ids come again.
	Seed uint64
}

// orders is how many there are: few, so that writers meet.
const orders = 500

// reconnectAfter is the pause after the database was lost.
const reconnectAfter = 100 * time.Millisecond

// Prepare makes the service's table, which has to be done once; its name leaves
// that of docs/outbox.md to whoever tries the examples beside it. The outbox table
// is the migration's (shared/outbox/postgres).
func Prepare(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `
		CREATE TABLE IF NOT EXISTS shop_orders (
			order_id bigint PRIMARY KEY,
			version  bigint NOT NULL DEFAULT 0,
			status   text   NOT NULL DEFAULT 'new',
			amount   numeric(12, 2) NOT NULL DEFAULT 0
		) WITH (fillfactor = 50)`)
	if err == nil {
		_, err = conn.Exec(ctx, "INSERT INTO shop_orders (order_id) SELECT generate_series(1, $1) ON CONFLICT DO NOTHING", orders)
	}
	if err != nil {
		return fmt.Errorf("make the table of orders: %w", err)
	}
	return nil
}

// Committed is how many events are committed, by the orders' own count.
func Committed(ctx context.Context, conn *pgx.Conn) (n int64, err error) {
	if err := conn.QueryRow(ctx, "SELECT coalesce(sum(version), 0)::bigint FROM shop_orders").Scan(&n); err != nil {
		return 0, fmt.Errorf("count the committed events: %w", err)
	}
	return n, nil
}

// service is what its writers share.
type service struct {
	config    Config
	committed atomic.Int64
	pace      <-chan time.Time // nil: no rate
}

// Run writes until so many events are committed or ctx ends. A database that
// goes away is waited for.
func Run(ctx context.Context, config Config) error {
	config.Outbox = cmp.Or(config.Outbox, "outbox")
	config.Writers = cmp.Or(config.Writers, 16)
	s := &service{config: config}
	if err := s.count(ctx); err != nil {
		return err
	}
	if config.Rate > 0 {
		ticker := time.NewTicker(time.Second / time.Duration(config.Rate))
		defer ticker.Stop()
		s.pace = ticker.C
	}
	var writers sync.WaitGroup
	for i := range config.Writers {
		writers.Go(func() {
			w := &writer{service: s, random: rand.New(rand.NewPCG(config.Seed, uint64(i)))} //nolint:gosec // a schedule, not a secret
			w.run(ctx)
		})
	}
	writers.Wait()
	return nil
}

// count finds out how far earlier runs came.
func (s *service) count(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.config.Database)
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	n, err := Committed(ctx, conn)
	s.committed.Store(n)
	return errors.Join(err, conn.Close(ctx))
}

// done reports whether there is nothing more to do; else it waits for the rate.
func (s *service) done(ctx context.Context) bool {
	if ctx.Err() != nil || s.config.Events > 0 && s.committed.Load() >= s.config.Events {
		return true
	}
	if s.pace != nil {
		select {
		case <-ctx.Done():
			return true
		case <-s.pace:
		}
	}
	return false
}
