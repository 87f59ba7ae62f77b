package monitor

import (
	"fmt"
	"slices"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awscloudwatch"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"oncehouse/infra/aws/config"
	"oncehouse/shared/metrics"
)

// OverviewProps of the dashboard of an installation.
type OverviewProps struct {
	Config *config.Config
	// Runbook is where the runbook is.
	Runbook string
}

// maxLogs is how many log groups one query reads.
// https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_StartQuery.html
const maxLogs = 50

// NewOverview adds the dashboard of an installation. It is read from top to
// bottom: is anything wrong, does it keep up, is it exact, is anything stuck, what
// does it cost. Each graph has one line for each pipeline; the pipeline's own
// dashboard says more. It names what other stacks make, and needs none of them.
func NewOverview(scope constructs.Construct, id string, props OverviewProps) {
	o := constructs.NewConstruct(scope, &id)
	d := awscloudwatch.NewDashboard(o, jsii.String("Dashboard"), &awscloudwatch.DashboardProps{DashboardName: jsii.String(props.Config.Prefix())})
	d.AddWidgets(heading(fmt.Sprintf("# %s\nFrom top to bottom. An alarm's name ends in its heading of %s", props.Config.Prefix(), props.Runbook)))
	for pair := range slices.Chunk(statuses(o, props.Config), wide/half) {
		d.AddWidgets(pair...)
	}
	lines, boxes := linesOf(props.Config), boxesOf(props.Config)
	addRows(d, withOutboxes(boxes, []row{
		{"Does it keep up?", []graph{
			each("Age of records when stored (ms)", lines, func(l line) awscloudwatch.IMetric {
				return l.sink.metric(string(metrics.EventLag), "Maximum")
			}),
			each("Records that wait in the worst partition", lines, func(l line) awscloudwatch.IMetric { return l.function.metric("OffsetLag", "Maximum") }),
			each("Rows stored", lines, sumOf(metrics.RowsStored)),
		}},
		{"Is it exact?", []graph{
			each("Repeats passed over", lines, sumOf(metrics.DuplicatesSuppressed)),
			each("Records that did not fit", lines, sumOf(metrics.DeadLetters)),
			each("Dead letters that wait for somebody", lines, func(l line) awscloudwatch.IMetric {
				return l.letters.metric("ApproximateNumberOfMessagesVisible", "Maximum")
			}),
			each("Rows given up (at-most-once)", lines, sumOf(metrics.RowsLost)),
		}},
		{"Is anything stuck?", []graph{
			each("Partitions that failed", lines, sumOf(metrics.LanesBlocked)),
			each("Partitions that need a person", lines, sumOf(metrics.NeedsPerson)),
			each("Invocations that failed", lines, func(l line) awscloudwatch.IMetric { return l.function.metric("Errors", "Sum") }),
			each("Invocations that were throttled", lines, func(l line) awscloudwatch.IMetric { return l.function.metric("Throttles", "Sum") }),
		}},
		{"What does it cost?", []graph{
			each("GB-seconds of the functions", slices.Concat(lines, boxes), func(l line) awscloudwatch.IMetric {
				return gigabyteSeconds(l.function, l.sink.value, l.sink.value, l.memory)
			}),
			ledgerUnits(props.Config.LedgerTable()),
			each("Bytes to ClickHouse", lines, sumOf(metrics.BatchBytes)),
		}},
	}))
	d.AddWidgets(heading("## Why?\nEach reason is a heading of " + props.Runbook))
	for logs := range slices.Chunk(logsOf(props.Config), maxLogs) {
		d.AddWidgets(blockedLanes.widget(wide, logs...))
	}
	for logs := range slices.Chunk(outboxLogsOf(props.Config), maxLogs) {
		d.AddWidgets(stoppedShards.widget(wide, logs...))
	}
}

// line is a pipeline or an outbox, and where its metrics are.
type line struct {
	memory                  int
	sink, function, letters source
}

