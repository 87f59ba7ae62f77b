package memory_test

import (
	"testing"

	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/memory"
	"oncehouse/shared/outbox/tabletest"
)

// The conformance suite that the table in PostgreSQL passes, too.
func TestTable(t *testing.T) {
	tabletest.Run(t, func(*testing.T) tabletest.Subject {
		db := memory.NewDatabase()
		return tabletest.Subject{
			Table:  func(shard outbox.Shard) outbox.Table { return db.Table(shard) },
			Begin:  func() tabletest.Tx { return db.Begin() },
			Delete: db.Delete,
		}
	})
}
