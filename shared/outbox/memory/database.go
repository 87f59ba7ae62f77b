package memory

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"oncehouse/shared/outbox"
)

// Database is a PostgreSQL with one outbox table, as far as the poller sees it.
// It is safe for concurrent use.
type Database struct {
	mu       sync.Mutex
	identity outbox.Identity
	rows     []stored
	seq      int64
	// Transactions: ids are handed out from next; completed is the highest that
	// has ended.
	next, completed uint64
	running         map[uint64]bool
	// The write-ahead log: lsn grows with each record; xids are the ids in it, by
	// the lsn of their first record.
	lsn, flushed uint64
	xids         map[uint64]uint64
	crashes      int
}

type stored struct {
	outbox.Row
	xid  uint64
	live bool // committed, not deleted
	gone bool // deleted, or rolled back
}

// NewDatabase returns an empty one.
func NewDatabase() *Database {
	return &Database{
		identity: outbox.Identity{
			SystemID: 7_300_000_000_000_000_001, Timeline: 1, DatabaseOID: 5, TableOID: 16_400, XIDColumn: 7, SeqColumn: 6,
		},
		next: 100, completed: 99,
		running: map[uint64]bool{}, xids: map[uint64]uint64{},
	}
}

// Tx is a writing transaction.
type Tx struct {
	db   *Database
	xid  uint64
	rows []int
}

// Begin begins a transaction and gives it its id.
func (d *Database) Begin() *Tx {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := &Tx{db: d, xid: d.next}
	d.next++
	d.running[t.xid] = true
	d.lsn++
	d.xids[t.xid] = d.lsn
	return t
}

// Insert inserts a row and returns its seq.
func (t *Tx) Insert(row outbox.Row) int64 {
	d := t.db
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seq++
	d.lsn++
	row.Seq = d.seq
	t.rows = append(t.rows, len(d.rows))
	d.rows = append(d.rows, stored{Row: row, xid: t.xid})
	return row.Seq
}

// Commit ends the transaction: its rows are visible and on disk.
func (t *Tx) Commit() { t.end(true) }

// Rollback ends the transaction; nobody waits for the disk.
func (t *Tx) Rollback() { t.end(false) }

func (t *Tx) end(commit bool) {
	d := t.db
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.running[t.xid] {
		return // a crash has ended it
	}
	d.lsn++
	if commit {
		d.flushed = d.lsn
	}
	for _, i := range t.rows {
		d.rows[i].live, d.rows[i].gone = commit, !commit
	}
	delete(d.running, t.xid)
	d.completed = max(d.completed, t.xid)
}

// Delete removes a committed row, as the application may at any time.
func (d *Database) Delete(seq int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.rows {
		if d.rows[i].Seq == seq && d.rows[i].live {
			d.rows[i].live, d.rows[i].gone = false, true
		}
	}
}

// Crash ends the server at once and starts it again: what runs is rolled back,
// and ids that are in no flushed record are handed out again.
func (d *Database) Crash() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.rows {
		if d.running[d.rows[i].xid] && !d.rows[i].live {
			d.rows[i].gone = true
		}
	}
	clear(d.running)
	highest := uint64(99)
	for xid, lsn := range d.xids {
		if lsn <= d.flushed {
			highest = max(highest, xid)
		} else {
			delete(d.xids, xid)
		}
	}
	d.next, d.completed = highest+1, highest
	d.lsn = d.flushed
	d.crashes++
	d.seq += 32 // a sequence logs that many values ahead
}

// Identify changes the database's identity, as a restore or a switch does.
func (d *Database) Identify(change func(*outbox.Identity)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.identity)
}

// RestartSequence sets the sequence.
func (d *Database) RestartSequence(seq int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seq = seq
}

// Committed are the rows that are visible now, in the order of seq.
func (d *Database) Committed() []outbox.Row {
	d.mu.Lock()
	defer d.mu.Unlock()
	var rows []outbox.Row
	for _, r := range d.rows {
		if r.live {
			rows = append(rows, r.Row)
		}
	}
	return rows
}

// XID is the transaction that inserted a row.
func (d *Database) XID(seq int64) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.rows {
		if r.Seq == seq {
			return r.xid
		}
	}
	return 0
}

// Snapshot is what a reader would see now.
func (d *Database) Snapshot() outbox.Snapshot {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := snapshot{xmin: d.completed + 1, xmax: d.completed + 1, running: map[uint64]bool{}}
	for xid := range d.running {
		if xid < s.xmax {
			s.running[xid] = true
			s.xmin = min(s.xmin, xid)
		}
	}
	return outbox.Snapshot{Text: s.String(), LSN: d.lsn, Identity: d.identity, LastSeq: d.seq}
}

