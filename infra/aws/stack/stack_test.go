package stack_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	sink "oncehouse/functions/sink/config"
	"oncehouse/infra/aws/config"
)

func TestExamplesMakeTheirStacks(t *testing.T) {
	require.Len(t, examples, 4)
	for _, in := range examples {
		want := []string{in.config.Prefix()}
		for _, p := range in.config.Pipelines {
			want = append(want, in.config.Prefix()+"-"+p.Name)
		}
		for _, o := range in.config.Outboxes {
			want = append(want, in.config.Prefix()+"-"+o.Name+"-outbox")
		}
		var made []string
		for name := range in.templates {
			made = append(made, name)
		}
		require.ElementsMatch(t, want, made)
	}
}

func TestFunctionsStartWithTheirEnvironment(t *testing.T) {
	eachPipeline(t, func(t *testing.T, in installation, p config.Pipeline, made template) {
		function := made.only(t, "AWS::Lambda::Function")
		environ := map[string]string{}
		for name, value := range function["Environment"].(map[string]any)["Variables"].(map[string]any) {
			environ[name] = value.(string)
		}
		cfg, err := sink.Parse(environ)
		require.NoError(t, err)

		mapping := made.only(t, "AWS::Lambda::EventSourceMapping")
		require.Equal(t, []any{cfg.Topic}, mapping["Topics"])
		require.Equal(t, cfg.PartialBatch, mapping["FunctionResponseTypes"] != nil, "the sink reports what the mapping reads")
		require.EqualValues(t, cfg.FunctionTimeout/time.Second, function["Timeout"])
		require.Equal(t, p.Name, cfg.Pipeline)
		require.Equal(t, in.templates[in.config.Prefix()].only(t, "AWS::DynamoDB::Table")["TableName"], cfg.LedgerTable)
		require.True(t, strings.HasSuffix(cfg.LetterQueue, made.only(t, "AWS::SQS::Queue")["QueueName"].(string)))
		require.Equal(t, p.Table, cfg.Table)
		require.NotNil(t, cfg.PasswordSecret)
		require.Empty(t, cfg.Password)
		if len(in.config.Cluster.Brokers) > 0 {
			require.Equal(t, in.config.Cluster.Brokers, cfg.Brokers)
			require.Equal(t, in.config.Cluster.Auth, cfg.KafkaAuth)
		}
	})
}

func TestFunctionsAreWhatTheBuildMakes(t *testing.T) {
	eachPipeline(t, func(t *testing.T, in installation, p config.Pipeline, made template) {
		function := made.only(t, "AWS::Lambda::Function")
		require.Equal(t, "provided.al2023", function["Runtime"])
		require.Equal(t, "bootstrap", function["Handler"])
		require.Equal(t, []any{map[string]string{"arm64": "arm64", "amd64": "x86_64"}[p.Architecture]}, function["Architectures"])
		require.Equal(t, map[string]any{"Mode": "Active"}, function["TracingConfig"])
		logging := function["LoggingConfig"].(map[string]any)
		require.Equal(t, "JSON", logging["LogFormat"])
		require.NotContains(t, logging, "ApplicationLogLevel", "above INFO it would drop the metrics' lines")
		require.EqualValues(t, p.LogRetentionDays, made.only(t, "AWS::Logs::LogGroup")["RetentionInDays"])
		if p.ReservedConcurrency > 0 {
			require.EqualValues(t, p.ReservedConcurrency, function["ReservedConcurrentExecutions"])
		}
		if network := in.config.Environment.Network; network != nil {
			require.Len(t, function["VpcConfig"].(map[string]any)["SubnetIds"], len(network.Subnets))
		} else {
			require.NotContains(t, function, "VpcConfig")
		}
	})
}

// The traps of the event source mapping, each of which CloudFormation accepts.
func TestMappingsHaveNoTraps(t *testing.T) {
	eachPipeline(t, func(t *testing.T, in installation, p config.Pipeline, made template) {
		m := made.only(t, "AWS::Lambda::EventSourceMapping")
		require.Equal(t, in.config.Cluster.ARN, m["EventSourceArn"])
		require.Equal(t, map[string]any{"ConsumerGroupId": in.config.ConsumerGroup(p)}, m["AmazonManagedKafkaEventSourceConfig"],
			"a group of Lambda's own name is lost with the mapping")
		require.Contains(t, []any{"TRIM_HORIZON", "AT_TIMESTAMP"}, m["StartingPosition"], "LATEST loses what comes before the first poll")
		require.Equal(t, m["StartingPosition"] == "AT_TIMESTAMP", m["StartingPositionTimestamp"] != nil)
		require.Equal(t, in.config.Cluster.Auth == config.SCRAM, m["SourceAccessConfigurations"] != nil)

		pollers, provisioned := m["ProvisionedPollerConfig"].(map[string]any)
		require.Equal(t, p.Pollers.Minimum > 0, provisioned)
		if !provisioned {
			for _, key := range []string{"MaximumRetryAttempts", "MaximumRecordAgeInSeconds", "BisectBatchOnFunctionError", "FunctionResponseTypes", "DestinationConfig", "LoggingConfig"} {
				require.NotContains(t, m, key, "only in provisioned mode")
			}
			return
		}
		require.EqualValues(t, p.Pollers.Maximum, pollers["MaximumPollers"])
		require.Equal(t, p.Pollers.Group != "", pollers["PollerGroupName"] == p.Pollers.Group)
		require.Equal(t, false, m["BisectBatchOnFunctionError"])
		require.EqualValues(t, -1, m["MaximumRecordAgeInSeconds"])
		if p.OnFailure == nil {
			require.NotContains(t, m, "DestinationConfig")
			require.EqualValues(t, -1, m["MaximumRetryAttempts"], "an outage blocks and diverts nothing")
		} else {
			require.Equal(t, map[string]any{"OnFailure": map[string]any{"Destination": p.OnFailure.Destination}}, m["DestinationConfig"])
			require.EqualValues(t, p.OnFailure.Attempts, m["MaximumRetryAttempts"])
			require.Positive(t, m["MaximumRetryAttempts"], "endless attempts and a destination are 10 attempts")
		}
	})
}

