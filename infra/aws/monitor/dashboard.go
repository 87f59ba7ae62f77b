package monitor

import (
	"fmt"

	"github.com/aws/aws-cdk-go/awscdk/v2/awscloudwatch"
	"github.com/aws/aws-cdk-go/awscdk/v2/interfaces/interfacesawscloudwatch"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"oncehouse/shared/metrics"
)

// newDashboard adds a dashboard that is read from top to bottom: is anything
// wrong, does it keep up, is it exact, what is stuck and why, where does the
// time go, what does it cost.
func newDashboard(scope constructs.Construct, props PipelineProps, alarms []awscloudwatch.Alarm) {
	name := props.Config.FunctionName(props.Pipeline)
	d := awscloudwatch.NewDashboard(scope, jsii.String("Dashboard"), &awscloudwatch.DashboardProps{DashboardName: &name})
	d.AddWidgets(status(alarms))
	s, f := sink(props.Pipeline.Name), function(name)
	for _, row := range []struct {
		title  string
		graphs []graph
	}{
		{"Does it keep up?", keepingUp(s, f)},
		{"Is it exact?", exactness(s, props.Queue)},
		{"Is anything stuck?", blocked(s, f)},
		{"Where does the time go?", timing(s, f)},
		{"What does it cost?", cost(s, f, props)},
	} {
		d.AddWidgets(heading("## " + row.title))
		widgets := make([]awscloudwatch.IWidget, len(row.graphs))
		for i, g := range row.graphs {
			widgets[i] = g.widget(24 / len(row.graphs))
		}
		d.AddWidgets(widgets...)
	}
	d.AddWidgets(heading(fmt.Sprintf("## Why?\nEach reason is a heading of %s", props.Alert.Runbook)))
	d.AddWidgets(reasons(props.Log), failures(props.Log))
}

// graph is one widget; what is on the right axis has another unit.
type graph struct {
	title       string
	left, right []awscloudwatch.IMetric
}

func (g *graph) widget(width int) awscloudwatch.IWidget {
	return awscloudwatch.NewGraphWidget(&awscloudwatch.GraphWidgetProps{
		Title: &g.title, Left: &g.left, Right: &g.right, Width: jsii.Number(width), Height: jsii.Number(6),
	})
}

func (s source) sums(names ...metrics.Name) []awscloudwatch.IMetric {
	all := make([]awscloudwatch.IMetric, len(names))
	for i, name := range names {
		all[i] = s.sum(name)
	}
	return all
}

func keepingUp(s, f source) []graph {
	return []graph{
		{"Records that wait in the worst partition", []awscloudwatch.IMetric{f.metric("OffsetLag", "Maximum")}, nil},
		{"Age of records when stored (ms)", []awscloudwatch.IMetric{s.metric(string(metrics.EventLag), "p50"), s.metric(string(metrics.EventLag), "Maximum")}, nil},
		{"Records and rows", s.sums(metrics.RecordsReceived, metrics.RowsStored), nil},
	}
}

func exactness(s source, queueName string) []graph {
	return []graph{
		{"Records that are no rows", s.sums(metrics.DeadLetters, metrics.Tombstones, metrics.RowsLost), []awscloudwatch.IMetric{queue(queueName).metric("ApproximateNumberOfMessagesVisible", "Maximum")}},
		{"Repeats passed over", s.sums(metrics.DuplicatesSuppressed, metrics.AbortedDuplicatesSuppressed, metrics.ForeignPositions), []awscloudwatch.IMetric{duplicatesPercent(s)}},
		{"Fields without a column", s.sums(metrics.UnknownFields), nil},
	}
}

func blocked(s, f source) []graph {
	return []graph{
		{"Partitions that failed", s.sums(metrics.LanesBlocked, metrics.InDoubt, metrics.Fenced, metrics.OffsetRegression, metrics.NeedsPerson, metrics.EventsRefused), nil},
		{"Inserts finished after an interruption", s.sums(metrics.Replays, metrics.Probes), nil},
		{"Function", []awscloudwatch.IMetric{f.metric("Errors", "Sum"), f.metric("Throttles", "Sum")}, []awscloudwatch.IMetric{f.metric("ConcurrentExecutions", "Maximum")}},
	}
}

func timing(s, f source) []graph {
	each := func(from source, name string) []awscloudwatch.IMetric {
		return []awscloudwatch.IMetric{from.metric(name, "p50"), from.metric(name, "p99")}
	}
	return []graph{
		{"Inserts (ms)", each(s, string(metrics.InsertTime)), nil},
		{"Ledger (ms)", each(s, string(metrics.LedgerTime)), nil},
		{"Invocations (ms)", each(f, "Duration"), nil},
	}
}

func cost(s, f source, props PipelineProps) []graph {
	gigabyteSeconds := calculated("GB-seconds", fmt.Sprintf("duration / 1000 * %d / 1024", props.Pipeline.Memory),
		map[string]awscloudwatch.IMetric{"duration": f.metric("Duration", "Sum")})
	return []graph{
		{"Function", []awscloudwatch.IMetric{f.metric("Invocations", "Sum"), s.sum(metrics.ColdStart)}, []awscloudwatch.IMetric{gigabyteSeconds}},
		{"Bytes to ClickHouse", s.sums(metrics.BatchBytes), nil},
	}
}

func heading(markdown string) awscloudwatch.IWidget {
	return awscloudwatch.NewTextWidget(&awscloudwatch.TextWidgetProps{
		Markdown: &markdown, Width: jsii.Number(24), Height: jsii.Number(2), Background: awscloudwatch.TextWidgetBackground_TRANSPARENT,
	})
}

func status(alarms []awscloudwatch.Alarm) awscloudwatch.IWidget {
	refs := make([]interfacesawscloudwatch.IAlarmRef, len(alarms))
	for i, a := range alarms {
		refs[i] = a
	}
	return awscloudwatch.NewAlarmStatusWidget(&awscloudwatch.AlarmStatusWidgetProps{
		Title: jsii.String("Alarms"), Alarms: &refs, Width: jsii.Number(24), Height: jsii.Number(4),
	})
}

// The fields are the log lines' of functions/sink/handler/report.go.
func reasons(log string) awscloudwatch.IWidget {
	return query("Reasons", log, "filter ispresent(reason)", "stats count(*) as failures by reason, topic, partition", "sort failures desc")
}

func failures(log string) awscloudwatch.IWidget {
	return query("Last failures", log, "filter ispresent(reason)", "fields @timestamp, topic, partition, first_offset, last_offset, error", "sort @timestamp desc", "limit 20")
}

func query(title, log string, lines ...string) awscloudwatch.IWidget {
	return awscloudwatch.NewLogQueryWidget(&awscloudwatch.LogQueryWidgetProps{
		Title: &title, LogGroupNames: jsii.Strings(log), QueryLines: jsii.Strings(lines...), Width: jsii.Number(12), Height: jsii.Number(8),
	})
}