func linesOf(c *config.Config) []line {
	lines := make([]line, len(c.Pipelines))
	for i, p := range c.Pipelines {
		lines[i] = line{p.Memory, sink(p.Name).of(p.Name), function(c.FunctionName(p)).of(p.Name), queue(c.LettersQueue(p)).of(p.Name)}
	}
	return lines
}

func boxesOf(c *config.Config) []line {
	boxes := make([]line, len(c.Outboxes))
	for i, o := range c.Outboxes {
		boxes[i] = line{memory: o.Memory, sink: sink(o.Name).of(o.Name), function: function(c.OutboxName(o)).of(o.Name)}
	}
	return boxes
}

// withOutboxes adds a row of the outboxes behind the first, where there are any.
func withOutboxes(boxes []line, rows []row) []row {
	if len(boxes) == 0 {
		return rows
	}
	return slices.Insert(rows, 1, row{"Do the outboxes keep up?", []graph{
		each("Age of rows when published (ms)", boxes, func(l line) awscloudwatch.IMetric {
			return l.sink.metric(string(metrics.OutboxLag), "Maximum")
		}),
		each("Rows published", boxes, sumOf(metrics.PublishedRows)),
		each("Shards that stand at a row", boxes, sumOf(metrics.OutboxHalted)),
		each("Shards that wait for a person", boxes, sumOf(metrics.OutboxRefused)),
	}})
}

func each(title string, lines []line, metric func(line) awscloudwatch.IMetric) graph {
	g := graph{title: title}
	for _, l := range lines {
		g.left = append(g.left, metric(l))
	}
	return g
}

func sumOf(name metrics.Name) func(line) awscloudwatch.IMetric {
	return func(l line) awscloudwatch.IMetric { return l.sink.sum(name) }
}

func ledgerUnits(name string) graph {
	t := table(name)
	return graph{"Ledger's units", []awscloudwatch.IMetric{t.metric("ConsumedWriteCapacityUnits", "Sum"), t.metric("ConsumedReadCapacityUnits", "Sum")}, nil}
}

// statuses are the states of all alarms, one widget for each pipeline: a widget
// takes 100 alarms.
func statuses(scope constructs.Construct, c *config.Config) []awscloudwatch.IWidget {
	ledger := alarm{heading: ledgerThrottles}
	all := []awscloudwatch.IWidget{status("ledger", half, named(scope, ledger.name(c.LedgerTable())))}
	for _, p := range c.Pipelines {
		var alarms []awscloudwatch.IAlarm
		// Only the alarms' names are used: what they watch is made by another stack.
		for _, a := range (PipelineProps{Config: c, Pipeline: p, Queue: "any", Mapping: "any"}).alarms() {
			alarms = append(alarms, named(scope, a.name(c.FunctionName(p))))
		}
		all = append(all, status(p.Name, half, alarms...))
	}
	for _, o := range c.Outboxes {
		var alarms []awscloudwatch.IAlarm
		for _, a := range (OutboxProps{Config: c, Outbox: o}).alarms() {
			alarms = append(alarms, named(scope, a.name(c.OutboxName(o))))
		}
		all = append(all, status(o.Name, half, alarms...))
	}
	return all
}

// named is an alarm of any stack of this account and region.
func named(scope constructs.Construct, name string) awscloudwatch.IAlarm {
	return awscloudwatch.Alarm_FromAlarmArn(scope, &name, awscdk.Stack_Of(scope).FormatArn(&awscdk.ArnComponents{
		Service: jsii.String("cloudwatch"), Resource: jsii.String("alarm"), ResourceName: &name, ArnFormat: awscdk.ArnFormat_COLON_RESOURCE_NAME,
	}))
}

func outboxLogsOf(c *config.Config) []string {
	logs := make([]string, len(c.Outboxes))
	for i, o := range c.Outboxes {
		logs[i] = config.LogGroup(c.OutboxName(o))
	}
	return logs
}

func logsOf(c *config.Config) []string {
	logs := make([]string, len(c.Pipelines))
	for i, p := range c.Pipelines {
		logs[i] = config.LogGroup(c.FunctionName(p))
	}
	return logs
}
