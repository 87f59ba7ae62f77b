// Package outbox is one outbox's function and what invokes it: a schedule for each
// shard, every minute.
//
//	o := outbox.New(stack, "Outbox", outbox.Props{Config: cfg, Outbox: cfg.Outboxes[0], Asset: ".build/outbox-poller-arm64.zip"})
//
// An invocation polls until shortly before its time-out; the next one takes over.
// That two never work on one shard is what Kafka's fencing is for: the function has
// no more environments than there are shards, and one for an operator, only so that
// pollers do not fence each other all the time.
package outbox

import (
	"fmt"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/aws-cdk-go/awscdk/v2/awskms"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsscheduler"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"oncehouse/infra/aws/config"
	"oncehouse/infra/aws/function"
	"oncehouse/infra/aws/nag"
)

// Props of an outbox.
type Props struct {
	// Config is the installation, Outbox one of its outboxes.
	Config *config.Config
	Outbox config.Outbox
	// Asset is the poller for the outbox's architecture.
	Asset string
	// Key encrypts the log and the function's environment; nil for AWS's own keys.
	Key awskms.IKey
}

// New adds an outbox.
func New(scope constructs.Construct, id string, props Props) *function.Function {
	inside := constructs.NewConstruct(scope, &id)
	c, o := props.Config, props.Outbox
	f := function.New(inside, function.Props{
		Config: c, Name: c.OutboxName(o), Spec: o.Function, Reserved: o.Shards + 1, Asset: props.Asset, Key: props.Key, Layers: o.Layers,
		Description: "Publishes table " + o.Database.Schema + "." + o.Database.Table + " to topics " + o.Topic,
		Environment: c.OutboxEnvironment(o),
	})
	allowDatabase(f, c, o)
	allowKafka(f, c, o)
	// What comes late has been done by the minute after it.
	f.ConfigureAsyncInvoke(&awslambda.EventInvokeConfigOptions{
		MaxEventAge: awscdk.Duration_Minutes(jsii.Number(1)), RetryAttempts: jsii.Number(0),
	})
	newSchedules(inside, c, o, f)
	return f
}

// allowDatabase: by RDS's secret, which is fetched for each connection, or by IAM.
// https://docs.aws.amazon.com/AmazonRDS/latest/UserGuide/UsingWithRDS.IAMDBAuth.IAMPolicy.html
func allowDatabase(f *function.Function, c *config.Config, o config.Outbox) {
	d := o.Database
	if d.Secret == "" {
		e := c.Environment
		f.Allow([]string{*awscdk.Stack_Of(f.Role).FormatArn(&awscdk.ArnComponents{
			Service: jsii.String("rds-db"), Resource: jsii.String("dbuser"), ResourceName: jsii.String(d.ResourceID + "/" + d.User),
			Region: &e.Region, Account: &e.Account, ArnFormat: awscdk.ArnFormat_COLON_RESOURCE_NAME,
		})}, "rds-db:connect")
		return
	}
	f.Allow([]string{d.Secret}, "secretsmanager:GetSecretValue")
	if d.SecretKey != "" {
		f.Allow([]string{d.SecretKey}, "kms:Decrypt")
	}
}

// allowKafka: a transactional producer that also reads its cursor, and asks topics
// for the size of what they take. With SCRAM that is for Kafka's own ACLs to say.
// https://docs.aws.amazon.com/msk/latest/developerguide/kafka-actions.html
func allowKafka(f *function.Function, c *config.Config, o config.Outbox) {
	if c.Cluster.Auth == config.SCRAM {
		f.Allow([]string{c.Cluster.Secret}, "secretsmanager:GetSecretValue")
		f.Allow([]string{c.Cluster.SecretKey}, "kms:Decrypt")
		return
	}
	f.Allow([]string{c.Cluster.ARN}, "kafka-cluster:Connect", "kafka-cluster:WriteDataIdempotently")
	ids, topics := c.InCluster("transactional-id", o.TransactionalIDs()), c.InCluster("topic", o.Topics())
	f.Allow([]string{ids}, "kafka-cluster:DescribeTransactionalId", "kafka-cluster:AlterTransactionalId")
	written := []string{topics, c.InCluster("topic", o.CursorTopic)}
	if o.DeadLetterTopic != "" {
		written = append(written, c.InCluster("topic", o.DeadLetterTopic))
	}
	f.Allow(written, "kafka-cluster:DescribeTopic", "kafka-cluster:DescribeTopicDynamicConfiguration", "kafka-cluster:WriteData")
	cursor := []string{c.InCluster("topic", o.CursorTopic)}
	f.Allow(cursor, "kafka-cluster:ReadData")
	if o.CreateCursorTopic {
		f.Allow(cursor, "kafka-cluster:CreateTopic")
	}
	nag.Accept(f.Role, "AwsSolutions-IAM5", "Rows name the end of their topic (Debezium's aggregate type).", "Resource::"+topics)
	nag.Accept(f.Role, "AwsSolutions-IAM5", "Each shard has a transactional id, which ends in its number.", "Resource::"+ids)
}

// newSchedules adds a schedule for each shard, and the role that they invoke with.
func newSchedules(scope constructs.Construct, c *config.Config, o config.Outbox, f *function.Function) {
	role := awsiam.NewRole(scope, jsii.String("ScheduleRole"), &awsiam.RoleProps{
		AssumedBy: awsiam.NewServicePrincipal(jsii.String("scheduler.amazonaws.com"), &awsiam.ServicePrincipalOpts{
			Conditions: &map[string]any{"StringEquals": map[string]string{"aws:SourceAccount": c.Environment.Account}},
		}),
		Description: jsii.String("Invokes " + c.OutboxName(o) + " every minute"),
	})
	role.AddToPolicy(awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
		Actions: jsii.Strings("lambda:InvokeFunction"), Resources: jsii.Strings(*f.FunctionArn()),
	}))
	state := "ENABLED"
	if o.Paused {
		state = "DISABLED"
	}
	for shard := range o.Shards {
		schedule := awsscheduler.NewCfnSchedule(scope, jsii.String(fmt.Sprintf("Schedule%d", shard)), &awsscheduler.CfnScheduleProps{
			Name:               jsii.String(c.ScheduleName(o, shard)),
			Description:        jsii.String(fmt.Sprintf("Has shard %d of %d polled", shard, o.Shards)),
			ScheduleExpression: jsii.String("rate(1 minute)"),
			State:              &state,
			FlexibleTimeWindow: &awsscheduler.CfnSchedule_FlexibleTimeWindowProperty{Mode: jsii.String("OFF")},
			Target: &awsscheduler.CfnSchedule_TargetProperty{
				Arn: f.FunctionArn(), RoleArn: role.RoleArn(),
				Input: jsii.String(fmt.Sprintf(`{"shard":%d}`, shard)),
				RetryPolicy: &awsscheduler.CfnSchedule_RetryPolicyProperty{
					MaximumEventAgeInSeconds: jsii.Number(60), MaximumRetryAttempts: jsii.Number(0),
				},
			},
		})
		schedule.Node().AddDependency(role)
	}
}
