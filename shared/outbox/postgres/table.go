package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"oncehouse/shared/outbox"
)

// The reasons of this package's refusals.
const (
	// ReasonTable: the table cannot be read exactly once as it is.
	ReasonTable = "OutboxTable"
	// ReasonReplica: the server is a standby.
	ReasonReplica = "Replica"
)

// Table is the outbox table of one shard. It is safe for concurrent use.
type Table struct {
	config Config
	pool   *pgxpool.Pool
	answer time.Duration
	// layout is how the columns were typed at the last look.
	layout atomic.Pointer[layout]
	// history is the server's that gave the last snapshot.
	history atomic.Pointer[history]
	// keyType is that of the last snapshot's identity.
	keyType atomic.Pointer[string]

	mu sync.Mutex // of what follows
	// control is the connection that took the last snapshot; nil if there is none.
	// While it lives, the server did not crash: a crash ends every connection.
	control *pgxpool.Conn
	last    outbox.Snapshot
}

var _ outbox.Table = (*Table)(nil)

// history tells one history of a server from all others.
type history struct {
	systemID uint64
	timeline uint32
	version  int // server_version_num
}

func (h history) String() string {
	return fmt.Sprintf("cluster %d, timeline %d", h.systemID, h.timeline)
}

// answerTimeout is how long a connection that was idle may take to answer before
// it counts as dead: while a function was frozen, its peer may have gone without
// a word.
const answerTimeout = 10 * time.Second

// historyKey is where a connection remembers whose it is: a server cannot change
// its timeline while it keeps a connection that began on a primary.
const historyKey = "oncehouse-history"

// Open returns a table. It connects when it is first used, with the settings of
// pool, of which it overrides the sessions' time-outs and the number of
// connections. It needs sessions of its own: connect to PostgreSQL, not to a
// pooler that switches servers between transactions. Error: every impossible
// setting.
func Open(pool *pgxpool.Config, c Config) (*Table, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("configure the outbox table: %w", err)
	}
	pool = pool.Copy()
	pool.MaxConns = 3 // snapshots, rows, retention
	pool.PingTimeout = answerTimeout
	if pool.ConnConfig.RuntimeParams["application_name"] == "" {
		pool.ConnConfig.RuntimeParams["application_name"] = "oncehouse-outbox"
	}
	before := pool.AfterConnect
	pool.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if before != nil {
			if err := before(ctx, conn); err != nil {
				return err
			}
		}
		return greet(ctx, conn, c)
	}
	p, err := pgxpool.NewWithConfig(context.Background(), pool)
	if err != nil {
		return nil, fmt.Errorf("configure the connections to PostgreSQL: %w", err)
	}
	return &Table{config: c, pool: p, answer: answerTimeout}, nil
}

// Close closes the connections.
func (t *Table) Close() {
	t.mu.Lock()
	t.disconnect()
	t.mu.Unlock()
	t.pool.Close()
}

// disconnect gives the control connection back.
func (t *Table) disconnect() {
	if t.control != nil {
		t.control.Release()
		t.control = nil
	}
}

// session is what every connection is set to.
func (c Config) session() [][2]string {
	return [][2]string{
		{"statement_timeout", strconv.FormatInt(c.StatementTimeout.Milliseconds(), 10)},
		{"lock_timeout", strconv.FormatInt(c.LockTimeout.Milliseconds(), 10)},
		// Values are printed the same for every role and database.
		{"client_encoding", "UTF8"},
		{"TimeZone", "UTC"},
		{"DateStyle", "ISO"},
		{"IntervalStyle", "postgres"},
		{"bytea_output", "hex"},
		{"extra_float_digits", "1"},
		// Plans are made once, and go by the index; compiling them takes longer
		// than running them.
		{"plan_cache_mode", "force_generic_plan"},
		{"enable_seqscan", "off"},
		{"jit", "off"},
		// A page is sorted in memory.
		{"work_mem", "32MB"},
		// What forces a flush waits for this server's disk, and for no more.
		{"synchronous_commit", "local"},
	}
}

