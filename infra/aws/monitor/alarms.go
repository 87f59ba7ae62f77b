package monitor

import (
	"slices"
	"time"

	"github.com/aws/aws-cdk-go/awscdk/v2/awscloudwatch"
	"github.com/aws/constructs-go/constructs/v10"

	"oncehouse/infra/aws/config"
	"oncehouse/shared/metrics"
)

// patience is how many periods a state may last that passes by itself: an
// outage of ClickHouse, a deployment, a rebalance.
const patience = 3

// PipelineProps of a pipeline's monitor.
type PipelineProps struct {
	Config   *config.Config
	Pipeline config.Pipeline
	// Queue is the name of the queue of dead letters, Log that of the log group,
	// Mapping the UUID of the event source mapping.
	Queue, Log, Mapping string
	Alert               Alert
}

// alarms are all of a pipeline, from what is worst on.
func (props PipelineProps) alarms() []alarm {
	return slices.Concat(stuck(props), inexact(props), behind(props))
}

// NewPipeline adds the alarms, the dashboard and the saved queries of a pipeline.
func NewPipeline(scope constructs.Construct, id string, props PipelineProps) {
	m := constructs.NewConstruct(scope, &id)
	prefix := props.Config.FunctionName(props.Pipeline)
	var alarms []awscloudwatch.Alarm
	for _, a := range props.alarms() {
		alarms = append(alarms, a.add(m, prefix, props.Alert))
	}
	newDashboard(m, props, alarms)
	newQueries(m, props.Config.Prefix()+"/"+props.Pipeline.Name, props.Log, map[string]query{
		"BlockedLanes": blockedLanes, "SlowestLanes": slowestLanes, "LaneHistory": laneHistory,
		"LanesWithLetters": lanesWithLetters, "InterruptedInserts": interruptedInserts,
	})
}

// stuck: nothing is lost, but a lane waits for somebody.
func stuck(props PipelineProps) []alarm {
	s, f, m := sink(props.Pipeline.Name), function(props.Config.FunctionName(props.Pipeline)), mapping(props.Mapping)
	return []alarm{
		{"LanesBlocked", "A partition has failed for 15 minutes and waits.", s.sum(metrics.LanesBlocked), 1, patience},
		{"InDoubt", "Whether an insert landed has been undecided for 15 minutes.", s.sum(metrics.InDoubt), 1, patience},
		{"Fenced", "Two invocations have fought over a partition for 15 minutes.", s.sum(metrics.Fenced), 1, patience},
		{"NeedsPerson", "A partition stopped for a reason that trying again does not mend.", s.sum(metrics.NeedsPerson), 1, 1},
		{"OffsetRegression", "The topic was deleted and made again.", s.sum(metrics.OffsetRegression), 1, 1},
		{"EventsRefused", "The function was handed an event that is not its topic's.", s.sum(metrics.EventsRefused), 1, 1},
		{"FunctionErrors", "Invocations have failed for 15 minutes.", f.metric("Errors", "Sum"), 1, patience},
		{"FunctionThrottles", "Lambda has throttled the function for 15 minutes.", f.metric("Throttles", "Sum"), 1, patience},
		{"PollerErrors", "Lambda's pollers have failed to read the topic, or to commit, for 15 minutes.", pollerErrors(m), 1, patience},
		// A poll without records counts as 0: no data is no poll.
		{"NotPolling", "Lambda has not polled the topic for 15 minutes.", m.metric("PolledEventCount", "Sum"), silence, patience},
	}
}

// pollerErrors adds up what Lambda only reports when it happens.
func pollerErrors(m source) awscloudwatch.IMetric {
	return calculated("poller errors", "FILL(polling, 0) + FILL(committing, 0)", map[string]awscloudwatch.IMetric{
		"polling": m.metric("PollingErrorCount", "Sum"), "committing": m.metric("CommitErrorCount", "Sum"),
	})
}

// inexact: records that did not become rows, or came more than once.
func inexact(props PipelineProps) []alarm {
	s, limits := sink(props.Pipeline.Name), props.Pipeline.Thresholds
	all := []alarm{
		{"RowsLost", "At-most-once gave rows up.", s.sum(metrics.RowsLost), 1, 1},
		{"DeadLetters", "Records do not fit the table.", s.sum(metrics.DeadLetters), float64(limits.DeadLetters), 1},
		{"LettersAge", "Dead letters are 10 days old. After 14 SQS deletes them.",
			queue(props.Queue).metric("ApproximateAgeOfOldestMessage", "Maximum"), (10 * 24 * time.Hour).Seconds(), 1},
		{"DuplicatesSuppressed", "For 30 minutes most records had been settled before.", duplicatesPercent(s), float64(limits.DuplicatesPercent), 6},
	}
	if props.Pipeline.OnFailure != nil {
		all = append(all, alarm{"Diverted", "Lambda gave batches up: their records are at on_failure's destination, or nowhere.", diverted(mapping(props.Mapping)), 1, 1})
	}
	return all
}

// diverted counts what Lambda gave up, at its destination or dropped because the
// destination could not be reached.
func diverted(m source) awscloudwatch.IMetric {
	return calculated("records given up", "FILL(sent, 0) + FILL(dropped, 0)", map[string]awscloudwatch.IMetric{
		"sent": m.metric("OnFailureDestinationDeliveredEventCount", "Sum"), "dropped": m.metric("DroppedEventCount", "Sum"),
	})
}

// behind: it does not keep up.
func behind(props PipelineProps) []alarm {
	s, limits := sink(props.Pipeline.Name), props.Pipeline.Thresholds
	return []alarm{
		{"EventLag", "Records have been stored late for 15 minutes.", s.metric(string(metrics.EventLag), "Maximum"), float64(limits.EventLag.Milliseconds()), patience},
		{"OffsetLag", "Records have been piling up in Kafka for 15 minutes.",
			function(props.Config.FunctionName(props.Pipeline)).metric("OffsetLag", "Maximum"), float64(limits.OffsetLag), patience},
	}
}

func duplicatesPercent(s source) awscloudwatch.IMetric {
	return calculated("settled before (%)", "IF(received > 0, 100 * duplicates / received, 0)", map[string]awscloudwatch.IMetric{
		"duplicates": s.sum(metrics.DuplicatesSuppressed), "received": s.sum(metrics.RecordsReceived),
	})
}

// LedgerProps of the ledger's monitor.
type LedgerProps struct {
	// Table is the ledger's name and the beginning of its alarms' names.
	Table string
	Alert Alert
}

// NewLedger adds the alarm of the ledger's table.
func NewLedger(scope constructs.Construct, id string, props LedgerProps) {
	m, t := constructs.NewConstruct(scope, &id), table(props.Table)
	throttled := calculated("throttled", "reads + writes", map[string]awscloudwatch.IMetric{
		"reads": t.metric("ReadThrottleEvents", "Sum"), "writes": t.metric("WriteThrottleEvents", "Sum"),
	})
	a := alarm{ledgerThrottles, "DynamoDB has throttled the ledger for 15 minutes.", throttled, 1, patience}
	a.add(m, props.Table, props.Alert)
}

const ledgerThrottles = "LedgerThrottles"
