package monitor

import (
	"fmt"
	"time"

	"github.com/aws/aws-cdk-go/awscdk/v2/awscloudwatch"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"oncehouse/infra/aws/config"
	"oncehouse/shared/metrics"
)

// OutboxProps of an outbox's monitor.
type OutboxProps struct {
	Config *config.Config
	Outbox config.Outbox
	// Log is the name of the function's log group.
	Log   string
	Alert Alert
}

// NewOutbox adds the alarms, the dashboard and the saved queries of an outbox.
func NewOutbox(scope constructs.Construct, id string, props OutboxProps) {
	m := constructs.NewConstruct(scope, &id)
	name := props.Config.OutboxName(props.Outbox)
	var alarms []awscloudwatch.Alarm
	for _, a := range props.alarms() {
		alarms = append(alarms, a.add(m, name, props.Alert))
	}
	d := awscloudwatch.NewDashboard(m, jsii.String("Dashboard"), &awscloudwatch.DashboardProps{DashboardName: &name})
	d.AddWidgets(status("Alarms", wide, alarms...))
	s, f := sink(props.Outbox.Name), function(name)
	addRows(d, []row{
		{"Does it keep up?", []graph{
			{"Age of rows when published (ms)", []awscloudwatch.IMetric{s.metric(string(metrics.OutboxLag), "p50"), s.metric(string(metrics.OutboxLag), "Maximum")}, nil},
			{"Rows published", s.sums(metrics.PublishedRows), s.sums(metrics.OutboxTransactions)},
			{"Kafka transactions (ms)", []awscloudwatch.IMetric{s.metric(string(metrics.TransactionTime), "p50"), s.metric(string(metrics.TransactionTime), "p99")}, nil},
		}},
		{"Is it exact?", []graph{
			{"Rows that were published otherwise", s.sums(metrics.OutboxDeadLetters, metrics.OutboxTombstones), nil},
			{"Values of seq without a row that could be seen", s.sums(metrics.SequenceWithoutRows), nil},
		}},
		{"Is anything stuck?", []graph{
			{"Shards that stopped", s.sums(metrics.OutboxHalted, metrics.OutboxRefused, metrics.OutboxFailed), nil},
			{"Shards that another poller took over", s.sums(metrics.OutboxFenced, metrics.OutboxReopened), nil},
			{"Until the table has no partition (ms)", []awscloudwatch.IMetric{partitionsAhead(s)}, nil},
			{"Function", []awscloudwatch.IMetric{f.metric("Invocations", "Sum"), f.metric("Errors", "Sum"), f.metric("Throttles", "Sum")}, nil},
		}},
		{"What does it cost?", []graph{
			{"Function", []awscloudwatch.IMetric{gigabyteSeconds(f, "GB-seconds", props.Outbox.Name, props.Outbox.Memory)}, s.sums(metrics.ColdStart)},
			{"Bytes to Kafka", s.sums(metrics.PublishedBytes), nil},
			{"Rows removed", s.sums(metrics.RetentionRows, metrics.RetentionPartitions), nil},
		}},
	})
	d.AddWidgets(heading(fmt.Sprintf("## Why?\nEach reason is a heading of %s", props.Alert.Runbook)))
	d.AddWidgets(stoppedShards.widget(wide, props.Log))
	newQueries(m, props.Config.Prefix()+"/"+props.Outbox.Name+"-outbox", props.Log, map[string]query{
		"StoppedShards": stoppedShards, "ShardHistory": shardHistory,
	})
}

// alarms are all of an outbox, from what is worst on. Throttles are none: a run that
// waits for the one before it counts as one.
func (props OutboxProps) alarms() []alarm {
	s, f := sink(props.Outbox.Name), function(props.Config.OutboxName(props.Outbox))
	limits := props.Outbox.Thresholds
	all := []alarm{
		{"OutboxHalted", "A shard stands at a row that cannot be published, and all that follow wait.", s.sum(metrics.OutboxHalted), 1, 1},
		{"OutboxRefused", "A shard waits for a person.", s.sum(metrics.OutboxRefused), 1, 1},
		{"OutboxNotRunning", "The poller has not been invoked for 15 minutes.", f.metric("Invocations", "Sum"), silence, patience},
		{"OutboxFailed", "Runs of a shard have failed for 15 minutes.", s.sum(metrics.OutboxFailed), 1, patience},
		{"OutboxFenced", "Pollers have taken a shard from one another for 15 minutes.", s.sum(metrics.OutboxFenced), 1, patience},
		{"FunctionErrors", "Invocations have failed for 15 minutes.", f.metric("Errors", "Sum"), 1, patience},
		{"OutboxLag", "Rows have been published late for 15 minutes.", s.metric(string(metrics.OutboxLag), "Maximum"), float64(limits.Lag.Milliseconds()), patience},
	}
	if props.Outbox.DeadLetterTopic != "" {
		all = append(all, alarm{"OutboxDeadLetters", "Rows could not be published and went to the dead-letter topic.", s.sum(metrics.OutboxDeadLetters), float64(limits.DeadLetters), 1})
	}
	if props.Outbox.InPartitions() {
		all = append(all, alarm{"OutboxPartitions", "Soon the table has no partition for new rows, and inserts fail.", runningOut(s, limits.PartitionsAhead()), 1, 1})
	}
	return all
}

func partitionsAhead(s source) awscloudwatch.Metric {
	return s.metric(string(metrics.PartitionsAhead), "Minimum")
}

// runningOut is 1 while the partitions do not reach far enough.
func runningOut(s source, far time.Duration) awscloudwatch.IMetric {
	return calculated("partitions run out", fmt.Sprintf("IF(ahead < %d, 1, 0)", far.Milliseconds()), map[string]awscloudwatch.IMetric{"ahead": partitionsAhead(s)})
}