func TestMappingsHaveTheirOptions(t *testing.T) {
	eachPipeline(t, func(t *testing.T, _ installation, p config.Pipeline, made template) {
		m := made.only(t, "AWS::Lambda::EventSourceMapping")
		groups := []any{"EventCount", "ErrorCount"}
		if p.KafkaMetrics {
			groups = append(groups, "KafkaMetrics")
		}
		require.Equal(t, map[string]any{"Metrics": groups}, m["MetricsConfig"])
		if p.MappingLog == config.NoLog {
			require.NotContains(t, m, "LoggingConfig")
		} else {
			require.Equal(t, map[string]any{"SystemLogLevel": strings.ToUpper(p.MappingLog)}, m["LoggingConfig"])
		}
		if len(p.Filters) == 0 {
			require.NotContains(t, m, "FilterCriteria")
			return
		}
		var patterns []string
		for _, f := range m["FilterCriteria"].(map[string]any)["Filters"].([]any) {
			patterns = append(patterns, f.(map[string]any)["Pattern"].(string))
		}
		require.Equal(t, p.Filters, patterns)
	})
}

// With a key of the installation's, everything that has data is under it.
func TestTheKeyIsUsedEverywhere(t *testing.T) {
	in := examples["every-option"]
	key := in.config.Environment.Key
	require.NotEmpty(t, key)
	base := in.templates[in.config.Prefix()]
	require.Equal(t, map[string]any{"KMSMasterKeyId": key, "SSEEnabled": true, "SSEType": "KMS"}, base.only(t, "AWS::DynamoDB::Table")["SSESpecification"])
	require.Equal(t, key, base.only(t, "AWS::SNS::Topic")["KmsMasterKeyId"])
	for _, p := range in.config.Pipelines {
		made := in.templates[in.config.FunctionName(p)]
		require.Equal(t, key, made.only(t, "AWS::Lambda::Function")["KmsKeyArn"])
		require.Equal(t, key, made.only(t, "AWS::Logs::LogGroup")["KmsKeyId"])
		require.Equal(t, key, made.only(t, "AWS::SQS::Queue")["KmsMasterKeyId"])
	}
	for _, o := range in.config.Outboxes {
		made := in.templates[in.config.OutboxName(o)]
		require.Equal(t, key, made.only(t, "AWS::Lambda::Function")["KmsKeyArn"])
		require.Equal(t, key, made.only(t, "AWS::Logs::LogGroup")["KmsKeyId"])
	}
}

func TestPollersDoNotScaleByDefault(t *testing.T) {
	in := examples["serverless-clickhouse-cloud"]
	m := in.templates["oncehouse-production-clicks"].only(t, "AWS::Lambda::EventSourceMapping")
	require.Equal(t, map[string]any{"MinimumPollers": 1.0, "MaximumPollers": 1.0}, m["ProvisionedPollerConfig"])
	require.NotContains(t, m, "DestinationConfig")
}

// A stateful resource whose logical id changes is made anew, and the old one is
// left behind with everything in it.
func TestStatefulResourcesKeepTheirLogicalIDs(t *testing.T) {
	stateful := map[string]string{"AWS::DynamoDB::Table": "LedgerB7379752", "AWS::SQS::Queue": "PipelineLetters9CA45DE2"}
	for _, in := range examples {
		found := map[string]int{}
		for _, made := range in.templates {
			for id, r := range made.Resources {
				want, is := stateful[r.Type]
				if !is {
					continue
				}
				found[r.Type]++
				require.Equal(t, want, id)
				require.Equal(t, "Retain", r.DeletionPolicy)
				require.Equal(t, "Retain", r.UpdateReplacePolicy)
			}
		}
		require.Equal(t, map[string]int{"AWS::DynamoDB::Table": 1, "AWS::SQS::Queue": len(in.config.Pipelines)}, found)
	}
}

func TestTheLedgerIsKept(t *testing.T) {
	for _, in := range examples {
		table := in.templates[in.config.Prefix()].only(t, "AWS::DynamoDB::Table")
		require.Equal(t, "PAY_PER_REQUEST", table["BillingMode"])
		require.Equal(t, true, table["DeletionProtectionEnabled"])
		require.Equal(t, map[string]any{"PointInTimeRecoveryEnabled": true}, table["PointInTimeRecoverySpecification"])
		require.Equal(t, []any{map[string]any{"AttributeName": "lane", "KeyType": "HASH"}}, table["KeySchema"])
	}
}

func TestDeadLettersAreEncryptedAndNobodyElses(t *testing.T) {
	eachPipeline(t, func(t *testing.T, in installation, _ config.Pipeline, made template) {
		queue := made.only(t, "AWS::SQS::Queue")
		if key := in.config.Environment.Key; key == "" {
			require.Equal(t, true, queue["SqsManagedSseEnabled"])
		} else {
			require.Equal(t, key, queue["KmsMasterKeyId"])
		}
		require.Equal(t, map[string]any{"redrivePermission": "denyAll"}, queue["RedriveAllowPolicy"])
		require.EqualValues(t, 14*24*60*60, queue["MessageRetentionPeriod"])
		require.Contains(t, made.only(t, "AWS::SQS::QueuePolicy"), "PolicyDocument")
	})
}
