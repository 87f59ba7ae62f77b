// Package monitor is what an operator looks at: the alarms, the dashboard and the
// saved log queries of one pipeline, the alarms of the ledger, and the dashboard
// that shows all pipelines side by side.
//
//	monitor.NewPipeline(stack, "Monitor", monitor.PipelineProps{...})
//	monitor.NewOutbox(stack, "Monitor", monitor.OutboxProps{...})
//	monitor.NewLedger(stack, "Monitor", monitor.LedgerProps{...})
//	monitor.NewOverview(stack, "Overview", monitor.OverviewProps{...})
//
// Every metric that a function emits (shared/metrics) is in an alarm or a widget.
// Every alarm is called <function>-<heading>, and docs/runbook.md has that
// heading: its description links there.
package monitor

import (
	"fmt"
	"strings"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awscloudwatch"
	"github.com/aws/aws-cdk-go/awscdk/v2/awscloudwatchactions"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssns"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"oncehouse/shared/metrics"
)

// period is that of all metrics, in minutes: shorter than the time in which a
// person could react, longer than an invocation mostly is.
const period = 5

// Alert says who is told, and where the runbook is.
type Alert struct {
	Topic   awssns.ITopic
	Runbook string
}

// alarm is one alarm: it rings when the value is at least threshold in so many
// periods in a row. No data is no alarm: a sink without records is silent.
// A threshold of silence rings when there is no data.
type alarm struct {
	heading   string // in docs/runbook.md, and the end of the alarm's name
	says      string
	metric    awscloudwatch.IMetric
	threshold float64
	periods   int
}

const silence = -1

func (a *alarm) name(prefix string) string { return prefix + "-" + a.heading }

func (a *alarm) add(scope constructs.Construct, prefix string, alert Alert) awscloudwatch.Alarm {
	compare, missing := awscloudwatch.ComparisonOperator_GREATER_THAN_OR_EQUAL_TO_THRESHOLD, awscloudwatch.TreatMissingData_NOT_BREACHING
	if a.threshold == silence { // which no count is below
		compare, missing = awscloudwatch.ComparisonOperator_LESS_THAN_OR_EQUAL_TO_THRESHOLD, awscloudwatch.TreatMissingData_BREACHING
	}
	made := awscloudwatch.NewAlarm(scope, &a.heading, &awscloudwatch.AlarmProps{
		AlarmName:          jsii.String(a.name(prefix)),
		AlarmDescription:   jsii.String(fmt.Sprintf("%s %s#%s", a.says, alert.Runbook, strings.ToLower(a.heading))),
		Metric:             a.metric,
		Threshold:          &a.threshold,
		ComparisonOperator: compare,
		EvaluationPeriods:  jsii.Number(a.periods),
		TreatMissingData:   missing,
	})
	action := awscloudwatchactions.NewSnsAction(alert.Topic)
	made.AddAlarmAction(action)
	made.AddOkAction(action)
	return made
}

// source is a namespace with the dimension of one function, queue, mapping or
// table. A label stands in the legend instead of the metric's name.
type source struct{ namespace, dimension, value, label string }

func (s source) metric(name, statistic string) awscloudwatch.Metric {
	props := &awscloudwatch.MetricProps{
		Namespace: &s.namespace, MetricName: &name, Statistic: &statistic,
		DimensionsMap: &map[string]*string{s.dimension: &s.value},
		Period:        awscdk.Duration_Minutes(jsii.Number(period)),
	}
	if s.label != "" {
		props.Label = &s.label
	}
	return awscloudwatch.NewMetric(props)
}

// sink is where the pipeline's own metrics are.
func sink(pipeline string) source {
	return source{namespace: metrics.Namespace, dimension: metrics.DimensionPipeline, value: pipeline}
}

func (s source) sum(name metrics.Name) awscloudwatch.Metric {
	return s.metric(string(name), "Sum")
}

func function(name string) source {
	return source{namespace: "AWS/Lambda", dimension: "FunctionName", value: name}
}

// mapping is the event source mapping with this UUID.
func mapping(uuid string) source {
	return source{namespace: "AWS/Lambda", dimension: "EventSourceMappingUUID", value: uuid}
}

func queue(name string) source {
	return source{namespace: "AWS/SQS", dimension: "QueueName", value: name}
}

func table(name string) source {
	return source{namespace: "AWS/DynamoDB", dimension: "TableName", value: name}
}

// of is the source with a label.
func (s source) of(label string) source {
	s.label = label
	return s
}

// calculated is a formula over metrics by the names that it uses.
func calculated(label, formula string, of map[string]awscloudwatch.IMetric) awscloudwatch.IMetric {
	return awscloudwatch.NewMathExpression(&awscloudwatch.MathExpressionProps{
		Label: &label, Expression: &formula, UsingMetrics: &of,
		Period: awscdk.Duration_Minutes(jsii.Number(period)),
	})
}
