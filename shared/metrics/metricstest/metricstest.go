// Package metricstest checks log lines against the specification of the Embedded
// Metric Format, apart from the package that writes them.
package metricstest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/metrics"
)

// Check fails the test for a line that CloudWatch would not take, and returns
// its metrics.
func Check(t testing.TB, line []byte) map[metrics.Name][]float64 {
	t.Helper()
	require.NoError(t, Validate(line), string(line))
	var root root
	require.NoError(t, json.Unmarshal(line, &root))
	var fields map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(line, &fields))
	values := map[metrics.Name][]float64{}
	for _, d := range root.AWS.CloudWatchMetrics {
		for _, m := range d.Metrics {
			parsed, err := numbers(fields[m.Name])
			require.NoError(t, err)
			values[metrics.Name(m.Name)] = parsed
		}
	}
	return values
}

type root struct {
	AWS struct {
		Timestamp         *int64
		CloudWatchMetrics []struct {
			Namespace  string
			Dimensions [][]string
			Metrics    []struct {
				Name, Unit        string
				StorageResolution *int
			}
		}
	} `json:"_aws"`
}

// Validate returns what CloudWatch would not take, joined: the structure, the
// limits and the references of the specification.
func Validate(line []byte) error {
	if len(line) > 1<<20 {
		return errors.New("longer than 1 MB")
	}
	var r root
	if err := json.Unmarshal(line, &r); err != nil {
		return fmt.Errorf("not the structure: %w", err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(line, &fields); err != nil {
		return fmt.Errorf("not an object: %w", err)
	}
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	check(r.AWS.Timestamp != nil && *r.AWS.Timestamp > 0, "no _aws.Timestamp")
	check(len(r.AWS.CloudWatchMetrics) > 0, "no _aws.CloudWatchMetrics")
	for _, d := range r.AWS.CloudWatchMetrics {
		check(d.Namespace != "" && len(d.Namespace) <= 1024, "namespace %q", d.Namespace)
		check(len(d.Dimensions) > 0, "no dimension set")
		for _, set := range d.Dimensions {
			check(len(set) <= 30, "%d dimensions", len(set))
			for _, name := range set {
				var text string
				check(json.Unmarshal(fields[name], &text) == nil && text != "" && len(text) <= 1024, "dimension %q has the value %s", name, fields[name])
			}
		}
		check(len(d.Metrics) > 0 && len(d.Metrics) <= 100, "%d metrics", len(d.Metrics))
		for _, m := range d.Metrics {
			check(m.Name != "" && len(m.Name) <= 1024, "metric name %q", m.Name)
			check(slices.Contains(units(), m.Unit), "unit %q of %s", m.Unit, m.Name)
			check(m.StorageResolution == nil || *m.StorageResolution == 1 || *m.StorageResolution == 60, "storage resolution of %s", m.Name)
			_, err := numbers(fields[m.Name])
			check(err == nil, "metric %s: %w", m.Name, err)
		}
	}
	return errors.Join(problems...)
}

// numbers reads a target member: a number, or 1 to 100 of them.
func numbers(field json.RawMessage) ([]float64, error) {
	if field == nil || string(field) == "null" {
		return nil, errors.New("no such member")
	}
	var one float64
	if json.Unmarshal(field, &one) == nil {
		return []float64{one}, nil
	}
	var many []float64
	if err := json.Unmarshal(field, &many); err != nil {
		return nil, fmt.Errorf("neither a number nor numbers: %w", err)
	}
	if len(many) == 0 || len(many) > 100 {
		return nil, fmt.Errorf("%d values", len(many))
	}
	return many, nil
}

// units are CloudWatch's (MetricDatum).
func units() []string {
	return strings.Fields(`Seconds Microseconds Milliseconds Bytes Kilobytes Megabytes Gigabytes Terabytes
		Bits Kilobits Megabits Gigabits Terabits Percent Count Bytes/Second Kilobytes/Second Megabytes/Second
		Gigabytes/Second Terabytes/Second Bits/Second Kilobits/Second Megabits/Second Gigabits/Second
		Terabits/Second Count/Second None`)
}
