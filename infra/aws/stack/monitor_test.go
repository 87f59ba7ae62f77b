package stack_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/aws/config"
	"oncehouse/shared/metrics"
)

// documented are the metrics of AWS's own that alarms and widgets may name, by
// namespace and dimension.
var documented = map[string]map[string][]string{
	"AWS/Lambda": {
		// https://docs.aws.amazon.com/lambda/latest/dg/monitoring-metrics-types.html
		"FunctionName": {"ConcurrentExecutions", "Duration", "Errors", "Invocations", "OffsetLag", "Throttles"},
		// The same page, event source mapping metrics; the groups are switched on one by one.
		"EventSourceMappingUUID": {"ProvisionedPollers"},
	},
	// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-available-cloudwatch-metrics.html
	"AWS/SQS": {"QueueName": {"ApproximateAgeOfOldestMessage", "ApproximateNumberOfMessagesVisible"}},
	// https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/metrics-dimensions.html
	"AWS/DynamoDB": {"TableName": {"ReadThrottleEvents", "WriteThrottleEvents", "ConsumedReadCapacityUnits", "ConsumedWriteCapacityUnits"}},
}

// groups are a mapping's metrics by the group that switches them on, those of
// Kafka. https://docs.aws.amazon.com/lambda/latest/dg/monitoring-metrics-types.html
var groups = map[string][]string{
	"EventCount":   {"PolledEventCount", "FilteredOutEventCount", "InvokedEventCount", "FailedInvokeEventCount", "DroppedEventCount", "OnFailureDestinationDeliveredEventCount", "CommittedEventCount"},
	"ErrorCount":   {"PollingErrorCount", "InvokeErrorCount", "OnFailureDestinationDeliveryErrorCount", "SchemaRegistryErrorCount", "CommitErrorCount"},
	"KafkaMetrics": {"MaxOffsetLag", "SumOffsetLag"},
}

// named is a metric as an alarm or a widget names it.
type named struct{ namespace, name, dimension, value, stat string }

func TestAlarmsAndWidgetsNameMetricsThatExist(t *testing.T) {
	for _, in := range examples {
		pipelines := map[string][]string{"AWS/DynamoDB": {in.config.LedgerTable()}}
		for _, p := range in.config.Pipelines {
			made := in.templates[in.config.FunctionName(p)]
			mine := map[string][]string{
				metrics.Namespace: {p.Name},
				"AWS/Lambda":      {made.only(t, "AWS::Lambda::Function")["FunctionName"].(string), made.ref(made.id(t, "AWS::Lambda::EventSourceMapping"))},
				"AWS/SQS":         {made.only(t, "AWS::SQS::Queue")["QueueName"].(string)},
			}
			requireReal(t, made, mine, metrics.All(), in.emitted(t, p))
			for namespace, names := range mine {
				pipelines[namespace] = append(pipelines[namespace], names...)
			}
		}
		for _, o := range in.config.Outboxes {
			name := in.config.OutboxName(o)
			mine := map[string][]string{metrics.Namespace: {o.Name}, "AWS/Lambda": {name}}
			requireReal(t, in.templates[name], mine, metrics.Outbox(), nil)
			for namespace, names := range mine {
				pipelines[namespace] = append(pipelines[namespace], names...)
			}
		}
		requireReal(t, in.templates[in.config.Prefix()], pipelines, append(metrics.All(), metrics.Outbox()...), nil)
	}
}

// emitted are the metrics that a pipeline's mapping is switched to emit.
func (in installation) emitted(t *testing.T, p config.Pipeline) []string {
	t.Helper()
	var all []string
	mapping := in.templates[in.config.FunctionName(p)].only(t, "AWS::Lambda::EventSourceMapping")
	for _, group := range mapping["MetricsConfig"].(map[string]any)["Metrics"].([]any) {
		require.NotEmpty(t, groups[group.(string)])
		all = append(all, groups[group.(string)]...)
	}
	return all
}

