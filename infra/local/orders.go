package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"oncehouse/infra/local/orders"
)

// ordersCommand is the order service as a process of its own, which the demo
// starts and kills, and which fills the outbox of make local.
type ordersCommand struct {
	Database string `help:"PostgreSQL's URL." required:""`
	Writers  int    `help:"Writers at the same time." default:"16"`
	Events   int64  `help:"Events to commit in all, those of earlier runs included; 0: without end." default:"0"`
	Rate     int    `help:"The most transactions a second; 0: as many as there can be." default:"0"`
	Seed     uint64 `help:"Seed of what happens; another one for each start." default:"1"`
}

// Run writes until all is committed.
func (c *ordersCommand) Run(ctx context.Context) error {
	if c.Writers < 1 || c.Events < 0 || c.Rate < 0 {
		return fmt.Errorf("--writers is %d, --events %d, --rate %d: one writer or more, and no negative number expected", c.Writers, c.Events, c.Rate)
	}
	conn, err := pgx.Connect(ctx, c.Database)
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	if err := errors.Join(orders.Prepare(ctx, conn), conn.Close(ctx)); err != nil {
		return err
	}
	if err := orders.Run(ctx, orders.Config{Database: c.Database, Writers: c.Writers, Events: c.Events, Rate: c.Rate, Seed: c.Seed}); err != nil || ctx.Err() != nil {
		return err
	}
	return c.tell(ctx)
}

// tell says how many events there are: the writers' last transactions go past
// --events.
func (c *ordersCommand) tell(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, c.Database)
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	committed, err := orders.Committed(ctx, conn)
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return err
	}
	fmt.Printf("%d events are committed\n", committed)
	return nil
}
