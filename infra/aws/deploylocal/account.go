package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/cloudformation"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatch"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"oncehouse/infra/aws/config"
	"oncehouse/infra/local/template"
)

// account reads back what a deployment has made.
type account struct {
	stacks    *cloudformation.Client
	functions *lambda.Client
	tables    *dynamodb.Client
	queues    *sqs.Client
	metrics   *cloudwatch.Client
}

func connect(e *emulator) account {
	cfg := aws.Config{
		Region: e.region, BaseEndpoint: &e.url,
		Credentials: credentials.NewStaticCredentialsProvider(accessKey, secretKey, ""),
	}
	return account{
		cloudformation.NewFromConfig(cfg), lambda.NewFromConfig(cfg), dynamodb.NewFromConfig(cfg),
		sqs.NewFromConfig(cfg), cloudwatch.NewFromConfig(cfg),
	}
}

// whole checks that a stack has every resource of its template and no other, and
// returns their physical ids.
func (a *account) whole(ctx context.Context, name string, t *template.Template) (map[string]string, error) {
	stack, err := a.stacks.DescribeStacks(ctx, &cloudformation.DescribeStacksInput{StackName: &name})
	if err != nil {
		return nil, fmt.Errorf("describe stack %s: %w", name, err)
	}
	if status := string(stack.Stacks[0].StackStatus); !strings.HasSuffix(status, "_COMPLETE") || strings.Contains(status, "ROLLBACK") {
		return nil, fmt.Errorf("stack %s is %s", name, status)
	}
	made, err := a.stacks.DescribeStackResources(ctx, &cloudformation.DescribeStackResourcesInput{StackName: &name})
	if err != nil {
		return nil, fmt.Errorf("describe the resources of %s: %w", name, err)
	}
	ids, kinds := map[string]string{}, map[string]string{}
	for _, r := range made.StackResources {
		ids[aws.ToString(r.LogicalResourceId)] = aws.ToString(r.PhysicalResourceId)
		kinds[aws.ToString(r.LogicalResourceId)] = aws.ToString(r.ResourceType)
	}
	want := map[string]string{}
	for id, r := range t.Resources {
		if r.Type != "AWS::CDK::Metadata" {
			want[id] = r.Type
		}
		if ids[id] == "" {
			err = errors.Join(err, fmt.Errorf("stack %s: %s %s was not made", name, r.Type, id))
		}
	}
	err = errors.Join(err, same("the resources of "+name, want, kinds))
	return ids, fact(err, "stack %s: %s", name, count(len(ids), "resource"))
}

// watched checks the alarms and dashboards of a template.
func (a *account) watched(ctx context.Context, name string, t *template.Template) error {
	alarms, dashboards := 0, 0
	err := each(t, alarmType, func(_ string, r template.Resource) error {
		alarms++
		alarm, _ := r.Properties["AlarmName"].(string)
		found, err := a.metrics.DescribeAlarms(ctx, &cloudwatch.DescribeAlarmsInput{AlarmNames: []string{alarm}})
		if err != nil || len(found.MetricAlarms) != 1 {
			return errors.Join(fmt.Errorf("alarm %q was not made", alarm), err)
		}
		made := found.MetricAlarms[0]
		return errors.Join(
			same("the threshold of "+alarm, r.Properties["Threshold"], any(aws.ToFloat64(made.Threshold))),
			same("the periods of "+alarm, r.Properties["EvaluationPeriods"], any(float64(aws.ToInt32(made.EvaluationPeriods)))),
			same("whether "+alarm+" tells anybody", true, len(made.AlarmActions) > 0),
		)
	})
	err = errors.Join(err, each(t, dashboardType, func(_ string, r template.Resource) error {
		dashboards++
		title, _ := r.Properties["DashboardName"].(string)
		made, err := a.metrics.GetDashboard(ctx, &cloudwatch.GetDashboardInput{DashboardName: &title})
		if err != nil {
			return fmt.Errorf("read dashboard %q: %w", title, err)
		}
		var body struct{ Widgets []any }
		if err := json.Unmarshal([]byte(aws.ToString(made.DashboardBody)), &body); err != nil {
			return fmt.Errorf("read dashboard %q: %w", title, err)
		}
		return same("whether dashboard "+title+" has widgets", true, len(body.Widgets) > 0)
	}))
	return fact(err, "stack %s: %s, %s", name, count(alarms, "alarm"), count(dashboards, "dashboard"))
}

// unprotect lets a stack be deleted. It must have been protected.
func (a *account) unprotect(ctx context.Context, stack string) error {
	found, err := a.stacks.DescribeStacks(ctx, &cloudformation.DescribeStacksInput{StackName: &stack})
	if err != nil {
		return fmt.Errorf("describe stack %s: %w", stack, err)
	}
	if !aws.ToBool(found.Stacks[0].EnableTerminationProtection) {
		return fmt.Errorf("stack %s is not protected from deletion", stack)
	}
	_, err = a.stacks.UpdateTerminationProtection(ctx, &cloudformation.UpdateTerminationProtectionInput{
		StackName: &stack, EnableTerminationProtection: aws.Bool(false),
	})
	if err != nil {
		return fmt.Errorf("unprotect stack %s: %w", stack, err)
	}
	say("", "stack %s was protected from deletion, and is not any more", stack)
	return nil
}

// gone checks that nothing is left but what is retained.
func (a *account) gone(ctx context.Context, c *config.Config) error {
	var problems []error
	stacks, err := a.stacks.ListStacks(ctx, &cloudformation.ListStacksInput{})
	if err != nil {
		return fmt.Errorf("list stacks: %w", err)
	}
	for _, s := range stacks.StackSummaries {
		if name := aws.ToString(s.StackName); strings.HasPrefix(name, c.Prefix()) && s.StackStatus != "DELETE_COMPLETE" {
			problems = append(problems, fmt.Errorf("stack %s is %s", name, s.StackStatus))
		}
	}
	functions, err := a.functions.ListFunctions(ctx, &lambda.ListFunctionsInput{})
	if err != nil {
		return fmt.Errorf("list functions: %w", err)
	}
	mappings, err := a.functions.ListEventSourceMappings(ctx, &lambda.ListEventSourceMappingsInput{})
	if err != nil {
		return fmt.Errorf("list mappings: %w", err)
	}
	alarms, err := a.metrics.DescribeAlarms(ctx, &cloudwatch.DescribeAlarmsInput{})
	if err != nil {
		return fmt.Errorf("list alarms: %w", err)
	}
	dashboards, err := a.metrics.ListDashboards(ctx, &cloudwatch.ListDashboardsInput{})
	if err != nil {
		return fmt.Errorf("list dashboards: %w", err)
	}
	return fact(errors.Join(append(problems,
		same("the number of functions left", 0, len(functions.Functions)),
		same("the number of mappings left", 0, len(mappings.EventSourceMappings)),
		same("the number of alarms left", 0, len(alarms.MetricAlarms)),
		same("the number of dashboards left", 0, len(dashboards.DashboardEntries)),
	)...), "stacks, functions, mappings, alarms and dashboards are gone")
}
