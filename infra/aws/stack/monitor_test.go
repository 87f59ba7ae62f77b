package stack_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/aws/config"
	"oncehouse/shared/metrics"
)

// aws are the metrics of AWS's own that alarms and widgets may name.
var aws = map[string][]string{
	"AWS/Lambda":   {"ConcurrentExecutions", "Duration", "Errors", "Invocations", "OffsetLag", "Throttles"},
	"AWS/SQS":      {"ApproximateAgeOfOldestMessage", "ApproximateNumberOfMessagesVisible"},
	"AWS/DynamoDB": {"ReadThrottleEvents", "WriteThrottleEvents"},
}

// named is a metric as an alarm or a widget names it.
type named struct{ namespace, name, dimension, value, stat string }

func TestAlarmsAndWidgetsNameMetricsThatExist(t *testing.T) {
	for _, in := range examples {
		for name, made := range in.templates {
			functions := map[string]string{"AWS/DynamoDB": in.config.LedgerTable()}
			if pipeline, is := strings.CutPrefix(name, in.config.Prefix()+"-"); is {
				functions[metrics.Namespace] = pipeline
				functions["AWS/Lambda"] = made.only(t, "AWS::Lambda::Function")["FunctionName"].(string)
				functions["AWS/SQS"] = made.only(t, "AWS::SQS::Queue")["QueueName"].(string)
			}
			dimensions := map[string]string{"AWS/DynamoDB": "TableName", "AWS/Lambda": "FunctionName", "AWS/SQS": "QueueName", metrics.Namespace: metrics.DimensionPipeline}
			all := append(ofAlarms(made), ofDashboards(t, made)...)
			require.NotEmpty(t, all)
			for _, m := range all {
				if m.namespace == metrics.Namespace {
					require.Contains(t, metrics.All(), metrics.Name(m.name))
				} else {
					require.Contains(t, aws[m.namespace], m.name)
				}
				require.Equal(t, dimensions[m.namespace], m.dimension, m.name)
				require.Equal(t, functions[m.namespace], m.value, m.name)
				require.NotEmpty(t, m.stat, m.name)
			}
		}
	}
}

// A metric that nobody looks at costs money for nothing.
func TestEveryMetricIsLookedAt(t *testing.T) {
	eachPipeline(t, func(t *testing.T, _ installation, _ config.Pipeline, made template) {
		seen := append(ofAlarms(made), ofDashboards(t, made)...)
		for _, name := range metrics.All() {
			require.True(t, slices.ContainsFunc(seen, func(m named) bool { return m.namespace == metrics.Namespace && m.name == string(name) }), name)
		}
	})
}

// What stops a lane, loses a record or leaves one behind must ring.
func TestWhatMattersRings(t *testing.T) {
	eachPipeline(t, func(t *testing.T, _ installation, _ config.Pipeline, made template) {
		var rung []string
		for _, m := range ofAlarms(made) {
			rung = append(rung, m.name)
		}
		for _, name := range []metrics.Name{
			metrics.LanesBlocked, metrics.InDoubt, metrics.Fenced, metrics.OffsetRegression, metrics.NeedsPerson, metrics.EventsRefused,
			metrics.RowsLost, metrics.DeadLetters, metrics.DuplicatesSuppressed, metrics.EventLag,
		} {
			require.Contains(t, rung, string(name))
		}
		require.Subset(t, rung, []string{"Errors", "Throttles", "OffsetLag", "ApproximateAgeOfOldestMessage"})
	})
}

func TestEveryAlarmLeadsToTheRunbookAndToSomebody(t *testing.T) {
	text, err := os.ReadFile("../../../docs/runbook.md")
	require.NoError(t, err)
	headings := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(string(text), -1) {
		headings[m[1]] = true
	}
	for _, in := range examples {
		for _, made := range in.templates {
			for _, a := range made.all("AWS::CloudWatch::Alarm") {
				name := a["AlarmName"].(string)
				heading := name[strings.LastIndex(name, "-")+1:]
				require.True(t, headings[heading], "docs/runbook.md has no heading %s", heading)
				require.True(t, strings.HasSuffix(a["AlarmDescription"].(string), " "+in.config.Alarms.Runbook+"#"+strings.ToLower(heading)))
				require.Len(t, a["AlarmActions"], 1)
				require.Equal(t, "notBreaching", a["TreatMissingData"])
			}
		}
		topic := in.templates[in.config.Prefix()].only(t, "AWS::SNS::Topic")
		require.Equal(t, in.config.AlarmTopic(), topic["TopicName"])
		require.Len(t, in.templates[in.config.Prefix()].all("AWS::SNS::Subscription"), len(in.config.Alarms.Emails))
	}
}

