package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"oncehouse/infra/local/broker"
	"oncehouse/infra/local/postgres"
	table "oncehouse/shared/outbox/postgres"
)

// outboxSize is how much the outbox part does.
type outboxSize struct {
	rows   int           // of the backlog that one run publishes
	steady time.Duration // of single commits, for the latency
	every  time.Duration // from one of them to the next
}

const (
	outboxTransaction = 1000 // rows of one
	outboxPayload     = 1000 // bytes
	outboxTopic       = "outbox.event.order"
	outboxPartitions  = 6
	outboxPoll        = 10 * time.Millisecond // after a look that found nothing
)

// publisher publishes an outbox table of its own until it is told to end.
type publisher interface {
	// unpublished is the condition of the one index that the way wants beside the
	// migration's.
	unpublished() string
	// open prepares a run on the schema's table.
	open(ctx context.Context, bench *outboxBench, schema string) error
	// run publishes until ctx ends. published is called with the ids of rows when
	// they are committed to Kafka.
	run(ctx context.Context, published func(ids []string)) error
	// settle has the way's sessions report to the server's statistics.
	settle(ctx context.Context) error
	// parts are where the time of the last run went, in milliseconds per
	// transaction.
	parts() map[string]float64
	close()
}

// outboxBench is what the ways share.
type outboxBench struct {
	database *postgres.Server
	broker   *broker.EmbeddedBroker
	conn     *pgx.Conn
}

// measureOutbox measures the ways on the same rows, in turns: a backlog in
// transactions of 1,000 rows of 1 kB, then single commits while they poll.
func measureOutbox(ctx context.Context, o options, r *report) error {
	b := &outboxBench{}
	var err error
	if b.database, err = postgres.Start(ctx, postgres.Options{Root: o.root, Settings: map[string]string{"max_wal_size": "4GB"}}); err != nil {
		return err
	}
	defer b.database.Close()
	if b.conn, err = pgx.Connect(ctx, b.database.URL()); err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer func() { _ = b.conn.Close(ctx) }()
	if b.broker, err = broker.Embedded(broker.EmbeddedConfig{}); err != nil {
		return err
	}
	defer b.broker.Close()
	names := []string{"oncehouse", "delete", "mark"}
	results := make([][]outboxRun, len(names))
	for run := range o.runs + 1 {
		for i, name := range names {
			result, err := b.runOnce(ctx, o.outbox, name, run)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if run > 0 { // the first one warms up
				results[i] = append(results[i], result)
			}
		}
	}
	reportOutbox(r, names, results)
	return nil
}

func newPublisher(name string) publisher {
	switch name {
	case "delete":
		return &naivePublisher{done: "DELETE FROM outbox WHERE seq = ANY ($1)", where: "seq > 0"}
	case "mark":
		return &naivePublisher{done: "UPDATE outbox SET published_at = now() WHERE seq = ANY ($1)", where: "published_at IS NULL"}
	}
	return &oncehousePublisher{}
}

// outboxRun is what one run of one way came to.
type outboxRun struct {
	rows      float64   // a second
	latencies []float64 // milliseconds
	dead      float64   // rows left in the table for vacuum
	wal       float64   // MB that publishing wrote for 100,000 rows
	parts     map[string]float64
}

// runOnce measures one way on a table and topics of its own.
func (b *outboxBench) runOnce(ctx context.Context, size outboxSize, name string, run int) (result outboxRun, err error) {
	schema := fmt.Sprintf("%s_%d", name, run)
	if err := b.fill(ctx, name, schema, size.rows); err != nil {
		return result, err
	}
	if err := broker.CreateTopics(ctx, b.broker, broker.Topic{Name: schema + "." + outboxTopic, Partitions: outboxPartitions}); err != nil {
		return result, err
	}
	p := newPublisher(name)
	if err := p.open(ctx, b, schema); err != nil {
		return result, err
	}
	defer p.close()
	before, err := b.wal(ctx)
	if err != nil {
		return result, err
	}
	took, err := drain(ctx, p, size.rows)
	if err != nil {
		return result, err
	}
	result.rows, result.parts = float64(size.rows)/took.Seconds(), p.parts()
	after, err := b.wal(ctx)
	if err != nil {
		return result, err
	}
	result.wal = float64(after-before) / 1e6 * 100_000 / float64(size.rows)
	if err := p.settle(ctx); err != nil {
		return result, err
	}
	if result.dead, err = b.dead(ctx, schema); err != nil {
		return result, err
	}
	if result.latencies, err = b.trickle(ctx, p, size); err != nil {
		return result, err
	}
	_, err = b.conn.Exec(ctx, "DROP SCHEMA "+schema+" CASCADE")
	return result, err
}

// fill makes the table of a run and commits its rows. Vacuum stays out of the
// way, so that what is left for it can be counted.
func (b *outboxBench) fill(ctx context.Context, name, schema string, rows int) error {
	for _, sql := range []string{
		"CREATE SCHEMA " + schema, "SET search_path = " + schema, table.Migration(false),
		"ALTER TABLE outbox ADD COLUMN published_at timestamptz",
		"CREATE INDEX ON outbox (seq) WHERE " + newPublisher(name).unpublished(),
		"ALTER TABLE outbox SET (autovacuum_enabled = off)",
		fmt.Sprintf(`INSERT INTO outbox (aggregatetype, aggregateid, type, payload)
			SELECT 'order', 'order-' || i %% 5000, 'OrderChanged', jsonb_build_object('n', i, 'text', (
				SELECT string_agg(md5((i * 31 + k)::text), ' ') FROM generate_series(1, %d) k))
			FROM generate_series(1, %d) i`, outboxPayload/33, rows),
		"ANALYZE outbox", "CHECKPOINT",
	} {
		if _, err := b.conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("fill the table: %w", err)
		}
	}
	return nil
}

