package clickhouse

import (
	"context"
	"fmt"
	"strconv"

	ch "github.com/ClickHouse/clickhouse-go/v2"

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
	replica, err := t.syncReplica(ctx, s)
	if err != nil {
		return 0, err
	}
	settings := pinRead(t.probeTime(ctx))
	if s.engine.family == shared {
		settings["select_sequential_consistency"] = "1"
	}
	note := &answerNote{}
	highest, rows, err := t.queryHighest(context.WithValue(context.Context(noDeadline{ctx}), noteKey{}, note), settings, lane)
	if err == nil && rows != 1 {
		err = fmt.Errorf("%d rows instead of 1 in the answer", rows)
	}
	if err == nil && replica != "" && note.server() != replica {
		err = fmt.Errorf("replica %q was synchronised and %q answered: give the endpoint of one replica, or one that keeps a connection on one", replica, note.server())
	}
	if err != nil {
		out := t.readError(err)
		out.Message = join(what, out.Message)
		return 0, out
	}
	return highest, nil
}

func (t *Target) queryHighest(ctx context.Context, settings ch.Settings, lane delivery.Lane) (highest int64, rows int, err error) {
	p := t.config.Rows.Provenance
	sql := `SELECT if(count() = 0, -1, max(toInt64(` + quoteName(p.Offset) + `))) FROM ` + tableName{t.config.Database, t.config.Table}.String() + `
WHERE ` + quoteName(p.Topic) + ` = ` + quoteText(lane.Topic) + ` AND ` + quoteName(p.Partition) + ` = ` + strconv.FormatInt(int64(lane.Partition), 10)
	err = t.query(ctx, settings, sql, func(scan func(...any) error) error {
		rows++
		return scan(&highest)
	})
	return highest, rows, err
}
