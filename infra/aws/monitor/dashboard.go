package monitor

import (
	"fmt"
	"strings"

	"github.com/aws/aws-cdk-go/awscdk/v2/awscloudwatch"
	"github.com/aws/aws-cdk-go/awscdk/v2/interfaces/interfacesawscloudwatch"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"oncehouse/infra/aws/config"
	"oncehouse/shared/metrics"
)

// newDashboard adds a dashboard that is read from top to bottom: is anything
// wrong, does it keep up, is it exact, what is stuck and why, where does the
// time go, what does it cost.
func newDashboard(scope constructs.Construct, props PipelineProps, alarms []awscloudwatch.Alarm) {
	name := props.Config.FunctionName(props.Pipeline)
	d := awscloudwatch.NewDashboard(scope, jsii.String("Dashboard"), &awscloudwatch.DashboardProps{DashboardName: &name})
	d.AddWidgets(status("Alarms", wide, alarms...))
	s, f, m := sink(props.Pipeline.Name), function(name), mapping(props.Mapping)
	addRows(d, []row{
		{"Does it keep up?", keepingUp(s, f, m, props.Pipeline)},
		{"Is it exact?", exactness(s, m, props)},
		{"Is anything stuck?", blocked(s, f, m)},
		{"Where does the time go?", timing(s, f)},
		{"What does it cost?", cost(s, f, m, props.Pipeline)},
	})
	d.AddWidgets(heading(fmt.Sprintf("## Why?\nEach reason is a heading of %s", props.Alert.Runbook)))
	d.AddWidgets(blockedLanes.widget(half, props.Log), lastFailures.widget(half, props.Log))
}

// CloudWatch's dashboards are 24 columns wide.
const (
	wide = 24
	half = wide / 2
)

// row is a question and the graphs that answer it.
type row struct {
	title  string
	graphs []graph
}

func addRows(d awscloudwatch.Dashboard, rows []row) {
	for _, r := range rows {
		d.AddWidgets(heading("## " + r.title))
		widgets := make([]awscloudwatch.IWidget, len(r.graphs))
		for i, g := range r.graphs {
			widgets[i] = g.widget(wide / len(r.graphs))
		}
		d.AddWidgets(widgets...)
	}
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

func keepingUp(s, f, m source, p config.Pipeline) []graph {
	waiting := []awscloudwatch.IMetric{f.metric("OffsetLag", "Maximum")}
	if p.KafkaMetrics {
		waiting = append(waiting, m.metric("MaxOffsetLag", "Maximum"), m.metric("SumOffsetLag", "Maximum"))
	}
	return []graph{
		{"Records that wait in the worst partition", waiting, nil},
		{"Age of records when stored (ms)", []awscloudwatch.IMetric{s.metric(string(metrics.EventLag), "p50"), s.metric(string(metrics.EventLag), "Maximum")}, nil},
		{"Records and rows", s.sums(metrics.RecordsReceived, metrics.RowsStored), nil},
	}
}

func exactness(s, m source, props PipelineProps) []graph {
	never := []awscloudwatch.IMetric{}
	if len(props.Pipeline.Filters) > 0 {
		never = append(never, m.metric("FilteredOutEventCount", "Sum"))
	}
	if props.Pipeline.OnFailure != nil {
		never = append(never, m.metric("OnFailureDestinationDeliveredEventCount", "Sum"), m.metric("DroppedEventCount", "Sum"))
	}
	all := []graph{
		{"Records that are no rows", s.sums(metrics.DeadLetters, metrics.Tombstones, metrics.RowsLost), []awscloudwatch.IMetric{queue(props.Queue).metric("ApproximateNumberOfMessagesVisible", "Maximum")}},
		{"Repeats passed over", s.sums(metrics.DuplicatesSuppressed, metrics.AbortedDuplicatesSuppressed, metrics.ForeignPositions), []awscloudwatch.IMetric{duplicatesPercent(s)}},
		{"Fields without a column", s.sums(metrics.UnknownFields), nil},
	}
	if len(never) > 0 {
		all = append(all, graph{"Records that Lambda kept from the function", never, nil})
	}
	return all
}

func blocked(s, f, m source) []graph {
	return []graph{
		{"Partitions that failed", s.sums(metrics.LanesBlocked, metrics.InDoubt, metrics.Fenced, metrics.OffsetRegression, metrics.NeedsPerson, metrics.EventsRefused), nil},
		{"Pollers", []awscloudwatch.IMetric{m.metric("PollingErrorCount", "Sum"), m.metric("CommitErrorCount", "Sum")}, []awscloudwatch.IMetric{m.metric("PolledEventCount", "Sum")}},
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

func cost(s, f, m source, p config.Pipeline) []graph {
	all := []graph{
		{"Function", []awscloudwatch.IMetric{f.metric("Invocations", "Sum"), s.sum(metrics.ColdStart)}, []awscloudwatch.IMetric{gigabyteSeconds(f, "GB-seconds", p.Name, p.Memory)}},
		{"Bytes to ClickHouse", s.sums(metrics.BatchBytes), nil},
	}
	if p.Pollers.Minimum > 0 { // which are paid by the hour
		all = append(all, graph{"Pollers", []awscloudwatch.IMetric{m.metric("ProvisionedPollers", "Maximum")}, nil})
	}
	return all
}

// gigabyteSeconds is what a function of so many MB is paid for.
func gigabyteSeconds(f source, label, name string, memory int) awscloudwatch.IMetric {
	// Ids are shared by all formulas of a graph.
	duration := "duration_" + strings.ReplaceAll(name, "-", "_")
	return calculated(label, fmt.Sprintf("%s / 1000 * %d / 1024", duration, memory),
		map[string]awscloudwatch.IMetric{duration: f.metric("Duration", "Sum")})
}

func heading(markdown string) awscloudwatch.IWidget {
	return awscloudwatch.NewTextWidget(&awscloudwatch.TextWidgetProps{
		Markdown: &markdown, Width: jsii.Number(24), Height: jsii.Number(2), Background: awscloudwatch.TextWidgetBackground_TRANSPARENT,
	})
}

func status[A interfacesawscloudwatch.IAlarmRef](title string, width int, alarms ...A) awscloudwatch.IWidget {
	refs := make([]interfacesawscloudwatch.IAlarmRef, len(alarms))
	for i, a := range alarms {
		refs[i] = a
	}
	return awscloudwatch.NewAlarmStatusWidget(&awscloudwatch.AlarmStatusWidgetProps{
		Title: &title, Alarms: &refs, Width: jsii.Number(width), Height: jsii.Number(4),
	})
}
