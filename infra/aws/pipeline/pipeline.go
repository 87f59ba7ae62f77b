// Package pipeline is one pipeline's function and what it works with: the queue of
// its dead letters, and the event source mapping that feeds it.
//
//	p := pipeline.New(stack, "Pipeline", pipeline.Props{Config: cfg, Pipeline: cfg.Pipelines[0], Asset: ".build/sink-arm64.zip"})
//	p.Function.FunctionName()
//
// Everything it needs is in its props; it reads no environment and no context.
package pipeline

import (
	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awskms"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssqs"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"oncehouse/infra/aws/config"
	"oncehouse/infra/aws/function"
	"oncehouse/infra/aws/nag"
)

// Props of a pipeline.
type Props struct {
	// Config is the installation, Pipeline one of its pipelines.
	Config   *config.Config
	Pipeline config.Pipeline
	// Asset is the sink for the pipeline's architecture.
	Asset string
	// Key encrypts the letters, the log and the function's environment; nil for
	// AWS's own keys.
	Key awskms.IKey
}

// Pipeline is what was added.
type Pipeline struct {
	Function *function.Function
	Letters  awssqs.Queue
	Mapping  awslambda.CfnEventSourceMapping
}

// New adds a pipeline.
func New(scope constructs.Construct, id string, props Props) *Pipeline {
	inside := constructs.NewConstruct(scope, &id)
	c, pl := props.Config, props.Pipeline
	p := &Pipeline{Letters: newLetters(inside, props)}
	p.Function = function.New(inside, function.Props{
		Config: c, Name: c.FunctionName(pl), Spec: pl.Function, Reserved: pl.ReservedConcurrency, Asset: props.Asset, Key: props.Key,
		Description: "Stores topic " + pl.Topic + " in table " + c.ClickHouse.Database + "." + pl.Table,
		Environment: c.SinkEnvironment(pl, *p.Letters.QueueUrl()),
		Pollers:     true,
	})
	allow(inside, props, p)
	p.Mapping = newMapping(inside, props, p.Function)
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
	nag.Accept(queue, "AwsSolutions-SQS3", "It is the queue of dead letters: nothing consumes it that could fail, and nothing may leave it but by the action redrive or by hand.")
	return queue
}
