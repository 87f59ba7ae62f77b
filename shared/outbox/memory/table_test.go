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
			Begin:  func() tabletest.Tx { return transaction{db.Begin()} },
			Delete: db.Delete,
		}
	})
}

type transaction struct{ *memory.Tx }

func (t transaction) Insert(rows ...outbox.Row) (seqs []int64) {
	for _, row := range rows {
		seqs = append(seqs, t.Tx.Insert(row))
	}
	return seqs
}
