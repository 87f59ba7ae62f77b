package outboxtest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"oncehouse/shared/kafka"
	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/memory"
)

// Application writes events of a few aggregates in transactions that overlap,
// lock each aggregate that they change, roll back, and commit late. It is not
// safe for concurrent use.
type Application struct {
	// AggregateType is that of its rows.
	AggregateType string
	// Oversize makes some payloads up to 1.2 kB large.
	Oversize bool
	// Trace takes what happened; nil is nobody.
	Trace *strings.Builder

	db      *memory.Database
	rng     *rand.Rand
	writers []*writer
	locked  map[string]bool
	events  map[string]int
	// By id: the seq of every row that was ever inserted, those committed, and
	// those deleted afterwards.
	seqs               map[string]int64
	committed, deleted map[string]bool
}

// writer is an open transaction.
type writer struct {
	tx    *memory.Tx
	locks []string
	ids   []string
}

// NewApplication returns an application that has written nothing.
func NewApplication(db *memory.Database, rng *rand.Rand) *Application {
	return &Application{
		AggregateType: "order", db: db, rng: rng, locked: map[string]bool{}, events: map[string]int{},
		seqs: map[string]int64{}, committed: map[string]bool{}, deleted: map[string]bool{},
	}
}

func (a *Application) log(format string, args ...any) {
	if a.Trace != nil {
		fmt.Fprintf(a.Trace, format+"\n", args...)
	}
}

// Step begins a transaction, inserts an aggregate's next event, commits, or rolls
// back. A transaction has its id before its locks, so that ids say nothing of the
// order in which aggregates change.
func (a *Application) Step() {
	if len(a.writers) == 0 || len(a.writers) < 3 && a.rng.IntN(3) == 0 {
		a.writers = append(a.writers, &writer{tx: a.db.Begin()})
		return
	}
	w := a.writers[a.rng.IntN(len(a.writers))]
	if a.rng.IntN(3) == 0 {
		a.end(w, a.rng.IntN(4) > 0)
		return
	}
	aggregate := string(rune('a' + a.rng.IntN(5)))
	if a.locked[aggregate] && !slices.Contains(w.locks, aggregate) {
		return // it would wait
	}
	if !a.locked[aggregate] {
		a.locked[aggregate] = true
		w.locks = append(w.locks, aggregate)
	}
	a.insert(w, aggregate)
}

func (a *Application) insert(w *writer, aggregate string) {
	a.events[aggregate]++
	id := aggregate + strconv.Itoa(a.events[aggregate])
	row := outbox.Row{ID: id, AggregateType: a.AggregateType, AggregateID: &aggregate, Type: "changed", Payload: []byte(id)}
	if a.Oversize && a.rng.IntN(6) == 0 {
		row.Payload = make([]byte, 200+a.rng.IntN(1000))
	}
	a.seqs[id] = w.tx.Insert(row)
	w.ids = append(w.ids, id)
	a.log("%s gets seq %d", id, a.seqs[id])
}

func (a *Application) end(w *writer, commit bool) {
	a.log("%v: commit %v", w.ids, commit)
	if commit {
		w.tx.Commit()
		for _, id := range w.ids {
			a.committed[id] = true
		}
	} else {
		w.tx.Rollback()
	}
	for _, l := range w.locks {
		delete(a.locked, l)
	}
	a.writers = slices.DeleteFunc(a.writers, func(o *writer) bool { return o == w })
}

// Delete deletes a committed row.
func (a *Application) Delete() {
	rows := a.db.Committed()
	if len(rows) == 0 {
		return
	}
	row := rows[a.rng.IntN(len(rows))]
	a.log("%s is deleted", row.ID)
	a.deleted[row.ID] = true
	a.db.Delete(row.Seq)
}

// Crash lets the database crash: every open transaction is rolled back.
func (a *Application) Crash() {
	a.log("the database crashes")
	a.db.Crash()
	a.writers, a.locked = nil, map[string]bool{}
}

// Finish commits what is open.
func (a *Application) Finish() {
	for _, w := range slices.Clone(a.writers) {
		a.end(w, true)
	}
}

// Rows is how many rows were committed.
func (a *Application) Rows() int { return len(a.committed) }

// Kept is what a reader kept of a record.
type Kept struct {
	kafka.TopicPartition
	ID  string
	Key string
}

// Keep keeps a record.
func Keep(tp kafka.TopicPartition, r *kafka.Record) Kept {
	id, _ := r.FindHeader(outbox.HeaderID)
	return Kept{tp, string(id), string(r.Key)}
}

// Verdict counts what is wrong with what a reader kept.
type Verdict struct{ Lost, Doubled, Misordered int }

// Add adds another one.
func (v *Verdict) Add(o Verdict) {
	v.Lost += o.Lost
	v.Doubled += o.Doubled
	v.Misordered += o.Misordered
}

// Judge compares what a reader kept, in its order, with what was committed: every
// row once, unless it was deleted (then at most once), nothing that was rolled
// back, and each aggregate in the order of seq on every partition.
func (a *Application) Judge(rows []Kept) (v Verdict) {
	type place struct {
		kafka.TopicPartition
		key string
	}
	count, last := map[string]int{}, map[place]int64{}
	for _, r := range rows {
		count[r.ID]++
		if !a.committed[r.ID] {
			v.Doubled++
			a.log("%s was rolled back, and is published", r.ID)
		}
		p := place{r.TopicPartition, r.Key}
		if a.seqs[r.ID] < last[p] {
			v.Misordered++
			a.log("%s is misordered", r.ID)
		}
		last[p] = max(last[p], a.seqs[r.ID])
	}
	for id := range a.committed {
		switch n := count[id]; {
		case n == 0 && !a.deleted[id]:
			v.Lost++
			a.log("%s is lost", id)
		case n > 1:
			v.Doubled += n - 1
			a.log("%s is doubled", id)
		}
	}
	return v
}