// visible are the rows of a window that are still there, in the order of seq.
func (d *Database) visible(w outbox.Window, after int64) ([]outbox.Row, error) {
	from, err := parse(w.From)
	if err != nil {
		return nil, err
	}
	to, err := parse(w.To)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var rows []outbox.Row
	for _, r := range d.rows {
		if r.live && r.Seq > after && to.sees(r.xid) && !from.sees(r.xid) {
			rows = append(rows, r.Row)
		}
	}
	return rows, nil
}

// Table is the table as the poller of one shard reads it.
type Table struct {
	DB    *Database
	Shard outbox.Shard
	// Effects may be set before use.
	Effects Effects
	// Refusal is what Check returns, unless nil.
	Refusal *outbox.Refusal

	crashes int // of the database, when the last snapshot was taken
}

var _ outbox.Table = (*Table)(nil)

// Table returns the table of a shard.
func (d *Database) Table(shard outbox.Shard) *Table { return &Table{DB: d, Shard: shard} }

// Check implements outbox.Table.
func (t *Table) Check(ctx context.Context) error {
	return t.Effects.perform(ctx, "check", func() error {
		if t.Refusal != nil {
			return t.Refusal
		}
		return nil
	})
}

// Snapshot implements outbox.Table.
func (t *Table) Snapshot(ctx context.Context) (s outbox.Snapshot, err error) {
	err = t.Effects.perform(ctx, "snapshot", func() error {
		s = t.DB.Snapshot()
		t.DB.mu.Lock()
		t.crashes = t.DB.crashes
		t.DB.mu.Unlock()
		return nil
	})
	return s, err
}

// Flushed implements outbox.Table.
func (t *Table) Flushed(ctx context.Context, s outbox.Snapshot) error {
	return t.Effects.perform(ctx, "flushed", func() error {
		t.DB.mu.Lock()
		defer t.DB.mu.Unlock()
		if t.crashes != t.DB.crashes {
			return errors.New("the server crashed since the snapshot was taken")
		}
		t.DB.flushed = max(t.DB.flushed, s.LSN)
		return nil
	})
}

// Rows implements outbox.Table.
func (t *Table) Rows(ctx context.Context, w outbox.Window, after int64) iter.Seq2[outbox.Row, error] {
	return func(yield func(outbox.Row, error) bool) {
		var rows []outbox.Row
		err := t.Effects.perform(ctx, "rows", func() (err error) {
			rows, err = t.DB.visible(w, after)
			return err
		})
		if err != nil {
			yield(outbox.Row{}, err)
			return
		}
		for _, row := range rows {
			if t.Shard.Of > 1 && shardOf(&row, t.Shard) != t.Shard.Index {
				continue
			}
			if !yield(row, nil) {
				return
			}
		}
	}
}

// shardOf divides rows by a column of any name: there is one, and what is in it
// follows from the aggregate id.
func shardOf(row *outbox.Row, shard outbox.Shard) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(shard.By)) // never fails
	if row.AggregateID != nil {
		_, _ = h.Write([]byte(*row.AggregateID)) // never fails
	} else {
		_, _ = fmt.Fprint(h, row.Seq)
	}
	return int(h.Sum32() % uint32(shard.Of))
}

// snapshot is a pg_snapshot.
type snapshot struct {
	xmin, xmax uint64
	running    map[uint64]bool
}

func (s snapshot) sees(xid uint64) bool { return xid < s.xmax && !s.running[xid] }

func (s snapshot) String() string {
	var xip []string
	for _, xid := range slices.Sorted(maps.Keys(s.running)) {
		xip = append(xip, strconv.FormatUint(xid, 10))
	}
	return fmt.Sprintf("%d:%d:%s", s.xmin, s.xmax, strings.Join(xip, ","))
}

func parse(text string) (snapshot, error) {
	s := snapshot{running: map[uint64]bool{}}
	if text == "" {
		return s, nil
	}
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return s, fmt.Errorf("%q is no snapshot", text)
	}
	numbers := parts[:2]
	if parts[2] != "" {
		numbers = append(numbers, strings.Split(parts[2], ",")...)
	}
	for i, p := range numbers {
		n, err := strconv.ParseUint(p, 10, 64)
		switch {
		case err != nil:
			return s, fmt.Errorf("%q is no snapshot: %w", text, err)
		case i == 0:
			s.xmin = n
		case i == 1:
			s.xmax = n
		default:
			s.running[n] = true
		}
	}
	return s, nil
}
