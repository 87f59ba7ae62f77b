package chain

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/uuid"
	"github.com/shopspring/decimal"

	"oncehouse/infra/local/orders"
	"oncehouse/shared/metrics"
)

// Proof is what a run came to.
type Proof struct {
	Chain string `json:"chain"`
	// Committed are the rows of the outbox in PostgreSQL.
	Committed int64 `json:"committed"`
	// Published are the committed records of the topic.
	Published int64 `json:"published"`
	// Stored are the committed rows that are in ClickHouse, with the values that
	// they have in PostgreSQL: in each of the tables.
	Stored int64 `json:"stored"`
	// Lost are committed rows that are not; Duplicated are rows of ClickHouse too
	// many; Misordered are rows that come before one of the same order which was
	// committed before them. All are sums over the tables.
	Lost       int64 `json:"lost"`
	Duplicated int64 `json:"duplicated"`
	Misordered int64 `json:"misordered"`
	Kills      int64 `json:"kills"`
}

// Holds reports whether the chain is exact and in order.
func (p Proof) Holds() bool {
	return p.Committed > 0 && p.Stored == p.Committed && p.Published == p.Committed && p.Lost == 0 && p.Duplicated == 0 && p.Misordered == 0
}

// String is the line that scripts look for.
func (p Proof) String() string {
	line, err := json.Marshal(p)
	if err != nil { // numbers and a string always marshal
		panic(err)
	}
	return "PROOF " + string(line)
}

// digest stands for all values of an event.
type digest [sha256.Size]byte

// digestOf writes the values in one way, wherever they come from.
func digestOf(e *orders.Event) (digest, error) {
	amount, err := decimal.NewFromString(e.Amount.String())
	if err != nil {
		return digest{}, fmt.Errorf("amount %q of event %s: %w", e.Amount, e.EventID, err)
	}
	text, err := json.Marshal([]any{
		e.EventID, e.OrderID, e.Version, e.Status, amount.StringFixed(2), append([]string{}, e.Items...), e.Note, e.PlacedAt.UnixMicro(),
	})
	return sha256.Sum256(text), err
}

// truth is what PostgreSQL says.
type truth struct {
	digests map[uuid.UUID]digest
	// place is an event's among those of its order, from 1; by seq.
	place map[uuid.UUID]int
	key   map[uuid.UUID]string
	sizes map[string]int // of orders
}

// add takes one row of the outbox, in the order of seq. Error: the outbox itself
// is not what the service promises, so that nothing could be proven.
func (t *truth) add(id uuid.UUID, aggregate string, e *orders.Event) error {
	var err error
	if t.digests[id], err = digestOf(e); err != nil {
		return err
	}
	t.sizes[aggregate]++
	t.place[id], t.key[id] = t.sizes[aggregate], aggregate
	if e.EventID != id || e.Version != int64(t.sizes[aggregate]) || orders.Key(e.OrderID) != aggregate {
		return fmt.Errorf("row %s of the outbox is event %s, version %d of %s, and the %dth of it", id, e.EventID, e.Version, aggregate, t.sizes[aggregate])
	}
	return nil
}

func newTruth() *truth {
	return &truth{digests: map[uuid.UUID]digest{}, place: map[uuid.UUID]int{}, key: map[uuid.UUID]string{}, sizes: map[string]int{}}
}

// readTruth reads the whole outbox of a database.
func readTruth(ctx context.Context, database string) (*truth, error) {
	t := newTruth()
	var broken error
	err := committedRows(ctx, database, func(id uuid.UUID, aggregate string, e *orders.Event) {
		broken = errors.Join(broken, t.add(id, aggregate, e))
	})
	return t, errors.Join(err, broken)
}

// compare compares a table of the engine, whole.
func (t *truth) compare(ctx context.Context, engine, table string) (*comparison, error) {
	c := t.comparison()
	if err := storedRows(ctx, engine, table, c.row); err != nil {
		return nil, err
	}
	c.finish()
	return c, nil
}

// Comparison is what one table holds of an outbox: in rows of the outbox, which
// Stored and Lost add up to, and in rows of the table that are too many or come
// before one of the same order that was committed before them.
type Comparison struct {
	Committed, Stored, Lost, Duplicated, Misordered int64
	// Problems are the first of what is wrong, for people.
	Problems []string
}

