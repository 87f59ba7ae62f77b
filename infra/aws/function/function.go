// Package function is one Lambda function of the installation: with its log, with
// a role that allows what every function needs, and room for more.
//
//	f := function.New(stack, function.Props{Config: cfg, Name: "...", Spec: pipeline.Function, ...})
//	f.Allow([]string{*queue.QueueArn()}, "sqs:SendMessage")
package function

import (
	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/aws-cdk-go/awscdk/v2/awskms"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslogs"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"oncehouse/infra/aws/config"
	"oncehouse/infra/aws/nag"
)

// Props of a function.
type Props struct {
	Config *config.Config
	// Name of the function, and of its log group.
	Name, Description string
	// Spec is its size.
	Spec config.Function
	// Reserved is how many environments it has for itself; 0 shares the account's.
	Reserved int
	// Asset is what to deploy: a directory with a bootstrap for the architecture, or
	// a zip of one.
	Asset       string
	Environment map[string]string
	// Layers are ARNs of Lambda layers.
	Layers []string
	// Key encrypts the log and the environment; nil for AWS's own keys.
	Key awskms.IKey
	// Pollers says that an event source mapping has the function's role, too.
	Pollers bool
}

// Function is what was added.
type Function struct {
	awslambda.Function
	Role awsiam.Role
	Log  awslogs.LogGroup
}

// New adds a function.
func New(scope constructs.Construct, props Props) *Function {
	f := &Function{Log: newLog(scope, props), Role: newRole(scope, props)}
	f.Allow([]string{*f.Log.LogGroupArn()}, "logs:CreateLogStream", "logs:PutLogEvents")
	if props.Key != nil {
		// Lambda decrypts the environment, DynamoDB the table's key, SQS both ways.
		f.Allow([]string{*props.Key.KeyArn()}, "kms:Decrypt", "kms:GenerateDataKey")
	}
	f.allowInterfaces(scope, props)
	nag.Accept(f.Role, "AwsSolutions-IAM5", "X-Ray's two calls take no resource, nor do EC2's describing ones; the interfaces that Lambda makes have no names yet, and are denied to the code in the function.", "Resource::*")
	f.Function = newFunction(scope, props, f)
	return f
}

// Allow lets the function do something.
func (f *Function) Allow(resources []string, actions ...string) {
	f.Role.AddToPolicy(awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
		Actions: jsii.Strings(actions...), Resources: jsii.Strings(resources...),
	}))
}

func newLog(scope constructs.Construct, props Props) awslogs.LogGroup {
	log := awslogs.NewLogGroup(scope, jsii.String("Log"), &awslogs.LogGroupProps{
		LogGroupName:  jsii.String(config.LogGroup(props.Name)),
		EncryptionKey: props.Key,
		RemovalPolicy: awscdk.RemovalPolicy_DESTROY,
	})
	// In days, as the file and the console have it, not as the enum's names.
	log.Node().DefaultChild().(awslogs.CfnLogGroup).SetRetentionInDays(jsii.Number(props.Spec.LogRetentionDays))
	return log
}

// newRole adds the role. X-Ray's two actions come with the function's tracing.
func newRole(scope constructs.Construct, props Props) awsiam.Role {
	return awsiam.NewRole(scope, jsii.String("Role"), &awsiam.RoleProps{
		AssumedBy:   awsiam.NewServicePrincipal(jsii.String("lambda.amazonaws.com"), nil),
		Description: jsii.String("What " + props.Name + " may do"),
	})
}

