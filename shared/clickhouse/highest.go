package clickhouse

import (
	"context"
	"fmt"

	"oncehouse/shared/delivery"
)

// Highest returns the highest offset of the lane in the table, -1 when it has
// none: where a ledger entry begins again that did not see what was stored. It
// needs a Preflight that succeeded.
func (t *Target) Highest(ctx context.Context, lane delivery.Lane) (int64, error) {
	what := fmt.Sprintf("look for the highest offset of %s", lane.TopicPartition)
	s := t.schema.Load()
	if s == nil || !s.traits.Provenance {
		return 0, &delivery.Error{Kind: delivery.Fatal, Reason: delivery.ReasonTarget,
			Message: what + ": table " + tableName{t.config.Database, t.config.Table}.String() + " has no provenance columns"}
	}
	l, err := t.newLook(ctx, s)
	if err != nil {
		return 0, err
	}
	p := t.config.Rows.Provenance
	sql := fmt.Sprintf("SELECT if(count() = 0, -1, max(toInt64(%s))) FROM %s WHERE %s = %s AND %s = %d",
		quoteName(p.Offset), tableName{t.config.Database, t.config.Table},
		quoteName(p.Topic), quoteText(lane.Topic), quoteName(p.Partition), lane.Partition)
	highest := int64(-1)
	if err := t.queryOne(ctx, l, sql, &highest); err != nil {
		out := t.readError(err)
		out.Message = join(what, out.Message)
		return 0, out
	}
	return highest, nil
}
