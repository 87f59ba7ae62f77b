package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"oncehouse/shared/outbox"
)

// catalog is what PostgreSQL's catalog says of the table.
type catalog struct {
	version     int
	role        string
	kind        string // pg_class.relkind; "" if there is no such table
	persistence string
	rowSecurity bool
	readable    bool
	columns     map[string]column
	indexed     bool // a valid index begins with (xid, seq)
	sequence    *sequence
	// foreign is a transaction id in the table that this server has not handed out.
	foreign *string
}

type column struct {
	oid      uint32 // of the type beneath a domain
	sqlType  string // its name, without modifiers
	category string // pg_type.typcategory
	notNull  bool
	fallback string // the DEFAULT
}

type sequence struct {
	name             string
	cache, increment int64
	minimum          int64
	cycle            bool
	readable         bool
}

// problem is something that is wrong, and the statement that puts it right.
type problem struct{ text, remedy string }

// Check implements outbox.Table.
func (t *Table) Check(ctx context.Context) error {
	var found catalog
	err := t.with(ctx, func(conn *pgx.Conn, h history) (err error) {
		found, err = inspect(ctx, conn, t.config)
		found.version = h.version
		return err
	})
	if err != nil {
		return fmt.Errorf("check %s: %w", t.config.name(), err)
	}
	if problems := t.config.judge(found); problems != nil {
		return t.config.refuse(problems)
	}
	return nil
}

// refuse lists every problem, and every statement that a person can run.
func (c Config) refuse(problems []problem) error {
	r := &outbox.Refusal{Reason: ReasonTable}
	var remedies []string
	for _, p := range problems {
		r.Problems = append(r.Problems, p.text)
		if p.remedy != "" && !slices.Contains(remedies, p.remedy) {
			remedies = append(remedies, p.remedy)
		}
	}
	r.Remedy = "oncehouse alters no table; a person can run:\n" + strings.Join(remedies, "\n")
	return r
}

// inspect reads the catalog.
func inspect(ctx context.Context, conn *pgx.Conn, c Config) (found catalog, err error) {
	err = conn.QueryRow(ctx, `
		SELECT current_user, relkind::text, relpersistence::text, row_security_active(oid), has_table_privilege(oid, 'SELECT')
		FROM pg_class WHERE oid = to_regclass($1)`,
		c.name()).Scan(&found.role, &found.kind, &found.persistence, &found.rowSecurity, &found.readable)
	if err == pgx.ErrNoRows { //nolint:errorlint // pgx returns it as it is
		return found, nil
	}
	if err == nil {
		found.columns, err = inspectColumns(ctx, conn, c)
	}
	if err == nil {
		err = conn.QueryRow(ctx, `
			SELECT EXISTS (SELECT FROM pg_index i JOIN pg_class k ON k.oid = i.indexrelid JOIN pg_am m ON m.oid = k.relam
				WHERE i.indrelid = to_regclass($1) AND i.indisvalid AND i.indisready AND m.amname = 'btree' AND i.indpred IS NULL AND i.indnkeyatts >= 2
				AND (SELECT array_agg(a.attname::text ORDER BY o.n) FROM unnest(i.indkey[0:1]) WITH ORDINALITY o(attnum, n)
					JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = o.attnum) = ARRAY[$2, $3])`,
			c.name(), c.Columns.XID, c.Columns.Seq).Scan(&found.indexed)
	}
	if _, there := found.columns[c.Columns.Seq]; err == nil && there {
		found.sequence, err = inspectSequence(ctx, conn, c)
	}
	if xid := found.columns[c.Columns.XID]; err == nil && xid.sqlType == "xid8" && found.indexed && found.readable {
		// A row that is visible here was committed by a transaction that this
		// statement's snapshot calls ended, if it was this server's.
		err = conn.QueryRow(ctx, fmt.Sprintf(
			"SELECT (SELECT x FROM (SELECT %s AS x FROM %s ORDER BY 1 DESC LIMIT 1) o WHERE x >= pg_snapshot_xmax(pg_current_snapshot()))::text",
			quote(c.Columns.XID), c.name())).Scan(&found.foreign)
	}
	return found, err
}

