package stack_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	sink "oncehouse/functions/sink/config"
	"oncehouse/infra/aws/config"
)

func TestExamplesMakeTheirStacks(t *testing.T) {
	require.Len(t, examples, 3)
	for _, in := range examples {
		want := []string{in.config.Prefix()}
		for _, p := range in.config.Pipelines {
			want = append(want, in.config.Prefix()+"-"+p.Name)
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
			for _, key := range []string{"MaximumRetryAttempts", "MaximumRecordAgeInSeconds", "BisectBatchOnFunctionError", "FunctionResponseTypes", "DestinationConfig"} {
				require.NotContains(t, m, key, "only in provisioned mode")
			}
			return
		}
		require.EqualValues(t, p.Pollers.Maximum, pollers["MaximumPollers"])
		require.Equal(t, false, m["BisectBatchOnFunctionError"])
		require.EqualValues(t, -1, m["MaximumRecordAgeInSeconds"])
		if m["DestinationConfig"] == nil {
			require.EqualValues(t, -1, m["MaximumRetryAttempts"], "an outage blocks and diverts nothing")
		} else {
			require.Positive(t, m["MaximumRetryAttempts"], "endless attempts and a destination are 10 attempts")
		}
	})
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
	eachPipeline(t, func(t *testing.T, _ installation, _ config.Pipeline, made template) {
		queue := made.only(t, "AWS::SQS::Queue")
		require.Equal(t, true, queue["SqsManagedSseEnabled"])
		require.Equal(t, map[string]any{"redrivePermission": "denyAll"}, queue["RedriveAllowPolicy"])
		require.EqualValues(t, 14*24*60*60, queue["MessageRetentionPeriod"])
		require.Contains(t, made.only(t, "AWS::SQS::QueuePolicy"), "PolicyDocument")
	})
}

// statement is one of a role's policy.
type statement struct {
	effect             string
	actions, resources []string
	conditional        bool
}

func statements(t *testing.T, made template) []statement {
	t.Helper()
	texts := func(v any) []string {
		if one, ok := v.(string); ok {
			return []string{one}
		}
		var all []string
		for _, each := range v.([]any) {
			all = append(all, each.(string))
		}
		return all
	}
	var all []statement
	for _, s := range made.only(t, "AWS::IAM::Policy")["PolicyDocument"].(map[string]any)["Statement"].([]any) {
		s := s.(map[string]any)
		all = append(all, statement{s["Effect"].(string), texts(s["Action"]), texts(s["Resource"]), s["Condition"] != nil})
	}
	return all
}

func allowed(all []statement, action, resource string) bool {
	return slices.ContainsFunc(all, func(s statement) bool {
		return s.effect == "Allow" && slices.Contains(s.actions, action) && slices.Contains(s.resources, resource)
	})
}

// onAll are the actions that may be allowed on all resources, and why.
var onAll = map[string]string{
	"xray:PutTraceSegments":          "X-Ray has no resources",
	"xray:PutTelemetryRecords":       "X-Ray has no resources",
	"ec2:DescribeNetworkInterfaces":  "EC2's describing calls take no resource",
	"ec2:DescribeVpcs":               "EC2's describing calls take no resource",
	"ec2:DescribeSubnets":            "EC2's describing calls take no resource",
	"ec2:DescribeSecurityGroups":     "EC2's describing calls take no resource",
	"ec2:CreateNetworkInterface":     "in subnets of the cluster, which may be another account's (shared VPC); denied to the code",
	"ec2:DeleteNetworkInterface":     "of interfaces that have no name yet; denied to the code",
	"ec2:AssignPrivateIpAddresses":   "to interfaces that have no name yet; denied to the code",
	"ec2:UnassignPrivateIpAddresses": "of interfaces that have no name yet; denied to the code",
}

func TestRolesAllowNothingOnEverything(t *testing.T) {
	eachPipeline(t, func(t *testing.T, _ installation, _ config.Pipeline, made template) {
		role := made.only(t, "AWS::IAM::Role")
		require.NotContains(t, role, "ManagedPolicyArns")
		denied := map[string]bool{}
		for _, s := range statements(t, made) {
			for _, action := range s.actions {
				require.NotContains(t, action, "*")
				if s.effect == "Deny" {
					denied[action] = true
				} else if slices.Contains(s.resources, "*") {
					require.NotEmpty(t, onAll[action], action)
				}
			}
		}
		for action := range onAll {
			require.Equal(t, strings.HasPrefix(action, "ec2:"), denied[action], action)
		}
	})
}

