package clickhouse

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"oncehouse/shared/delivery"
	"oncehouse/shared/rowbinary"
)

// The oldest server that is accepted: the long-term release that has
// input_format_binary_read_json_as_string and hands tokens to views block by
// block (the rework of 24.9). Newer defaults do not matter, they are pinned.
const (
	minMajor = 25
	minMinor = 3
)

// Problem is one reason why a table cannot keep what was asked of it.
type Problem struct {
	// Message says what is wrong.
	Message string
	// Remedy is what would make it right: SQL where SQL can.
	Remedy string
}

// verdict is what judge finds: traits when there is no problem.
type verdict struct {
	traits   delivery.Traits
	problems []Problem
	warnings []string
}

func (v *verdict) refuse(remedy, format string, args ...any) {
	v.problems = append(v.problems, Problem{Message: fmt.Sprintf(format, args...), Remedy: remedy})
}

func (v *verdict) warn(format string, args ...any) {
	v.warnings = append(v.warnings, fmt.Sprintf(format, args...))
}

// judge decides whether the table can keep the guarantee. It reads nothing but
// its arguments.
func judge(f *facts, c *Config) verdict {
	var v verdict
	v.judgeServer(f)
	if reason, remedy := refusedEngine(f.table, len(f.views)); reason != "" {
		v.refuse(remedy, "engine %s of table %s: %s", f.table.engine.name, f.table.tableName, reason)
		return v
	}
	if f.table.engine.family == plain && len(c.Endpoints) > 1 {
		v.refuse("name the one server that holds the table",
			"table %s is a plain %s, which lives on one server, and %d endpoints are given", f.table.tableName, f.table.engine.name, len(c.Endpoints))
	}
	provenance := v.judgeProvenance(f, c)
	v.traits = traitsOf(f, c, provenance)
	if c.Rules.Guarantee == delivery.ExactlyOnce {
		v.judgeExactlyOnce(f, c, provenance)
	}
	return v
}

