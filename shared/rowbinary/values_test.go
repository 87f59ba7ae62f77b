package rowbinary_test

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/engine/enginetest"
	"oncehouse/shared/kafka"
	"oncehouse/shared/rowbinary"
)

// engine is a ClickHouse server that stores rows and prints them.
type engine struct {
	t   *testing.T
	url string
}

func newEngine(t *testing.T) *engine { return &engine{t, enginetest.Run(t).URL()} }

// post runs a query, with the body as its data.
func (e *engine) post(query string, body []byte, settings url.Values) (string, error) {
	e.t.Helper()
	if settings == nil {
		settings = url.Values{}
	}
	settings.Set("query", query)
	req, err := http.NewRequestWithContext(e.t.Context(), http.MethodPost, e.url+"/?"+settings.Encode(), bytes.NewReader(body))
	require.NoError(e.t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(e.t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(e.t, err)
	require.NoError(e.t, resp.Body.Close())
	if resp.StatusCode != http.StatusOK {
		return "", &serverError{string(text)}
	}
	return string(text), nil
}

type serverError struct{ text string }

func (e *serverError) Error() string { return e.text }

func (e *engine) must(query string) string {
	e.t.Helper()
	text, err := e.post(query, nil, nil)
	require.NoError(e.t, err, query)
	return text
}

// columns are a table's, from system.columns.
func (e *engine) columns(table string) []rowbinary.Column {
	e.t.Helper()
	var columns []rowbinary.Column
	rows := e.must("SELECT name, type, default_kind FROM system.columns WHERE database = currentDatabase() AND table = '" + table + "' ORDER BY position FORMAT TSVRaw")
	for row := range strings.Lines(rows) {
		cells := strings.Split(strings.TrimSuffix(row, "\n"), "\t")
		columns = append(columns, rowbinary.Column{Name: cells[0], Type: cells[1], DefaultKind: cells[2]})
	}
	require.NotEmpty(e.t, columns, table)
	return columns
}

// insert stores encoded rows as the ClickHouse adapter does.
func (e *engine) insert(table string, columns []string, rows []byte) {
	e.t.Helper()
	quoted := make([]string, len(columns))
	for i, c := range columns {
		quoted[i] = "`" + strings.ReplaceAll(c, "`", "\\`") + "`"
	}
	_, err := e.post("INSERT INTO "+table+" ("+strings.Join(quoted, ", ")+") FORMAT RowBinaryWithDefaults", rows, url.Values{
		"input_format_binary_read_json_as_string": {"1"},
		"input_format_try_infer_dates":            {"0"},
		"input_format_try_infer_datetimes":        {"0"},
		"input_format_json_read_bools_as_numbers": {"0"},
		"input_format_json_read_bools_as_strings": {"0"},

		"input_format_json_read_numbers_as_strings": {"0"},
	})
	require.NoError(e.t, err)
}

// valueCase is one line of testdata: a type, a JSON value, and what ClickHouse
// prints of it or REFUSE.
type valueCase struct{ typ, value, want string }

func readCases(t *testing.T, file string) []valueCase {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var cases []valueCase
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		cells := append(strings.Split(strings.TrimSuffix(line, "\n"), "\t"), "", "")
		cases = append(cases, valueCase{cells[0], cells[1], cells[2]})
	}
	require.NotEmpty(t, cases)
	return cases
}

// document is a record's value with the case's value under the key c.
func (c valueCase) document() []byte {
	if c.value == "absent" {
		return []byte("{}")
	}
	return []byte(`{"c":` + c.value + `}`)
}

// Every value that is accepted is what ClickHouse then holds; every other one is
// refused and leaves its neighbours alone.
func TestValuesAsClickHouseStoresThem(t *testing.T) {
	server := newEngine(t)
	for _, file := range []string{"testdata/values.tsv", "testdata/more.tsv"} {
		for i, c := range readCases(t, file) {
			t.Run(c.typ+" "+c.value, func(t *testing.T) {
				e := &engine{t, server.url}
				table := "v" + strconv.Itoa(i) + strings.Map(onlyLetters, file)
				e.must("CREATE TABLE " + table + " (c " + c.typ + ") ENGINE = Memory")
				columns := e.columns(table)
				encoder, err := rowbinary.Compile(columns, rowbinary.Options{})
				require.NoError(t, err)
				rows, outcome, refusal := encoder.NewWriter().Append([]byte(nil), "topic", 0, &kafka.Record{Value: c.document()})
				if c.want == "REFUSE" {
					require.Equal(t, rowbinary.Refused, outcome)
					require.NotNil(t, refusal)
					require.NotEmpty(t, refusal.Code)
					require.Empty(t, rows)
					return
				}
				require.Nil(t, refusal)
				require.Equal(t, rowbinary.Stored, outcome)
				e.insert(table, encoder.Columns(), rows)
				require.Equal(t, c.want, e.printed(table, columns))
			})
		}
	}
}

func onlyLetters(r rune) rune {
	if r < 'a' || r > 'z' {
		return -1
	}
	return r
}

// printed is the one row of a table as the case files write it.
func (e *engine) printed(table string, columns []rowbinary.Column) string {
	e.t.Helper()
	text := strings.TrimSuffix(e.must("SELECT * FROM "+table+" FORMAT TSV"), "\n")
	cells := strings.Split(text, "\t")
	require.Len(e.t, cells, len(columns))
	for i, cell := range cells {
		cell = strings.ReplaceAll(cell, `\'`, `'`)
		if cell == `\N` {
			cell = "NULL"
		}
		if name, ok := strings.CutPrefix(columns[i].Name, "c."); ok {
			cell = name + "=" + cell
		}
		cells[i] = cell
	}
	return strings.Join(cells, " ")
}
