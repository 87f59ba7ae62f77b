package main

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncehouse/shared/kafkacluster"
	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/kafkalog"
	"oncehouse/shared/outbox/postgres"
)

// stopwatch adds up where time goes. It is safe for concurrent use.
type stopwatch struct {
	mu           sync.Mutex
	spent        map[string]time.Duration
	transactions int
}

func (s *stopwatch) add(part string, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spent == nil {
		s.spent = map[string]time.Duration{}
	}
	s.spent[part] += d
}

// perTransaction is the time of each part in milliseconds.
func (s *stopwatch) perTransaction() map[string]float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]float64{}
	for part, d := range s.spent {
		out[part] = float64(d.Microseconds()) / 1000 / float64(max(1, s.transactions))
	}
	return out
}

// oncehousePublisher is the poller of this project, with a stopwatch between it and
// its ports.
type oncehousePublisher struct {
	table     *postgres.Table
	log       *timedLog
	poller    *outbox.Poller
	watch     stopwatch
	published func([]string)
}

func (p *oncehousePublisher) unpublished() string { return "false" }

func (p *oncehousePublisher) open(_ context.Context, b *outboxBench, schema string) error {
	pool, err := pgxpool.ParseConfig(b.database.URL())
	if err != nil {
		return fmt.Errorf("configure the connections: %w", err)
	}
	if p.table, err = postgres.Open(pool, postgres.Config{Schema: schema}); err != nil {
		return err
	}
	shard := outbox.Shard{Of: 1}
	log, err := kafkalog.New(kafkalog.Config{
		Cluster: kafkacluster.Cluster{Brokers: b.broker.Addrs()}, Outbox: schema, Shard: shard, Create: true,
		Options: []kgo.Opt{kgo.WithHooks(&p.watch)},
	})
	if err != nil {
		return err
	}
	router, err := outbox.NewRouter(outbox.Routing{Topic: schema + "." + outbox.DefaultTopic})
	if err != nil {
		return err
	}
	p.log = &timedLog{Log: log, p: p}
	p.poller, err = outbox.NewPoller(shard, &timedTable{Table: p.table, watch: &p.watch}, p.log, router, outbox.Rules{
		Rows: outboxTransaction, Poll: outboxPoll, Initialise: outbox.FromBeginning,
	})
	return err
}

func (p *oncehousePublisher) run(ctx context.Context, published func([]string)) error {
	p.published = published
	if _, err := p.poller.Run(ctx, time.Now().Add(time.Hour)); ctx.Err() == nil {
		return err
	}
	return nil // it was told to end
}

// settle: it has written nothing that could be reported.
func (p *oncehousePublisher) settle(context.Context) error { return nil }

// parts: what of a commit is not the end is producing; what is in no part is the
// poller's own work, and the client's.
func (p *oncehousePublisher) parts() map[string]float64 {
	parts := p.watch.perTransaction()
	parts["rest"] = max(0, parts["commit"]-parts["produce"]-parts["end"])
	return parts
}

func (p *oncehousePublisher) close() { p.table.Close() }

// OnBrokerE2E implements kgo.HookBrokerE2E: how long requests take.
func (s *stopwatch) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e kgo.BrokerE2E) {
	switch kmsg.Key(key) {
	case kmsg.Produce:
		s.add("produce", e.DurationE2E())
	case kmsg.EndTxn:
		s.add("end", e.DurationE2E())
	}
}

// timedTable measures how long the poller waits for PostgreSQL.
type timedTable struct {
	outbox.Table
	watch *stopwatch
}

func (t *timedTable) Snapshot(ctx context.Context) (outbox.Snapshot, error) {
	begun := time.Now()
	defer func() { t.watch.add("read", time.Since(begun)) }()
	return t.Table.Snapshot(ctx)
}

func (t *timedTable) Flushed(ctx context.Context, s outbox.Snapshot) error {
	begun := time.Now()
	defer func() { t.watch.add("flush", time.Since(begun)) }()
	return t.Table.Flushed(ctx, s)
}