func inspectColumns(ctx context.Context, conn *pgx.Conn, c Config) (map[string]column, error) {
	// A result is described by the type beneath a domain, and that may be one, too.
	rows, err := conn.Query(ctx, `
		SELECT a.attname::text, b.oid, format_type(b.oid, NULL), y.typcategory::text, a.attnotnull OR b.required,
			CASE WHEN a.attidentity <> '' THEN 'identity' ELSE coalesce(pg_get_expr(d.adbin, d.adrelid), '') END
		FROM pg_attribute a CROSS JOIN LATERAL (
			WITH RECURSIVE beneath AS (
				SELECT oid, typbasetype, typnotnull AS required FROM pg_type WHERE oid = a.atttypid
				UNION ALL
				SELECT t.oid, t.typbasetype, u.required OR t.typnotnull FROM beneath u JOIN pg_type t ON t.oid = u.typbasetype
			)
			SELECT oid, required FROM beneath WHERE typbasetype = 0
		) b
		JOIN pg_type y ON y.oid = b.oid
		LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
		WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped`, c.name())
	if err != nil {
		return nil, err
	}
	columns := map[string]column{}
	var name string
	var col column
	_, err = pgx.ForEachRow(rows, []any{&name, &col.oid, &col.sqlType, &col.category, &col.notNull, &col.fallback}, func() error {
		columns[name] = col
		return nil
	})
	return columns, err
}

func inspectSequence(ctx context.Context, conn *pgx.Conn, c Config) (*sequence, error) {
	var s sequence
	err := conn.QueryRow(ctx, `
		SELECT s.seqrelid::regclass::text, s.seqcache, s.seqincrement, s.seqmin, s.seqcycle, has_sequence_privilege(s.seqrelid, 'SELECT')
		FROM pg_sequence s WHERE s.seqrelid = pg_get_serial_sequence($1, $2)::regclass`,
		c.name(), c.Columns.Seq).Scan(&s.name, &s.cache, &s.increment, &s.minimum, &s.cycle, &s.readable)
	if err == pgx.ErrNoRows { //nolint:errorlint // pgx returns it as it is
		return nil, nil
	}
	return &s, err
}

// want is a column as it has to be.
type want struct {
	name  string
	types []string // the first is the one to add
	rest  string   // of its definition
}

func (c Config) wants() []want {
	wants := []want{
		{c.Columns.ID, []string{"uuid", "text", "character varying"}, " NOT NULL DEFAULT gen_random_uuid()"},
		{c.Columns.AggregateType, []string{"text", "character varying"}, " NOT NULL"},
		{c.Columns.AggregateID, []string{"text", "character varying", "uuid", "bigint", "integer"}, ""},
		{c.Columns.Type, []string{"text", "character varying"}, " NOT NULL"},
		{c.Columns.Payload, []string{"jsonb", "json", "text", "character varying", "bytea"}, ""},
	}
	if c.Columns.Timestamp != "" {
		wants = append(wants, want{c.Columns.Timestamp, []string{"timestamp with time zone", "timestamp without time zone", "bigint", "integer"}, " NOT NULL DEFAULT now()"})
	}
	for _, name := range c.Columns.Extra {
		wants = append(wants, want{name: name})
	}
	return append(wants,
		want{c.Columns.Seq, []string{"bigint"}, " GENERATED ALWAYS AS IDENTITY (CACHE 1)"},
		want{c.Columns.XID, []string{"xid8"}, " NOT NULL DEFAULT pg_current_xact_id()"})
}

// judge says what is wrong; nil if nothing is.
func (c Config) judge(found catalog) []problem {
	alter := "ALTER TABLE " + c.name() + " "
	switch found.kind {
	case "":
		return []problem{c.missing()}
	case "r", "p":
	default:
		return []problem{{c.name() + " is no table", ""}}
	}
	var problems []problem
	bad := func(remedy, format string, args ...any) {
		problems = append(problems, problem{fmt.Sprintf(format, args...), remedy})
	}
	if found.version < 130000 {
		bad("", "PostgreSQL %d is too old: 13 is the first with xid8", found.version/10000)
	}
	if found.persistence != "p" {
		bad(alter+"SET LOGGED;", "the table is unlogged or temporary: a crash empties it")
	}
	if found.rowSecurity {
		bad("ALTER ROLE "+quote(found.role)+" BYPASSRLS;", "row-level security hides rows from the role %s", found.role)
	}
	if !found.readable {
		bad("GRANT SELECT ON "+c.name()+" TO "+quote(found.role)+";", "the role %s may not read the table", found.role)
	}
	for _, w := range c.wants() {
		col, there := found.columns[w.name]
		switch {
		case !there && w.types == nil:
			bad("", "column %s is missing", w.name)
		case !there:
			bad(alter+"ADD COLUMN "+quote(w.name)+" "+w.types[0]+w.rest+";", "column %s is missing", w.name)
		case w.types != nil && !slices.Contains(w.types, col.sqlType):
			bad(alter+"ALTER COLUMN "+quote(w.name)+" TYPE "+w.types[0]+" USING "+quote(w.name)+"::text::"+w.types[0]+";",
				"column %s is %s, not %s", w.name, col.sqlType, strings.Join(w.types, " or "))
		}
	}
	problems = append(problems, c.judgeXID(found)...)
	problems = append(problems, c.judgeSequence(found)...)
	if !found.indexed {
		concurrently := "CONCURRENTLY "
		if found.kind == "p" {
			concurrently = "" // PostgreSQL cannot, on a partitioned table
		}
		bad("CREATE INDEX "+concurrently+"ON "+c.name()+" ("+quote(c.Columns.XID)+", "+quote(c.Columns.Seq)+");",
			"no valid index begins with (%s, %s)", c.Columns.XID, c.Columns.Seq)
	}
	return problems
}