// requireReal: every metric that a template names is one that is emitted, of
// something that there is.
func requireReal(t *testing.T, made template, there map[string][]string, emitted []metrics.Name, mapping []string) {
	t.Helper()
	all := append(ofAlarms(made), ofDashboards(t, made)...)
	require.NotEmpty(t, all)
	for _, m := range all {
		require.Contains(t, there[m.namespace], m.value, m.name)
		require.NotEmpty(t, m.stat, m.name)
		if m.namespace == metrics.Namespace {
			require.Equal(t, metrics.DimensionPipeline, m.dimension)
			require.Contains(t, emitted, metrics.Name(m.name))
			continue
		}
		names := documented[m.namespace][m.dimension]
		if m.dimension == "EventSourceMappingUUID" {
			names = append(slices.Clone(names), mapping...)
		}
		require.Contains(t, names, m.name)
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

func TestEveryMetricOfAnOutboxIsLookedAt(t *testing.T) {
	eachOutbox(t, func(t *testing.T, _ installation, o config.Outbox, made template) {
		seen := append(ofAlarms(made), ofDashboards(t, made)...)
		for _, name := range metrics.Outbox() {
			require.True(t, slices.ContainsFunc(seen, func(m named) bool { return m.namespace == metrics.Namespace && m.name == string(name) }), name)
		}
		var rung []string
		for _, m := range ofAlarms(made) {
			rung = append(rung, m.name)
		}
		require.Subset(t, rung, []string{
			string(metrics.OutboxHalted), string(metrics.OutboxRefused), string(metrics.OutboxFailed), string(metrics.OutboxFenced), string(metrics.OutboxLag), "Errors", "Invocations",
		})
		require.Equal(t, o.DeadLetterTopic != "", slices.Contains(rung, string(metrics.OutboxDeadLetters)))
		require.Equal(t, o.Settings["RETENTION"] == "partitions", slices.Contains(rung, string(metrics.PartitionsAhead)))
	})
}

// What stops a lane, loses a record or leaves one behind must ring.
func TestWhatMattersRings(t *testing.T) {
	eachPipeline(t, func(t *testing.T, _ installation, p config.Pipeline, made template) {
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
		require.Subset(t, rung, []string{"Errors", "Throttles", "OffsetLag", "ApproximateAgeOfOldestMessage", "PollingErrorCount", "CommitErrorCount", "PolledEventCount"})
		if p.OnFailure != nil {
			require.Subset(t, rung, []string{"OnFailureDestinationDeliveredEventCount", "DroppedEventCount"}, "what Lambda gave up is lost unless somebody looks")
		}
	})
	for _, in := range examples {
		var rung []string
		for _, m := range ofAlarms(in.templates[in.config.Prefix()]) {
			rung = append(rung, m.name)
		}
		require.ElementsMatch(t, []string{"ReadThrottleEvents", "WriteThrottleEvents"}, rung)
	}
}

// The overview has the state of every alarm of the installation, and no other.
func TestTheOverviewShowsEveryAlarm(t *testing.T) {
	for _, in := range examples {
		arn := "arn:aws:cloudwatch:" + in.config.Environment.Region + ":" + in.config.Environment.Account + ":alarm:"
		var want, shown []string
		for _, made := range in.templates {
			for _, a := range made.all("AWS::CloudWatch::Alarm") {
				want = append(want, arn+a["AlarmName"].(string))
			}
		}
		for _, w := range widgets(t, in.templates[in.config.Prefix()]) {
			alarms, _ := w["alarms"].([]any)
			require.LessOrEqual(t, len(alarms), 100, "a widget takes 100")
			for _, a := range alarms {
				shown = append(shown, a.(string))
			}
		}
		require.ElementsMatch(t, want, shown)
	}
}

// A dashboard answers the operator's questions in this order.
func TestDashboardsAreReadFromTopToBottom(t *testing.T) {
	for _, in := range examples {
		for name, made := range in.templates {
			var titles []string
			for _, w := range widgets(t, made) {
				if text, is := w["markdown"].(string); is && strings.HasPrefix(text, "## ") {
					titles = append(titles, strings.Split(text, "\n")[0])
				}
			}
			want := []string{"## Does it keep up?", "## Is it exact?", "## Is anything stuck?", "## Where does the time go?", "## What does it cost?", "## Why?"}
			if name == in.config.Prefix() || strings.HasSuffix(name, "-outbox") {
				want = slices.Delete(want, 3, 4)
			}
			if name == in.config.Prefix() && len(in.config.Outboxes) > 0 {
				want = slices.Insert(want, 1, "## Do the outboxes keep up?")
			}
			require.Equal(t, want, titles)
		}
	}
}

func TestEveryAlarmLeadsToTheRunbookAndToSomebody(t *testing.T) {
	headings := runbook(t)
	rung := map[string]bool{}
	for _, in := range examples {
		for _, made := range in.templates {
			for _, a := range made.all("AWS::CloudWatch::Alarm") {
				name := a["AlarmName"].(string)
				heading := name[strings.LastIndex(name, "-")+1:]
				require.Contains(t, headings, heading, "docs/runbook.md")
				rung[heading] = true
				require.True(t, strings.HasSuffix(a["AlarmDescription"].(string), " "+in.config.Alarms.Runbook+"#"+strings.ToLower(heading)))
				require.Len(t, a["AlarmActions"], 1)
				require.Len(t, a["OKActions"], 1)
				silent := heading == "NotPolling" || heading == "OutboxNotRunning" // ring when there is no data
				require.Equal(t, map[bool]string{true: "breaching", false: "notBreaching"}[silent], a["TreatMissingData"])
				require.Equal(t, map[bool]string{true: "LessThanOrEqualToThreshold", false: "GreaterThanOrEqualToThreshold"}[silent], a["ComparisonOperator"])
				require.Equal(t, silent, a["Threshold"].(float64) < 0)
			}
		}
		topic := in.templates[in.config.Prefix()].only(t, "AWS::SNS::Topic")
		require.Equal(t, in.config.AlarmTopic(), topic["TopicName"])
		require.Len(t, in.templates[in.config.Prefix()].all("AWS::SNS::Subscription"), len(in.config.Alarms.Emails))
	}
	for heading, section := range headings {
		if section.alarm {
			require.True(t, rung[heading], "docs/runbook.md has %s among the alarms", heading)
			require.Regexp(t, `(?s)^\*\*Means:\*\* .+\n\*\*Look:\*\* .+\n\*\*Do:\*\* .+`, section.text, heading)
		}
	}
}

// section is the text under a heading of the runbook.
type section struct {
	text  string
	alarm bool // under # Alarms, and not a reason that has an alarm, too
}

func runbook(t *testing.T) map[string]section {
	t.Helper()
	text, err := os.ReadFile("../../../docs/runbook.md")
	require.NoError(t, err)
	all := map[string]section{}
	for part := range strings.SplitSeq("\n"+string(text), "\n# ") {
		for _, s := range strings.Split(part, "\n## ")[1:] {
			heading, text, _ := strings.Cut(s, "\n")
			require.NotContains(t, all, heading)
			all[heading] = section{text, strings.HasPrefix(part, "Alarms\n")}
		}
	}
	return all
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
	require.Equal(t, metrics.Milliseconds, metrics.OutboxLag.Unit())
	require.Equal(t, metrics.Milliseconds, metrics.PartitionsAhead.Unit())
	eachOutbox(t, func(t *testing.T, in installation, o config.Outbox, made template) {
		for _, a := range made.all("AWS::CloudWatch::Alarm") {
			switch a["AlarmName"] {
			case in.config.OutboxName(o) + "-OutboxLag":
				require.EqualValues(t, o.Thresholds.Lag.Milliseconds(), a["Threshold"])
			case in.config.OutboxName(o) + "-OutboxPartitions":
				rings := fmt.Sprintf("IF(ahead < %d, 1, 0)", o.Thresholds.PartitionDays*24*3600*1000/3)
				require.Equal(t, rings, a["Metrics"].([]any)[0].(map[string]any)["Expression"])
			}
		}
	})
}

// The queries ask for keys of the sink's log lines, which report.go writes.
func TestLogQueriesAskForFieldsThatAreLogged(t *testing.T) {
	logged, polled := fieldsOf(t, "functions/sink/handler"), fieldsOf(t, "functions/outbox-poller/handler")
	for _, in := range examples {
		var logs []any
		for _, p := range in.config.Pipelines {
			made := in.templates[in.config.FunctionName(p)]
			log := made.only(t, "AWS::Logs::LogGroup")["LogGroupName"]
			logs = append(logs, log)
			saved := made.all("AWS::Logs::QueryDefinition")
			require.Len(t, saved, 5)
			for _, q := range saved {
				require.Equal(t, []any{log}, q["LogGroupNames"])
				require.True(t, strings.HasPrefix(q["Name"].(string), in.config.Prefix()+"/"+p.Name+"/"))
				requireLogged(t, logged, q["QueryString"].(string))
			}
			shown := queriesOf(t, made)
			require.Len(t, shown, 2)
			for _, query := range shown {
				requireLogged(t, logged, afterSources(t, query, []any{log}))
			}
		}
		shown := queriesOf(t, in.templates[in.config.Prefix()])
		require.Len(t, shown, 1+min(len(in.config.Outboxes), 1))
		requireLogged(t, logged, afterSources(t, shown[0], logs))
		var polls []any
		for _, o := range in.config.Outboxes {
			made := in.templates[in.config.OutboxName(o)]
			log := made.only(t, "AWS::Logs::LogGroup")["LogGroupName"]
			polls = append(polls, log)
			saved := made.all("AWS::Logs::QueryDefinition")
			require.Len(t, saved, 2)
			for _, q := range saved {
				require.Equal(t, []any{log}, q["LogGroupNames"])
				requireLogged(t, polled, q["QueryString"].(string))
			}
		}
		if len(polls) > 0 {
			requireLogged(t, polled, afterSources(t, shown[1], polls))
		}
	}
}

// fieldsOf are the keys of the log lines that a package writes.
func fieldsOf(t *testing.T, dir string) map[string]bool {
	t.Helper()
	logged := map[string]bool{"@timestamp": true}
	for _, m := range regexp.MustCompile(`slog\.\w+\("(\w+)"`).FindAllStringSubmatch(sourceOf(t, dir), -1) {
		logged[m[1]] = true
	}
	return logged
}

func queriesOf(t *testing.T, made template) []string {
	t.Helper()
	var all []string
	for _, w := range widgets(t, made) {
		if query, is := w["query"].(string); is {
			all = append(all, query)
		}
	}
	return all
}

// afterSources is a widget's query behind the log groups that it begins with.
func afterSources(t *testing.T, query string, logs []any) string {
	t.Helper()
	var found []any
	for {
		source, rest, more := strings.Cut(query, "| ")
		name, is := strings.CutPrefix(source, "SOURCE ")
		if !is || !more {
			break
		}
		found = append(found, strings.Trim(name, "' "))
		query = rest
	}
	require.ElementsMatch(t, logs, found)
	return query
}

// requireLogged: every word of a query is one of the language's, a name that the
// query gives, or a field.
func requireLogged(t *testing.T, logged map[string]bool, query string) {
	t.Helper()
	language := strings.Fields("filter fields stats sort limit by as desc and or ispresent count latest sum min max pct")
	given := map[string]bool{}
	for _, m := range regexp.MustCompile(`\bas (\w+)`).FindAllStringSubmatch(query, -1) {
		given[m[1]] = true
	}
	fields := 0
	for _, word := range regexp.MustCompile(`@?[A-Za-z_]\w*`).FindAllString(query, -1) {
		if logged[word] {
			fields++
		} else if !slices.Contains(language, word) {
			require.True(t, given[word], "%q in %s", word, query)
		}
	}
	require.Positive(t, fields, query)
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