func (t *timedTable) Rows(ctx context.Context, w outbox.Window, after int64) iter.Seq2[outbox.Row, error] {
	return func(yield func(outbox.Row, error) bool) {
		begun := time.Now()
		for row, err := range t.Table.Rows(ctx, w, after) {
			t.watch.add("read", time.Since(begun))
			if !yield(row, err) {
				return
			}
			begun = time.Now()
		}
		t.watch.add("read", time.Since(begun))
	}
}

// timedLog measures commits, and tells of what they published.
type timedLog struct {
	outbox.Log
	p   *oncehousePublisher
	ids []string
}

func (l *timedLog) Commit(ctx context.Context, t outbox.Transaction) error {
	l.ids = l.ids[:0]
	for i := range t.Records {
		l.ids = append(l.ids, string(t.Records[i].Headers[0].Value)) // the header id comes first
	}
	begun := time.Now()
	err := l.Log.Commit(ctx, t)
	if err == nil && len(l.ids) > 0 {
		l.p.watch.add("commit", time.Since(begun))
		l.p.watch.mu.Lock()
		l.p.watch.transactions++
		l.p.watch.mu.Unlock()
		l.p.published(l.ids)
	}
	return err
}

// naivePublisher is the poller that everybody writes first: it takes the lowest
// rows, sends them, and then deletes or marks them, all in one transaction of the
// database. A crash between the two sends again, and rows that become visible
// late come out of order; it is here for its speed.
type naivePublisher struct {
	done, where string

	conn   *pgx.Conn
	client *kgo.Client
	topic  string
	watch  stopwatch
}

func (p *naivePublisher) unpublished() string { return p.where }

func (p *naivePublisher) open(ctx context.Context, b *outboxBench, schema string) error {
	var err error
	if p.conn, err = pgx.Connect(ctx, b.database.URL()); err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	if _, err = p.conn.Exec(ctx, "SET search_path = "+schema); err != nil {
		return fmt.Errorf("choose the schema: %w", err)
	}
	p.topic = schema + "." + outboxTopic
	p.client, err = kgo.NewClient(kgo.SeedBrokers(b.broker.Addrs()...), kgo.ProducerBatchCompression(kgo.Lz4Compression()))
	return err
}

func (p *naivePublisher) run(ctx context.Context, published func([]string)) error {
	for ctx.Err() == nil {
		ids, err := p.step(ctx)
		if err != nil && ctx.Err() == nil { // else it was told to end
			return err
		}
		if len(ids) > 0 {
			published(ids)
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(outboxPoll):
		}
	}
	return nil
}

// step is one transaction. It is not cut off in the middle, so that the next run
// can use the connection.
func (p *naivePublisher) step(ctx context.Context) (ids []string, err error) {
	err = pgx.BeginFunc(context.WithoutCancel(ctx), p.conn, func(tx pgx.Tx) error {
		begun := time.Now()
		rows, err := tx.Query(ctx, "SELECT seq, id::text, aggregateid, payload::text FROM outbox WHERE "+p.where+" ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED", outboxTransaction)
		if err != nil {
			return err
		}
		var records []*kgo.Record
		var seqs []int64
		var seq int64
		var id, key, payload string
		_, err = pgx.ForEachRow(rows, []any{&seq, &id, &key, &payload}, func() error {
			seqs, ids = append(seqs, seq), append(ids, id)
			records = append(records, &kgo.Record{Topic: p.topic, Key: []byte(key), Value: []byte(payload), Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}}})
			return nil
		})
		p.watch.add("read", time.Since(begun))
		if err != nil || len(records) == 0 {
			return err
		}
		begun = time.Now()
		err = p.client.ProduceSync(context.WithoutCancel(ctx), records...).FirstErr()
		p.watch.add("produce", time.Since(begun))
		if err != nil {
			return err
		}
		begun = time.Now()
		defer func() { p.watch.add("end", time.Since(begun)) }()
		p.watch.transactions++
		_, err = tx.Exec(ctx, p.done, seqs)
		return err
	})
	return ids, err
}

func (p *naivePublisher) settle(ctx context.Context) error {
	_, err := p.conn.Exec(ctx, "SELECT pg_stat_force_next_flush()")
	return err
}

func (p *naivePublisher) parts() map[string]float64 { return p.watch.perTransaction() }

func (p *naivePublisher) close() {
	p.client.Close()
	_ = p.conn.Close(context.Background()) // it is not used again
}
