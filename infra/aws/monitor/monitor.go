// Package monitor is what an operator looks at: the alarms and the dashboard of
// one pipeline, and the alarms of the ledger.
//
//	monitor.NewPipeline(stack, "Monitor", monitor.PipelineProps{...})
//	monitor.NewLedger(stack, "LedgerMonitor", monitor.LedgerProps{...})
//
// Every metric that the sink emits (shared/metrics) is in an alarm or a widget.
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
// periods in a row.
type alarm struct {
	heading   string // in docs/runbook.md, and the end of the alarm's name
	says      string
	metric    awscloudwatch.IMetric
	threshold float64
	periods   int
}

// add adds the alarm. No data is no alarm: a sink without records is silent.
func (a *alarm) add(scope constructs.Construct, prefix string, alert Alert) awscloudwatch.Alarm {
	made := awscloudwatch.NewAlarm(scope, &a.heading, &awscloudwatch.AlarmProps{
		AlarmName:          jsii.String(prefix + "-" + a.heading),
		AlarmDescription:   jsii.String(fmt.Sprintf("%s %s#%s", a.says, alert.Runbook, strings.ToLower(a.heading))),
		Metric:             a.metric,
		Threshold:          &a.threshold,
		ComparisonOperator: awscloudwatch.ComparisonOperator_GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
		EvaluationPeriods:  jsii.Number(a.periods),
		TreatMissingData:   awscloudwatch.TreatMissingData_NOT_BREACHING,
	})
	action := awscloudwatchactions.NewSnsAction(alert.Topic)
	made.AddAlarmAction(action)
	made.AddOkAction(action)
	return made
}

// source is a namespace with the dimension of one function, queue or table.
type source struct{ namespace, dimension, value string }

func (s source) metric(name, statistic string) awscloudwatch.Metric {
	return awscloudwatch.NewMetric(&awscloudwatch.MetricProps{
		Namespace: &s.namespace, MetricName: &name, Statistic: &statistic,
		DimensionsMap: &map[string]*string{s.dimension: &s.value},
		Period:        awscdk.Duration_Minutes(jsii.Number(period)),
	})
}

// sink is where the pipeline's own metrics are.
func sink(pipeline string) source {
	return source{metrics.Namespace, metrics.DimensionPipeline, pipeline}
}

func (s source) sum(name metrics.Name) awscloudwatch.Metric {
	return s.metric(string(name), "Sum")
}

func function(name string) source { return source{"AWS/Lambda", "FunctionName", name} }

func queue(name string) source { return source{"AWS/SQS", "QueueName", name} }

func table(name string) source { return source{"AWS/DynamoDB", "TableName", name} }

// calculated is a formula over metrics by the names that it uses.
func calculated(label, formula string, of map[string]awscloudwatch.IMetric) awscloudwatch.IMetric {
	return awscloudwatch.NewMathExpression(&awscloudwatch.MathExpressionProps{
		Label: &label, Expression: &formula, UsingMetrics: &of,
		Period: awscdk.Duration_Minutes(jsii.Number(period)),
	})
}
