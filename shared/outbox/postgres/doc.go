// Package postgres reads an outbox table of PostgreSQL 13 or later: it implements
// outbox.Table.
//
//	pool, err := pgxpool.ParseConfig(url)
//	table, err := postgres.Open(pool, postgres.Config{Schema: "public", Table: "outbox"})
//	defer table.Close()
//	err = table.Check(ctx) // says what is missing, and the statements that add it
//	s, err := table.Snapshot(ctx)
//	for row, err := range table.Rows(ctx, outbox.Window{To: s.Text}, 0) { ... }
//	err = table.Flushed(ctx, s) // before anything that rests on s is written
//
// # Why snapshots
//
// Neither seq nor xid alone tells what is new: a sequence hands out its values
// before transactions commit, and the ids of transactions do not follow the order
// in which rows of one aggregate were locked. So the cursor is a snapshot. The
// rows of a window are those that its end sees and its beginning does not; two
// ranges of the index (xid, seq) hold them all:
//
//	xid >= xmax(S1) and xid < xmax(S2), if visible in S2
//	xid = any(xip(S1)),                 if visible in S2
//
// In the order of seq they are in the order in which the aggregate's row was
// locked, because a transaction leaves the list of running ones before it
// releases its locks: whoever saw event 1 of an aggregate got a seq above its.
//
// # How a backlog is read
//
// First one query charts the window: where in seq and xid its rows are, a line
// per 8,192 of them. Then each page is a query of its own, bounded by seq and xid,
// read to its end before the caller sees its first row; the next page is read
// while the caller works on this one. So memory is bounded on both sides, no
// statement runs for long, and whatever the caller does meanwhile, no transaction
// is open: nothing holds back vacuum, and an ALTER or DROP waits for no sender.
// A page needs no snapshot of PostgreSQL's own: which rows belong to a window is
// decided by xid and stays as it is, rows that were deleted since aside.
package postgres
