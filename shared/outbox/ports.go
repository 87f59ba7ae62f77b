package outbox

import (
	"context"
	"iter"
)

// Table reads the outbox table of one shard. An implementation holds no lock
// and no open transaction while its caller works on a row.
type Table interface {
	// Check refuses a table that cannot be read exactly once: a column or the
	// index is missing, the sequence caches values. It returns a *Refusal that
	// lists every problem at once.
	Check(ctx context.Context) error
	// Snapshot takes a snapshot of the running database. A replica is a *Refusal.
	Snapshot(ctx context.Context) (Snapshot, error)
	// Flushed waits until everything that s, the last snapshot, shows as ended has
	// reached the disk: before, a crash may hand out a transaction id again that s
	// calls ended. Nothing that rests on s may be written before (O31). It is an error if the
	// server may have crashed since s was taken: its log can have reached the same
	// place by other records. A connection that lived since then is the proof.
	Flushed(ctx context.Context, s Snapshot) error
	// Rows streams the rows of the shard that are visible in w.To and not in
	// w.From and whose seq is above after, in the order of seq, in memory that
	// does not grow with their number. Rows and their bytes are the caller's.
	Rows(ctx context.Context, w Window, after int64) iter.Seq2[Row, error]
}

// Log is Kafka as the poller of one shard sees it: the topics that it writes, and
// one partition of a compacted topic that holds its plans and its cursor.
//
// Every error leaves the log unusable until it is opened again; whether the
// transaction was committed is then read from the partition, never assumed.
type Log interface {
	// Open fences every older poller of the shard, and only then reads where it
	// stands. ErrFenced if another one was faster.
	Open(ctx context.Context) (Standing, error)
	// Topics describes topics. Those that do not exist are missing in the answer.
	Topics(ctx context.Context, names []string) (map[string]Topic, error)
	// Commit performs one transaction: the plan, if there is one, acknowledged
	// before any record; the records, in order, nothing after the first that
	// fails; then the cursor. It returns nil only when all of it is committed. A
	// record that the broker refuses for what it is makes a *Refusal, ReasonHalted:
	// it is planned, and no attempt would fare otherwise.
	Commit(ctx context.Context, t Transaction) error
	// Close leaves no transaction open: if one may be, it is fenced away.
	Close(ctx context.Context) error
}

// Snapshot is what a transaction of the database sees, and where it was taken.
type Snapshot struct {
	// Text is PostgreSQL's pg_snapshot: xmin:xmax:xip,xip...
	Text string
	// LSN is the end of the log right after the snapshot was taken.
	LSN uint64
	Identity
	// LastSeq is the last value that the sequence handed out; 0 before the first.
	LastSeq int64
}

// Identity tells one history of one table from all others, as it is read.
type Identity struct {
	SystemID    uint64 `json:"system_id,string"` // pg_control_system().system_identifier
	Timeline    uint32 `json:"timeline"`
	DatabaseOID uint32 `json:"database_oid"` // a copy within the cluster has the table's oid, too
	TableOID    uint32 `json:"table_oid"`
	// XIDColumn and SeqColumn are the columns that say what is new, and in which
	// order: pg_attribute.attnum, which a rename leaves as it is.
	XIDColumn int16 `json:"xid_column"`
	SeqColumn int16 `json:"seq_column"`
	// KeyType is the category of Shard.By's type (pg_type.typcategory): another one
	// prints the same value otherwise. "" of one shard, which divides nothing.
	KeyType string `json:"key_type,omitempty"`
}

// Window is what became visible between two snapshots.
type Window struct {
	From string `json:"from"` // pg_snapshot text; "" for the beginning of the table
	To   string `json:"to"`
}

// Row is one event of the outbox, as committed.
type Row struct {
	Seq           int64
	ID            string
	AggregateType string
	AggregateID   *string // nil: no key, no order
	Type          string
	Payload       []byte // nil: NULL. Its bytes as PostgreSQL prints them
	// Timestamp is that of the record, in milliseconds; 0 if the table has none.
	Timestamp int64
	// Extra are further columns that go into headers, in their configured order;
	// nil elements are NULL.
	Extra []*string
}