func (v *verdict) judgeServer(f *facts) {
	if !versionAtLeast(f.version, minMajor, minMinor) {
		v.refuse(fmt.Sprintf("upgrade the server to %d.%d or newer", minMajor, minMinor),
			"server version %s is too old: %d.%d is the oldest that is supported", f.version, minMajor, minMinor)
	}
	var missing []string
	for name := range required() {
		if _, ok := f.settings[name]; !ok {
			missing = append(missing, name)
		}
	}
	for _, name := range perInsert {
		if _, ok := f.settings[name]; !ok {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		v.refuse("use a server that has them", "server version %s does not know the settings %s", f.version, strings.Join(missing, ", "))
	}
	if value := f.settings["readonly"]; value == "1" {
		v.refuse("give the user a profile with readonly = 0", "the user is read-only (setting readonly = 1)")
	}
}

// refusedEngine says why a table of this engine is not accepted, "" when it is.
func refusedEngine(t table, views int) (reason, remedy string) {
	remedy = fmt.Sprintf("CREATE TABLE %s (...) ENGINE = MergeTree ORDER BY (...)", t.tableName)
	switch t.engine.family {
	case plain, replicated, shared:
		return "", ""
	case null:
		if views == 0 {
			return "it keeps no rows and no materialized view reads them, so every record would vanish", remedy
		}
		return "", ""
	}
	switch name := t.engine.name; {
	case name == "Buffer":
		return "it answers before the rows are on disk and loses them with the server", remedy
	case name == "Distributed":
		return "it sends rows on later and in other blocks; name the local table on its server instead", remedy
	case name == "Memory":
		return "its rows are gone when the server restarts, and it ignores tokens", remedy
	case strings.HasSuffix(name, "Log"):
		return "it ignores tokens and an insert that fails may leave half its rows", remedy
	case name == "MaterializedView":
		return "rows belong into the view's source table", "name the table that the view reads from"
	case name == "View", name == "LiveView", name == "WindowView":
		return "a view stores nothing", "name the table that the view reads from"
	case name == "Dictionary":
		return "a dictionary takes no inserts", remedy
	case name == "Kafka", name == "RabbitMQ", name == "NATS", strings.HasSuffix(name, "Queue"):
		return "it passes rows on to another system and deduplicates nothing", remedy
	case name == "Merge":
		return "it only reads other tables", remedy
	}
	return "it knows no insert_deduplication_token, so that a retry stores rows twice; only tables of the MergeTree family, and Null with views, are accepted", remedy
}

// provenanceType are the types that Probe can compare with. A Nullable column
// would hold rows that it cannot see.
var (
	topicType  = regexp.MustCompile(`^(String|LowCardinality\(String\))$`)
	numberType = regexp.MustCompile(`^U?Int(32|64)$`)
	offsetType = regexp.MustCompile(`^U?Int64$`)
)

// judgeProvenance reports whether the three columns that Probe needs are there
// and right. Missing ones are a problem of the guarantee, wrong ones always.
func (v *verdict) judgeProvenance(f *facts, c *Config) bool {
	p := c.Rows.Provenance
	missing := 0
	for _, want := range []struct {
		name string
		typ  *regexp.Regexp
		ddl  string
	}{{p.Topic, topicType, "LowCardinality(String)"}, {p.Partition, numberType, "Int32"}, {p.Offset, offsetType, "Int64"}} {
		i := slices.IndexFunc(f.columns, func(col rowbinary.Column) bool { return col.Name == want.name })
		if want.name == "" || i < 0 {
			missing++
			continue
		}
		col := f.columns[i]
		if !want.typ.MatchString(col.Type) || col.DefaultKind != "" && col.DefaultKind != "DEFAULT" {
			v.refuse(fmt.Sprintf("ALTER TABLE %s MODIFY COLUMN %s %s", f.table.tableName, quoteName(col.Name), want.ddl),
				"provenance column %s of table %s is %s, %s expected", quoteName(col.Name), f.table.tableName, strings.TrimSpace(col.DefaultKind+" "+col.Type), want.ddl)
		}
	}
	return missing == 0 && f.table.engine.family != null
}

func addProvenance(f *facts, p rowbinary.Provenance) string {
	var adds []string
	for _, want := range [][3]string{{p.Topic, "_topic", "LowCardinality(String)"}, {p.Partition, "_partition", "Int32"}, {p.Offset, "_offset", "Int64"}} {
		column := want[0]
		if column == "" {
			column = want[1]
		}
		if !slices.ContainsFunc(f.columns, func(col rowbinary.Column) bool { return col.Name == column }) {
			adds = append(adds, "ADD COLUMN "+quoteName(column)+" "+want[2])
		}
	}
	return "ALTER TABLE " + f.table.String() + " " + strings.Join(adds, ", ")
}

func traitsOf(f *facts, c *Config, provenance bool) delivery.Traits {
	e := f.table.engine
	p := c.Rows.Provenance
	ttl := ttlColumns(f.table.ddl)
	traits := delivery.Traits{
		TokensTrusted: e.family != plain,
		Provenance:    provenance,
		RowsStay: e.family != null && e.variant == "" && !e.deletes &&
			!slices.Contains(ttl, p.Topic) && !slices.Contains(ttl, p.Partition) && !slices.Contains(ttl, p.Offset),
		// The version decides which of two rows with one key stays: with the
		// offset as version a row sent again replaces itself.
		ResendHarmless: e.variant == "Replacing" && !e.deletes && len(e.args) > 0 && e.args[0] == p.Offset,
		Views:          len(f.views) > 0,
	}
	if e.family == plain {
		traits.ServerUUID = f.uuid
	}
	return traits
}

func (v *verdict) judgeExactlyOnce(f *facts, c *Config, provenance bool) {
	t := f.table
	switch t.engine.family {
	case plain:
		v.judgePlain(f, c, provenance)
	case replicated, shared:
		if reason, remedy := windowProblem(f, t, span(c)); reason != "" {
			v.refuse(remedy, "%s", reason)
		}
		v.judgeWindowCount(f, c)
		if !provenance && c.Rules.Replay == delivery.ReplayProbe {
			v.refuse(addProvenance(f, c.Rows.Provenance), "replay %q looks for rows by their provenance columns, and table %s lacks some", c.Rules.Replay, t.tableName)
		} else if !provenance {
			v.warn("table %s has no provenance columns: an insert in doubt for longer than the trust horizon (%s) cannot be decided; remedy: %s",
				t.tableName, c.Rules.TrustHorizon, addProvenance(f, c.Rows.Provenance))
		}
	}
	for _, w := range f.views {
		reason, remedy := viewProblem(f, w, span(c))
		switch {
		case reason == "":
		case t.engine.family == null: // nothing but the views keeps a Null table's rows
			v.refuse(remedy, "view %s on the Null table %s: %s", w.tableName, t.tableName, reason)
		case c.Rules.AcceptIncompleteViews:
			v.warn("view %s may miss or double a chunk (accepted): %s", w.tableName, reason)
		default:
			v.refuse(remedy+"; or accept incomplete views by name", "view %s: %s", w.tableName, reason)
		}
	}
}

// judgePlain: a plain MergeTree logs a token before the part is in place, so a
// killed server answers OK with 0 rows, for good. Only looking decides.
func (v *verdict) judgePlain(f *facts, c *Config, provenance bool) {
	t := f.table
	if !provenance {
		v.refuse(addProvenance(f, c.Rows.Provenance)+"; or use a Replicated or Shared table",
			"table %s is a plain %s without the provenance columns: whether an insert in doubt was stored could never be known", t.tableName, t.engine.name)
	}
	if c.Rules.Replay != delivery.ReplayToken {
		return
	}
	if f.window(t, windowPlain) == 0 {
		v.refuse(modifySetting(t, windowPlain, 1000), "replay %q on table %s, whose deduplication window is 0: every replay would store its rows again", c.Rules.Replay, t.tableName)
		return
	}
	v.warn("replay %q on the plain %s %s: a server killed between logging a token and placing its rows answers OK to the replay and holds 0 rows, for good; replay %q does not have this risk",
		c.Rules.Replay, t.engine.name, t.tableName, delivery.ReplayAuto)
}

// span is how long a token must be remembered: a replay that was begun at the
// very end of the horizon has an invocation's and an insert's time to land.
func span(c *Config) time.Duration {
	r := c.Rules
	return r.TrustHorizon + r.FunctionTimeout + r.InsertTimeout + r.ClockMargin
}

// windowProblem says why the table's window does not cover the span.
func windowProblem(f *facts, t table, need time.Duration) (reason, remedy string) {
	if f.window(t, windowCount) == 0 {
		return fmt.Sprintf("deduplication is off on table %s (%s = 0)", t.tableName, windowCount), modifySetting(t, windowCount, 10000)
	}
	if got := f.windowSpan(t); got < need {
		secs := max(3600, int64((need+time.Second-1)/time.Second))
		return fmt.Sprintf("table %s forgets tokens after %s, and a replay may land %s after its insert (trust horizon + function timeout + insert timeout + clock margin)", t.tableName, got, need),
			modifySetting(t, windowSeconds, secs)
	}
	return "", ""
}

// judgeWindowCount: the window also counts blocks, one for each table partition
// of each insert, and a count is no time. It can only be estimated.
func (v *verdict) judgeWindowCount(f *facts, c *Config) {
	count := f.window(f.table, windowCount)
	if count == 0 {
		return
	}
	if need := int64(f.blocksPerSecond * span(c).Seconds()); need > count {
		v.warn("table %s took %.1f blocks a second lately, so its window of %d blocks may forget a token before the %s in which it may be needed; remedy: %s, or replay %q",
			f.table.tableName, f.blocksPerSecond, count, span(c), modifySetting(f.table, windowCount, 2*need), delivery.ReplayProbe)
	}
}

func modifySetting(t table, setting string, value int64) string {
	return fmt.Sprintf("ALTER TABLE %s MODIFY SETTING %s = %d", t.tableName, setting, value)
}

// viewProblem says why a view may miss or double rows when a chunk is replayed.
func viewProblem(f *facts, w view, need time.Duration) (reason, remedy string) {
	drop := "DROP VIEW " + w.String()
	if w.source == f.table.tableName && f.table.engine.family == plain {
		return "it reads from a plain " + f.table.engine.name + ", where missing rows are stored under a new token and the view runs again",
			"use a Replicated or Shared table; or " + drop
	}
	t := w.target
	switch t.engine.family {
	case null:
		if len(t.dependents) == 0 {
			return "its target " + t.String() + " is a Null table that nothing reads", drop
		}
		return "", ""
	case replicated, shared:
		return windowProblem(f, t, need)
	case plain:
		return fmt.Sprintf("its target %s is a plain %s, whose tokens are not to be trusted", t.tableName, t.engine.name),
			"use a Replicated or Shared target; or " + drop
	}
	if t.table == "" {
		return "its target cannot be seen", "GRANT SHOW TABLES on the target; or " + drop
	}
	return fmt.Sprintf("its target %s is of engine %s, which does not deduplicate", t.tableName, t.engine.name),
		"use a Replicated or Shared target; or " + drop
}
