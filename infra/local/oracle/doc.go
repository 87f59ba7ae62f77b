// Package oracle decides what a run through the local stack came to, without
// asking the sink. It knows three things: the offsets that the broker
// acknowledged, the generator, which recomputes every record from its index,
// and the table and the queue as they are afterwards.
//
//	p := &oracle.Producer{Generator: generator, Topic: "clicks", Partitions: 12}
//	err := p.Open(brokers)
//	err = p.Produce(ctx, 100_000) // and the pipeline runs
//	truth, err := p.Truth(ctx, "clicks")
//	c := oracle.NewChecker(truth)
//	err = c.Rows(answer) // of oracle.RowQuery
//	c.Letter(body)       // each message of the dead letter queue
//	count := c.Finish()  // lost, duplicated, wrong
//
// Each row is compared column by column, byte by byte (rows.go); each dead
// letter is parsed and compared with the record it is of (checker.go). A record
// is known by its topic, partition and offset, so that equal records under two
// offsets are two, and must be stored twice.
package oracle