// calls are the API calls in the non-test files of packages of the root module.
func calls(t *testing.T, call string, dirs ...string) []string {
	t.Helper()
	var found []string
	for _, dir := range dirs {
		paths, err := filepath.Glob(filepath.Join("../../..", dir, "*.go"))
		require.NoError(t, err)
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			for _, m := range regexp.MustCompile(call).FindAllStringSubmatch(string(text), -1) {
				found = append(found, m[1])
			}
		}
	}
	require.NotEmpty(t, found, "no calls found: has the code moved?")
	return found
}

func TestRolesAllowWhatTheCodeCalls(t *testing.T) {
	const client = `client\.([A-Z]\w+)\(ctx, `
	tableCalls := calls(t, client, "shared/ledger/dynamo")
	queueCalls := calls(t, client, "shared/deadletter/queue")
	secretCalls := calls(t, client, "shared/secrets")
	eachPipeline(t, func(t *testing.T, in installation, p config.Pipeline, made template) {
		role := statements(t, made)
		account := ":" + in.config.Environment.Region + ":" + in.config.Environment.Account + ":"
		for _, call := range tableCalls {
			require.True(t, allowed(role, "dynamodb:"+call, "arn:aws:dynamodb"+account+"table/"+in.config.LedgerTable()), call)
		}
		for _, call := range queueCalls {
			// One right for one message and for many.
			require.True(t, allowed(role, "sqs:"+strings.TrimSuffix(call, "Batch"), "<AWS::SQS::Queue Arn>"), call)
		}
		password, _, _ := strings.Cut(in.config.ClickHouse.PasswordSecret, ":password")
		for _, call := range secretCalls {
			require.True(t, allowed(role, "secretsmanager:"+call, password), call)
		}
		for _, action := range []string{"logs:CreateLogStream", "logs:PutLogEvents"} {
			require.True(t, allowed(role, action, "<AWS::Logs::LogGroup Arn>"), action)
		}
		if f := p.OnFailure; f != nil {
			require.True(t, allowed(role, "s3:PutObject", f.Destination+"/*"))
		}
	})
}

// https://docs.aws.amazon.com/lambda/latest/dg/with-msk-permissions.html and
// https://docs.aws.amazon.com/lambda/latest/dg/msk-cluster-auth.html
func TestRolesAllowWhatMappingsCall(t *testing.T) {
	eachPipeline(t, func(t *testing.T, in installation, p config.Pipeline, made template) {
		role, k := statements(t, made), in.config.Cluster
		need := map[string]string{"kafka:DescribeClusterV2": k.ARN, "kafka:GetBootstrapBrokers": k.ARN}
		if k.Auth == config.IAM {
			path := strings.TrimPrefix(k.ARN, strings.SplitAfter(k.ARN, ":cluster")[0])
			start := strings.TrimSuffix(strings.SplitAfter(k.ARN, ":cluster")[0], "cluster")
			need["kafka-cluster:Connect"] = k.ARN
			need["kafka-cluster:DescribeTopic"], need["kafka-cluster:ReadData"] = start+"topic"+path+"/"+p.Topic, start+"topic"+path+"/"+p.Topic
			group := start + "group" + path + "/" + in.config.ConsumerGroup(p)
			need["kafka-cluster:DescribeGroup"], need["kafka-cluster:AlterGroup"] = group, group
		} else {
			need["kafka:ListScramSecrets"] = k.ARN
			need["secretsmanager:DescribeSecret"], need["secretsmanager:GetSecretValue"] = k.Secret, k.Secret
			need["kms:Decrypt"] = k.SecretKey
		}
		for action, resource := range need {
			require.True(t, allowed(role, action, resource), "%s on %s", action, resource)
		}
		for action := range onAll {
			require.True(t, allowed(role, action, "*"), action)
		}
	})
}
