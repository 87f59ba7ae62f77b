package clickhouse

// Forget makes the next insert look at the table again, as a second's wait would.
func Forget(t *Target) { t.seen.Store(nil) }

// AsReplicated makes the target take its table for a Replicated one, which the
// embedded engine does not have.
func AsReplicated(t *Target) {
	s := t.schema.Load()
	t.schema.Store(&schema{
		table: s.table, traits: s.traits, engine: parseEngine("ReplicatedMergeTree('/t', 'r') ORDER BY v"),
		columns: s.columns, encoder: s.encoder, statement: s.statement, known: s.known, pins: s.pins, read: s.read,
	})
}
