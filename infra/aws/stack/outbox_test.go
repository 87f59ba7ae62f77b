package stack_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	poller "oncehouse/functions/outbox-poller/config"
	"oncehouse/infra/aws/config"
)

func TestPollersStartWithTheirEnvironment(t *testing.T) {
	eachOutbox(t, func(t *testing.T, in installation, o config.Outbox, made template) {
		function := made.only(t, "AWS::Lambda::Function")
		environ := map[string]string{}
		for name, value := range function["Environment"].(map[string]any)["Variables"].(map[string]any) {
			environ[name] = value.(string)
		}
		cfg, err := poller.Parse(environ)
		require.NoError(t, err)
		require.Equal(t, o.Name, cfg.Outbox)
		require.Equal(t, o.Shards, cfg.Shards)
		require.Equal(t, o.Database.Schema+"."+o.Database.Table, cfg.Schema+"."+cfg.Table)
		require.Equal(t, []string{o.CursorTopic, o.DeadLetterTopic}, []string{cfg.CursorTopic, cfg.DeadLetters})
		require.Equal(t, in.config.Cluster.Brokers, cfg.Brokers)
		require.Equal(t, in.config.Cluster.Auth, cfg.KafkaAuth)
		require.True(t, cfg.KafkaTLS)
		require.Equal(t, o.Database.Secret != "", cfg.DatabaseSecret != nil)
		require.Equal(t, o.Database.Secret == "", cfg.DatabaseAuth == "iam")
		require.Empty(t, cfg.DatabasePassword)
		topic, err := cfg.Router().Topic("Order")
		require.NoError(t, err)
		before, after, _ := strings.Cut(o.Topics(), "*")
		require.Equal(t, before+"Order"+after, topic, "the topics that the role allows are those that the router makes")
		require.Greater(t, function["Timeout"], (cfg.DeadlineMargin + cfg.Reserve).Seconds())
		require.EqualValues(t, o.Timeout/time.Second, function["Timeout"])
		require.Len(t, function["VpcConfig"].(map[string]any)["SubnetIds"], len(in.config.Environment.Network.Subnets))
		if len(o.Layers) > 0 {
			require.Len(t, function["Layers"], len(o.Layers))
		}
	})
}

// Every shard is polled every minute, an operator has room, and what comes late is
// not done twice.
func TestShardsArePolledEveryMinute(t *testing.T) {
	require.Regexp(t, "Shard +\\*int +`json:\"shard\"`", sourceOf(t, "functions/outbox-poller/handler"), "what the function reads of an event")
	eachOutbox(t, func(t *testing.T, _ installation, o config.Outbox, made template) {
		function := made.only(t, "AWS::Lambda::Function")
		require.EqualValues(t, o.Shards+1, function["ReservedConcurrentExecutions"])
		require.LessOrEqual(t, function["Timeout"], 60.0, "a run is over when the next one comes")
		late := made.only(t, "AWS::Lambda::EventInvokeConfig")
		require.Equal(t, []any{60.0, 0.0}, []any{late["MaximumEventAgeInSeconds"], late["MaximumRetryAttempts"]})

		var shards []int
		for _, s := range made.all("AWS::Scheduler::Schedule") {
			require.Equal(t, "rate(1 minute)", s["ScheduleExpression"])
			require.Equal(t, map[string]any{"Mode": "OFF"}, s["FlexibleTimeWindow"])
			require.Equal(t, map[bool]string{true: "DISABLED", false: "ENABLED"}[o.Paused], s["State"])
			target := s["Target"].(map[string]any)
			require.Equal(t, "<AWS::Lambda::Function Arn>", target["Arn"])
			require.Equal(t, map[string]any{"MaximumEventAgeInSeconds": 60.0, "MaximumRetryAttempts": 0.0}, target["RetryPolicy"])
			var event struct{ Shard *int }
			require.NoError(t, json.Unmarshal([]byte(target["Input"].(string)), &event))
			shards = append(shards, *event.Shard)
			require.LessOrEqual(t, len(s["Name"].(string)), 64)
		}
		slices.Sort(shards)
		want := make([]int, o.Shards)
		for i := range want {
			want[i] = i
		}
		require.Equal(t, want, shards)
	})
}

