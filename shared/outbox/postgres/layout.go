package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// layout is the table's columns as they were typed at the last look, and the
// statements that read them.
type layout struct {
	oids    []uint32 // of the result's columns
	formats pgx.QueryResultFormats
	chart   string
	page    string
	remove  string
}

// The columns of a page before the extra ones.
const (
	colSeq = iota
	colID
	colAggregateType
	colAggregateID
	colType
	colPayload
	colTimestamp
	colMore
	colExtra // the first of them
)

// currentLayout is the layout of the last look, or of a new one.
func (t *Table) currentLayout(ctx context.Context, conn *pgx.Conn, h history) (*layout, error) {
	if l := t.layout.Load(); l != nil {
		return l, nil
	}
	columns, err := inspectColumns(ctx, conn, t.config)
	if err != nil {
		return nil, fmt.Errorf("look up the columns: %w", err)
	}
	for _, w := range t.config.wants() {
		if _, there := columns[w.name]; !there {
			return nil, fmt.Errorf("column %s of %s is missing", w.name, t.config.name())
		}
	}
	// Rows that were read by another type than the snapshot had would be divided
	// otherwise than its cursor.
	if by := t.config.by(); by != "" {
		if last := t.keyType.Load(); last != nil && columns[by].category != *last {
			return nil, fmt.Errorf("column %s of %s was altered since the last snapshot", by, t.config.name())
		}
	}
	l := newLayout(t.config, columns, h)
	t.layout.Store(l)
	return l, nil
}

func newLayout(c Config, columns map[string]column, h history) *layout {
	l := &layout{chart: chart(c, h), page: page(c, columns), remove: remove(c, columns)}
	add := func(oid uint32, format int16) {
		l.oids, l.formats = append(l.oids, oid), append(l.formats, format)
	}
	add(pgtype.Int8OID, pgx.BinaryFormatCode)
	for _, name := range []string{c.Columns.ID, c.Columns.AggregateType, c.Columns.AggregateID, c.Columns.Type} {
		add(columns[name].oid, pgx.TextFormatCode)
	}
	payload := columns[c.Columns.Payload]
	if payload.sqlType == "bytea" {
		add(payload.oid, pgx.BinaryFormatCode) // its bytes, not their digits
	} else {
		add(payload.oid, pgx.TextFormatCode)
	}
	add(pgtype.Int8OID, pgx.BinaryFormatCode)
	add(pgtype.BoolOID, pgx.BinaryFormatCode)
	for _, name := range c.Columns.Extra {
		add(columns[name].oid, pgx.TextFormatCode)
	}
	return l
}

// chartStep is how many values of seq a line of the chart spans, and so the most
// rows of a page.
const chartStep = 8192

// chart counts the rows of a window ($1, $2] above the seq $3: a line for every
// chartStep values of seq, with the ends of seq and, for the first range, of xid.
func chart(c Config, h history) string {
	number := "{xid}"
	if h.version < 160000 {
		number = "{xid}::text::bigint" // min(xid8) is of PostgreSQL 16
	}
	return c.fill(`
		SELECT count(*), max(seq), coalesce(min(x)::text::bigint, 1), coalesce(max(x)::text::bigint, 0)
		FROM (
			SELECT {seq} AS seq, ` + number + ` AS x FROM {table}
			WHERE {xid} >= pg_snapshot_xmax($1) AND {xid} < pg_snapshot_xmax($2) AND pg_visible_in_snapshot({xid}, $2) AND {seq} > $3
			UNION ALL
			SELECT {seq}, NULL FROM {table}
			WHERE {xid} = ANY (ARRAY(SELECT pg_snapshot_xip($1))) AND pg_visible_in_snapshot({xid}, $2) AND {seq} > $3
		) r
		GROUP BY seq / ` + strconv.Itoa(chartStep) + ` ORDER BY seq / ` + strconv.Itoa(chartStep))
}

