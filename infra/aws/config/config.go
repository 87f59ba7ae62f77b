// Package config is the file that describes an installation: where it runs, the
// Kafka cluster, ClickHouse, the pipelines and the outboxes.
//
//	cfg, err := config.Read("oncehouse.yaml")
//	if err != nil {
//		return err // a *config.Error: every problem, with its path and what to do
//	}
//	for _, p := range cfg.Pipelines {
//		fmt.Println(cfg.FunctionName(p))
//	}
//
// A key that does not exist is refused, because a misspelt one would have no
// effect. What the sink itself would refuse at its start (its settings) is
// refused here, by the sink's own parser: a file that Read accepts makes
// functions that start.
package config

import (
	"strings"
	"time"
)

// Config is the whole file.
type Config struct {
	Environment Environment `yaml:"environment"`
	Cluster     Cluster     `yaml:"cluster"`
	ClickHouse  ClickHouse  `yaml:"clickhouse"`
	Alarms      Alarms      `yaml:"alarms"`
	// Defaults are what a pipeline has that does not say otherwise. Settings are
	// merged key by key, everything else is replaced.
	Defaults  Pipeline   `yaml:"defaults"`
	Pipelines []Pipeline `yaml:"pipelines"`
	Outboxes  []Outbox   `yaml:"outboxes"`
}

// Environment is where an installation runs. Two of them in one account and
// region differ by Name.
type Environment struct {
	Name    string `yaml:"name"`
	Account string `yaml:"account"`
	Region  string `yaml:"region"`
	// Network is where the functions run; nil for outside of any VPC.
	Network *Network          `yaml:"network"`
	Tags    map[string]string `yaml:"tags"`
	// Key is the ARN of a KMS key of yours, for the ledger, the dead letters, the
	// logs, the functions' environments and the alarm topic. Without it AWS's own
	// keys are used. What its policy must allow is in infra/aws/README.md.
	Key string `yaml:"key"`
}

// Network is subnets from which ClickHouse, Kafka's brokers and the AWS APIs of
// DynamoDB, SQS and Secrets Manager can be reached.
type Network struct {
	Subnets        []string `yaml:"subnets"`
	SecurityGroups []string `yaml:"security_groups"`
}

// Values of Cluster.Type and Cluster.Auth.
const (
	Serverless  = "serverless"
	Provisioned = "provisioned"
	IAM         = "iam"
	SCRAM       = "scram-sha-512"
)

// Cluster is the MSK cluster.
type Cluster struct {
	ARN  string `yaml:"arn"`
	Type string `yaml:"type"`
	Auth string `yaml:"auth"`
	// Secret and SecretKey are the ARNs of the SCRAM secret and of its KMS key:
	// MSK takes only secrets under a customer managed key.
	Secret    string `yaml:"secret"`
	SecretKey string `yaml:"secret_key"`
	// Brokers, host:port, give the functions a route of their own to Kafka. Event
	// source mappings do not need it; interrupted inserts can (docs/settings.md).
	Brokers []string `yaml:"brokers"`
}

// ClickHouse is the server and who logs in.
type ClickHouse struct {
	// URLs are https://host:8443 or http://host:8123; several are replicas.
	URLs     []string `yaml:"urls"`
	Database string   `yaml:"database"`
	User     string   `yaml:"user"`
	// PasswordSecret is an ARN in Secrets Manager, with :<key> for one key of a
	// JSON secret; SecretKey its KMS key, if that is not AWS's own.
	PasswordSecret string `yaml:"password_secret"`
	SecretKey      string `yaml:"secret_key"`
	// ServerName is the name in the certificate, if it is not that of the URL.
	ServerName string `yaml:"server_name"`
}

// Alarms are whom they tell and where their descriptions point.
type Alarms struct {
	Emails []string `yaml:"emails"`
	// Runbook is the address of docs/runbook.md as your people read it.
	Runbook string `yaml:"runbook"`
}

// Values of Function.Architecture, Pipeline.Start and Pipeline.MappingLog.
const (
	ARM64       = "arm64"
	AMD64       = "amd64"
	TrimHorizon = "trim-horizon"
	NoLog       = "none"
)

// kafkaScheme begins a destination that is a topic.
const kafkaScheme = "kafka://"

// Topic is the name of the topic that diverted records go to.
func (f OnFailure) Topic() (string, bool) { return strings.CutPrefix(f.Destination, kafkaScheme) }

// Bucket is the ARN of the bucket that diverted batches go to.
func (f OnFailure) Bucket() (string, bool) {
	return f.Destination, strings.Contains(f.Destination, ":s3:::")
}

// notOffered are keys that one might look for in a pipeline, and why there are none.
var notOffered = map[string]string{
	"schema_registry": "a schema registry makes Lambda hand over other bytes than Kafka's, so an interrupted insert could not be finished from Kafka, nor a topic be proven the same: " +
		"leave it out, and produce JSON without a registry's prefix",
	"bisect":                    "the sink isolates records that do not fit by itself, and halves only cut batches anew: leave it out",
	"maximum_record_age":        "an old record is not a wrong one: leave it out; on_failure gives batches up after a number of attempts",
	"maximum_retry_attempts":    "attempts are endless, or those of on_failure: leave it out",
	"bisect_on_function_error":  "the sink isolates records that do not fit by itself, and halves only cut batches anew: leave it out",
	"consumer_group":            "its name follows from the pipeline's, and group_version counts it up: leave it out",
	"application_log_level":     "above INFO Lambda drops the lines of the metrics: settings: {LOG_LEVEL: warn} is the sink's own",
	"self_managed_event_source": "only MSK is offered: leave it out",
}

