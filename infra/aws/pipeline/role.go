package pipeline

import (
	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"oncehouse/infra/aws/config"
	"oncehouse/infra/aws/function"
	"oncehouse/infra/aws/nag"
	"oncehouse/shared/secrets"
)

// allow lets the function's role, which its event source mapping works with, too,
// do exactly what the sink and its mapping call.
func allow(scope constructs.Construct, props Props, p *Pipeline) {
	c, f := props.Config, p.Function
	ledger := awscdk.Stack_Of(scope).FormatArn(&awscdk.ArnComponents{
		Service: jsii.String("dynamodb"), Resource: jsii.String("table"), ResourceName: jsii.String(c.LedgerTable()), ArnFormat: awscdk.ArnFormat_SLASH_RESOURCE_NAME,
	})
	f.Allow([]string{*ledger}, "dynamodb:GetItem", "dynamodb:PutItem")
	// Letters are sent by the sink and taken out again by its action redrive.
	f.Allow([]string{*p.Letters.QueueArn()}, "sqs:SendMessage", "sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility")
	if ref, err := secrets.ParseRef(c.ClickHouse.PasswordSecret); err == nil { // the file was checked
		f.Allow([]string{ref.ARN}, "secretsmanager:GetSecretValue")
	}
	if c.ClickHouse.SecretKey != "" {
		f.Allow([]string{c.ClickHouse.SecretKey}, "kms:Decrypt")
	}
	allowKafka(f, c, props.Pipeline)
	if to := props.Pipeline.OnFailure; to != nil {
		allowDestination(f, c, *to)
	}
}

// allowKafka: the mapping describes the cluster and reads as a member of its
// group; the sink reads by offset. A serverless cluster only has the V2 call.
func allowKafka(f *function.Function, c *config.Config, pl config.Pipeline) {
	cluster := c.Cluster.ARN
	f.Allow([]string{cluster}, "kafka:DescribeClusterV2", "kafka:GetBootstrapBrokers")
	if c.Cluster.Auth == config.SCRAM {
		f.Allow([]string{cluster}, "kafka:ListScramSecrets")
		f.Allow([]string{c.Cluster.Secret}, "secretsmanager:DescribeSecret", "secretsmanager:GetSecretValue")
		f.Allow([]string{c.Cluster.SecretKey}, "kms:Decrypt")
		return
	}
	f.Allow([]string{cluster}, "kafka-cluster:Connect")
	f.Allow([]string{c.InCluster("topic", pl.Topic)}, "kafka-cluster:DescribeTopic", "kafka-cluster:ReadData")
	f.Allow([]string{c.InCluster("group", c.ConsumerGroup(pl))}, "kafka-cluster:DescribeGroup", "kafka-cluster:AlterGroup")
}

// allowDestination: with SCRAM, writing to a topic is allowed by Kafka's own ACLs.
// https://docs.aws.amazon.com/lambda/latest/dg/kafka-on-failure.html
func allowDestination(f *function.Function, c *config.Config, to config.OnFailure) {
	if bucket, is := to.Bucket(); is {
		f.Allow([]string{bucket}, "s3:ListBucket")
		f.Allow([]string{bucket + "/*"}, "s3:PutObject")
		nag.Accept(f.Role, "AwsSolutions-IAM5", "Lambda names each object that it puts into the bucket of failed batches.", "Resource::"+bucket+"/*")
		return
	}
	if topic, is := to.Topic(); is {
		if c.Cluster.Auth == config.IAM {
			f.Allow([]string{c.InCluster("topic", topic)}, "kafka-cluster:DescribeTopic", "kafka-cluster:WriteData")
		}
		return
	}
	f.Allow([]string{to.Destination}, "sqs:SendMessage")
}
