package orders

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// One transaction in so many does it.
const (
	rollsBack      = 8
	savesPoint     = 6   // and rolls back to it, or releases it
	staysOpen      = 300 // for up to stayOpen
	stayOpen       = 300 * time.Millisecond
	maxPerTransact = 3 // orders
)

// errRollBack ends a transaction that was never meant to be committed.
var errRollBack = errors.New("rolled back on purpose")

// writer has a connection of its own.
type writer struct {
	*service
	random *rand.Rand
	conn   *pgx.Conn
}

func (w *writer) run(ctx context.Context) {
	defer w.disconnect(ctx)
	for !w.done(ctx) {
		if err := w.transact(ctx); err != nil && !errors.Is(err, errRollBack) {
			// Whether it was committed does not matter: the orders know.
			w.disconnect(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(reconnectAfter):
			}
		}
	}
}

func (w *writer) disconnect(ctx context.Context) {
	if w.conn != nil {
		_ = w.conn.Close(context.WithoutCancel(ctx)) // it is not used again
		w.conn = nil
	}
}

// transact is one transaction: orders, and their events.
func (w *writer) transact(ctx context.Context) (err error) {
	if w.conn == nil {
		if w.conn, err = pgx.Connect(ctx, w.config.Database); err != nil {
			w.conn = nil
			return err
		}
	}
	events := int64(0)
	err = pgx.BeginFunc(ctx, w.conn, func(tx pgx.Tx) error {
		for _, order := range w.pick() {
			n, err := w.change(ctx, tx, order)
			if err != nil {
				return err
			}
			events += n
		}
		if w.oneIn(staysOpen) {
			time.Sleep(time.Duration(w.random.Int64N(int64(stayOpen))))
		}
		if w.oneIn(rollsBack) {
			return errRollBack
		}
		return nil
	})
	if err == nil {
		w.committed.Add(events)
	}
	return err
}

// pick chooses orders, ascending: writers that lock in one order cannot
// deadlock.
func (w *writer) pick() []int64 {
	picked := make([]int64, 1+w.random.IntN(maxPerTransact))
	for i := range picked {
		picked[i] = 1 + w.random.Int64N(orders)
	}
	slices.Sort(picked)
	return slices.Compact(picked)
}

// change changes an order once or twice, the second time behind a savepoint, and
// returns how often it will have changed when the transaction is committed.
func (w *writer) change(ctx context.Context, tx pgx.Tx, order int64) (int64, error) {
	if err := w.publish(ctx, tx, order); err != nil {
		return 0, err
	}
	if !w.oneIn(savesPoint) {
		return 1, nil
	}
	keep := w.oneIn(2)
	err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { // a savepoint
		if err := w.publish(ctx, tx, order); err != nil || keep {
			return err
		}
		return errRollBack
	})
	switch {
	case errors.Is(err, errRollBack):
		return 1, nil
	case err != nil:
		return 0, err
	}
	return 2, nil
}

// publish locks and changes the order, and leaves its event in the outbox.
func (w *writer) publish(ctx context.Context, tx pgx.Tx, order int64) error {
	e := newEvent(w.random, time.Now())
	e.OrderID = order
	err := tx.QueryRow(ctx, "UPDATE shop_orders SET version = version + 1, status = $2, amount = $3 WHERE order_id = $1 RETURNING version",
		order, e.Status, e.Amount.String()).Scan(&e.Version)
	if err != nil {
		return fmt.Errorf("change order %d: %w", order, err)
	}
	payload, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("write the event: %w", err)
	}
	_, err = tx.Exec(ctx, "INSERT INTO "+w.config.Outbox+" (id, aggregatetype, aggregateid, type, payload) VALUES ($1, $2, $3, $4, $5)",
		e.EventID.String(), AggregateType, Key(order), "Order"+e.Status, string(payload))
	if err != nil {
		return fmt.Errorf("insert the event: %w", err)
	}
	return nil
}

func (w *writer) oneIn(n int) bool { return w.random.IntN(n) == 0 }
