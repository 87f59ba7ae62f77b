package e2e

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/engine/faults"
)

// D24, D26: the table changes between an insert in doubt and its replay, and
// while the next function is warm. Each row is stored once, by the table as it
// then is; what it no longer takes blocks the lane, and is no dead letter.
func (s *stack) testSchemaChanges(t *testing.T) {
	t.Parallel()
	for i, c := range []struct {
		name    string
		landed  bool
		alter   []string
		first   int64 // of the offsets that stay
		blocked bool
	}{
		{"widened, landed", true, []string{"ALTER TABLE clicks MODIFY COLUMN duration_ms UInt64"}, 0, false},
		{"widened, not landed", false, []string{"ALTER TABLE clicks MODIFY COLUMN duration_ms UInt64"}, 0, false},
		{"added, not landed", false, []string{"ALTER TABLE clicks ADD COLUMN extra UInt8 DEFAULT 3"}, 0, false},
		{"dropped, not landed", false, []string{"ALTER TABLE clicks DROP COLUMN session"}, 0, false},
		{"nullable, landed", true, []string{"ALTER TABLE clicks MODIFY COLUMN session Nullable(String)"}, 0, false},
		{"no longer takes them, not landed", false, []string{"ALTER TABLE clicks DROP COLUMN session, ADD COLUMN must UInt8 DEFAULT throwIf(1)", "ALTER TABLE clicks MODIFY COLUMN must REMOVE DEFAULT"}, 0, true},
		{"made again, landed", true, []string{"DROP TABLE clicks", s.ddl}, 5, false},
		{"made again, not landed", false, []string{"DROP TABLE clicks", s.ddl}, 5, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := s.pipeline(t, "schema-"+strconv.Itoa(i), options{settings: short("3s")})
			p.redeliver(event(batch(2, 0, 4)))
			if c.landed {
				hold(p, faults.HoldAnswer)
			} else {
				p.inserts.Next(faults.CutBody(300))
				p.writes.onWrite(2, func(func()) { killed(p) })
			}
			p.failAs("Runtime.ExitError", event(batch(2, 5, 14)))
			for _, sql := range c.alter {
				require.NoError(t, p.conn.Exec(t.Context(), sql))
			}
			if c.blocked {
				p.failAs("InDoubt", event(batch(2, 5, 19)))
				require.Empty(t, p.dead())
				return
			}
			p.redeliver(event(batch(2, 5, 19)))
			p.redeliver(event(batch(2, 5, 24)))
			require.Equal(t, through(c.first, 24), p.offsets())
			require.Empty(t, p.dead())
		})
	}
}
