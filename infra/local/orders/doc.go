// Package orders is an order service, as an application has one: it keeps orders
// in PostgreSQL, and tells the world what becomes of them by an outbox.
//
//	err := orders.Prepare(ctx, conn)
//	err = orders.Run(ctx, orders.Config{Database: url, Writers: 16, Events: 40_000})
//
// Each change of an order is an UPDATE of its row, which locks it, and an INSERT
// of its event, in one transaction (writer.go). Writers do what makes outboxes
// hard to read: they take several orders in one transaction, roll back, roll
// back to savepoints, keep transactions open, and quarrel over the same few
// orders. Killed or cut off, a writer just begins anew.
//
// An order counts its own changes (version), and the count is part of the event.
// So the events that were committed tell by themselves in which order they must
// arrive: 1, 2, 3 for each order, nothing left out.
package orders
