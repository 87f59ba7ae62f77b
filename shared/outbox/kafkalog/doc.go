// Package kafkalog is the outbox.Log on Kafka: rows and cursor in one transaction
// of franz-go.
//
//	log, err := kafkalog.New(kafkalog.Config{
//		Cluster: cluster, // shared/kafkacluster: brokers, TLS, SASL or IAM
//		Outbox:  "orders",
//		Shard:   outbox.Shard{Index: 0, Of: 1},
//	})
//	poller, err := outbox.NewPoller(shard, table, log, router, outbox.Rules{})
//
// The cursor topic is compacted and has a partition for each shard. A partition
// holds plans and cursors, each transaction's cursor as its last record; the
// transactional id is that of the outbox and the partition, so that whoever
// opens the partition fences whoever wrote to it.
//
// Three rules make every attempt at a transaction a prefix of its rows, on every
// partition, and its outcome known:
//
//   - The records of a partition go out as one batch of Kafka's, stored whole or
//     not at all, and the cursor only after all of them are acknowledged.
//   - After any error the client is dropped and nothing is aborted: the epoch bump
//     of the next InitProducerID aborts, and fences every partition of the
//     transaction from a request that is still on its way. An own abort, before
//     Kafka 4, does not.
//   - Whether a transaction whose commit was not answered is committed is read from
//     the partition, together with the plan that it had.
package kafkalog