// Topic is what must be known of a topic before anything is written to it.
type Topic struct {
	Partitions int32 `json:"partitions"`
	// MaxMessageBytes bounds a batch of records (max.message.bytes).
	MaxMessageBytes int32 `json:"max_message_bytes"`
	// Earliest and Latest bound the timestamps of records, in milliseconds; 0 bounds
	// nothing. The broker counts from its own now (message.timestamp.before.max.ms and
	// .after.max.ms). These are of when the topic was described, so that every attempt
	// decides alike, and a margin within: what is left is for the broker to judge.
	Earliest int64 `json:"earliest,omitempty"`
	Latest   int64 `json:"latest,omitempty"`
	// Compacted topics take no record without a key (cleanup.policy).
	Compacted bool `json:"compacted,omitempty"`
}

// Record is one message to publish.
type Record struct {
	Topic     string
	Partition int32
	Key       []byte // nil: none
	Value     []byte // nil: a tombstone
	Headers   []Header
	Timestamp int64 // milliseconds; 0: now
}

// Header is one header of a record.
type Header struct {
	Key   string
	Value []byte
}

// Transaction is what one Kafka transaction holds.
type Transaction struct {
	Plan    *Plan // nil if the window's plan is durable and still right
	Records []Record
	Cursor  Cursor
}

// Standing is where a shard stands when its log is opened.
type Standing struct {
	Cursor *Cursor // the last committed one; nil if there is none
	// Expired: there is no cursor, and records that were here before are gone.
	Expired bool
	// Plan is the last plan that was written after that cursor, whether its
	// transaction was committed, aborted or cut off: some of its records may have
	// been seen. It is finished before anything else. nil if there is none.
	Plan *Plan
}

// Cursor says how far a shard is published. It is written in the transaction
// that holds the rows.
type Cursor struct {
	Version     int    `json:"version"`
	Incarnation string `json:"incarnation"` // random; new whenever positions start anew
	Shard       int    `json:"shard"`       // of Shards, from 0
	Shards      int    `json:"shards"`
	// By is the column whose hash says which rows are the shard's; "" of one shard.
	By string `json:"by,omitempty"`
	// Window is the number of the window that was opened last; 0 before the first.
	Window int64 `json:"window"`
	// Open is the plan of that window while some of its rows are unpublished:
	// those with a seq above Seq. It holds for attempts that wrote none of their
	// own. nil once the window is finished.
	Open *Plan `json:"open,omitempty"`
	Seq  int64 `json:"seq,omitempty"`
	// Done is the snapshot up to which everything is published, rows of Open aside.
	Done string `json:"done"`
	Identity
	// LastID and LastSeq are of the published row with the highest seq, for people
	// and for the refusal of a cursor that is ahead of the database.
	LastID  string `json:"last_id,omitempty"`
	LastSeq int64  `json:"last_seq,omitempty"`
	// Move: this shard is closed, because the outbox is getting other shards.
	Move *Move `json:"move,omitempty"`
}

// Move is the mark of a shard that stands at the snapshot at which all others
// stand too, and from which the new ones start.
type Move struct {
	Shards      int    `json:"shards"`
	By          string `json:"by,omitempty"`
	Incarnation string `json:"incarnation"` // of the new shards
	At          string `json:"at"`
}

// Plan says what the attempts at a window will do, before the first of them does
// it: aborted records may be seen, so the next attempt must send the same.
type Plan struct {
	Version     int    `json:"version"`
	Incarnation string `json:"incarnation"`
	Number      int64  `json:"window"`
	Window
	// Topics are as they were when the plan was made: another count of partitions
	// would send a row elsewhere, another limit decide otherwise what fits. Limits only
	// ever grow, by a row that halted the shard.
	Topics map[string]Topic `json:"topics"`
	// Dead are the seqs that go to DeadTopic, of those not yet published.
	Dead      []int64 `json:"dead,omitempty"`
	DeadTopic string  `json:"dead_topic,omitempty"`
	// Routing is the hash of the configuration that decides topic, partition,
	// key, value and headers of a row.
	Routing string `json:"routing"`
	Identity
}
