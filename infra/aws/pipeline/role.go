package pipeline

import (
	"strings"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"oncehouse/infra/aws/config"
	"oncehouse/infra/aws/nag"
	"oncehouse/shared/secrets"
)

// networkActions make the network interfaces of functions and pollers. Lambda
// uses them, the code never does.
// https://docs.aws.amazon.com/lambda/latest/dg/with-msk-permissions.html
var networkActions = []string{
	"ec2:CreateNetworkInterface", "ec2:DescribeNetworkInterfaces", "ec2:DeleteNetworkInterface",
	"ec2:DescribeVpcs", "ec2:DescribeSubnets", "ec2:DescribeSecurityGroups",
	"ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses",
}

// newRole adds the function's role, which its event source mapping works with,
// too. It allows exactly what the sink and its mapping call.
// X-Ray's two actions come with the function's tracing; they, and Lambda's for
// network interfaces, are the only ones on all resources: AWS has no narrower
// form of the first, and of the second only for some of them.
func newRole(scope constructs.Construct, props Props, p *Pipeline) awsiam.Role {
	c, pl := props.Config, props.Pipeline
	r := awsiam.NewRole(scope, jsii.String("Role"), &awsiam.RoleProps{
		AssumedBy:   awsiam.NewServicePrincipal(jsii.String("lambda.amazonaws.com"), nil),
		Description: jsii.String("What " + c.FunctionName(pl) + " and its event source mapping may do"),
	})
	stack := awscdk.Stack_Of(scope)
	arn := func(service, resource, name string) string {
		return *stack.FormatArn(&awscdk.ArnComponents{
			Service: &service, Resource: &resource, ResourceName: &name, ArnFormat: awscdk.ArnFormat_SLASH_RESOURCE_NAME,
		})
	}
	allow(r, []string{*p.Log.LogGroupArn()}, "logs:CreateLogStream", "logs:PutLogEvents")
	allow(r, []string{arn("dynamodb", "table", c.LedgerTable())}, "dynamodb:GetItem", "dynamodb:PutItem")
	allow(r, []string{*p.Letters.QueueArn()}, "sqs:SendMessage", "sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility")
	if props.Key != nil {
		// Lambda decrypts the environment, DynamoDB the table's key, SQS both ways.
		allow(r, []string{*props.Key.KeyArn()}, "kms:Decrypt", "kms:GenerateDataKey")
	}
	allowSecrets(r, c)
	allowKafka(r, c, pl)
	allow(r, []string{"*"}, networkActions...)
	r.AddToPolicy(awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
		Sid:     jsii.String("NetworkInterfacesAreLambdasAlone"), // not for code that runs in the function
		Effect:  awsiam.Effect_DENY,
		Actions: jsii.Strings(networkActions...), Resources: jsii.Strings("*"),
		Conditions: &map[string]any{"ArnEquals": map[string]string{"lambda:SourceFunctionArn": *stack.FormatArn(&awscdk.ArnComponents{
			Service: jsii.String("lambda"), Resource: jsii.String("function"), ResourceName: jsii.String(c.FunctionName(pl)), ArnFormat: awscdk.ArnFormat_COLON_RESOURCE_NAME,
		})}},
	}))
	nag.Accept(r, "AwsSolutions-IAM5", "EC2's describing calls take no resource, and the interfaces that Lambda makes have no names yet. Denied to the code in the function; X-Ray's two calls take no resource, either.", "Resource::*")
	if pl.OnFailure != nil {
		allowDestination(r, c, *pl.OnFailure)
	}
	return r
}

func allow(r awsiam.Role, resources []string, actions ...string) {
	r.AddToPolicy(awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
		Actions: jsii.Strings(actions...), Resources: jsii.Strings(resources...),
	}))
}

func allowSecrets(r awsiam.Role, c *config.Config) {
	if ref, err := secrets.ParseRef(c.ClickHouse.PasswordSecret); err == nil { // the file was checked
		allow(r, []string{ref.ARN}, "secretsmanager:GetSecretValue")
	}
	if c.ClickHouse.SecretKey != "" {
		allow(r, []string{c.ClickHouse.SecretKey}, "kms:Decrypt")
	}
}

// allowKafka: the mapping describes the cluster and reads as a member of its
// group; the sink reads by offset. A serverless cluster only has the V2 call.
func allowKafka(r awsiam.Role, c *config.Config, pl config.Pipeline) {
	cluster := c.Cluster.ARN
	allow(r, []string{cluster}, "kafka:DescribeClusterV2", "kafka:GetBootstrapBrokers")
	if c.Cluster.Auth == config.SCRAM {
		allow(r, []string{cluster}, "kafka:ListScramSecrets")
		allow(r, []string{c.Cluster.Secret}, "secretsmanager:DescribeSecret", "secretsmanager:GetSecretValue")
		allow(r, []string{c.Cluster.SecretKey}, "kms:Decrypt")
		return
	}
	allow(r, []string{cluster}, "kafka-cluster:Connect")
	allow(r, []string{inCluster(c, "topic", pl.Topic)}, "kafka-cluster:DescribeTopic", "kafka-cluster:ReadData")
	allow(r, []string{inCluster(c, "group", c.ConsumerGroup(pl))}, "kafka-cluster:DescribeGroup", "kafka-cluster:AlterGroup")
}

// inCluster is the ARN of a topic or group: arn:...:cluster/<name>/<uuid> has
// those of the same path.
// https://docs.aws.amazon.com/msk/latest/developerguide/kafka-actions.html
func inCluster(c *config.Config, kind, name string) string {
	return strings.Replace(c.Cluster.ARN, ":cluster/", ":"+kind+"/", 1) + "/" + name
}

// allowDestination: with SCRAM, writing to a topic is allowed by Kafka's own ACLs.
// https://docs.aws.amazon.com/lambda/latest/dg/kafka-on-failure.html
func allowDestination(r awsiam.Role, c *config.Config, f config.OnFailure) {
	if bucket, is := f.Bucket(); is {
		allow(r, []string{bucket}, "s3:ListBucket")
		allow(r, []string{bucket + "/*"}, "s3:PutObject")
		nag.Accept(r, "AwsSolutions-IAM5", "Lambda names each object that it puts into the bucket of failed batches.", "Resource::"+bucket+"/*")
		return
	}
	if topic, is := f.Topic(); is {
		if c.Cluster.Auth == config.IAM {
			allow(r, []string{inCluster(c, "topic", topic)}, "kafka-cluster:DescribeTopic", "kafka-cluster:WriteData")
		}
		return
	}
	allow(r, []string{f.Destination}, "sqs:SendMessage")
}
