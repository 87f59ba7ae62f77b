package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"oncehouse/shared/outbox"
)

// Retention says what of the published rows may go. The zero value has the
// defaults. The poller's role must own a partitioned table, and may DELETE from a
// plain one.
type Retention struct {
	// Partitions: whole partitions are dropped; else rows are deleted. The table
	// has to be of that kind.
	Partitions bool
	// Keep is how long rows stay at least: in a partitioned table from the end of
	// their partition on, in a plain one by Columns.Timestamp (without it they go
	// as soon as they are published). Of a partitioned table it has to be longer
	// than any transaction that writes events, or its insert would find no
	// partition. Default a day.
	Keep time.Duration
	// LockTimeout is how long a DROP waits for its lock, and so how long inserts
	// wait behind it; default 100 ms.
	LockTimeout time.Duration
	// Attempts is how often it tries; default 3. What it could not drop waits for
	// the next run.
	Attempts int
	// Rows bounds what a run deletes of a plain table; default 10,000.
	Rows int
}

// Retained is what a run of retention did.
type Retained struct {
	Dropped []string // partitions
	// Busy are partitions whose lock others did not release in time, Unpublished
	// those that hold a row that is not, or not provably, published.
	Busy, Unpublished []string
	// Until is the end of the last partition: from then on inserts fail. Zero for
	// a plain table.
	Until   time.Time
	Deleted int64 // rows
}

func (r Retention) withDefaults() Retention {
	if r.Keep == 0 {
		r.Keep = 24 * time.Hour
	}
	if r.LockTimeout == 0 {
		r.LockTimeout = 100 * time.Millisecond
	}
	if r.Attempts == 0 {
		r.Attempts = 3
	}
	if r.Rows == 0 {
		r.Rows = 10_000
	}
	return r
}

// Retain removes what is published: whole partitions, or a bounded number of rows
// of a plain table. cursors are the committed cursors of all shards; a plan does
// not count, because its rows may be read again.
func (t *Table) Retain(ctx context.Context, r Retention, cursors ...outbox.Cursor) (done Retained, err error) {
	r = r.withDefaults()
	horizon, err := published(cursors)
	if err == nil {
		err = t.with(ctx, func(conn *pgx.Conn, h history) error {
			done, err = t.retain(ctx, conn, h, r, horizon, cursors[0].Identity)
			return err
		})
	}
	if err != nil {
		return done, fmt.Errorf("remove published rows of %s: %w", t.config.name(), err)
	}
	return done, nil
}

// published is the transaction id below which every row is published: the lowest
// xmin of the cursors. All transactions below it have ended, so no late one can
// add a row there.
func published(cursors []outbox.Cursor) (string, error) {
	if len(cursors) == 0 {
		return "", errors.New("no cursor says what is published")
	}
	lowest := uint64(math.MaxUint64)
	shards := map[int]bool{}
	for _, c := range cursors {
		if c.Shards != len(cursors) || c.Shard < 0 || c.Shard >= c.Shards || shards[c.Shard] {
			return "", fmt.Errorf("the cursors are not those of all shards: there are %d, one is of shard %d of %d", len(cursors), c.Shard, c.Shards)
		}
		if c.Identity != cursors[0].Identity {
			return "", errors.New("the cursors are of different databases")
		}
		shards[c.Shard] = true
		if c.Done == "" {
			return "0", nil // nothing yet
		}
		xmin, _, _ := strings.Cut(c.Done, ":")
		n, err := strconv.ParseUint(xmin, 10, 64)
		if err != nil {
			return "", fmt.Errorf("the snapshot %q of a cursor: %w", c.Done, err)
		}
		lowest = min(lowest, n)
	}
	return strconv.FormatUint(lowest, 10), nil
}

func (t *Table) retain(ctx context.Context, conn *pgx.Conn, h history, r Retention, horizon string, of outbox.Identity) (done Retained, err error) {
	now := outbox.Identity{SystemID: h.systemID, Timeline: h.timeline}
	var kind, key string
	err = conn.QueryRow(ctx, `
		SELECT `+identity+`, coalesce((SELECT relkind::text FROM pg_class WHERE oid = t.oid), ''), coalesce((
			SELECT format_type(a.atttypid, NULL) FROM pg_partitioned_table p JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
			WHERE p.partrelid = t.oid AND p.partstrat = 'r' AND p.partnatts = 1), '')
		`+identified, t.identifiedBy()...).Scan(&now.DatabaseOID, &now.TableOID, &now.XIDColumn, &now.SeqColumn, &now.KeyType, &kind, &key)
	if err != nil {
		return done, fmt.Errorf("look up the table: %w", err)
	}
	if now != of {
		return done, fmt.Errorf("the cursors are of another table or server: %+v, this is %+v", of, now)
	}
	switch {
	case (kind == "p") != r.Partitions:
		err = errors.New("partitions are dropped of a partitioned table, rows deleted of a plain one: this is the other")
	case kind == "r":
		done.Deleted, err = t.deleteRows(ctx, conn, h, r, horizon)
	case key == "date" || strings.HasPrefix(key, "timestamp"):
		done, err = t.dropPartitions(ctx, conn, r, horizon)
	default:
		err = errors.New("its partitions are not ranges of one column of type timestamptz, timestamp or date")
	}
	return done, err
}

