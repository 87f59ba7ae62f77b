package main

import (
	"context"
	"fmt"
	"os"

	"oncehouse/infra/local/stack"
)

// startOutbox starts PostgreSQL and the poller, once a minute as in production.
func startOutbox(ctx context.Context, s *stack.Stack) error {
	if err := s.StartPostgres(ctx); err != nil {
		return err
	}
	_, err := s.StartOutbox(ctx, stack.Outbox{}, newWatch(os.Stdout, "outbox-orders", repeatAfter).invoked)
	return err
}

// explainOutbox prints what to do with the outbox.
func explainOutbox(s *stack.Stack) {
	program, err := os.Executable()
	if err != nil {
		program = ".build/oncehouse-local"
	}
	fmt.Printf(`
PostgreSQL     %s

  create a table   curl -sS '%s/' --data-binary @events/orders.sql
  place orders     %s orders --database '%[1]s' --rate 20 --events 1000
  one event        psql '%[1]s' -c "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', 'order-7', 'OrderPlaced', '{\"event_id\":\"018f3c1e-0000-7000-8000-000000000001\",\"order_id\":7,\"version\":1,\"status\":\"placed\",\"amount\":12.50,\"items\":[\"tea\"],\"note\":null,\"placed_at\":\"2026-01-01T00:00:00Z\"}')"
  query            curl -sS '%[2]s/' --data-binary "SELECT order_id, version, status, amount FROM orders ORDER BY placed_at DESC LIMIT 10 FORMAT PrettyCompact"
  cursor           curl -sS '%[4]s/2015-03-31/functions/outbox-orders/invocations' -d '{"oncehouse":{"action":"inspect"}}'
`, s.Postgres.URL(), s.Engine.URL(), shown(program), s.LambdaURL())
}