// wal is how much log the server has written so far.
func (b *outboxBench) wal(ctx context.Context) (n int64, err error) {
	if err = b.conn.QueryRow(ctx, "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint").Scan(&n); err != nil {
		return 0, fmt.Errorf("ask for the log's end: %w", err)
	}
	return n, nil
}

// dead is how many dead rows the table has, by the server's statistics: the way has
// reported its own.
func (b *outboxBench) dead(ctx context.Context, schema string) (n float64, err error) {
	err = b.conn.QueryRow(ctx, "SELECT n_dead_tup FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = 'outbox'", schema).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count dead rows: %w", err)
	}
	return n, nil
}

// drain is how long a way takes for the whole backlog.
func drain(ctx context.Context, p publisher, rows int) (time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begun := time.Now()
	var took time.Duration
	left := rows
	err := p.run(ctx, func(ids []string) {
		if left -= len(ids); left == 0 {
			took = time.Since(begun)
			cancel()
		}
	})
	if took == 0 {
		return 0, errors.Join(err, fmt.Errorf("%d of %d rows were not published", left, rows))
	}
	return took, nil
}

// trickle commits single rows while the way polls, and measures from the answer to
// a commit to the answer to the commit of its Kafka transaction.
func (b *outboxBench) trickle(ctx context.Context, p publisher, size outboxSize) ([]float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	published := map[string]time.Time{}
	done := make(chan error, 1)
	go func() {
		done <- p.run(ctx, func(ids []string) {
			now := time.Now()
			mu.Lock()
			defer mu.Unlock()
			for _, id := range ids {
				published[id] = now
			}
		})
	}()
	committed := map[string]time.Time{}
	ticker := time.NewTicker(size.every)
	defer ticker.Stop()
	for begun := time.Now(); time.Since(begun) < size.steady; <-ticker.C {
		var id string
		err := b.conn.QueryRow(ctx, `INSERT INTO outbox (aggregatetype, aggregateid, type, payload)
			SELECT 'order', 'order-1', 'OrderChanged', payload FROM (SELECT '{"n":1}'::jsonb AS payload) _ RETURNING id::text`).Scan(&id)
		if err != nil {
			return nil, fmt.Errorf("insert a row: %w", err)
		}
		committed[id] = time.Now()
	}
	var latencies []float64
	for deadline := time.Now().Add(10 * time.Second); ; {
		mu.Lock()
		latencies = latencies[:0]
		for id, at := range committed {
			if seen, ok := published[id]; ok {
				latencies = append(latencies, max(0, float64(seen.Sub(at).Microseconds())/1000))
			}
		}
		mu.Unlock()
		if len(latencies) == len(committed) || time.Now().After(deadline) {
			break
		}
		time.Sleep(outboxPoll)
	}
	cancel()
	if err := <-done; err != nil {
		return nil, err
	}
	if len(latencies) < len(committed) {
		return nil, fmt.Errorf("%d of %d rows were not published", len(committed)-len(latencies), len(committed))
	}
	slices.Sort(latencies)
	return latencies, nil
}

// reportOutbox adds the figures of all ways.
func reportOutbox(r *report, names []string, results [][]outboxRun) {
	column := func(runs []outboxRun, of func(outboxRun) float64) (values []float64) {
		for _, run := range runs {
			values = append(values, of(run))
		}
		return values
	}
	for i, name := range names {
		prefix, runs := "outbox/"+name+"/", results[i]
		r.add(prefix+"rows", "rows/s", column(runs, func(o outboxRun) float64 { return o.rows }))
		r.add(prefix+"latency_median", "ms", column(runs, func(o outboxRun) float64 { return o.latencies[len(o.latencies)/2] }))
		r.add(prefix+"latency_p99", "ms", column(runs, func(o outboxRun) float64 { return o.latencies[len(o.latencies)*99/100] }))
		r.add(prefix+"dead_rows", "rows", column(runs, func(o outboxRun) float64 { return o.dead }))
		r.add(prefix+"wal_per_100k_rows", "MB", column(runs, func(o outboxRun) float64 { return o.wal }))
		for _, part := range outboxParts(name) {
			r.add(prefix+part, "ms", column(runs, func(o outboxRun) float64 { return o.parts[part] }))
		}
		if i == 0 {
			continue
		}
		var ratios []float64
		for run := range runs {
			ratios = append(ratios, results[0][run].rows/runs[run].rows)
		}
		r.add("outbox/ratio_oncehouse_to_"+name, "", ratios)
	}
}

// outboxParts are where the time of a transaction can go. What is read while
// another page is published costs no time and is in no part.
func outboxParts(name string) []string {
	if name == "oncehouse" {
		return []string{"read", "flush", "produce", "end", "rest"}
	}
	return []string{"read", "produce", "end"}
}