// deleteRows deletes the oldest rows, in batches that lock little and not for long.
func (t *Table) deleteRows(ctx context.Context, conn *pgx.Conn, h history, r Retention, horizon string) (deleted int64, err error) {
	l, err := t.currentLayout(ctx, conn, h)
	if err != nil {
		return 0, err
	}
	const batch = 1000
	for deleted < int64(r.Rows) {
		limit := min(batch, int64(r.Rows)-deleted)
		// The oldest are looked at, old enough or not: it never looks further.
		tag, err := conn.Exec(ctx, l.remove, horizon, limit, r.Keep.Milliseconds())
		if err != nil {
			return deleted, fmt.Errorf("delete rows: %w", err)
		}
		deleted += tag.RowsAffected()
		if tag.RowsAffected() < limit {
			break
		}
	}
	return deleted, nil
}

// remove deletes rows below the transaction id $1, the $2 oldest of them as far
// as they are $3 milliseconds old and nobody holds them.
func remove(c Config, columns map[string]column) string {
	at := "0"
	if c.Columns.Timestamp != "" {
		at = "coalesce(" + c.timestamp(columns) + ", 0)"
	}
	return c.fill(`
		DELETE FROM {table} WHERE ctid = ANY (ARRAY(
			SELECT row FROM (
				SELECT ctid AS row, ` + at + ` AS at FROM {table} WHERE {xid} < $1 ORDER BY {xid}, {seq} LIMIT $2 FOR UPDATE SKIP LOCKED
			) oldest
			WHERE at <= extract(epoch FROM now()) * 1000 - $3::bigint))`)
}

// dropPartitions drops the partitions that ended long enough ago.
func (t *Table) dropPartitions(ctx context.Context, conn *pgx.Conn, r Retention, horizon string) (done Retained, err error) {
	rows, err := conn.Query(ctx, `
		SELECT schema, name, until, until <= now() - $2 * interval '1 millisecond' FROM (
			SELECT n.nspname::text AS schema, c.relname::text AS name,
				substring(pg_get_expr(c.relpartbound, c.oid) FROM 'TO \(''([^'']*)''\)')::timestamptz AS until
			FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE i.inhparent = to_regclass($1)
		) p WHERE until IS NOT NULL ORDER BY until`, t.config.name(), r.Keep.Milliseconds())
	if err != nil {
		return done, fmt.Errorf("list the partitions: %w", err)
	}
	var old []string
	var schema, name string
	var over bool
	_, err = pgx.ForEachRow(rows, []any{&schema, &name, &done.Until, &over}, func() error {
		if over {
			old = append(old, pgx.Identifier{schema, name}.Sanitize())
		}
		return nil
	})
	if err != nil {
		return done, fmt.Errorf("list the partitions: %w", err)
	}
	for _, partition := range old {
		switch err := t.drop(ctx, conn, r, partition, horizon); {
		case err == nil:
			done.Dropped = append(done.Dropped, partition)
		case errors.Is(err, errUnpublished):
			done.Unpublished = append(done.Unpublished, partition)
		case isBusy(err):
			done.Busy = append(done.Busy, partition)
		default:
			return done, fmt.Errorf("drop the partition %s: %w", partition, err)
		}
	}
	return done, nil
}

var (
	errUnpublished = errors.New("a row is not published")
	errLinger      = errors.New("it took too long under its locks")
)

// isBusy: lock_not_available, the victim of a deadlock, or too long under the locks.
func isBusy(err error) bool {
	return hasCode(err, "55P03") || hasCode(err, "40P01") || errors.Is(err, errLinger)
}

func hasCode(err error, code string) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == code
}

// underLocks is how long a statement of a DROP may take: inserts wait behind it.
const underLocks = 2 * time.Second

// drop drops a partition, unless it holds a row that is not published.
func (t *Table) drop(ctx context.Context, conn *pgx.Conn, r Retention, partition, horizon string) (err error) {
	// A look without a lock: mostly it says all.
	if err := t.unpublished(ctx, conn, partition, horizon); err != nil {
		return err
	}
	for attempt := range r.Attempts {
		err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			return t.dropIn(ctx, tx, r, partition, horizon)
		})
		if hasCode(err, "57014") { // query_canceled
			err = fmt.Errorf("%w: %w", errLinger, err)
		}
		if !isBusy(err) || attempt == r.Attempts-1 {
			return err
		}
		select { // let those pass that queued behind
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(r.LockTimeout):
		}
	}
	return err
}

// dropIn takes the locks that a DROP takes, in the order in which an insert takes
// its own, and looks again: whoever wrote to the partition has ended then (O27).
func (t *Table) dropIn(ctx context.Context, tx pgx.Tx, r Retention, partition, horizon string) error {
	for _, statement := range []string{
		"SET LOCAL lock_timeout = " + strconv.FormatInt(r.LockTimeout.Milliseconds(), 10),
		"LOCK TABLE ONLY " + t.config.name() + " IN ACCESS EXCLUSIVE MODE",
		"LOCK TABLE " + partition + " IN ACCESS EXCLUSIVE MODE",
		"SET LOCAL statement_timeout = " + strconv.FormatInt(underLocks.Milliseconds(), 10),
	} {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return err
		}
	}
	if err := t.unpublished(ctx, tx.Conn(), partition, horizon); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "DROP TABLE "+partition)
	return err
}

// unpublished is errUnpublished if the partition holds a row from horizon on.
func (t *Table) unpublished(ctx context.Context, conn *pgx.Conn, partition, horizon string) error {
	var found bool
	err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+partition+" WHERE "+quote(t.config.Columns.XID)+" >= $1::xid8)", horizon).Scan(&found)
	if err == nil && found {
		return errUnpublished
	}
	return err
}