func (c Config) judgeXID(found catalog) (problems []problem) {
	alter := "ALTER TABLE " + c.name() + " ALTER COLUMN " + quote(c.Columns.XID) + " "
	col, there := found.columns[c.Columns.XID]
	if !there {
		return nil // said
	}
	if !col.notNull {
		problems = append(problems, problem{"column " + c.Columns.XID + " may be NULL: such a row would never be published", alter + "SET NOT NULL;"})
	}
	if col.fallback != "pg_current_xact_id()" {
		problems = append(problems, problem{"column " + c.Columns.XID + " has not the default pg_current_xact_id()", alter + "SET DEFAULT pg_current_xact_id();"})
	}
	if found.foreign != nil {
		problems = append(problems, problem{
			"a row has the transaction id " + *found.foreign + ", which this server has not handed out: the rows came from another one, by a restore or by logical replication, and would be published out of order, or late",
			"DELETE FROM " + c.name() + "; -- or, to publish them (again): UPDATE " + c.name() + " SET " + quote(c.Columns.XID) + " = pg_current_xact_id();",
		})
	}
	return problems
}

func (c Config) judgeSequence(found catalog) (problems []problem) {
	col, there := found.columns[c.Columns.Seq]
	if !there {
		return nil // said
	}
	alter := "ALTER TABLE " + c.name() + " ALTER COLUMN " + quote(c.Columns.Seq) + " "
	if !col.notNull {
		problems = append(problems, problem{"column " + c.Columns.Seq + " may be NULL: such a row would never be published", alter + "SET NOT NULL;"})
	}
	s := found.sequence
	if s == nil {
		return append(problems, problem{"column " + c.Columns.Seq + " owns no sequence", alter + "ADD GENERATED ALWAYS AS IDENTITY (CACHE 1);"})
	}
	for _, p := range []struct {
		wrong        bool
		text, remedy string
	}{
		{s.cache != 1, fmt.Sprintf("caches %d values, which connections then use out of order", s.cache), "ALTER SEQUENCE " + s.name + " CACHE 1;"},
		{s.increment < 1, "counts down", "ALTER SEQUENCE " + s.name + " INCREMENT 1;"},
		{s.cycle, "starts again at its end", "ALTER SEQUENCE " + s.name + " NO CYCLE;"},
		{s.minimum < 1, fmt.Sprintf("may go as low as %d: published are values above 0", s.minimum), "ALTER SEQUENCE " + s.name + " MINVALUE 1;"},
		{!s.readable, "may not be read by the role " + found.role, "GRANT SELECT ON SEQUENCE " + s.name + " TO " + quote(found.role) + ";"},
	} {
		if p.wrong {
			problems = append(problems, problem{"the sequence " + s.name + " of column " + c.Columns.Seq + " " + p.text, p.remedy})
		}
	}
	return problems
}

// missing says that there is no table, and makes one.
func (c Config) missing() problem {
	var columns []string
	for _, w := range c.wants() {
		sqlType := "text"
		if w.types != nil {
			sqlType = w.types[0]
		}
		columns = append(columns, quote(w.name)+" "+sqlType+w.rest)
	}
	return problem{
		"there is no table " + c.name(),
		"CREATE TABLE " + c.name() + " (" + strings.Join(columns, ", ") + ", PRIMARY KEY (" + quote(c.Columns.ID) + "));\n" +
			"CREATE INDEX ON " + c.name() + " (" + quote(c.Columns.XID) + ", " + quote(c.Columns.Seq) + ");",
	}
}