// The thresholds are in the units of the metrics.
func TestThresholdsAreThePipelines(t *testing.T) {
	require.Equal(t, metrics.Milliseconds, metrics.EventLag.Unit())
	eachPipeline(t, func(t *testing.T, _ installation, p config.Pipeline, made template) {
		thresholds := map[string]int64{}
		for _, a := range made.all("AWS::CloudWatch::Alarm") {
			name := a["AlarmName"].(string)
			thresholds[name[strings.LastIndex(name, "-")+1:]] = int64(a["Threshold"].(float64))
		}
		require.Equal(t, p.Thresholds.EventLag.Milliseconds(), thresholds["EventLag"])
		require.EqualValues(t, p.Thresholds.OffsetLag, thresholds["OffsetLag"])
		require.EqualValues(t, p.Thresholds.DeadLetters, thresholds["DeadLetters"])
		require.EqualValues(t, p.Thresholds.DuplicatesPercent, thresholds["DuplicatesSuppressed"])
	})
}

// The queries ask for keys of the sink's log lines.
func TestLogQueriesAskForFieldsThatAreLogged(t *testing.T) {
	text, err := os.ReadFile("../../../functions/sink/handler/report.go")
	require.NoError(t, err)
	logged := map[string]bool{"@timestamp": true}
	for _, m := range regexp.MustCompile(`slog\.\w+\("(\w+)"`).FindAllStringSubmatch(string(text), -1) {
		logged[m[1]] = true
	}
	eachPipeline(t, func(t *testing.T, _ installation, _ config.Pipeline, made template) {
		queries := 0
		for _, w := range widgets(t, made) {
			query, is := w["query"].(string)
			if !is {
				continue
			}
			queries++
			require.Contains(t, query, "'"+made.only(t, "AWS::Logs::LogGroup")["LogGroupName"].(string)+"'")
			for _, m := range regexp.MustCompile(`(?:fields|by|ispresent\() ?([@\w, ]+)`).FindAllStringSubmatch(query, -1) {
				for field := range strings.SplitSeq(m[1], ",") {
					require.True(t, logged[strings.TrimSpace(field)], "%q in %s", field, query)
				}
			}
		}
		require.Equal(t, 2, queries)
	})
}

func ofAlarms(made template) []named {
	var all []named
	for _, a := range made.all("AWS::CloudWatch::Alarm") {
		if a["MetricName"] != nil {
			stat, _ := a["Statistic"].(string)
			all = append(all, ofMetric(a, stat))
			continue
		}
		for _, m := range a["Metrics"].([]any) {
			if stat, is := m.(map[string]any)["MetricStat"].(map[string]any); is {
				all = append(all, ofMetric(stat["Metric"].(map[string]any), stat["Stat"].(string)))
			}
		}
	}
	return all
}

func ofMetric(m map[string]any, stat string) named {
	d := m["Dimensions"].([]any)[0].(map[string]any)
	return named{m["Namespace"].(string), m["MetricName"].(string), d["Name"].(string), d["Value"].(string), stat}
}

// widgets are the properties of a pipeline's widgets.
func widgets(t *testing.T, made template) []map[string]any {
	t.Helper()
	var all []map[string]any
	for _, d := range made.all("AWS::CloudWatch::Dashboard") {
		var body struct {
			Widgets []struct{ Properties map[string]any }
		}
		require.NoError(t, json.Unmarshal([]byte(d["DashboardBody"].(string)), &body))
		for _, w := range body.Widgets {
			all = append(all, w.Properties)
		}
	}
	return all
}

// ofDashboards reads rows of [namespace, name, dimension, value, options], in
// which "." repeats the row above; a row of options alone is a formula.
func ofDashboards(t *testing.T, made template) []named {
	t.Helper()
	var all []named
	for _, w := range widgets(t, made) {
		rows, _ := w["metrics"].([]any)
		var last []any
		for _, row := range rows {
			row := slices.Clone(row.([]any))
			if len(row) == 1 {
				continue
			}
			for i, v := range row {
				if v == "." {
					row[i] = last[i]
				}
			}
			last = row
			options := map[string]any{"stat": "Average"}
			if len(row) == 5 {
				options = row[4].(map[string]any)
			}
			stat, _ := options["stat"].(string)
			all = append(all, named{row[0].(string), row[1].(string), row[2].(string), row[3].(string), stat})
		}
	}
	return all
}
