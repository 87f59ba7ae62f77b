// Package stack makes the CloudFormation stacks of an installation:
//
//	oncehouse-<environment>                  the ledger and the topic of the alarms
//	oncehouse-<environment>-<pipeline>       one for each pipeline
//	oncehouse-<environment>-<outbox>-outbox  one for each outbox
//
// A pipeline's stack is deployed, rolled back and deleted alone. It finds the
// ledger by its name, not by an export, so that no stack holds another one's
// update up.
package stack

import (
	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/aws-cdk-go/awscdk/v2/awskms"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssns"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssnssubscriptions"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"oncehouse/infra/aws/config"
	"oncehouse/infra/aws/ledger"
	"oncehouse/infra/aws/monitor"
	"oncehouse/infra/aws/nag"
	"oncehouse/infra/aws/outbox"
	"oncehouse/infra/aws/pipeline"
)

// Functions that there are, as make build names them.
const (
	Sink   = "sink"
	Poller = "outbox-poller"
)

// Add adds all stacks to an app. asset is what to deploy as a function for an
// architecture.
func Add(app awscdk.App, c *config.Config, asset func(function, architecture string) string) {
	base := addBase(app, c)
	for _, p := range c.Pipelines {
		addPipeline(app, c, p, asset(Sink, p.Architecture)).AddStackDependency(base, nil)
	}
	for _, o := range c.Outboxes {
		addOutbox(app, c, o, asset(Poller, o.Architecture)).AddStackDependency(base, nil)
	}
	nag.Check(app)
}

func newStack(app awscdk.App, c *config.Config, name, description string, protected bool) awscdk.Stack {
	tags := map[string]*string{"oncehouse:environment": &c.Environment.Name}
	for key, value := range c.Environment.Tags {
		tags[key] = &value
	}
	return awscdk.NewStack(app, &name, &awscdk.StackProps{
		StackName: &name, Description: &description, Tags: &tags,
		Env:                   &awscdk.Environment{Account: &c.Environment.Account, Region: &c.Environment.Region},
		TerminationProtection: &protected,
	})
}

func addBase(app awscdk.App, c *config.Config) awscdk.Stack {
	stack := newStack(app, c, c.Prefix(), "oncehouse: ledger and alarm topic", true)
	key := keyOf(stack, c)
	ledger.New(stack, "Ledger", ledger.Props{Name: c.LedgerTable(), Key: key})
	topic := newAlarmTopic(stack, c, key)
	monitor.NewLedger(stack, "Monitor", monitor.LedgerProps{
		Table: c.LedgerTable(), Alert: monitor.Alert{Topic: topic, Runbook: c.Alarms.Runbook},
	})
	monitor.NewOverview(stack, "Overview", monitor.OverviewProps{Config: c, Runbook: c.Alarms.Runbook})
	return stack
}

// keyOf is the installation's own key; nil for AWS's.
func keyOf(scope constructs.Construct, c *config.Config) awskms.IKey {
	if c.Environment.Key == "" {
		return nil
	}
	return awskms.Key_FromKeyArn(scope, jsii.String("Key"), &c.Environment.Key)
}

// newAlarmTopic adds the topic. AWS's own key for SNS does not let CloudWatch
// publish, so without a key of the installation there is none; the alarms' texts
// hold no data.
func newAlarmTopic(scope constructs.Construct, c *config.Config, key awskms.IKey) awssns.ITopic {
	topic := awssns.NewTopic(scope, jsii.String("Alarms"), &awssns.TopicProps{
		TopicName: jsii.String(c.AlarmTopic()), EnforceSSL: jsii.Bool(true), MasterKey: key,
	})
	// A topic with a policy of its own has lost the default one, by which the
	// account's alarms could publish.
	topic.AddToResourcePolicy(awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
		Sid:        jsii.String("AlarmsOfThisAccount"),
		Principals: &[]awsiam.IPrincipal{awsiam.NewServicePrincipal(jsii.String("cloudwatch.amazonaws.com"), nil)},
		Actions:    jsii.Strings("sns:Publish"), Resources: jsii.Strings(*topic.TopicArn()),
		Conditions: &map[string]any{"StringEquals": map[string]string{"aws:SourceAccount": c.Environment.Account}},
	}))
	for _, address := range c.Alarms.Emails {
		topic.AddSubscription(awssnssubscriptions.NewEmailSubscription(&address, nil))
	}
	return topic
}

func addPipeline(app awscdk.App, c *config.Config, p config.Pipeline, asset string) awscdk.Stack {
	stack := newStack(app, c, c.FunctionName(p), "oncehouse: topic "+p.Topic+" into table "+p.Table, false)
	made := pipeline.New(stack, "Pipeline", pipeline.Props{Config: c, Pipeline: p, Asset: asset, Key: keyOf(stack, c)})
	monitor.NewPipeline(stack, "Monitor", monitor.PipelineProps{
		Config: c, Pipeline: p, Queue: *made.Letters.QueueName(), Log: *made.Function.Log.LogGroupName(), Mapping: *made.Mapping.Ref(),
		Alert: alertOf(stack, c),
	})
	output(stack, "FunctionName", made.Function.FunctionName(), "for aws lambda invoke")
	output(stack, "LettersQueueUrl", made.Letters.QueueUrl(), "the queue of dead letters")
	output(stack, "LogGroupName", made.Function.Log.LogGroupName(), "for aws logs tail")
	return stack
}

func addOutbox(app awscdk.App, c *config.Config, o config.Outbox, asset string) awscdk.Stack {
	stack := newStack(app, c, c.OutboxName(o), "oncehouse: outbox "+o.Database.Schema+"."+o.Database.Table+" into topics "+o.Topic, false)
	made := outbox.New(stack, "Outbox", outbox.Props{Config: c, Outbox: o, Asset: asset, Key: keyOf(stack, c)})
	monitor.NewOutbox(stack, "Monitor", monitor.OutboxProps{Config: c, Outbox: o, Log: *made.Log.LogGroupName(), Alert: alertOf(stack, c)})
	output(stack, "FunctionName", made.FunctionName(), "for aws lambda invoke")
	output(stack, "LogGroupName", made.Log.LogGroupName(), "for aws logs tail")
	return stack
}

// alertOf finds the topic of the alarms by its name.
func alertOf(stack awscdk.Stack, c *config.Config) monitor.Alert {
	topic := stack.FormatArn(&awscdk.ArnComponents{Service: jsii.String("sns"), Resource: jsii.String(c.AlarmTopic()), ArnFormat: awscdk.ArnFormat_NO_RESOURCE_NAME})
	return monitor.Alert{Topic: awssns.Topic_FromTopicArn(stack, jsii.String("Alarms"), topic), Runbook: c.Alarms.Runbook}
}

func output(stack awscdk.Stack, name string, value *string, description string) {
	awscdk.NewCfnOutput(stack, &name, &awscdk.CfnOutputProps{Value: value, Description: &description})
}