// greet sets up a session and finds out whose it is. A standby is refused.
func greet(ctx context.Context, conn *pgx.Conn, c Config) error {
	var calls []string
	for _, s := range c.session() {
		calls = append(calls, "set_config('"+s[0]+"', '"+s[1]+"', false)")
	}
	if _, err := conn.Exec(ctx, "SELECT "+strings.Join(calls, ", ")); err != nil {
		return fmt.Errorf("set up the session: %w", err)
	}
	var replica bool
	var systemID int64
	h := &history{}
	// The timeline is that of the log's file: pg_control_checkpoint() still shows
	// the old one after a promotion, until the first checkpoint.
	err := conn.QueryRow(ctx, `
		SELECT pg_is_in_recovery(), (SELECT system_identifier FROM pg_control_system()),
			CASE WHEN pg_is_in_recovery() THEN 0
				ELSE ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint END,
			current_setting('server_version_num')::int`).Scan(&replica, &systemID, &h.timeline, &h.version)
	if err != nil {
		return fmt.Errorf("identify the server: %w", err)
	}
	if replica {
		return &outbox.Refusal{
			Reason:   ReasonReplica,
			Problems: []string{"the server is a standby: its snapshots do not show which transactions run, and rows would be lost"},
			Remedy:   "connect to the primary (target_session_attrs=primary, or the cluster's writer endpoint)",
		}
	}
	h.systemID = uint64(systemID)
	conn.PgConn().CustomData()[historyKey] = *h
	return nil
}

// errChanged says that the table is not as its layout has it.
var errChanged = errors.New("the table was altered")

// with calls use with a connection to the server of the last snapshot; once more
// if the table was altered since the last look (O26). use must be repeatable.
func (t *Table) with(ctx context.Context, use func(*pgx.Conn, history) error) error {
	err := t.once(ctx, use)
	if !altered(err) {
		return err
	}
	t.layout.Store(nil)
	t.pool.Reset() // prepared statements are as old as the layout
	return t.once(ctx, use)
}

func (t *Table) once(ctx context.Context, use func(*pgx.Conn, history) error) error {
	conn, h, err := t.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if last := t.history.Load(); last != nil && *last != h {
		return fmt.Errorf("the last snapshot is of %s, and now %s answers", last, h)
	}
	return use(conn.Conn(), h)
}

func (t *Table) acquire(ctx context.Context) (*pgxpool.Conn, history, error) {
	conn, err := t.pool.Acquire(ctx)
	if err != nil {
		return nil, history{}, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	return conn, historyOf(conn.Conn()), nil
}

// historyOf is what greet found out.
func historyOf(conn *pgx.Conn) history {
	h, _ := conn.PgConn().CustomData()[historyKey].(history) // set for every connection of the pool
	return h
}

// altered reports whether an error comes of an ALTER TABLE since the statement
// was prepared. Its text may be in any language: class 42 is a name or type that
// does not fit, 0A000 "cached plan must not change result type".
func altered(err error) bool {
	if errors.Is(err, errChanged) {
		return true
	}
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code == "0A000" || len(e.Code) == 5 && e.Code[:2] == "42" && e.Code != "42501")
}

// Snapshot implements outbox.Table.
func (t *Table) Snapshot(ctx context.Context) (outbox.Snapshot, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var s outbox.Snapshot
	var err error
	if t.control != nil {
		attempt, cancel := context.WithTimeout(ctx, t.answer)
		s, err = t.snapshot(attempt)
		cancel()
	}
	if t.control == nil && ctx.Err() == nil { // the first, or it has ended while nobody used it
		s, err = t.snapshot(ctx)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return outbox.Snapshot{}, fmt.Errorf("take a snapshot of %s: %w", t.config.name(), err)
	}
	t.last = s
	return s, nil
}

