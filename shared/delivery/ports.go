package delivery

import (
	"context"
	"errors"
	"time"

	"oncehouse/shared/kafka"
	"oncehouse/shared/offsets"
)

// ErrConflict is what Ledger.Write returns when the entry no longer has the
// version that the write was conditional on.
var ErrConflict = errors.New("ledger entry changed by another writer")

// Ledger keeps one Entry per lane. Adapters: shared/ledger.
type Ledger interface {
	// Load reads the entry consistently (it sees every write acknowledged
	// before the call). A lane never written is the zero Entry and no error.
	Load(ctx context.Context, lane Lane) (Entry, error)
	// Write replaces the entry if its version still is entry.Version-1 (absent
	// for version 1). It returns nil when the write is durable, an error that
	// is ErrConflict when the condition failed, and any other error when it is
	// not known whether the write landed: the caller reads to find out.
	Write(ctx context.Context, lane Lane, entry Entry) error
}

// Target is the table. Adapter: shared/clickhouse.
type Target interface {
	// Preflight checks that the table can keep the guarantee and says what it
	// is like. It is called once an invocation, must be cheap when nothing
	// changed, and makes the schema that Encode uses current.
	Preflight(ctx context.Context) (Traits, error)
	// Encode turns a prefix of records into the body of one insert, at most
	// limit. It decides, by itself and once, which records are refused.
	Encode(lane Lane, records []kafka.Record, limit Limit) (*Chunk, error)
	// Insert sends one chunk as one insert of one block under one token, on one
	// connection, without any retry. nil means stored (or known under this
	// token). Errors are *Error of kind Retryable (surely not applied), InDoubt
	// or Fatal. It sends nothing after insert.NotAfter.
	Insert(ctx context.Context, insert Insert) error
	// Probe returns which of the offsets of the lane are in the table.
	Probe(ctx context.Context, lane Lane, of offsets.Set) (offsets.Set, error)
}

// Source reads records again from Kafka. Adapter: shared/kafkasource.
type Source interface {
	// Fetch returns exactly the records at the given offsets, ascending, read
	// uncommitted; records that are no longer there are left out. The records
	// stay valid until the caller is done with them.
	Fetch(ctx context.Context, tp kafka.TopicPartition, of offsets.Set) ([]kafka.Record, error)
	// TopicID is the broker's id of the topic: another one means recreated.
	TopicID(ctx context.Context, topic string) (string, error)
}

// Letters takes dead letters. Adapter: shared/deadletter.
type Letters interface {
	// Send returns nil when every letter is durable. Sending one twice is
	// harmless: a letter's id is its lane, generation and offset (I7).
	Send(ctx context.Context, letters []Letter) error
}

// Letter is one record that could not be stored, and why.
type Letter struct {
	Lane       Lane
	Generation int64
	Record     kafka.Record
	Code       string
	Message    string
	// Token is the deduplication token of the chunk the record was part of.
	Token     string
	FirstSeen time.Time
}

// Traits are what the table is like, as far as delivery depends on it.
type Traits struct {
	// TokensTrusted: an OK under a token is the truth (Replicated and Shared
	// tables; a plain MergeTree may answer OK and hold 0 rows, for good).
	TokensTrusted bool
	// Provenance: the table has the columns that Probe looks for.
	Provenance bool
	// RowsStay: a row once stored does not disappear by itself, so that its
	// absence proves that it was never stored (not so on Replacing, Summing,
	// Aggregating, Collapsing, Graphite tables, or with a TTL).
	RowsStay bool
	// ResendHarmless: storing a row a second time changes nothing (Replacing
	// with the offset as its version).
	ResendHarmless bool
	// Views: materialized views hang on the table.
	Views bool
	// ServerUUID is the one server that holds a plain table; "" elsewhere.
	ServerUUID string
}

// Limit bounds one chunk.
type Limit struct {
	Rows  int // rows stored
	Bytes int // encoded bytes, checked after each row
}

// Chunk is the body of one insert, as the target made it.
type Chunk struct {
	// Consumed is how many of the records the chunk covers: all of them, or
	// those up to the limit.
	Consumed int
	// Rows is how many rows Payload holds: Consumed - Skipped - Refused.
	Rows int
	// Bytes is the size of the encoded rows.
	Bytes int
	// Skipped are the indices, ascending, of records that need no row
	// (tombstones by policy).
	Skipped []int
	// Refused are the records that do not fit, ascending.
	Refused []Refusal
	// UnknownFields counts fields of the records that no column takes.
	UnknownFields int64
	// Payload is the adapter's own: the rows and the schema they were made for.
	Payload any
	// Release gives Payload's memory back; nil when there is nothing to give.
	Release func()
}

// Insert is one attempt to store one chunk.
type Insert struct {
	Lane  Lane
	Chunk *Chunk
	// First and Last are the lowest and highest offset sent.
	First, Last int64
	// Token is the deduplication token; "" switches deduplication off.
	Token   string
	Attempt int
	// NotAfter: no byte is sent after this moment.
	NotAfter time.Time
	// Timeout bounds the insert, at the server too (max_execution_time).
	Timeout time.Duration
}
