// Package pipeline is one pipeline's function and what it works with: its role,
// its log, the queue of its dead letters, and the event source mapping that
// feeds it.
//
//	p := pipeline.New(stack, "Pipeline", pipeline.Props{Config: cfg, Pipeline: cfg.Pipelines[0], Asset: ".build/sink-arm64"})
//	p.Function.FunctionName()
//
// Everything it needs is in its props; it reads no environment and no context.
package pipeline

import (
	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/aws-cdk-go/awscdk/v2/awskms"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslogs"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssqs"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"oncehouse/infra/aws/config"
	"oncehouse/infra/aws/nag"
)

// Props of a pipeline.
type Props struct {
	// Config is the installation, Pipeline one of its pipelines.
	Config   *config.Config
	Pipeline config.Pipeline
	// Asset is the directory with the function's bootstrap for its architecture.
	Asset string
	// Key encrypts the letters, the log and the function's environment; nil for
	// AWS's own keys.
	Key awskms.IKey
}

// Pipeline is what was added.
type Pipeline struct {
	Function awslambda.Function
	Letters  awssqs.Queue
	Log      awslogs.LogGroup
	Mapping  awslambda.CfnEventSourceMapping
}

// New adds a pipeline.
func New(scope constructs.Construct, id string, props Props) *Pipeline {
	inside := constructs.NewConstruct(scope, &id)
	p := &Pipeline{Letters: newLetters(inside, props), Log: newLog(inside, props)}
	role := newRole(inside, props, p)
	p.Function = newFunction(inside, props, p, role)
	p.Mapping = newMapping(inside, props, p.Function, role)
	return p
}

// lettersRetention is SQS's longest. The alarm LettersAge warns before it ends.
const lettersRetention = 14

// newLetters adds the queue of records that do not fit the table. It survives
// its stack: the records in it are nowhere else once the topic forgets them.
func newLetters(scope constructs.Construct, props Props) awssqs.Queue {
	encryption := awssqs.QueueEncryption_SQS_MANAGED
	if props.Key != nil {
		encryption = awssqs.QueueEncryption_KMS
	}
	queue := awssqs.NewQueue(scope, jsii.String("Letters"), &awssqs.QueueProps{
		QueueName:           jsii.String(props.Config.LettersQueue(props.Pipeline)),
		RetentionPeriod:     awscdk.Duration_Days(jsii.Number(lettersRetention)),
		Encryption:          encryption,
		EncryptionMasterKey: props.Key,
		EnforceSSL:          jsii.Bool(true),
		// The function sends to it. No other queue may use it as its dead-letter
		// queue: what is in it is in our envelope, or nothing can be redriven.
		RedriveAllowPolicy: &awssqs.RedriveAllowPolicy{RedrivePermission: awssqs.RedrivePermission_DENY_ALL},
		RemovalPolicy:      awscdk.RemovalPolicy_RETAIN,
	})
	nag.Accept(queue, "AwsSolutions-SQS3", "It is the queue of dead letters: nothing consumes it that could fail, and nothing may leave it but by hand.")
	return queue
}

func newLog(scope constructs.Construct, props Props) awslogs.LogGroup {
	log := awslogs.NewLogGroup(scope, jsii.String("Log"), &awslogs.LogGroupProps{
		LogGroupName:  jsii.String(props.Config.LogGroup(props.Pipeline)),
		EncryptionKey: props.Key,
		RemovalPolicy: awscdk.RemovalPolicy_DESTROY,
	})
	// In days, as the file and the console have it, not as the enum's names.
	log.Node().DefaultChild().(awslogs.CfnLogGroup).SetRetentionInDays(jsii.Number(props.Pipeline.LogRetentionDays))
	return log
}

func newFunction(scope constructs.Construct, props Props, p *Pipeline, role awsiam.Role) awslambda.Function {
	architecture := awslambda.Architecture_ARM_64()
	if props.Pipeline.Architecture == config.AMD64 {
		architecture = awslambda.Architecture_X86_64()
	}
	environ := map[string]*string{}
	for key, value := range props.Config.SinkEnvironment(props.Pipeline, *p.Letters.QueueUrl()) {
		environ[key] = &value
	}
	var reserved *float64
	if n := props.Pipeline.ReservedConcurrency; n > 0 {
		reserved = jsii.Number(n)
	}
	function := awslambda.NewFunction(scope, jsii.String("Function"), &awslambda.FunctionProps{
		FunctionName: jsii.String(props.Config.FunctionName(props.Pipeline)),
		Description:  jsii.String("Stores topic " + props.Pipeline.Topic + " in table " + props.Config.ClickHouse.Database + "." + props.Pipeline.Table),
		Runtime:      awslambda.Runtime_PROVIDED_AL2023(),
		Handler:      jsii.String("bootstrap"),
		Code:         awslambda.Code_FromAsset(&props.Asset, nil),
		Architecture: architecture,
		MemorySize:   jsii.Number(props.Pipeline.Memory),
		Timeout:      awscdk.Duration_Seconds(jsii.Number(props.Pipeline.Timeout.Seconds())),
		Environment:  &environ,
		Role:         role,
		LogGroup:     p.Log,
		Tracing:      awslambda.Tracing_ACTIVE,
		// The sink writes JSON, metrics too. No application log level is set here:
		// above INFO Lambda would drop the metrics' lines. LOG_LEVEL is the sink's.
		LoggingFormat:                awslambda.LoggingFormat_JSON,
		ReservedConcurrentExecutions: reserved,
	})
	inside := function.Node().DefaultChild().(awslambda.CfnFunction)
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
	return function
}