func (t *Table) snapshot(ctx context.Context) (s outbox.Snapshot, err error) {
	if t.control == nil {
		if t.control, _, err = t.acquire(ctx); err != nil {
			return s, err
		}
	}
	conn := t.control.Conn()
	var lsn int64
	// The functions of the list run after the statement's snapshot was taken, the
	// position in the log last: all that the snapshot calls ended is before it.
	err = conn.QueryRow(ctx, `
		SELECT pg_current_snapshot()::text, `+identity+`,
			CASE WHEN t.oid IS NULL THEN 0
				ELSE coalesce(pg_sequence_last_value(pg_get_serial_sequence($1, $3)::regclass), 0) END,
			(pg_current_wal_insert_lsn() - '0/0')::bigint
		`+identified, t.identifiedBy()...).Scan(&s.Text, &s.DatabaseOID, &s.TableOID, &s.XIDColumn, &s.SeqColumn, &s.KeyType, &s.LastSeq, &lsn)
	if err != nil {
		if conn.IsClosed() {
			t.disconnect()
		}
		return s, err
	}
	if s.TableOID == 0 {
		return s, t.config.refuse([]problem{t.config.missing()})
	}
	h := historyOf(conn)
	s.LSN, s.SystemID, s.Timeline = uint64(lsn), h.systemID, h.timeline
	t.history.Store(&h)
	t.keyType.Store(&s.KeyType)
	return s, nil
}

// identity and identified select what of an outbox.Identity is in the catalog; what
// is not there is 0.
const (
	identity   = "d.oid, coalesce(t.oid, 0), coalesce(x.attnum, 0), coalesce(s.attnum, 0), coalesce(k.typcategory::text, '')"
	identified = `FROM pg_database d CROSS JOIN (SELECT to_regclass($1)::oid AS oid) t
		LEFT JOIN pg_attribute x ON x.attrelid = t.oid AND x.attname = $2
		LEFT JOIN pg_attribute s ON s.attrelid = t.oid AND s.attname = $3
		LEFT JOIN pg_attribute b ON b.attrelid = t.oid AND b.attname = $4
		LEFT JOIN pg_type k ON k.oid = b.atttypid
		WHERE d.datname = current_database()`
)

// identifiedBy are the arguments of identified.
func (t *Table) identifiedBy() []any {
	c := t.config
	return []any{c.name(), c.Columns.XID, c.Columns.Seq, c.by()}
}

// patience is how long Flushed leaves the flush to others: under load the next
// commit does it, at less cost.
const patience = 4 * time.Millisecond

// Flushed implements outbox.Table. It does not rely on PostgreSQL's writer alone:
// that leaves the last page alone while an open transaction has written to it, and
// takes up to three wal_writer_delay for a lone rollback. So after a moment it
// flushes the log itself.
//
// The connection that took the snapshot has to live: a server that crashed since
// writes other records at the same positions of its log.
func (t *Table) Flushed(ctx context.Context, s outbox.Snapshot) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.flushed(ctx, s); err != nil {
		return fmt.Errorf("wait for the flush of the log up to %X/%X: %w", s.LSN>>32, uint32(s.LSN), err)
	}
	return nil
}

func (t *Table) flushed(ctx context.Context, s outbox.Snapshot) error {
	if t.control == nil || t.last != s {
		return errors.New("it is not the last snapshot, or its connection is gone")
	}
	conn := t.control.Conn()
	begun, forced := time.Now(), false
	for {
		var done bool
		err := conn.QueryRow(ctx, "SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint >= $1", int64(s.LSN)).Scan(&done)
		if err == nil && !done && !forced && time.Since(begun) >= patience {
			forced = true // an unprivileged role that may not is left to wait
			err = flush(ctx, conn, historyOf(conn))
		}
		if conn.IsClosed() {
			t.disconnect()
		}
		if err != nil || done {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// flush has the log flushed: by a message in it, which nobody reads. Before
// PostgreSQL 17 that takes the commit of a transaction, and so a transaction id.
func flush(ctx context.Context, conn *pgx.Conn, h history) error {
	statement := "SELECT pg_logical_emit_message(true, 'oncehouse', '')"
	if h.version >= 170000 {
		statement = "SELECT pg_logical_emit_message(false, 'oncehouse', '', true)"
	}
	_, err := conn.Exec(ctx, statement)
	var e *pgconn.PgError
	if errors.As(err, &e) && e.Code == "42501" {
		return nil // it was revoked: the writer of PostgreSQL does it in its time
	}
	return err
}
