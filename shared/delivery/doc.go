// Package delivery settles the records of one lane into a table under one of
// three guarantees: exactly-once, at-least-once, at-most-once.
//
//	engine, err := delivery.NewEngine(rules, delivery.Ports{
//		Ledger: ledger, Target: table, Source: kafka, Letters: queue,
//	})
//	traits, err := engine.Preflight(ctx)                        // once an invocation
//	report := engine.Deliver(ctx, traits, lane, records, stop)  // for every lane
//	if report.Err != nil { ... }                                // nothing is settled that is not said to be
//
// The decisions are made by a [Machine]: it takes the answer to its last step
// and says what comes next, without I/O, clock or goroutine. The [Engine] is
// the loop around it that performs the steps through four ports. So the code
// that decides in production is the code that the scenarios (testdata/scenarios),
// the simulation and the model (package model) step through crashes, lost answers
// and re-cut batches, in one and the same world (package world).
//
// Read in this order: ARCHITECTURE.md for the protocol and its invariants
// I1-I9; entry.go for what the ledger knows; machine.go for the steps; then the
// life of a batch: consider.go (judge it against the entry), drop.go (what is
// settled already), cut.go (announce a chunk), send.go, commit.go; and finish.go
// for an intent that somebody else left open.
package delivery
