package clickhouse

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/delivery"
	"oncehouse/shared/rowbinary"
)

// good are the facts of a table that keeps exactly-once; change breaks it.
func good(engineFull string) *facts {
	f := &facts{
		version: "25.8.1.1", uuid: "server-1", timezone: "UTC",
		settings:           map[string]string{"readonly": "0"},
		plainDefaults:      map[string]string{windowPlain: "0", windowCount: "10000", windowSeconds: "3600"},
		replicatedDefaults: map[string]string{windowPlain: "0", windowCount: "10000", windowSeconds: "3600"},
		table:              table{tableName: tableName{"d", "t"}, engine: parseEngine(engineFull), ddl: "CREATE TABLE d.t (`v` String)"},
		columns: []rowbinary.Column{{Name: "_topic", Type: "LowCardinality(String)"}, {Name: "_partition", Type: "Int32"},
			{Name: "_offset", Type: "Int64"}, {Name: "v", Type: "String"}},
	}
	for _, name := range pinnedNames() {
		f.settings[name] = ""
	}
	return f
}

func conf() *Config {
	return &Config{
		Endpoints: []string{"http://ch:8123"}, Database: "d", Table: "t", User: "u",
		Rows: rowbinary.Options{Provenance: rowbinary.StandardProvenance()}, Rules: delivery.DefaultRules(),
	}
}

const (
	plainTable      = "MergeTree ORDER BY v"
	replicatedTable = "ReplicatedMergeTree('/t', 'r') ORDER BY v"
	sharedTable     = "SharedMergeTree('/t', 'r') ORDER BY v"
)

func view1(target string) view {
	return view{tableName: tableName{"d", "mv"}, source: tableName{"d", "t"}, target: table{tableName: tableName{"d", "dst"}, engine: parseEngine(target)}}
}

