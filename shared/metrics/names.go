package metrics

import "slices"

// Name is the name of a metric. Alarms and dashboards use these constants, so a
// metric that is renamed here is renamed there.
type Name string

// What an invocation did with its records. All are sums over its lanes.
const (
	RecordsReceived             Name = "RecordsReceived"             // in the event
	RowsStored                  Name = "RowsStored"                  // rows whose chunk was committed
	RowsLost                    Name = "RowsLost"                    // given up, under at-most-once only
	DuplicatesSuppressed        Name = "DuplicatesSuppressed"        // settled by an earlier delivery
	AbortedDuplicatesSuppressed Name = "AbortedDuplicatesSuppressed" // repeats of aborted outbox attempts
	ForeignPositions            Name = "ForeignPositions"            // outbox positions of somebody's copy
	DeadLetters                 Name = "DeadLetters"                 // records that did not fit
	Tombstones                  Name = "Tombstones"                  // passed over by policy
	UnknownFields               Name = "UnknownFields"               // fields that no column takes
	BatchBytes                  Name = "BatchBytes"                  // encoded bytes of the chunks sent
)

// How it went. All are sums over an invocation's lanes.
const (
	Replays          Name = "Replays"          // intents finished by sending again under the token
	Probes           Name = "Probes"           // intents finished by looking into the table
	LanesBlocked     Name = "LanesBlocked"     // lanes that failed, for whatever reason
	InDoubt          Name = "InDoubt"          // of those: it may have been applied
	Fenced           Name = "Fenced"           // of those: another invocation owns the lane
	OffsetRegression Name = "OffsetRegression" // of those: the topic was recreated
	NeedsPerson      Name = "NeedsPerson"      // of those: trying again does not help
	EventsRefused    Name = "EventsRefused"    // events that are not Kafka's, or of another topic
	ColdStart        Name = "ColdStart"        // 1 for the first invocation of an environment
)

// Where the time went: one value per lane, so that CloudWatch has percentiles.
const (
	InsertTime Name = "InsertTime" // in inserts
	LedgerTime Name = "LedgerTime" // in reads and writes of the ledger
	EventLag   Name = "EventLag"   // end of the invocation minus the oldest timestamp of the batch
)

// What an outbox poller did. All but the last three are sums over the shards of an
// invocation.
const (
	PublishedRows       Name = "PublishedRows"       // in committed transactions, dead letters included
	PublishedBytes      Name = "PublishedBytes"      // of those, before compression
	OutboxTransactions  Name = "OutboxTransactions"  // committed ones that hold rows
	OutboxDeadLetters   Name = "OutboxDeadLetters"   // rows that could not be published
	OutboxTombstones    Name = "OutboxTombstones"    // rows without a payload
	OutboxReopened      Name = "OutboxReopened"      // times that Kafka was connected anew after an error
	OutboxFenced        Name = "OutboxFenced"        // shards that another poller took over
	OutboxHalted        Name = "OutboxHalted"        // shards that stand at a row which cannot be published
	OutboxRefused       Name = "OutboxRefused"       // shards that wait for a person for another reason
	OutboxFailed        Name = "OutboxFailed"        // shards whose run failed: the next one tries again
	SequenceWithoutRows Name = "SequenceWithoutRows" // values of seq that were taken in runs that saw no row
	RetentionRows       Name = "RetentionRows"       // published rows that were deleted
	RetentionPartitions Name = "RetentionPartitions" // partitions that were dropped
	OutboxLag           Name = "OutboxLag"           // age of the oldest row of a transaction, and of what is left unpublished
	TransactionTime     Name = "TransactionTime"     // from the begin of a Kafka transaction to its commit
	PartitionsAhead     Name = "PartitionsAhead"     // from now to the end of the last partition of the table, if it has any
)

// Unit is one of CloudWatch's units.
type Unit string

// The units in use.
const (
	Count        Unit = "Count"
	Bytes        Unit = "Bytes"
	Milliseconds Unit = "Milliseconds"
)

// Unit is the unit of the metric.
func (n Name) Unit() Unit {
	switch n {
	case BatchBytes, PublishedBytes:
		return Bytes
	case InsertTime, LedgerTime, EventLag, OutboxLag, TransactionTime, PartitionsAhead:
		return Milliseconds
	}
	return Count
}

// All are the metrics that a sink emits, in the order of an EMF line.
func All() []Name {
	return []Name{
		RecordsReceived, RowsStored, RowsLost, DuplicatesSuppressed, AbortedDuplicatesSuppressed, ForeignPositions,
		DeadLetters, Tombstones, UnknownFields, BatchBytes,
		Replays, Probes, LanesBlocked, InDoubt, Fenced, OffsetRegression, NeedsPerson, EventsRefused, ColdStart,
		InsertTime, LedgerTime, EventLag,
	}
}

// Outbox are the metrics that an outbox poller emits, in the order of an EMF line.
func Outbox() []Name {
	return []Name{
		PublishedRows, PublishedBytes, OutboxTransactions, OutboxDeadLetters, OutboxTombstones,
		OutboxReopened, OutboxFenced, OutboxHalted, OutboxRefused, OutboxFailed, SequenceWithoutRows,
		RetentionRows, RetentionPartitions, ColdStart,
		OutboxLag, TransactionTime, PartitionsAhead,
	}
}

// every is each metric of every function once.
func every() []Name {
	return append(All(), slices.DeleteFunc(Outbox(), func(n Name) bool { return slices.Contains(All(), n) })...)
}
