package monitor

import (
	"strings"

	"github.com/aws/aws-cdk-go/awscdk/v2/awscloudwatch"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslogs"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"
)

// query is a question to a function's log, in the language of Logs Insights. Its
// fields are those of the log lines that report.go of the function's handler writes.
type query struct {
	title string
	lines []string
}

var (
	blockedLanes = query{"Blocked lanes and why", []string{
		"filter ispresent(reason)",
		"stats count(*) as failures, latest(kind) as how, latest(error) as why, latest(remedy) as what_to_do, latest(until) as decidable_after by reason, topic, partition",
		"sort failures desc",
	}}
	lastFailures = query{"Last failures", []string{
		"filter ispresent(reason)",
		"fields @timestamp, topic, partition, first_offset, last_offset, error",
		"sort @timestamp desc",
		"limit 20",
	}}
	slowestLanes = query{"Slowest lanes", []string{
		"filter ispresent(insert_ms)",
		"stats count(*) as batches, sum(records) as received, max(lag_ms) as worst_lag, pct(insert_ms, 99) as inserts, pct(ledger_ms, 99) as ledger, pct(encode_ms, 99) as encoding, sum(wait_ms) as waiting by topic, partition",
		"sort worst_lag desc",
		"limit 50",
	}}
	laneHistory = query{"History of a lane (set the partition)", []string{
		"filter partition = 0 and ispresent(first_offset)",
		"fields @timestamp, first_offset, last_offset, records, stored, suppressed, dead_letters, tombstones, generation, next, replays, probes, reason, error, token, request_id",
		"sort @timestamp desc",
		"limit 200",
	}}
	lanesWithLetters = query{"Lanes with dead letters", []string{
		"filter dead_letters > 0",
		"stats sum(dead_letters) as letters, sum(records) as received, min(first_offset) as from_offset, max(last_offset) as to_offset by topic, partition",
		"sort letters desc",
	}}
	interruptedInserts = query{"Inserts finished after an interruption", []string{
		"filter replays > 0 or probes > 0",
		"fields @timestamp, topic, partition, first_offset, last_offset, replays, probes, conflicts, wait_ms, probe_ms, token",
		"sort @timestamp desc",
		"limit 100",
	}}
	// Of an outbox poller's log.
	stoppedShards = query{"Stopped shards and why", []string{
		"filter ispresent(reason)",
		"stats count(*) as failures, latest(error) as why, latest(remedy) as what_to_do by reason, shard",
		"sort failures desc",
	}}
	shardHistory = query{"History of a shard (set the shard)", []string{
		"filter shard = 0",
		"fields @timestamp, rows, transactions, dead_letters, fenced, reopened, max_lag_ms, max_transaction_ms, window, last_seq, reason, error, request_id",
		"sort @timestamp desc",
		"limit 200",
	}}
)

// newQueries saves the queries where Logs Insights lists them, in a folder.
func newQueries(scope constructs.Construct, folder, log string, queries map[string]query) {
	inside := constructs.NewConstruct(scope, jsii.String("Queries"))
	for id, q := range queries {
		awslogs.NewCfnQueryDefinition(inside, &id, &awslogs.CfnQueryDefinitionProps{
			Name:          jsii.String(folder + "/" + q.title),
			LogGroupNames: &[]any{log},
			QueryString:   jsii.String(strings.Join(q.lines, "\n| ")),
		})
	}
}

func (q query) widget(width int, logs ...string) awscloudwatch.IWidget {
	return awscloudwatch.NewLogQueryWidget(&awscloudwatch.LogQueryWidgetProps{
		Title: &q.title, LogGroupNames: jsii.Strings(logs...), QueryLines: jsii.Strings(q.lines...), Width: jsii.Number(width), Height: jsii.Number(8),
	})
}
