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
	lines := make([]line, len(props.Config.Pipelines))
	for i, p := range props.Config.Pipelines {
		name := props.Config.FunctionName(p)
		lines[i] = line{p, sink(p.Name).of(p.Name), function(name).of(p.Name), queue(props.Config.LettersQueue(p)).of(p.Name)}
	}
	addRows(d, []row{
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
			each("GB-seconds of the functions", lines, func(l line) awscloudwatch.IMetric {
				return gigabyteSeconds(l.function, l.pipeline.Name, l.pipeline)
			}),
			ledgerUnits(props.Config.LedgerTable()),
			each("Bytes to ClickHouse", lines, sumOf(metrics.BatchBytes)),
		}},
	})
	d.AddWidgets(heading("## Why?\nEach reason is a heading of " + props.Runbook))
	for logs := range slices.Chunk(logsOf(props.Config), maxLogs) {
		d.AddWidgets(blockedLanes.widget(wide, logs...))
	}
}

// line is a pipeline and where its metrics are.
type line struct {
	pipeline                config.Pipeline
	sink, function, letters source
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
	return all
}

// named is an alarm of any stack of this account and region.
func named(scope constructs.Construct, name string) awscloudwatch.IAlarm {
	return awscloudwatch.Alarm_FromAlarmArn(scope, &name, awscdk.Stack_Of(scope).FormatArn(&awscdk.ArnComponents{
		Service: jsii.String("cloudwatch"), Resource: jsii.String("alarm"), ResourceName: &name, ArnFormat: awscdk.ArnFormat_COLON_RESOURCE_NAME,
	}))
}

func logsOf(c *config.Config) []string {
	logs := make([]string, len(c.Pipelines))
	for i, p := range c.Pipelines {
		logs[i] = c.LogGroup(p)
	}
	return logs
}
