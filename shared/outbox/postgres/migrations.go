package postgres

import _ "embed" // the migrations

//go:embed migrations/outbox.sql
var plain string

//go:embed migrations/outbox_partitioned.sql
var partitioned string

// Migration makes the table as it is by default, public.outbox: plain, or in
// partitions of a day. It is SQL to run once, in the first schema of the search
// path.
func Migration(inPartitions bool) string {
	if inPartitions {
		return partitioned
	}
	return plain
}
