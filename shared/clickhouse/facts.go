package clickhouse

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"

	"oncehouse/shared/rowbinary"
)

// facts are what the server says of itself, of the table and of what hangs on
// it. Reading them is all that needs a server; judging them (judge.go) does not.
type facts struct {
	version  string
	uuid     string // serverUUID()
	timezone string
	// settings are the ones of pins.go that the server knows, with the value
	// that this user would have.
	settings map[string]string
	// plainDefaults and replicatedDefaults are the server's own values of the
	// deduplication windows.
	plainDefaults, replicatedDefaults map[string]string
	table                             table
	columns                           []rowbinary.Column
	views                             []view
	// blocksPerSecond estimates how fast the count of the window is used up.
	blocksPerSecond float64
}

// table is one row of system.tables.
type table struct {
	tableName
	engine     engine
	uuid       string
	ddl        string
	dependents []tableName
}

// view is a materialized view and where its rows come from and go to.
type view struct {
	tableName
	source tableName
	// target is the zero table where the view's is missing or not a table.
	target table
}

// noTableError: the table is not there, or not shown to this user.
type noTableError struct{ tableName }

func (e noTableError) Error() string { return "table " + e.String() + " is not there" }

// query runs one SELECT and scans each row with scan.
func (t *Target) query(ctx context.Context, settings ch.Settings, sql string, scan func(scan func(...any) error) error) error {
	rows, err := t.db.Query(ch.Context(ctx, ch.WithSettings(settings)), sql)
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // Err below says all
	for rows.Next() {
		if err := scan(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// readFacts asks the server everything. Views are followed level by level, so a
// table without any costs four round trips.
func (t *Target) readFacts(ctx context.Context) (*facts, error) {
	f := &facts{}
	if err := t.readServer(ctx, f); err != nil {
		return nil, fmt.Errorf("ask the server for its settings: %w", err)
	}
	target := tableName{t.config.Database, t.config.Table}
	found, err := t.readTables(ctx, target)
	if err != nil {
		return nil, fmt.Errorf("read system.tables: %w", err)
	}
	f.table = found[target]
	if f.table.table == "" {
		return nil, noTableError{target}
	}
	if err := t.readColumns(ctx, f); err != nil {
		return nil, fmt.Errorf("read system.columns: %w", err)
	}
	if err := t.readViews(ctx, f); err != nil {
		return nil, fmt.Errorf("follow the materialized views: %w", err)
	}
	if f.table.engine.family == replicated || f.table.engine.family == shared {
		if err := t.readBlockRate(ctx, f); err != nil {
			return nil, fmt.Errorf("read system.parts: %w", err)
		}
	}
	return f, nil
}

func (t *Target) readServer(ctx context.Context, f *facts) error {
	f.settings, f.plainDefaults, f.replicatedDefaults = map[string]string{}, map[string]string{}, map[string]string{}
	sql := `SELECT 'server', 'version', version()
UNION ALL SELECT 'server', 'uuid', toString(serverUUID())
UNION ALL SELECT 'server', 'timezone', timezone()
UNION ALL SELECT 'setting', name, value FROM system.settings WHERE name IN (` + quoteTexts(append(pinnedNames(), "readonly")) + `)
UNION ALL SELECT 'plain', name, value FROM system.merge_tree_settings WHERE name IN (` + quoteTexts(windowNames[:]) + `)
UNION ALL SELECT 'replicated', name, value FROM system.replicated_merge_tree_settings WHERE name IN (` + quoteTexts(windowNames[:]) + `)`
	return t.query(ctx, nil, sql, func(scan func(...any) error) error {
		var kind, name, value string
		if err := scan(&kind, &name, &value); err != nil {
			return err
		}
		switch kind {
		case "setting":
			f.settings[name] = value
		case "plain":
			f.plainDefaults[name] = value
		case "replicated":
			f.replicatedDefaults[name] = value
		case "server":
			f.setServer(name, value)
		}
		return nil
	})
}

func (f *facts) setServer(name, value string) {
	switch name {
	case "version":
		f.version = value
	case "uuid":
		f.uuid = value
	case "timezone":
		f.timezone = value
	}
}

// readTables reads the tables that are there of the wanted ones.
func (t *Target) readTables(ctx context.Context, wanted ...tableName) (map[tableName]table, error) {
	databases, tables := make([]string, len(wanted)), make([]string, len(wanted))
	for i, w := range wanted {
		databases[i], tables[i] = w.database, w.table
	}
	sql := `SELECT database, name, toString(uuid), engine, engine_full, create_table_query, dependencies_database, dependencies_table
FROM system.tables WHERE database IN (` + quoteTexts(databases) + `) AND name IN (` + quoteTexts(tables) + `)`
	out := map[tableName]table{}
	err := t.query(ctx, nil, sql, func(scan func(...any) error) error {
		var row table
		var engineName, full string
		var depDatabases, depTables []string
		if err := scan(&row.database, &row.table, &row.uuid, &engineName, &full, &row.ddl, &depDatabases, &depTables); err != nil {
			return err
		}
		if full == "" {
			full = quoteName(engineName)
		}
		row.engine = parseEngine(full)
		for i := range depTables {
			row.dependents = append(row.dependents, tableName{depDatabases[i], depTables[i]})
		}
		out[row.tableName] = row
		return nil
	})
	return out, err
}

func (t *Target) readColumns(ctx context.Context, f *facts) error {
	sql := `SELECT name, type, default_kind FROM system.columns WHERE database = ` + quoteText(f.table.database) +
		` AND table = ` + quoteText(f.table.table) + ` ORDER BY position`
	err := t.query(ctx, nil, sql, func(scan func(...any) error) error {
		var c rowbinary.Column
		if err := scan(&c.Name, &c.Type, &c.DefaultKind); err != nil {
			return err
		}
		f.columns = append(f.columns, c)
		return nil
	})
	if err == nil && len(f.columns) == 0 {
		err = noTableError{f.table.tableName}
	}
	return err
}

// maxViewDepth ends a chain of views that leads back to itself.
const maxViewDepth = 16

func (t *Target) readViews(ctx context.Context, f *facts) error {
	level := []table{f.table}
	for range maxViewDepth {
		found, err := t.viewsOf(ctx, level)
		if err != nil || len(found) == 0 {
			return err
		}
		f.views = append(f.views, found...)
		level = level[:0]
		for _, v := range found {
			if v.target.table != "" {
				level = append(level, v.target)
			}
		}
	}
	return nil
}

// viewsOf reads the views that hang directly on the tables, with their targets.
func (t *Target) viewsOf(ctx context.Context, tables []table) ([]view, error) {
	var names []tableName
	for _, source := range tables {
		names = append(names, source.dependents...)
	}
	if len(names) == 0 {
		return nil, nil
	}
	rows, err := t.readTables(ctx, names...)
	if err != nil {
		return nil, err
	}
	var views []view
	var targets []tableName
	for _, source := range tables {
		for _, n := range source.dependents {
			row := rows[n]
			v := view{tableName: n, source: source.tableName}
			if row.engine.name == "MaterializedView" {
				v.target.tableName = viewTarget(n, row.uuid, row.ddl)
				targets = append(targets, v.target.tableName)
			}
			views = append(views, v)
		}
	}
	if len(targets) == 0 {
		return views, nil
	}
	rows, err = t.readTables(ctx, targets...)
	for i := range views {
		views[i].target = rows[views[i].target.tableName]
	}
	return views, err
}

// blockRateSeconds is below old_parts_lifetime (480 s), after which the parts
// that inserts wrote are no longer to be seen.
const blockRateSeconds = 300

func (t *Target) readBlockRate(ctx context.Context, f *facts) error {
	sql := `SELECT count() FROM system.parts WHERE database = ` + quoteText(f.table.database) +
		` AND table = ` + quoteText(f.table.table) + ` AND level = 0 AND modification_time > now() - ` + strconv.Itoa(blockRateSeconds)
	return t.query(ctx, nil, sql, func(scan func(...any) error) error {
		var n uint64
		err := scan(&n)
		f.blocksPerSecond = float64(n) / blockRateSeconds
		return err
	})
}

// fingerprint is what changes when the table or what hangs directly on it does.
// Of a plain table it also is which table it is, and on which server; replicas
// of a Replicated or Shared one may take turns behind one endpoint.
type fingerprint struct {
	hash string
	uuid string // of table and server, "" for a table that is not plain
}

// readFingerprint is the one round trip of every invocation after the first.
func (t *Target) readFingerprint(ctx context.Context) (fingerprint, error) {
	sql := `SELECT toString(cityHash64(engine_full, create_table_query, dependencies_database, dependencies_table)),
if(startsWith(engine, 'Replicated') OR startsWith(engine, 'Shared'), '', concat(toString(uuid), '/', toString(serverUUID())))
FROM system.tables WHERE database = ` + quoteText(t.config.Database) + ` AND name = ` + quoteText(t.config.Table)
	var out fingerprint
	err := t.query(ctx, nil, sql, func(scan func(...any) error) error { return scan(&out.hash, &out.uuid) })
	if err == nil && out.hash == "" {
		err = noTableError{tableName{t.config.Database, t.config.Table}}
	}
	return out, err
}

// window is one deduplication window as the table has it, or the server.
func (f *facts) window(t table, name string) int64 {
	value, ok := t.engine.settings[name]
	switch {
	case ok:
	case t.engine.family == replicated:
		value = f.replicatedDefaults[name]
	case t.engine.family == shared: // whichever of the two a Shared table goes by
		a, b := atoi(f.replicatedDefaults[name]), atoi(f.plainDefaults[name])
		return min(a, b)
	default:
		value = f.plainDefaults[name]
	}
	return atoi(value)
}

// windowSpan is how long the server remembers a token by time.
func (f *facts) windowSpan(t table) time.Duration {
	return time.Duration(f.window(t, windowSeconds)) * time.Second
}

func atoi(text string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return 0 // unknown is no window
	}
	return n
}

const (
	windowPlain   = "non_replicated_deduplication_window"
	windowCount   = "replicated_deduplication_window"
	windowSeconds = "replicated_deduplication_window_seconds"
)

var windowNames = [...]string{windowPlain, windowCount, windowSeconds}