// interfaceActions make the network interfaces of functions in a VPC and of pollers.
// Lambda uses them, the code never does. EC2 takes a resource for some of them only.
// https://docs.aws.amazon.com/lambda/latest/dg/configuration-vpc.html#configuration-vpc-permissions and
// https://docs.aws.amazon.com/lambda/latest/dg/with-msk-permissions.html
func interfaceActions(props Props) []string {
	if !props.Pollers && props.Config.Environment.Network == nil {
		return nil
	}
	actions := []string{
		"ec2:CreateNetworkInterface", "ec2:DescribeNetworkInterfaces", "ec2:DeleteNetworkInterface",
		"ec2:DescribeSubnets", "ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses",
	}
	if props.Pollers {
		actions = append(actions, "ec2:DescribeVpcs", "ec2:DescribeSecurityGroups")
	}
	return actions
}

func (f *Function) allowInterfaces(scope constructs.Construct, props Props) {
	actions := interfaceActions(props)
	if len(actions) == 0 {
		return
	}
	f.Allow([]string{"*"}, actions...)
	f.Role.AddToPolicy(awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
		Sid:     jsii.String("NetworkInterfacesAreLambdasAlone"), // not for code that runs in the function
		Effect:  awsiam.Effect_DENY,
		Actions: jsii.Strings(actions...), Resources: jsii.Strings("*"),
		Conditions: &map[string]any{"ArnEquals": map[string]string{"lambda:SourceFunctionArn": *awscdk.Stack_Of(scope).FormatArn(&awscdk.ArnComponents{
			Service: jsii.String("lambda"), Resource: jsii.String("function"), ResourceName: &props.Name, ArnFormat: awscdk.ArnFormat_COLON_RESOURCE_NAME,
		})}},
	}))
}

// services are those that the functions call, as the SDKs name them in
// AWS_ENDPOINT_URL_<service>. An empty endpoint is none: the SDK takes AWS's own.
// It is declared because sam local replaces declared variables only.
var services = []string{"DYNAMODB", "SQS", "SECRETS_MANAGER"}

func newFunction(scope constructs.Construct, props Props, f *Function) awslambda.Function {
	architecture := awslambda.Architecture_ARM_64()
	if props.Spec.Architecture == config.AMD64 {
		architecture = awslambda.Architecture_X86_64()
	}
	environ := map[string]*string{}
	for _, service := range services {
		environ["AWS_ENDPOINT_URL_"+service] = jsii.String("")
	}
	for key, value := range props.Environment {
		environ[key] = &value
	}
	function := &awslambda.FunctionProps{
		FunctionName: &props.Name,
		Description:  &props.Description,
		Runtime:      awslambda.Runtime_PROVIDED_AL2023(),
		Handler:      jsii.String("bootstrap"),
		Code:         awslambda.Code_FromAsset(&props.Asset, nil),
		Architecture: architecture,
		MemorySize:   jsii.Number(props.Spec.Memory),
		Timeout:      awscdk.Duration_Seconds(jsii.Number(props.Spec.Timeout.Seconds())),
		Environment:  &environ,
		Role:         f.Role,
		LogGroup:     f.Log,
		Tracing:      awslambda.Tracing_ACTIVE,
		// The code writes JSON, metrics too. No application log level is set here:
		// above INFO Lambda would drop the metrics' lines. LOG_LEVEL is the code's.
		LoggingFormat: awslambda.LoggingFormat_JSON,
	}
	if props.Reserved > 0 {
		function.ReservedConcurrentExecutions = jsii.Number(props.Reserved)
	}
	made := awslambda.NewFunction(scope, jsii.String("Function"), function)
	inside := made.Node().DefaultChild().(awslambda.CfnFunction)
	if len(props.Layers) > 0 {
		inside.SetLayers(jsii.Strings(props.Layers...))
	}
	if props.Key != nil {
		// Not by the construct's property, which allows the role kms:ReEncrypt* and more.
		inside.SetKmsKeyArn(props.Key.KeyArn())
	}
	if network := props.Config.Environment.Network; network != nil {
		inside.SetVpcConfig(&awslambda.CfnFunction_VpcConfigProperty{
			SubnetIds:        jsii.Strings(network.Subnets...),
			SecurityGroupIds: jsii.Strings(network.SecurityGroups...),
		})
	}
	return made
}
