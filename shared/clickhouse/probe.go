package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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
	out.Message = prefix(fmt.Sprintf("probe %s %s", lane.TopicPartition, of), out.Message)
	return nil, out
}

func (t *Target) probe(ctx context.Context, lane delivery.Lane, of offsets.Set) (offsets.Set, error) {
	s := t.schema.Load()
	if s == nil || !s.traits.Provenance {
		return nil, &delivery.Error{Kind: delivery.Fatal, Reason: delivery.ReasonTarget,
			Message: fmt.Sprintf("probe %s: table %s has no provenance columns", lane.TopicPartition, tableName{t.config.Database, t.config.Table})}
	}
	l, err := t.newLook(ctx, s)
	if err != nil {
		return nil, err
	}
	if err := t.checkNoneRuns(ctx, l, lane); err != nil {
		return nil, err
	}
	var there offsets.Set
	for len(of) > 0 {
		page, err := t.probePage(ctx, l, lane, of)
		if err != nil {
			return nil, err
		}
		there = there.Union(page.there.Intersect(of))
		if page.offsets < pageOffsets {
			break
		}
		of = of.Minus(offsets.Between(of.First(), page.there.Last()))
	}
	return there, nil
}

// checkNoneRuns refuses to look while an insert of the lane is at work: absence
// would prove nothing. max_execution_time does not end an insert that is being
// committed, so that on a starved server one can land long after its time. What
// ends between this query and the look is seen by the look.
func (t *Target) checkNoneRuns(ctx context.Context, l look, lane delivery.Lane) error {
	var running uint64
	if err := t.queryOne(ctx, l, runningSQL(lane), &running); err != nil {
		return err
	}
	if running > 0 {
		return &delivery.Error{Kind: delivery.Retryable, Reason: delivery.ReasonTarget,
			Message: fmt.Sprintf("probe %s: an insert of the lane is still at work at the server", lane.TopicPartition)}
	}
	return nil
}

// runningSQL counts the lane's inserts at work by their query id. The embedded
// engine, which cannot take one, keeps it in log_comment.
func runningSQL(lane delivery.Lane) string {
	id := quoteText(lanePrefix(lane))
	return fmt.Sprintf("SELECT toUInt64(count()) FROM system.processes WHERE startsWith(query_id, %s) OR startsWith(Settings['log_comment'], %[1]s)", id)
}

// A query's result and text are bounded, whatever is asked: so many offsets a
// page (a batch fits many times), so many ranges in the WHERE; with more of them
// everything between the first and the last is read and cut to size here.
const (
	pageOffsets = 1 << 20
	whereRanges = 64
)

// page is what one query found: the lowest offsets that are there.
type page struct {
	there   offsets.Set
	offsets uint64
}

// probePage asks for the lowest of the offsets that are there. The server makes
// ranges of them, so that the answer is small; it is one row whatever is there,
// so that an answer that lost its rows is no answer.
func (t *Target) probePage(ctx context.Context, l look, lane delivery.Lane, of offsets.Set) (page, error) {
	var firsts, lasts []int64
	var out page
	if err := t.queryOne(ctx, l, t.probeSQL(lane, of), &firsts, &lasts, &out.offsets); err != nil {
		return page{}, err
	}
	if len(firsts) != len(lasts) {
		return page{}, fmt.Errorf("%d and %d ends of ranges in the answer", len(firsts), len(lasts))
	}
	for i := range firsts {
		out.there = append(out.there, offsets.Range{First: firsts[i], Last: lasts[i]})
	}
	return out, nil
}

// look is how the table is asked so that every row that is there is seen.
type look struct {
	settings ch.Settings
	replica  string // the server that has to answer; "" for any
}

func (t *Target) newLook(ctx context.Context, s *schema) (look, error) {
	replica, err := t.syncReplica(ctx, s)
	if err != nil {
		return look{}, err
	}
	settings := pinRead(t.probeTime(ctx))
	if s.engine.family == shared {
		settings["select_sequential_consistency"] = "1"
	}
	return look{settings, replica}, nil
}

// queryOne scans the one row of an answer.
func (t *Target) queryOne(ctx context.Context, l look, sql string, into ...any) error {
	note := &answerNote{}
	rows := 0
	err := t.query(context.WithValue(context.Context(noDeadline{ctx}), noteKey{}, note), l.settings, sql, func(scan func(...any) error) error {
		rows++
		return scan(into...)
	})
	switch {
	case err != nil:
		return err
	case rows != 1:
		return fmt.Errorf("%d rows instead of 1 in the answer", rows)
	case l.replica != "" && note.server() != l.replica:
		return fmt.Errorf("replica %q was synchronised and %q answered: give the endpoint of one replica, or one that keeps a connection on one", l.replica, note.server())
	}
	return nil
}

// probeSQL numbers the offsets that are there, ascending: where offset minus
// number stays the same, they are one range.
func (t *Target) probeSQL(lane delivery.Lane, of offsets.Set) string {
	p := t.config.Rows.Provenance
	if len(of) > whereRanges {
		of = offsets.Between(of.First(), of.Last())
	}
	ranges := make([]string, len(of))
	for i, r := range of {
		ranges[i] = fmt.Sprintf("%s BETWEEN %d AND %d", quoteName(p.Offset), r.First, r.Last)
	}
	return fmt.Sprintf(`SELECT groupArray(first), groupArray(last), toUInt64(sum(n)) FROM (
SELECT toInt64(min(o)) AS first, toInt64(max(o)) AS last, count() AS n FROM (
SELECT o, o - toInt64(row_number() OVER (ORDER BY o)) AS run FROM (
SELECT DISTINCT toInt64(%s) AS o FROM %s WHERE %s = %s AND %s = %d AND (%s) ORDER BY o LIMIT %d)
) GROUP BY run ORDER BY first)`,
		quoteName(p.Offset), tableName{t.config.Database, t.config.Table},
		quoteName(p.Topic), quoteText(lane.Topic), quoteName(p.Partition), lane.Partition, strings.Join(ranges, " OR "), pageOffsets)
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
		out.Message = prefix("probe: synchronise the replica of "+table.String(), out.Message)
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
