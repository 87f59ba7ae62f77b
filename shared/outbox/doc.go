// Package outbox publishes the rows of a PostgreSQL outbox table to Kafka,
// exactly once and in the order of each aggregate.
//
// An application inserts its events into the table in the transaction that
// changes its own rows. A poller reads what became visible between two
// snapshots of the database (the window), in the order of seq, and writes it to
// Kafka in transactions that hold the rows and the cursor together.
//
// The words: an aggregate is what the application orders its events by; a shard
// is a part of the aggregates with a poller, a cursor and a transactional id of
// its own; a window is what became visible from one snapshot to the next; a plan
// is what an attempt at a window will do, durable before its first row.
package outbox
