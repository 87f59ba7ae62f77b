package metrics_test

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/metrics"
	"oncehouse/shared/metrics/metricstest"
)

var at = time.UnixMilli(1_700_000_000_123)

func TestLineIsTheTextOfTheSpecification(t *testing.T) {
	var line metrics.Line
	line.Add(metrics.RowsStored, 100)
	line.Add(metrics.RowsStored, 20)
	line.Add(metrics.InDoubt, 0)
	line.Observe(metrics.InsertTime, 41.5)
	line.Observe(metrics.InsertTime, 7)
	line.Observe(metrics.EventLag, math.Inf(1))
	line.Property("request_id", "r-1")
	out := line.Append(nil, at, "clicks")
	require.JSONEq(t, `{"_aws":{"Timestamp":1700000000123,"CloudWatchMetrics":[{"Namespace":"oncehouse","Dimensions":[["Pipeline"]],
		"Metrics":[{"Name":"RowsStored","Unit":"Count"},{"Name":"InDoubt","Unit":"Count"},{"Name":"InsertTime","Unit":"Milliseconds"}]}]},
		"Pipeline":"clicks","RowsStored":120,"InDoubt":0,"InsertTime":[41.5,7],"request_id":"r-1"}`, string(out))
	require.Equal(t, 1, bytes.Count(out, []byte("\n")))
	metricstest.Check(t, out)
}

func TestMoreThanAHundredValuesGoOnInFurtherLines(t *testing.T) {
	var line metrics.Line
	line.Add(metrics.RowsStored, 1)
	for i := range 250 {
		line.Observe(metrics.LedgerTime, float64(i))
	}
	lines := bytes.SplitAfter(bytes.TrimSuffix(line.Append(nil, at, "clicks"), []byte("\n")), []byte("\n"))
	require.Len(t, lines, 3)
	var values []float64
	for i, text := range lines {
		parsed := metricstest.Check(t, text)
		values = append(values, parsed[metrics.LedgerTime]...)
		require.Equal(t, i == 0, parsed[metrics.RowsStored] != nil, "a sum is counted once")
	}
	require.Len(t, values, 250)
}

func TestAnEmptyLineIsNoLine(t *testing.T) {
	var line metrics.Line
	line.Property("request_id", "r-1")
	require.Empty(t, line.Append(nil, at, "clicks"))
}

func TestEveryMetricIsValid(t *testing.T) {
	var line metrics.Line
	seen := map[metrics.Name]bool{}
	for _, names := range [][]metrics.Name{metrics.All(), metrics.Outbox()} {
		clear(seen)
		for _, name := range names {
			require.False(t, seen[name], name)
			seen[name] = true
			line.Add(name, 1)
		}
		require.Len(t, metricstest.Check(t, line.Append(nil, at, "clicks")), len(names))
		line = metrics.Line{}
	}
}

func TestPropertiesDoNotHideMetrics(t *testing.T) {
	for _, name := range []string{"_aws", "Pipeline", "RowsStored"} {
		var line metrics.Line
		require.Panics(t, func() { line.Property(name, 1) }, name)
	}
}

func TestCheckCanFail(t *testing.T) {
	good := `{"_aws":{"Timestamp":1,"CloudWatchMetrics":[{"Namespace":"n","Dimensions":[["P"]],"Metrics":[{"Name":"M","Unit":"Count"}]}]},"P":"p","M":1}`
	require.NoError(t, metricstest.Validate([]byte(good)))
	for name, change := range map[string][2]string{
		"no timestamp":          {`"Timestamp":1,`, ``},
		"timestamp is a text":   {`"Timestamp":1`, `"Timestamp":"1"`},
		"no namespace":          {`"Namespace":"n",`, ``},
		"dimension has no text": {`"P":"p"`, `"P":1`},
		"metric is absent":      {`,"M":1`, ``},
		"metric is a text":      {`"M":1`, `"M":"1"`},
		"empty array":           {`"M":1`, `"M":[]`},
		"unit does not exist":   {`"Count"`, `"Counts"`},
		"metric without a name": {`"Name":"M"`, `"Name":""`},
	} {
		bad := bytes.Replace([]byte(good), []byte(change[0]), []byte(change[1]), 1)
		require.True(t, json.Valid(bad), name)
		require.Error(t, metricstest.Validate(bad), name)
	}
}
