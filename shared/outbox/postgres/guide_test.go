package postgres_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/outbox/postgres"
)

// The SQL of the guide for application developers does what it says.
func TestGuide(t *testing.T) {
	text, err := os.ReadFile(root + "/docs/outbox.md")
	require.NoError(t, err)
	d := migrated(t, shared)
	defer d.exec("DROP OWNED BY poller; DROP ROLE poller")
	var published []int64
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllSubmatch(text, -1)
	require.Len(t, blocks, 5)
	for _, block := range blocks {
		for statement := range strings.SplitSeq(string(block[1]), ";") {
			d.exec(statement)
		}
		table := d.table(postgres.Config{Columns: postgres.Columns{Timestamp: "created_at"}})
		require.NoError(t, table.Check(t.Context()))
		published = append(published, seqs(t, table, "", snapshot(t, table).Text)...)
	}
	require.NotEmpty(t, published)
	require.NoError(t, d.table(postgres.Config{Table: "outboxevent"}).Check(t.Context()))
}
