package clickhouse

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseEngine(t *testing.T) {
	none := map[string]string{}
	for full, want := range map[string]engine{
		"MergeTree ORDER BY v SETTINGS index_granularity = 8192": {name: "MergeTree", family: plain, settings: map[string]string{"index_granularity": "8192"}},
		"`Null`": {name: "Null", family: null, settings: none},
		"ReplacingMergeTree(_offset) ORDER BY ttl TTL d + toIntervalDay(1) SETTINGS non_replicated_deduplication_window = 100, a = 'TTL'": {
			name: "ReplacingMergeTree", family: plain, variant: "Replacing", args: []string{"_offset"}, deletes: true,
			settings: map[string]string{"non_replicated_deduplication_window": "100", "a": "TTL"}},
		"ReplicatedReplacingMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}', `_offset`, deleted) ORDER BY v": {
			name: "ReplicatedReplacingMergeTree", family: replicated, variant: "Replacing", args: []string{"_offset", "deleted"}, settings: none},
		"SharedMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}') ORDER BY v TTL d + toIntervalDay(1) TO DISK 'cold', d + toIntervalDay(9) RECOMPRESS CODEC(ZSTD(9))": {
			name: "SharedMergeTree", family: shared, settings: none},
		"MergeTree ORDER BY v TTL d TO VOLUME 'cold', d + toIntervalDay(9)":               {name: "MergeTree", family: plain, deletes: true, settings: none},
		"MergeTree ORDER BY v TTL d GROUP BY v SET n = sum(n)":                            {name: "MergeTree", family: plain, deletes: true, settings: none},
		"VersionedCollapsingMergeTree(sign, version) ORDER BY v":                          {name: "VersionedCollapsingMergeTree", family: plain, variant: "VersionedCollapsing", args: []string{"sign", "version"}, settings: none},
		"Distributed('c', 'd', 't', rand())":                                              {name: "Distributed", family: other, args: []string{"rand"}, settings: none},
		"FancyMergeTree ORDER BY v":                                                       {name: "FancyMergeTree", family: other, settings: none},
		"MergeTree PARTITION BY 'SETTINGS a = 1' ORDER BY (v, `TTL`, concat('x', \"y\"))": {name: "MergeTree", family: plain, settings: none},
		"": {},
	} {
		require.Equal(t, want, parseEngine(full), full)
	}
}

func TestTTLColumns(t *testing.T) {
	ddl := "CREATE TABLE d.t (`_offset` Int64 COMMENT 'TTL, `x` \\' TTL', `v` Tuple(a Int32, b Int32) DEFAULT (1, 2) TTL d + toIntervalDay(1), `d` DateTime, INDEX i v TYPE minmax, `w` String TTL d) ENGINE = MergeTree ORDER BY d TTL d"
	require.Equal(t, []string{"v", "w"}, ttlColumns(ddl))
	require.Empty(t, ttlColumns("CREATE TABLE d.t AS other"))
}

func TestViewTarget(t *testing.T) {
	v := tableName{"d", "mv"}
	const uuid = "608394b4-ec4f-4d02-83a5-96156f106229"
	for _, c := range []struct {
		uuid, ddl string
		want      tableName
	}{
		{uuid, "CREATE MATERIALIZED VIEW d.mv TO e.dst (`v` Int32) AS SELECT v FROM d.t", tableName{"e", "dst"}},
		{uuid, "CREATE MATERIALIZED VIEW d.`TO` TO e.`d.s``t` (`v` Int32) AS SELECT v FROM d.t", tableName{"e", "d.s`t"}},
		{uuid, "CREATE MATERIALIZED VIEW d.mv TO dst (`v` Int32) AS SELECT v FROM d.t", tableName{"d", "dst"}},
		{uuid, "CREATE MATERIALIZED VIEW d.mv (`v` Int32) ENGINE = MergeTree ORDER BY v AS SELECT v FROM d.t", tableName{"d", ".inner_id." + uuid}},
		{uuid, "CREATE MATERIALIZED VIEW d.mv TO INNER UUID 'x' (`v` Int32) ENGINE = MergeTree ORDER BY v AS SELECT v FROM d.t", tableName{"d", ".inner_id." + uuid}},
		{"00000000-0000-0000-0000-000000000000", "CREATE MATERIALIZED VIEW d.mv (`v` Int32) ENGINE = Log AS SELECT 1 AS v", tableName{"d", ".inner.mv"}},
	} {
		require.Equal(t, c.want, viewTarget(v, c.uuid, c.ddl), c.ddl)
	}
}

func TestVersionAtLeast(t *testing.T) {
	for version, want := range map[string]bool{"25.3.1.1": true, "25.2.9.9": false, "26.1": true, "24.12.1": false, "25.10.1.1": true, "": false, "x.y": false} {
		require.Equal(t, want, versionAtLeast(version, 25, 3), version)
	}
}

func TestQuoting(t *testing.T) {
	require.Equal(t, "`a\\`b\\\\c`", quoteName("a`b\\c"))
	require.Equal(t, "'a\\'b\\\\'", quoteText(`a'b\`))
}

func FuzzLex(f *testing.F) {
	f.Add("MergeTree('a\\', (b) ORDER BY `x``y` TTL d SETTINGS a = 1")
	f.Add("(((')")
	f.Fuzz(func(_ *testing.T, sql string) { // no input may panic: the server's text is not ours
		parseEngine(sql)
		ttlColumns(sql)
		viewTarget(tableName{"d", "v"}, "u", sql)
	})
}