// Compare holds a table in the engine, by its URL, against the outbox of a
// database, by its own, value by value.
func Compare(ctx context.Context, database, engine, table string) (Comparison, error) {
	t, err := readTruth(ctx, database)
	if err != nil {
		return Comparison{}, err
	}
	c, err := t.compare(ctx, engine, table)
	if err != nil {
		return Comparison{}, err
	}
	return Comparison{int64(len(t.digests)), c.stored, c.lost, c.doubled, c.moved, c.problems}, nil
}

// comparison holds one table against the truth. Rows come by partition and
// offset, so that those of one order come in the order in which they were stored.
type comparison struct {
	*truth
	seen    map[uuid.UUID]bool
	latest  map[string]int // place of the latest event of an order
	stored  int64
	lost    int64
	doubled int64
	moved   int64
	// Problems are the first of what is wrong, for people.
	problems []string
}

func (t *truth) comparison() *comparison {
	return &comparison{truth: t, seen: map[uuid.UUID]bool{}, latest: map[string]int{}}
}

// examples is how many faults of a table are told one by one.
const examples = 5

func (c *comparison) problem(format string, args ...any) {
	if len(c.problems) < examples {
		c.problems = append(c.problems, fmt.Sprintf(format, args...))
	}
}

func (c *comparison) row(r *storedRow) {
	want, committed := c.digests[r.EventID]
	switch {
	case !committed:
		c.doubled++
		c.problem("event %s (%s version %d) was never committed", r.EventID, r.Key, r.Version)
		return
	case c.seen[r.EventID]:
		c.doubled++
		c.problem("event %s (%s version %d) is stored twice", r.EventID, r.Key, r.Version)
		return
	}
	event := r.event()
	if got, err := digestOf(&event); err != nil || got != want || r.Key != c.key[r.EventID] {
		c.problem("event %s (%s version %d) has other values than in PostgreSQL", r.EventID, r.Key, r.Version)
		return // and is missing
	}
	c.seen[r.EventID] = true
	c.stored++
	if c.place[r.EventID] < c.latest[r.Key] {
		c.moved++
		c.problem("event %d of %s is stored behind event %d", c.place[r.EventID], r.Key, c.latest[r.Key])
	}
	c.latest[r.Key] = max(c.latest[r.Key], c.place[r.EventID])
}

// finish counts what is missing.
func (c *comparison) finish() {
	for id := range c.digests {
		if !c.seen[id] {
			c.lost++
			c.problem("event %d of %s (%s) is not stored", c.place[id], c.key[id], id)
		}
	}
}

// prove compares everything.
func (r *run) prove(ctx context.Context) (Proof, error) {
	t, err := readTruth(ctx, r.stack.Postgres.URL())
	if err != nil {
		return Proof{}, err
	}
	p := Proof{Chain: "postgres-to-clickhouse", Committed: int64(len(t.digests)), Kills: r.chaos.kills()}
	err = publishedRecords(ctx, r.stack.Broker.Addrs(), r.outbox.Outbox.Topics()[0], func(string) { p.Published++ })
	if err != nil {
		return p, err
	}
	p.Stored = p.Committed
	var lines []readerLine
	for _, reader := range r.readers {
		c, err := t.compare(ctx, r.stack.Engine.URL(), reader.table)
		if err != nil {
			return p, err
		}
		suppressed, err := r.suppressed(reader)
		if err != nil {
			return p, err
		}
		p.Stored = min(p.Stored, c.stored)
		p.Lost, p.Duplicated, p.Misordered = p.Lost+c.lost, p.Duplicated+c.doubled, p.Misordered+c.moved
		lines = append(lines, readerLine{reader.name, c, suppressed})
	}
	r.show(p, lines)
	return p, nil
}

// suppressed is how many repeats of aborted attempts a sink dropped, by its own
// metrics. Those of killed invocations are not in it.
func (r *run) suppressed(reader *reader) (int64, error) {
	file, err := os.Open(filepath.Join(r.Dir, "log", "sink-"+reader.table+".log"))
	if err != nil {
		return 0, fmt.Errorf("read the sink's metrics: %w", err)
	}
	defer func() { _ = file.Close() }()
	total := 0.0
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var emf map[string]any
		if json.Unmarshal(lines.Bytes(), &emf) != nil || emf["_aws"] == nil {
			continue
		}
		if n, ok := emf[string(metrics.AbortedDuplicatesSuppressed)].(float64); ok {
			total += n
		}
	}
	return int64(total), lines.Err()
}