// https://docs.aws.amazon.com/msk/latest/developerguide/kafka-actions.html
func TestPollersRolesAllowWhatIsCalledAndNothingElse(t *testing.T) {
	calls := calledBy(t, "./functions/outbox-poller")
	require.Equal(t, map[string][]string{"secretsmanager": {"GetSecretValue"}}, calls)
	eachOutbox(t, func(t *testing.T, in installation, o config.Outbox, made template) {
		c, need := in.config, rights{}
		if d := o.Database; d.Secret != "" {
			need.add(d.Secret, "secretsmanager:GetSecretValue")
			if d.SecretKey != "" {
				need.add(d.SecretKey, "kms:Decrypt")
			}
		} else {
			need.add("arn:aws:rds-db:"+c.Environment.Region+":"+c.Environment.Account+":dbuser:"+d.ResourceID+"/"+d.User, "rds-db:connect")
		}
		if c.Cluster.Auth == config.IAM {
			before, path, _ := strings.Cut(c.Cluster.ARN, ":cluster/")
			topic := func(name string) string { return before + ":topic/" + path + "/" + name }
			need.add(c.Cluster.ARN, "kafka-cluster:Connect", "kafka-cluster:WriteDataIdempotently")
			need.add(before+":transactional-id/"+path+"/oncehouse-outbox-"+o.Name+"-*", "kafka-cluster:DescribeTransactionalId", "kafka-cluster:AlterTransactionalId")
			for _, name := range []string{o.Topics(), o.CursorTopic, o.DeadLetterTopic} {
				if name != "" {
					need.add(topic(name), "kafka-cluster:DescribeTopic", "kafka-cluster:DescribeTopicDynamicConfiguration", "kafka-cluster:WriteData")
				}
			}
			need.add(topic(o.CursorTopic), "kafka-cluster:ReadData")
			if o.CreateCursorTopic {
				need.add(topic(o.CursorTopic), "kafka-cluster:CreateTopic")
			}
		} else {
			need.add(c.Cluster.Secret, "secretsmanager:GetSecretValue")
			need.add(c.Cluster.SecretKey, "kms:Decrypt")
		}
		pollersAlone := []string{"ec2:DescribeVpcs", "ec2:DescribeSecurityGroups"}
		addServices(need, c, slices.DeleteFunc(keys(onAll), func(action string) bool { return slices.Contains(pollersAlone, action) }))
		requireRights(t, need, made)
	})
}

func TestSchedulesInvokeAndNothingElse(t *testing.T) {
	eachOutbox(t, func(t *testing.T, in installation, _ config.Outbox, made template) {
		schedule := made.all("AWS::Scheduler::Schedule")[0]["Target"].(map[string]any)["RoleArn"]
		require.NotEqual(t, schedule, made.only(t, "AWS::Lambda::Function")["Role"])
		found := 0
		for _, policy := range made.all("AWS::IAM::Policy") {
			if policy["Roles"].([]any)[0] != schedule {
				continue
			}
			found++
			require.Equal(t, []any{map[string]any{"Action": "lambda:InvokeFunction", "Effect": "Allow", "Resource": "<AWS::Lambda::Function Arn>"}},
				policy["PolicyDocument"].(map[string]any)["Statement"])
		}
		require.Equal(t, 1, found)
		for _, role := range made.all("AWS::IAM::Role") {
			trust := role["AssumeRolePolicyDocument"].(map[string]any)["Statement"].([]any)[0].(map[string]any)
			if trust["Principal"].(map[string]any)["Service"] == "scheduler.amazonaws.com" {
				require.Equal(t, map[string]any{"StringEquals": map[string]any{"aws:SourceAccount": in.config.Environment.Account}}, trust["Condition"])
			}
		}
	})
}
