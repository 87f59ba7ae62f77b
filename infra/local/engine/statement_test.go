package engine

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestScan(t *testing.T) {
	type parts struct{ head, format, data string }
	for sql, want := range map[string]parts{
		"INSERT INTO t VALUES (1)":                             {"INSERT INTO t ", "Values", " (1)"},
		"insert into t(a, b)values(1)":                         {"insert into t(a, b)", "Values", "(1)"},
		"INSERT INTO t FORMAT TSV\n\n1\n":                      {"INSERT INTO t ", "TSV", "\n1\n"},
		"INSERT INTO t FORMAT TSV \t\r\n1":                     {"INSERT INTO t ", "TSV", "1"},
		"INSERT INTO t FORMAT TSV 1":                           {"INSERT INTO t ", "TSV", "1"},
		"INSERT INTO t FORMAT RowBinary\n":                     {"INSERT INTO t ", "RowBinary", ""},
		"INSERT INTO values VALUES (1)":                        {"INSERT INTO values ", "Values", " (1)"},
		"INSERT INTO format.format FORMAT TSV\n1":              {"INSERT INTO format.format ", "TSV", "1"},
		"INSERT INTO `a ``FORMAT x` FORMAT TSV\n1":             {"INSERT INTO `a ``FORMAT x` ", "TSV", "1"},
		"INSERT INTO t (`VALUES`, \"FORMAT\") FORMAT TSV\n":    {"INSERT INTO t (`VALUES`, \"FORMAT\") ", "TSV", ""},
		"INSERT INTO t (values) FORMAT TSV\n":                  {"INSERT INTO t (values) ", "TSV", ""},
		"INSERT INTO t /* VALUES */ -- FORMAT x\nFORMAT TSV\n": {"INSERT INTO t /* VALUES */ -- FORMAT x\n", "TSV", ""},
		"INSERT INTO FUNCTION file('x;') FORMAT TSV\n1;2":      {"INSERT INTO FUNCTION file('x;') ", "TSV", "1;2"},
		"INSERT INTO t SETTINGS a = 'FORMAT' FORMAT TSV\n":     {"INSERT INTO t SETTINGS a = 'FORMAT' ", "TSV", ""},
	} {
		st := scan([]byte(sql))
		require.True(t, st.insert, sql)
		got := parts{sql[:st.head], st.format, sql[st.data:]}
		require.Equal(t, want, got, sql)
	}
	for sql, want := range map[string]statement{
		"":                   {empty: true},
		" /* x */ -- y":      {empty: true},
		"SELECT 1":           {},
		"SELECT 1;":          {},
		"SELECT 1; -- done":  {},
		"SELECT 1; SELECT 2": {multiple: true},
		"SELECT ';', $$;$$, $a$; $$ ;$a$, `;`, \";\"":                {},
		"SELECT 'it''s;', 'it\\'s;' FORMAT JSON":                     {format: "JSON"},
		"SELECT (SELECT 1 FORMAT x) FORMAT TSV;":                     {format: "TSV"},
		"INSERT INTO t SELECT 1":                                     {},
		"INSERT INTO t SELECT 1; SELECT 2":                           {multiple: true},
		"INSERT INTO t WITH 1 AS x SELECT x":                         {},
		"INSERT INTO t FROM INFILE 'x' FORMAT CSV":                   {format: "CSV"},
		"INSERT INTO t SELECT * FROM input('a UInt8') FORMAT TSV\n1": {format: "TSV", input: true},
		"INSERT INTO t SELECT 1 FORMAT Null":                         {format: "Null"},
		"INSERT INTO t; SELECT 1":                                    {multiple: true},
		"SELECT 1 AS insert":                                         {},
	} {
		require.Equal(t, want, scan([]byte(sql)), sql)
	}
	require.True(t, scan([]byte("INSERT INTO t FORMAT TSV; 1")).excess)
}

func TestServerUUID(t *testing.T) {
	for sql, want := range map[string]string{
		"SELECT serverUUID()":                              "SELECT (toUUID('u') AS `serverUUID()`)",
		"SELECT serverUUID ( ) = serverUUID()":             "SELECT (toUUID('u') AS `serverUUID()`) = (toUUID('u') AS `serverUUID()`)",
		"SELECT 'serverUUID()', serverUUID, xserverUUID()": "SELECT 'serverUUID()', serverUUID, xserverUUID()",
	} {
		st := scan([]byte(sql))
		require.Equal(t, want, string(st.withUUID([]byte(sql), "u")))
	}
}

// FuzzScan: any text is read to its end without a panic, and what a statement
// reports lies inside it.
func FuzzScan(f *testing.F) {
	for _, sql := range []string{"INSERT INTO t VALUES (1)", "INSERT INTO t FORMAT", "INSERT INTO t FORMAT;", "INSERT", "SELECT '\\", "$a$ $", "/*", "#!", "INSERT INTO t FORMAT TSV \r", "SELECT serverUUID("} {
		f.Add([]byte(sql))
	}
	f.Fuzz(func(t *testing.T, sql []byte) {
		st := scan(sql)
		require.LessOrEqual(t, st.head, st.data)
		require.LessOrEqual(t, st.data, len(sql))
		if st.insert {
			require.NotContains(t, st.format, ";")
			st.inlineValues(sql)
		}
		st.withUUID(sql, "u")
	})
}
