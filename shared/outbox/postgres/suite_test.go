package postgres_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	local "oncehouse/infra/local/postgres"
	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/postgres"
	"oncehouse/shared/outbox/tabletest"
)

// The conformance suite, on every PostgreSQL of this machine, plain and in
// partitions.
func TestTable(t *testing.T) {
	found, err := local.FindAll(root)
	require.NoError(t, err)
	for _, installation := range found {
		server := shared
		if installation != shared.Installation() {
			server = start(t, local.Options{Installation: installation})
		}
		for _, inPartitions := range []bool{false, true} {
			name := installation.String() + " plain"
			if inPartitions {
				name = installation.String() + " partitioned"
			}
			t.Run(name, func(t *testing.T) {
				tabletest.Run(t, func(t *testing.T) tabletest.Subject { return subject(t, server, inPartitions) })
			})
		}
	}
}

// subject is the shipped table, with bytes for a payload and two columns more.
func subject(t *testing.T, server *local.Server, inPartitions bool) tabletest.Subject {
	d := open(t, server)
	d.exec(strings.Replace(postgres.Migration(inPartitions), "current_date + 40", "current_date + 1", 1))
	d.exec(`ALTER TABLE outbox ALTER COLUMN payload TYPE bytea USING NULL, ADD COLUMN at bigint, ADD COLUMN trace text`)
	var idle []*pgx.Conn
	return tabletest.Subject{
		Table: func(shard outbox.Shard) outbox.Table {
			return d.table(postgres.Config{Shard: shard, Columns: postgres.Columns{Timestamp: "at", Extra: []string{"trace"}}})
		},
		Begin: func() tabletest.Tx {
			tx := &transaction{t: t, idle: &idle}
			if n := len(idle); n > 0 {
				tx.conn, idle = idle[n-1], idle[:n-1]
			} else {
				tx.conn = d.connect()
			}
			exec(t, tx.conn, "BEGIN")
			exec(t, tx.conn, "SELECT pg_current_xact_id()")
			return tx
		},
		Delete: func(seq int64) { d.exec("DELETE FROM outbox WHERE seq = $1", seq) },
	}
}

type transaction struct {
	t    *testing.T
	conn *pgx.Conn
	idle *[]*pgx.Conn
}

func (tx *transaction) Insert(rows ...outbox.Row) (seqs []int64) {
	batch := &pgx.Batch{}
	for _, row := range rows {
		batch.Queue(`INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, at, trace) VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING seq`,
			row.ID, row.AggregateType, row.AggregateID, row.Type, row.Payload, row.Timestamp, row.Extra[0]).QueryRow(func(inserted pgx.Row) error {
			seqs = append(seqs, 0)
			return inserted.Scan(&seqs[len(seqs)-1])
		})
	}
	require.NoError(tx.t, tx.conn.SendBatch(tx.t.Context(), batch).Close())
	return seqs
}

func (tx *transaction) Commit()   { tx.end("COMMIT") }
func (tx *transaction) Rollback() { tx.end("ROLLBACK") }

func (tx *transaction) end(how string) {
	exec(tx.t, tx.conn, how)
	*tx.idle = append(*tx.idle, tx.conn)
}