// Pipeline is one topic into one table, by one function.
type Pipeline struct {
	// Name is part of the ledger's keys and of every token. It never changes.
	Name string `yaml:"name"`
	// Topic and Table are Name by default.
	Topic     string `yaml:"topic"`
	Table     string `yaml:"table"`
	Guarantee string `yaml:"guarantee"`
	// Settings are further ones of docs/settings.md, without ONCEHOUSE_.
	Settings map[string]string `yaml:"settings"`

	// Start is trim-horizon or a moment (RFC 3339). It counts once, when the
	// consumer group is new.
	Start string `yaml:"start"`
	// GroupVersion numbers the consumer group. A new number reads the topic again
	// from Start; exactly-once passes over what is stored already.
	GroupVersion int           `yaml:"group_version"`
	BatchSize    int           `yaml:"batch_size"`
	BatchWindow  time.Duration `yaml:"batch_window"`
	Pollers      Pollers       `yaml:"pollers"`
	// PartialResponses lets the partitions of an event fail one by one.
	PartialResponses bool `yaml:"partial_responses"`
	// Filters are Lambda's filter patterns, JSON: a record that fits none of them
	// is never delivered. It is no row, no dead letter and in no count of the sink.
	Filters []string `yaml:"filters"`
	// MappingLog is the least level of what the pollers log: none, warn, info or
	// debug; by default warn in provisioned mode, which alone has it.
	MappingLog string `yaml:"mapping_log"`
	// KafkaMetrics adds the pollers' own view of the lag to their metrics.
	KafkaMetrics bool `yaml:"kafka_metrics"`
	// OnFailure gives batches up after a number of attempts; nil never does.
	OnFailure *OnFailure `yaml:"on_failure"`

	Function `yaml:",inline"`
	// ReservedConcurrency is the function's own; 0 shares the account's.
	ReservedConcurrency int        `yaml:"reserved_concurrency"`
	Thresholds          Thresholds `yaml:"alarms"`
}

// Function is the size of a function.
type Function struct {
	Memory           int           `yaml:"memory"` // MB
	Timeout          time.Duration `yaml:"timeout"`
	Architecture     string        `yaml:"architecture"`
	LogRetentionDays int           `yaml:"log_retention_days"`
}

// Pollers of provisioned mode. Minimum 0 is on-demand mode, which has no partial
// responses and no limit of attempts. Maximum 0 is the same as Minimum: no
// scaling, and so no rebalance that cuts batches anew.
type Pollers struct {
	Minimum int `yaml:"minimum"`
	Maximum int `yaml:"maximum"`
	// Group is the name under which mappings of one VPC share what they pay for:
	// a unit carries ten pollers and 20 MB/s, and each mapping without a group
	// has its own.
	// https://docs.aws.amazon.com/lambda/latest/dg/kafka-scaling-modes.html
	Group string `yaml:"group"`
}

// OnFailure diverts a batch that failed Attempts times and goes on behind it.
// Attempts must be given: with endless retries and a destination Lambda gives up
// after 10, and a short outage of ClickHouse would divert good data.
type OnFailure struct {
	Attempts int `yaml:"attempts"`
	// Destination is the ARN of an SQS queue (it gets the offsets), that of an S3
	// bucket (it gets the records, too), or kafka://<topic> of the same cluster
	// (it gets one record for each).
	Destination string `yaml:"destination"`
}

// Thresholds are where alarms begin that depend on the pipeline.
type Thresholds struct {
	// EventLag is the age of the oldest record of an event when it is done.
	EventLag time.Duration `yaml:"event_lag"`
	// OffsetLag is the number of records that wait in the worst partition.
	OffsetLag int `yaml:"offset_lag"`
	// DeadLetters is how many in five minutes.
	DeadLetters int `yaml:"dead_letters"`
	// DuplicatesPercent is the share of records that had been settled before,
	// over half an hour: re-reading a topic, or a mapping that goes in circles.
	DuplicatesPercent int `yaml:"duplicates_percent"`
}

// builtin is what a pipeline has that neither it nor the file's defaults name.
func builtin() Pipeline {
	return Pipeline{
		Guarantee: "exactly-once", Start: TrimHorizon, GroupVersion: 1,
		BatchSize: 10000, BatchWindow: time.Second, Pollers: Pollers{Minimum: 1}, PartialResponses: true,
		Function:   Function{Memory: 1024, Timeout: 2 * time.Minute, Architecture: ARM64, LogRetentionDays: 30},
		Thresholds: Thresholds{EventLag: 15 * time.Minute, OffsetLag: 1_000_000, DeadLetters: 1, DuplicatesPercent: 50},
	}
}
