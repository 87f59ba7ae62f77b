// Package metrics writes CloudWatch metrics as log lines, in the Embedded Metric
// Format: CloudWatch Logs reads them out of the log, so that a function sends
// nothing and waits for nothing.
//
//	var line metrics.Line
//	line.Add(metrics.RowsStored, 120)
//	line.Observe(metrics.InsertTime, 41.5) // one value per lane
//	line.Property("request_id", id)
//	out = line.Append(out, time.Now(), "clicks")
//
// A line's metrics have one dimension, Pipeline: what is to be told apart beyond
// that (a lane, a request) is a property, which Logs Insights can search for and
// which costs no metric.
//
// The format: https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html
package metrics

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Namespace is where the metrics are in CloudWatch.
const Namespace = "oncehouse"

// DimensionPipeline is the one dimension.
const DimensionPipeline = "Pipeline"

// maxValues is how many values of one metric a line may have.
const maxValues = 100

// Line collects the metrics of one invocation. The zero Line is empty and ready;
// it is not safe for concurrent use.
type Line struct {
	values     map[Name][]float64
	properties map[string]any
}

// Add adds to a sum. A sum that is added to, by 0 too, is in the line.
func (l *Line) Add(name Name, value int64) {
	l.init()
	if len(l.values[name]) == 0 {
		l.values[name] = []float64{0}
	}
	l.values[name][0] += float64(value)
}

// Observe adds one value to a distribution. What is not a number is left out:
// one such value would cost the whole line.
func (l *Line) Observe(name Name, value float64) {
	l.init()
	if !math.IsNaN(value) && !math.IsInf(value, 0) {
		l.values[name] = append(l.values[name], value)
	}
}

// Property adds a field that is no metric. Names of metrics, _aws and the
// dimension are taken and refused by a panic: they are a fault of the caller.
func (l *Line) Property(name string, value any) {
	l.init()
	if name == "_aws" || name == DimensionPipeline || slices.Contains(every(), Name(name)) {
		panic(fmt.Sprintf("metrics: property %q is a name of the line itself", name))
	}
	l.properties[name] = value
}

func (l *Line) init() {
	if l.values == nil {
		l.values, l.properties = map[Name][]float64{}, map[string]any{}
	}
}

// Append appends the line, ended by a newline, to dst. A distribution of more
// than 100 values goes on in further lines, as the format wants it.
func (l *Line) Append(dst []byte, at time.Time, pipeline string) []byte {
	for from := 0; ; from += maxValues {
		names := l.namesFrom(from)
		if len(names) == 0 {
			return dst
		}
		dst = l.appendOne(dst, at, pipeline, names, from)
	}
}

// namesFrom are the metrics that have values from an index on, in the order of
// their lists, so that equal lines are equal text.
func (l *Line) namesFrom(index int) []Name {
	return slices.DeleteFunc(every(), func(n Name) bool { return len(l.values[n]) <= index })
}

type definition struct {
	Name Name `json:"Name"`
	Unit Unit `json:"Unit"`
}

type directive struct {
	Namespace  string       `json:"Namespace"`
	Dimensions [][]string   `json:"Dimensions"`
	Metrics    []definition `json:"Metrics"`
}

type metadata struct {
	Timestamp         int64       `json:"Timestamp"`
	CloudWatchMetrics []directive `json:"CloudWatchMetrics"`
}

func (l *Line) appendOne(dst []byte, at time.Time, pipeline string, names []Name, from int) []byte {
	d := directive{Namespace: Namespace, Dimensions: [][]string{{DimensionPipeline}}}
	for _, n := range names {
		d.Metrics = append(d.Metrics, definition{n, n.Unit()})
	}
	dst = appendField(append(dst, '{'), "_aws", metadata{at.UnixMilli(), []directive{d}})
	dst = appendField(append(dst, ','), DimensionPipeline, pipeline)
	for _, n := range names {
		values := l.values[n][from:]
		values = values[:min(len(values), maxValues)]
		dst = append(dst, ',')
		if len(values) == 1 {
			dst = appendField(dst, string(n), values[0])
		} else {
			dst = appendField(dst, string(n), values)
		}
	}
	for _, name := range l.sortedProperties() {
		dst = appendField(append(dst, ','), name, l.properties[name])
	}
	return append(dst, '}', '\n')
}

func (l *Line) sortedProperties() []string {
	names := make([]string, 0, len(l.properties))
	for name := range l.properties {
		names = append(names, name)
	}
	slices.SortFunc(names, strings.Compare)
	return names
}

func appendField(dst []byte, name string, value any) []byte {
	field, err := json.Marshal(name)
	if err == nil {
		dst = append(append(dst, field...), ':')
		field, err = json.Marshal(value)
	}
	if err != nil { // numbers and texts always marshal
		panic(fmt.Sprintf("metrics: property %q: %v", name, err))
	}
	return append(dst, field...)
}
