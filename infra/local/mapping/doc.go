// Package mapping imitates Lambda's Kafka event source mapping: it reads a
// topic in a consumer group, builds the events that Lambda would build, invokes
// a function with them and commits offsets when it succeeded. The function may
// be a real process (lambdahost.Function) or a few lines of a test.
//
//	m, err := mapping.Start(ctx, mapping.Config{
//		Brokers:   b.Addrs(),
//		Topic:     "clicks",
//		Group:     "oncehouse-clicks-v1",
//		Function:  fn,
//		BatchSize: 10_000,
//		Pollers:   2,
//	})
//	if err != nil {
//		return err
//	}
//	defer m.Stop()
//	err = m.Drained(ctx) // everything produced before this call is settled
//
// # How it works
//
// Each partition has a queue of polled records. The partitions are spread over
// the pollers; a poller packs the records of those of its partitions that have
// none in flight into one event, up to BatchSize records and 6 MB, when there
// is enough or MaximumBatchingWindow is over. A partition waits until its
// records are settled: delivered with success, or given up and sent to the
// on-failure destination. So the order of a partition is kept, several
// invocations run on different partitions at once, and the committed offset is
// never above an unsettled record.
//
// A failed event is tried again as it was, after a pause that doubles, with
// the answer's batchItemFailures taken out (ReportBatchItemFailures), cut in
// halves (BisectBatchOnFunctionError), until it succeeds or a limit is over
// (MaximumRetryAttempts, MaximumRecordAge).
//
// # Faults
//
// Nothing promises that records come again in the same batches, once, or by
// one invocation at a time. These make it happen:
//
//   - Config.Recut chooses other boundaries for a retry or a redelivery.
//   - Mapping.Redeliver rewinds a partition as a rebalance would: settled
//     records come again, and an invocation under way becomes a zombie whose
//     outcome counts for nothing.
//   - Config.Duplicate delivers an event twice at the same time.
//   - Mapping.Stop ends the mapping as a crash would, without a commit; a new
//     one in the same group begins at what was committed.
//
// # What is documented, and what is our reading
//
// Documented by AWS: the event's shape, BatchSize over the whole event, 6 MB,
// one batch of a partition at a time, retry of the whole batch, the error
// handling settings and their defaults, the answer's shape and that an empty
// or null one is success, the destination's message with its conditions
// RetryAttemptsExhausted and MaximumPayloadSizeExceeded, the metrics' names,
// and the trap that infinite retries together with a destination are capped at
// 10 retries without a word (RetriesWithDestination).
//
// Our reading, because AWS does not say: records are read uncommitted
// (Config.ReadCommitted turns it); a null key or value is spelled null
// (Config.OmitNull leaves it out); after a partial answer every record from
// the lowest failed offset of a partition is held back; a retry has the same
// boundaries unless Recut says otherwise; an identifier that names no record
// of the event, or an answer that is not JSON, fails the whole event; cutting
// in halves uses up no attempt, nor does an error of the invocation itself
// (throttling); progress of a partition starts its attempts anew; records too
// old are given up at the head of a partition, before the first delivery too,
// with the condition RecordAgeExceeded; a record that is given up without a
// destination is dropped and counted; a destination that fails is tried for
// ever; partitions share an event evenly.
//
// Not imitated: filters, schema registries, S3 and Kafka destinations, scaling
// of pollers.
package mapping
