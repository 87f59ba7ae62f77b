// Package delivery settles the records of one lane into a table under one of
// three guarantees. It decides; the ledger, the table, Kafka and the dead
// letters are ports (ports.go) that adapters implement.
package delivery