func TestJudge(t *testing.T) {
	for name, c := range map[string]struct {
		engine  string
		change  func(*facts, *Config)
		problem string // "" for none
		remedy  string
		warning string
	}{
		"plain":      {engine: plainTable},
		"replicated": {engine: replicatedTable},
		"shared":     {engine: sharedTable},
		"plain without provenance": {engine: plainTable, change: func(f *facts, _ *Config) { f.columns = f.columns[3:] },
			problem: "whether an insert in doubt was stored could never be known", remedy: "ADD COLUMN `_offset` Int64"},
		"replicated without provenance": {engine: replicatedTable, change: func(f *facts, _ *Config) { f.columns = f.columns[3:] },
			warning: "no provenance columns"},
		"replay by probe without provenance": {engine: replicatedTable, change: func(f *facts, c *Config) { f.columns = f.columns[3:]; c.Rules.Replay = delivery.ReplayProbe },
			problem: "looks for rows by their provenance columns", remedy: "ADD COLUMN `_offset` Int64"},
		"provenance that is computed": {engine: replicatedTable, change: func(f *facts, _ *Config) { f.columns[2].DefaultKind = "MATERIALIZED" },
			problem: "is MATERIALIZED Int64", remedy: "MODIFY COLUMN `_offset` Int64"},
		"window of seconds too short": {engine: replicatedTable + " SETTINGS replicated_deduplication_window_seconds = 600",
			problem: "forgets tokens after 10m0s, and a replay may land 12m32s after", remedy: "ALTER TABLE `d`.`t` MODIFY SETTING replicated_deduplication_window_seconds = 3600"},
		"window of seconds just enough": {engine: replicatedTable + " SETTINGS replicated_deduplication_window_seconds = 752"},
		"one second short":              {engine: replicatedTable + " SETTINGS replicated_deduplication_window_seconds = 751", problem: "forgets tokens"},
		"horizon longer than the hour": {engine: replicatedTable, change: func(_ *facts, c *Config) { c.Rules.TrustHorizon = 2 * time.Hour },
			problem: "forgets tokens", remedy: "replicated_deduplication_window_seconds = 7352"},
		"window of blocks 0": {engine: replicatedTable + " SETTINGS replicated_deduplication_window = 0",
			problem: "deduplication is off", remedy: "replicated_deduplication_window = 10000"},
		"server's default window 0": {engine: replicatedTable, change: func(f *facts, _ *Config) { f.replicatedDefaults[windowCount] = "0" },
			problem: "deduplication is off"},
		"shared goes by the smaller default": {engine: sharedTable, change: func(f *facts, _ *Config) { f.plainDefaults[windowSeconds] = "60" },
			problem: "forgets tokens after 1m0s"},
		"window unknown": {engine: replicatedTable, change: func(f *facts, _ *Config) { f.replicatedDefaults = nil }, problem: "deduplication is off"},
		"blocks come faster than the window": {engine: replicatedTable, change: func(f *facts, _ *Config) { f.blocksPerSecond = 20 },
			warning: "took 20.0 blocks a second lately, so its window of 10000 blocks"},
		"at-least-once wants no window": {engine: replicatedTable + " SETTINGS replicated_deduplication_window = 0",
			change: func(_ *facts, c *Config) { c.Rules.Guarantee = delivery.AtLeastOnce }},
		"replay by token on plain": {engine: plainTable + " SETTINGS non_replicated_deduplication_window = 100",
			change:  func(_ *facts, c *Config) { c.Rules.Replay = delivery.ReplayToken },
			warning: "holds 0 rows, for good"},
		"view into replicated": {engine: replicatedTable, change: func(f *facts, _ *Config) { f.views = []view{view1(replicatedTable)} }},
		"view into plain": {engine: replicatedTable, change: func(f *facts, _ *Config) { f.views = []view{view1(plainTable)} },
			problem: "its target `d`.`dst` is a plain MergeTree", remedy: "accept incomplete views by name"},
		"view into plain, accepted": {engine: replicatedTable, change: func(f *facts, c *Config) {
			f.views = []view{view1(plainTable)}
			c.Rules.AcceptIncompleteViews = true
		}, warning: "may miss or double"},
		"view into a short window": {engine: replicatedTable, change: func(f *facts, _ *Config) {
			f.views = []view{view1(replicatedTable + " SETTINGS replicated_deduplication_window_seconds = 60")}
		}, problem: "table `d`.`dst` forgets tokens"},
		"view into nothing seen": {engine: replicatedTable, change: func(f *facts, _ *Config) {
			f.views = []view{{tableName: tableName{"d", "mv"}, source: f.table.tableName}}
		}, problem: "cannot be seen"},
		"view into kafka":                   {engine: replicatedTable, change: func(f *facts, _ *Config) { f.views = []view{view1("Kafka()")} }, problem: "engine Kafka, which does not deduplicate"},
		"null whose views keep the promise": {engine: "`Null`", change: func(f *facts, _ *Config) { f.views = []view{view1(replicatedTable)} }},
		"null with one that does not": {engine: "`Null`", change: func(f *facts, c *Config) {
			f.views = []view{view1(replicatedTable), view1(plainTable)}
			c.Rules.AcceptIncompleteViews = true
		}, problem: "on the Null table"},
		"null into null": {engine: "`Null`", change: func(f *facts, _ *Config) { f.views = []view{view1("`Null`")} }, problem: "that nothing reads"},
		"old server": {engine: plainTable, change: func(f *facts, _ *Config) { f.version = "24.8.1.1"; delete(f.settings, "max_threads") },
			problem: "version 24.8.1.1 is too old: 25.3 is the oldest", remedy: "(2) use a server that has them"},
		"read-only user": {engine: plainTable, change: func(f *facts, _ *Config) { f.settings["readonly"] = "1" }, problem: "read-only"},
		"distributed":    {engine: "Distributed('c', 'd', 't')", problem: "name the local table", remedy: "ENGINE = MergeTree"},
		"kafka":          {engine: "Kafka()", problem: "deduplicates nothing"},
		"queue":          {engine: "S3Queue('x')", problem: "deduplicates nothing"},
		"anything else":  {engine: "MySQL('x')", problem: "insert_deduplication_token"},
	} {
		t.Run(name, func(t *testing.T) {
			f, config := good(c.engine), conf()
			if c.change != nil {
				c.change(f, config)
			}
			v := judge(f, config)
			if c.problem == "" {
				require.Empty(t, v.problems)
			} else {
				target := &Target{config: *config}
				require.NotEmpty(t, v.problems)
				refused := target.refusal(v.problems)
				require.Equal(t, delivery.Fatal, refused.Kind)
				require.Contains(t, refused.Message, c.problem)
				require.Contains(t, refused.Remedy, c.remedy)
			}
			require.True(t, c.warning == "" && len(v.warnings) == 0 ||
				c.warning != "" && slices.ContainsFunc(v.warnings, func(w string) bool { return strings.Contains(w, c.warning) }), v.warnings)
		})
	}
}

func TestJudgeTraits(t *testing.T) {
	for name, c := range map[string]struct {
		engine string
		views  []view
		want   delivery.Traits
	}{
		"plain":      {engine: plainTable, want: delivery.Traits{Provenance: true, RowsStay: true, ServerUUID: "server-1"}},
		"replicated": {engine: replicatedTable, want: delivery.Traits{TokensTrusted: true, Provenance: true, RowsStay: true}},
		"shared replacing": {engine: "SharedReplacingMergeTree('/t', 'r', _offset) ORDER BY v",
			want: delivery.Traits{TokensTrusted: true, Provenance: true, ResendHarmless: true}},
		"replacing that forgets": {engine: "ReplicatedReplacingMergeTree('/t', 'r', _offset) ORDER BY v TTL d",
			want: delivery.Traits{TokensTrusted: true, Provenance: true}},
		"null": {engine: "`Null`", views: []view{view1(sharedTable)}, want: delivery.Traits{TokensTrusted: true, Views: true}},
	} {
		t.Run(name, func(t *testing.T) {
			f := good(c.engine)
			f.views = c.views
			require.Equal(t, c.want, judge(f, conf()).traits)
		})
	}
}
