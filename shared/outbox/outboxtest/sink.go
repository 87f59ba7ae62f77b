package outboxtest

import (
	"context"
	"slices"
	"time"

	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	ledger "oncehouse/shared/ledger/memory"
	"oncehouse/shared/offsets"
)

// Sink is a reader that sees aborted records, and settles them with the real
// machinery of deliveries: a ledger entry a partition, and its drop rule.
type Sink struct {
	ledger *ledger.Ledger
	ports  delivery.Ports
	engine *delivery.Engine
	table  *table
	// Dropped is how many repeats of aborted attempts it has seen.
	Dropped int64
	// Foreign is how many positions were somebody's copy.
	Foreign int64
}

// NewSink returns a sink whose source has the given records of a partition, all
// of them, aborted ones too.
func NewSink(records func(kafka.TopicPartition) []kafka.Record) (*Sink, error) {
	s := &Sink{ledger: ledger.New(), table: &table{}}
	s.ports = delivery.Ports{Ledger: s.ledger, Target: s.table, Source: source(records)}
	engine, err := delivery.NewEngine(delivery.DefaultRules(), s.ports)
	s.engine = engine
	return s, err
}

func laneOf(tp kafka.TopicPartition) delivery.Lane {
	return delivery.Lane{Pipeline: "p", Cluster: "c", TopicPartition: tp}
}

// Bump begins a new generation of a partition: it is to be read again.
func (s *Sink) Bump(ctx context.Context, tp kafka.TopicPartition) error {
	entry, err := s.ledger.Load(ctx, laneOf(tp))
	if err != nil {
		return err
	}
	if entry, err = entry.Bump(entry.Deadline.Add(time.Second)); err != nil {
		return err
	}
	entry.Version++
	if err := s.ledger.Write(ctx, laneOf(tp), entry); err != nil {
		return err
	}
	s.engine, err = delivery.NewEngine(delivery.DefaultRules(), s.ports) // one that remembers no entry
	return err
}

// Deliver settles a batch. Batches may overlap.
func (s *Sink) Deliver(ctx context.Context, tp kafka.TopicPartition, batch []kafka.Record) error {
	traits, err := s.engine.Preflight(ctx)
	if err != nil {
		return err
	}
	report := s.engine.Deliver(ctx, traits, laneOf(tp), batch, time.Now().Add(2*time.Minute))
	s.Dropped += report.Tally.AbortedDuplicatesSuppressed
	s.Foreign += report.Tally.ForeignPositions
	return report.Err
}

// Kept is what it stored, in this order.
func (s *Sink) Kept() []Kept { return s.table.rows }

// table is a target without faults.
type table struct{ rows []Kept }

func (*table) Preflight(context.Context) (delivery.Traits, error) {
	return delivery.Traits{Provenance: true, RowsStay: true, ServerUUID: "s"}, nil
}

func (*table) Encode(_ delivery.Lane, records []kafka.Record, _ delivery.Limit) (*delivery.Chunk, error) {
	return &delivery.Chunk{Consumed: len(records), Rows: len(records), Payload: records}, nil
}

func (t *table) Insert(_ context.Context, in delivery.Insert) error {
	for _, r := range in.Chunk.Payload.([]kafka.Record) {
		t.rows = append(t.rows, Keep(in.Lane.TopicPartition, &r))
	}
	return nil
}

func (*table) Probe(context.Context, delivery.Lane, offsets.Set) (offsets.Set, error) {
	return nil, nil
}

// source reads again what the sink asks for.
type source func(kafka.TopicPartition) []kafka.Record

func (s source) Fetch(_ context.Context, tp kafka.TopicPartition, of offsets.Set) ([]kafka.Record, error) {
	return slices.DeleteFunc(slices.Clone(s(tp)), func(r kafka.Record) bool { return !of.Contains(r.Offset) }), nil
}

func (source) TopicID(context.Context, string) (string, error) { return "the same", nil }
