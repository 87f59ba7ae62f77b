package pipeline

import (
	"strings"
	"time"

	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"oncehouse/infra/aws/config"
	"oncehouse/infra/aws/function"
)

// endless is Lambda's number for attempts and ages without a limit.
const endless = -1

// newMapping adds the event source mapping. The CloudFormation resource is used
// and not CDK's own construct, because that attaches AWSLambdaMSKExecutionRole,
// which allows everything it names on every cluster.
//
// What is not configurable is so because another value would be wrong:
//   - Bisecting cuts batches anew, and the sink isolates poison itself.
//   - No maximum age: a record does not become less true by waiting.
//   - A consumer group of our own name: by default it is the mapping's id, and a
//     mapping that CloudFormation replaces would read the topic again.
func newMapping(scope constructs.Construct, props Props, f *function.Function) awslambda.CfnEventSourceMapping {
	c, pl := props.Config, props.Pipeline
	mapping := &awslambda.CfnEventSourceMappingProps{
		FunctionName:                   f.FunctionArn(),
		EventSourceArn:                 c.Cluster.ARN,
		Topics:                         jsii.Strings(pl.Topic),
		BatchSize:                      jsii.Number(pl.BatchSize),
		MaximumBatchingWindowInSeconds: jsii.Number(pl.BatchWindow.Seconds()),
		StartingPosition:               jsii.String("TRIM_HORIZON"),
		AmazonManagedKafkaEventSourceConfig: &awslambda.CfnEventSourceMapping_AmazonManagedKafkaEventSourceConfigProperty{
			ConsumerGroupId: jsii.String(c.ConsumerGroup(pl)),
		},
		MetricsConfig: &awslambda.CfnEventSourceMapping_MetricsConfigProperty{Metrics: metricGroups(pl)},
	}
	if at, err := time.Parse(time.RFC3339, pl.Start); err == nil {
		mapping.StartingPosition = jsii.String("AT_TIMESTAMP")
		mapping.StartingPositionTimestamp = jsii.Number(at.Unix())
	}
	if c.Cluster.Auth == config.SCRAM {
		mapping.SourceAccessConfigurations = &[]any{&awslambda.CfnEventSourceMapping_SourceAccessConfigurationProperty{
			Type: jsii.String("SASL_SCRAM_512_AUTH"), Uri: &c.Cluster.Secret,
		}}
	}
	if len(pl.Filters) > 0 {
		filters := make([]any, len(pl.Filters))
		for i := range pl.Filters {
			filters[i] = &awslambda.CfnEventSourceMapping_FilterProperty{Pattern: &pl.Filters[i]}
		}
		mapping.FilterCriteria = &awslambda.CfnEventSourceMapping_FilterCriteriaProperty{Filters: &filters}
	}
	if pl.Pollers.Minimum > 0 {
		provision(mapping, pl)
	}
	made := awslambda.NewCfnEventSourceMapping(scope, jsii.String("Mapping"), mapping)
	made.Node().AddDependency(f.Role) // Lambda tries the mapping's rights when it is made
	return made
}

// metricGroups are those that alarms need, and the one that is asked for.
// https://docs.aws.amazon.com/lambda/latest/dg/monitoring-metrics-types.html
func metricGroups(pl config.Pipeline) *[]*string {
	groups := []string{"EventCount", "ErrorCount"}
	if pl.KafkaMetrics {
		groups = append(groups, "KafkaMetrics")
	}
	return jsii.Strings(groups...)
}

// provision adds what only provisioned mode has.
func provision(mapping *awslambda.CfnEventSourceMappingProps, pl config.Pipeline) {
	pollers := &awslambda.CfnEventSourceMapping_ProvisionedPollerConfigProperty{
		MinimumPollers: jsii.Number(pl.Pollers.Minimum), MaximumPollers: jsii.Number(pl.Pollers.Maximum),
	}
	if pl.Pollers.Group != "" {
		pollers.PollerGroupName = &pl.Pollers.Group
	}
	mapping.ProvisionedPollerConfig = pollers
	mapping.MaximumRetryAttempts = jsii.Number(endless)
	mapping.MaximumRecordAgeInSeconds = jsii.Number(endless)
	mapping.BisectBatchOnFunctionError = jsii.Bool(false)
	if pl.MappingLog != config.NoLog {
		mapping.LoggingConfig = &awslambda.CfnEventSourceMapping_LoggingConfigProperty{
			SystemLogLevel: jsii.String(strings.ToUpper(pl.MappingLog)),
		}
	}
	if pl.PartialResponses {
		mapping.FunctionResponseTypes = jsii.Strings("ReportBatchItemFailures")
	}
	if f := pl.OnFailure; f != nil {
		mapping.MaximumRetryAttempts = jsii.Number(f.Attempts)
		mapping.DestinationConfig = &awslambda.CfnEventSourceMapping_DestinationConfigProperty{
			OnFailure: &awslambda.CfnEventSourceMapping_OnFailureProperty{Destination: &f.Destination},
		}
	}
}
