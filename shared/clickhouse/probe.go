package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"

	"oncehouse/shared/delivery"
	"oncehouse/shared/offsets"
)

// Probe implements delivery.Target. Its answer is exact or an error.
func (t *Target) Probe(ctx context.Context, lane delivery.Lane, of offsets.Set) (offsets.Set, error) {
	there, err := t.probe(ctx, lane, of)
	if err == nil {
		return there, nil
	}
	var known *delivery.Error
	if errors.As(err, &known) {
		return nil, known
	}
	out := t.readError(err)
	out.Message = fmt.Sprintf("probe %s %s: %s", lane.TopicPartition, of, out.Message)
	return nil, out
}

// probeSpan is how many offsets one query covers: a batch fits, and a skipped
// range of millions neither becomes one query nor one result.
const probeSpan = 1 << 20

func (t *Target) probe(ctx context.Context, lane delivery.Lane, of offsets.Set) (offsets.Set, error) {
	s := t.schema.Load()
	if s == nil || !s.traits.Provenance {
		return nil, &delivery.Error{Kind: delivery.Fatal, Reason: delivery.ReasonTarget,
			Message: fmt.Sprintf("probe %s: table %s has no provenance columns", lane.TopicPartition, tableName{t.config.Database, t.config.Table})}
	}
	replica, err := t.syncReplica(ctx, s)
	if err != nil {
		return nil, err
	}
	settings := pinRead(t.probeTime(ctx))
	if s.engine.family == shared {
		settings["select_sequential_consistency"] = "1"
	}
	var there offsets.Set
	for len(of) > 0 {
		part, rest := split(of)
		seen, err := t.probeSpan(ctx, lane, settings, replica, part)
		if err != nil {
			return nil, err
		}
		there, of = there.Union(seen.Intersect(part)), rest
	}
	return there, nil
}

// split takes the ranges off of that one query covers.
func split(of offsets.Set) (part, rest offsets.Set) {
	end := of.First() + probeSpan - 1
	if end < of.First() || end >= of.Last() {
		return of, nil
	}
	part = of.Intersect(offsets.Between(of.First(), end))
	return part, of.Minus(part)
}

// probeSpan asks for the ranges of offsets that are there between the first and
// the last of part; the server makes ranges of them, so that the answer is small.
func (t *Target) probeSpan(ctx context.Context, lane delivery.Lane, settings ch.Settings, replica string, part offsets.Set) (offsets.Set, error) {
	p := t.config.Rows.Provenance
	offset := quoteName(p.Offset)
	// One row whatever is there: an answer that lost its rows is no answer.
	sql := `SELECT groupArray(first), groupArray(last) FROM (
SELECT toInt64(min(o)) AS first, toInt64(max(o)) AS last FROM (
SELECT o, o - toInt64(row_number() OVER (ORDER BY o)) AS run FROM (
SELECT DISTINCT toInt64(` + offset + `) AS o FROM ` + tableName{t.config.Database, t.config.Table}.String() + `
WHERE ` + quoteName(p.Topic) + ` = ` + quoteText(lane.Topic) + ` AND ` + quoteName(p.Partition) + ` = ` + strconv.FormatInt(int64(lane.Partition), 10) + `
AND ` + offset + ` BETWEEN ` + strconv.FormatInt(part.First(), 10) + ` AND ` + strconv.FormatInt(part.Last(), 10) + `)
) GROUP BY run ORDER BY first)`
	note := &answerNote{}
	var firsts, lasts []int64
	rows := 0
	err := t.query(context.WithValue(context.Context(noDeadline{ctx}), noteKey{}, note), settings, sql, func(scan func(...any) error) error {
		rows++
		return scan(&firsts, &lasts)
	})
	if err != nil {
		return nil, err
	}
	if rows != 1 || len(firsts) != len(lasts) {
		return nil, fmt.Errorf("%d rows instead of 1 in the answer", rows)
	}
	if replica != "" && note.server() != replica {
		return nil, fmt.Errorf("replica %q was synchronised and %q answered: give the endpoint of one replica, or one that keeps a connection on one", replica, note.server())
	}
	var seen offsets.Set
	for i := range firsts {
		seen = append(seen, offsets.Range{First: firsts[i], Last: lasts[i]})
	}
	return seen, nil
}

// syncReplica makes a Replicated table's replica fetch everything that was
// stored before the call, and returns the name of the server that did, "" where
// none is needed. (select_sequential_consistency would do it on Shared tables
// only; on Replicated ones it hides what was stored without a quorum.)
func (t *Target) syncReplica(ctx context.Context, s *schema) (string, error) {
	if s.engine.family != replicated {
		return "", nil
	}
	table := tableName{t.config.Database, t.config.Table}
	note := &answerNote{}
	ctx = context.WithValue(context.Context(noDeadline{ctx}), noteKey{}, note)
	settings := ch.Settings{"receive_timeout": seconds(t.probeTime(ctx)), "max_execution_time": seconds(t.probeTime(ctx)), "wait_end_of_query": "1"}
	err := t.query(ctx, settings, "SYSTEM SYNC REPLICA "+table.String()+" LIGHTWEIGHT", func(func(...any) error) error { return nil })
	if err == nil && note.server() == "" {
		err = errors.New("the server does not say its name")
	}
	if err != nil {
		out := t.readError(err)
		out.Message = join("probe: synchronise the replica of "+table.String(), out.Message)
		out.Remedy = join(out.Remedy, fmt.Sprintf("GRANT SYSTEM SYNC REPLICA ON %s TO %s", table, quoteName(t.config.User)))
		return "", out
	}
	return note.server(), nil
}

// probeTime is what the server may take: what is left, at most the insert timeout.
func (t *Target) probeTime(ctx context.Context) time.Duration {
	left := t.config.Rules.InsertTimeout
	if deadline, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(deadline))
	}
	return max(left, time.Millisecond)
}

type noteKey struct{}

// answerNote remembers which server answered.
type answerNote struct {
	mu   sync.Mutex
	name string
}

func (n *answerNote) take(h http.Header) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.name = strings.TrimSpace(h.Get("X-ClickHouse-Server-Display-Name"))
}

func (n *answerNote) server() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.name
}