// page reads the rows of a window ($1, $2] with seq in ($3, $4], of which those of
// the first range have an xid from $5 to $6; as many as $7 bytes of stored payload
// hold, and at least one. Of a row that may not be the last one, more is true. The
// ends of that range are apart because the index knows where seq begins and ends in
// one xid only (up to PostgreSQL 17): each page of a large transaction, which is one of
// them, would look at all rows of it that are left.
func page(c Config, columns map[string]column) string {
	list := []string{
		"{seq}", quote(c.Columns.ID), quote(c.Columns.AggregateType), quote(c.Columns.AggregateID), quote(c.Columns.Type),
		quote(c.Columns.Payload), c.timestamp(columns),
	}
	names := []string{"c0", "c1", "c2", "c3", "c4", "c5", "c6", "size >= $7"}
	for i, extra := range c.Columns.Extra {
		list = append(list, quote(extra))
		names = append(names, "c"+strconv.Itoa(colTimestamp+1+i))
	}
	for i := range list {
		list[i] += " AS c" + strconv.Itoa(i)
	}
	list = append(list, "coalesce(pg_column_size("+quote(c.Columns.Payload)+"), 0) AS cost")
	rows := "SELECT " + strings.Join(list, ", ") + ` FROM {table}
		WHERE pg_visible_in_snapshot({xid}, $2) AND {seq} > $3 AND {seq} <= $4` + c.shard()
	return c.fill("SELECT " + strings.Join(names, ", ") + ` FROM (
		SELECT *, sum(cost) OVER (ORDER BY c0) AS size FROM (
			` + rows + ` AND {xid} = $5
			UNION ALL
			` + rows + ` AND {xid} > $5 AND {xid} < $6
			UNION ALL
			` + rows + ` AND {xid} = $6 AND $6 > $5
			UNION ALL
			` + rows + ` AND {xid} = ANY (ARRAY(SELECT pg_snapshot_xip($1)))
		) r
	) q WHERE size - cost < $7 ORDER BY c0`)
}

// fill puts the names into a statement.
func (c Config) fill(statement string) string {
	return strings.NewReplacer("{table}", c.name(), "{xid}", quote(c.Columns.XID), "{seq}", quote(c.Columns.Seq)).Replace(statement)
}

// shard is the condition that a row is of this shard: the first four bytes of the
// SHA-256 of its aggregate id (or what else divides the rows) in UTF-8, as a big-endian
// number, modulo the number of shards. PostgreSQL's own hashes may change with its
// version.
func (c Config) shard() string {
	if c.by() == "" {
		return ""
	}
	return fmt.Sprintf(" AND ('x' || left(encode(sha256(convert_to(coalesce(%s::text, {seq}::text), 'UTF8')), 'hex'), 8))::bit(32)::bigint %% %d = %d",
		quote(c.by()), c.Shard.Of, c.Shard.Index)
}

// timestamp is the record's timestamp in milliseconds; NULL if there is none.
func (c Config) timestamp(columns map[string]column) string {
	if c.Columns.Timestamp == "" {
		return "NULL::bigint"
	}
	name := quote(c.Columns.Timestamp)
	if strings.HasPrefix(columns[c.Columns.Timestamp].sqlType, "timestamp") {
		// In PostgreSQL 13 extract is a double, which has no exact milliseconds.
		return "CASE WHEN isfinite(" + name + ") THEN round(extract(epoch FROM date_trunc('milliseconds', " + name + ")) * 1000)::bigint END"
	}
	if c.Columns.TimestampUnit == Seconds { // more would overflow, and fail all rows of the page
		return "CASE WHEN " + name + " BETWEEN -9223372036854775 AND 9223372036854775 THEN " + name + "::bigint * 1000 END"
	}
	return name + "::bigint" + map[Unit]string{Milliseconds: "", Microseconds: " / 1000", Nanoseconds: " / 1000000"}[c.Columns.TimestampUnit]
}
