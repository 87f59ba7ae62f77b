package clickhouse

import (
	"context"
	"fmt"
	"reflect"
	"strconv"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"

	"oncehouse/shared/delivery"
	"oncehouse/shared/rowbinary"
)

// format is row by row, with a marker in front of each field that says whether
// the server computes its DEFAULT.
const format = "RowBinaryWithDefaults"

// freshFor is how long the table is believed to be as Preflight saw it. Behind
// it an insert asks again: RowBinary carries no types, and rows encoded for a
// column's old type would be read as something else (D26).
const freshFor = time.Second

// Insert implements delivery.Target: one send, no retry.
func (t *Target) Insert(ctx context.Context, in delivery.Insert) error {
	b, err := sendable(in)
	if err != nil {
		return err
	}
	if err := t.checkSchema(ctx, b.schema); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, in.Timeout)
	defer cancel()
	timeout := in.Timeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline))
	}
	if timeout < time.Millisecond { // 0 would be no limit at the server
		return &delivery.Error{Kind: delivery.Retryable, Reason: delivery.ReasonOutOfTime, Message: "nothing was sent", Err: errOutOfTime}
	}
	a := &attempt{body: &body{data: b.buffer.rows, notAfter: in.NotAfter}}
	settings := pinInsert(b.schema.pins, b.schema.known, in.Token, timeout)
	send := context.WithValue(context.Context(noDeadline{ctx}), attemptKey{}, a)
	err = t.db.InsertFormat(ch.Context(send, ch.WithQueryID(queryID(in)), ch.WithSettings(settings)), format, b.schema.statement, a.body)
	if err == nil {
		a.body.close()
		return nil
	}
	left, late := a.over()
	out := t.insertError(err, left, late, b.schema.traits.Views)
	out.Message = prefix("insert "+queryID(in), out.Message)
	return out
}

// queryID is the id of one attempt in system.query_log and system.processes.
func queryID(in delivery.Insert) string {
	id := fmt.Sprintf("%s%d-%d", lanePrefix(in.Lane), in.First, in.Last)
	if in.Attempt > 1 {
		id += "/" + strconv.Itoa(in.Attempt)
	}
	return id
}

// lanePrefix is what the query ids of a lane's inserts begin with.
func lanePrefix(lane delivery.Lane) string {
	return fmt.Sprintf("oncehouse/%s/%s/%d/", lane.Pipeline, lane.Topic, lane.Partition)
}

// sendable refuses what no caller should ask for.
func sendable(in delivery.Insert) (*block, error) {
	problem := ""
	b, ok := in.Chunk.Payload.(*block)
	switch {
	case !ok || b.schema == nil:
		problem = "the chunk was not made by this target"
	case in.Chunk.Rows == 0:
		problem = "the chunk is empty"
	case in.Chunk.Rows >= delivery.MaxBlockRows || len(b.buffer.rows) >= delivery.MaxBlockBytes:
		problem = fmt.Sprintf("%d rows and %d bytes: one insert must stay one block, below %d rows and %d bytes",
			in.Chunk.Rows, len(b.buffer.rows), delivery.MaxBlockRows, delivery.MaxBlockBytes)
	}
	if problem == "" {
		return b, nil
	}
	return nil, &delivery.Error{Kind: delivery.Fatal, Reason: delivery.ReasonTarget, Message: "insert " + queryID(in) + ": " + problem}
}

// checkSchema returns nil when rows encoded for s still mean the same to the
// table, as far as the last second goes.
func (t *Target) checkSchema(ctx context.Context, s *schema) error {
	seen := t.seen.Load()
	if seen != nil && seen.table == s.table && time.Since(seen.at) < freshFor {
		return nil
	}
	now, err := t.readFingerprint(ctx)
	fits := err == nil && now == s.table
	if err == nil && !fits && now.uuid == s.table.uuid {
		fits, err = t.stillFits(ctx, s)
	}
	if err != nil {
		out := t.readError(err)
		out.Message = join(out.Message, "nothing was sent")
		return out
	}
	if !fits {
		return &delivery.Error{Kind: delivery.Retryable, Reason: delivery.ReasonTarget,
			Message: fmt.Sprintf("table %s changed after the chunk was encoded; nothing was sent", tableName{t.config.Database, t.config.Table})}
	}
	t.seen.Store(&sighting{table: now, at: time.Now()})
	return nil
}

// stillFits reports whether what changed leaves the chunk as it was meant: same
// engine, and the same type for every column that is sent. A new column then
// takes its DEFAULT until the next Preflight.
func (t *Target) stillFits(ctx context.Context, s *schema) (bool, error) {
	target := tableName{t.config.Database, t.config.Table}
	found, err := t.readTables(ctx, target)
	if err != nil {
		return false, err
	}
	f := &facts{table: found[target]}
	f.table.tableName = target
	if err := t.readColumns(ctx, f); err != nil {
		return false, err
	}
	if !reflect.DeepEqual(f.table.engine, s.engine) || len(f.table.dependents) > 0 != s.traits.Views {
		return false, nil
	}
	for _, name := range s.encoder.Columns() {
		if columnOf(f.columns, name) != columnOf(s.columns, name) {
			return false, nil
		}
	}
	return true, nil
}

func columnOf(columns []rowbinary.Column, name string) rowbinary.Column {
	for _, c := range columns {
		if c.Name == name {
			return c
		}
	}
	return rowbinary.Column{}
}

// sighting is the table's fingerprint at one moment.
type sighting struct {
	table fingerprint
	at    time.Time
}

// noDeadline hides a context's deadline from the driver, which would set
// max_execution_time to five seconds more than is left. The cancellation stays.
type noDeadline struct{ context.Context }

func (noDeadline) Deadline() (time.Time, bool) { return time.Time{}, false }
