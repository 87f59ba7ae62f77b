// Package outboxtest has both ends of an outbox for tests: an application that
// writes events at random into a table in memory, readers of what arrives in
// Kafka, and the verdict over the two.
//
//	app := outboxtest.NewApplication(db, rng)
//	sink, err := outboxtest.NewSink(records) // sees aborted attempts, and has the sink's own drop rule
//	for range 300 {
//		app.Step()
//	}
//	app.Finish()
//	verdict := app.Judge(sink.Kept())
package outboxtest
