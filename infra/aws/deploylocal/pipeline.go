package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	dynamodbtypes "github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	lambdatypes "github.com/aws/aws-sdk-go-v2/service/lambda/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"oncehouse/infra/aws/config"
	"oncehouse/infra/local/template"
	"oncehouse/shared/ledger/dynamo"
)

// base checks the ledger.
func (a *account) base(ctx context.Context, c *config.Config) error {
	name := c.LedgerTable()
	made, err := a.tables.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &name})
	if err != nil {
		return fmt.Errorf("describe the ledger: %w", err)
	}
	backups, err := a.tables.DescribeContinuousBackups(ctx, &dynamodb.DescribeContinuousBackupsInput{TableName: &name})
	if err != nil {
		return fmt.Errorf("describe the ledger's backups: %w", err)
	}
	want, recovery := dynamo.Schema(name), backups.ContinuousBackupsDescription.PointInTimeRecoveryDescription
	return fact(errors.Join(
		same("the ledger's key", want.KeySchema, made.Table.KeySchema),
		same("the ledger's attributes", want.AttributeDefinitions, made.Table.AttributeDefinitions),
		same("the ledger's billing", dynamodbtypes.BillingModePayPerRequest, made.Table.BillingModeSummary.BillingMode),
		same("the ledger's deletion protection", true, aws.ToBool(made.Table.DeletionProtectionEnabled)),
		same("the ledger's recovery", dynamodbtypes.PointInTimeRecoveryStatusEnabled, recovery.PointInTimeRecoveryStatus),
	), "ledger %s: on demand, point-in-time recovery, protected from deletion", name)
}

// pipeline checks a pipeline's function, mapping and queue. ids are the physical
// ids in its stack.
func (a *account) pipeline(ctx context.Context, c *config.Config, p config.Pipeline, ids map[string]string) error {
	return errors.Join(a.function(ctx, c, p), a.mapping(ctx, c, p), a.letters(ctx, c, p, ids))
}

func (a *account) function(ctx context.Context, c *config.Config, p config.Pipeline) error {
	name := c.FunctionName(p)
	made, err := a.functions.GetFunctionConfiguration(ctx, &lambda.GetFunctionConfigurationInput{FunctionName: &name})
	if err != nil {
		return fmt.Errorf("read function %s: %w", name, err)
	}
	queue, err := a.queueURL(ctx, c, p)
	if err != nil {
		return err
	}
	settings := map[string]string{}
	for variable, value := range made.Environment.Variables {
		if strings.HasPrefix(variable, "ONCEHOUSE_") {
			settings[variable] = value
		}
	}
	// CloudFormation knows the queue by AWS's address, the emulator's API by its own.
	settings["ONCEHOUSE_DEAD_LETTER_QUEUE_URL"] = path(settings["ONCEHOUSE_DEAD_LETTER_QUEUE_URL"])
	want := c.SinkEnvironment(p, path(queue))
	architecture := map[string]lambdatypes.Architecture{config.ARM64: lambdatypes.ArchitectureArm64, config.AMD64: lambdatypes.ArchitectureX8664}
	return fact(errors.Join(
		same("the settings of "+name, want, settings),
		same("the memory of "+name, p.Memory, int(aws.ToInt32(made.MemorySize))),
		same("the time-out of "+name, p.Timeout, time.Duration(aws.ToInt32(made.Timeout))*time.Second),
		same("the processor of "+name, []lambdatypes.Architecture{architecture[p.Architecture]}, made.Architectures),
		same("the runtime of "+name, lambdatypes.RuntimeProvidedal2023, made.Runtime),
		same("the handler of "+name, "bootstrap", aws.ToString(made.Handler)),
		same("the tracing of "+name, lambdatypes.TracingModeActive, made.TracingConfig.Mode),
		same("the log format of "+name, lambdatypes.LogFormatJson, made.LoggingConfig.LogFormat),
		same("the log of "+name, "/aws/lambda/"+name, aws.ToString(made.LoggingConfig.LogGroup)),
	), "function %s: %s, %d MB, %s, CodeSha256 %s", name, count(len(settings), "setting"),
		p.Memory, made.Architectures, aws.ToString(made.CodeSha256))
}

// codes checks that functions run the very zips of the assembly.
func (a *account) codes(ctx context.Context, t *template.Template) error {
	return each(t, functionType, func(id string, _ template.Resource) error {
		f, err := t.Function(id)
		if err != nil {
			return err
		}
		zip, err := os.ReadFile(f.Asset)
		if err != nil {
			return fmt.Errorf("read the asset of %s: %w", id, err)
		}
		made, err := a.functions.GetFunctionConfiguration(ctx, &lambda.GetFunctionConfigurationInput{FunctionName: &f.Name})
		if err != nil {
			return fmt.Errorf("read function %s: %w", f.Name, err)
		}
		sum := sha256.Sum256(zip)
		return same("CodeSha256 of "+f.Name, base64.StdEncoding.EncodeToString(sum[:]), aws.ToString(made.CodeSha256))
	})
}

func (a *account) mapping(ctx context.Context, c *config.Config, p config.Pipeline) error {
	name := c.FunctionName(p)
	made, err := a.functions.ListEventSourceMappings(ctx, &lambda.ListEventSourceMappingsInput{FunctionName: &name})
	if err != nil || len(made.EventSourceMappings) != 1 {
		return errors.Join(fmt.Errorf("function %s does not have one mapping", name), err)
	}
	m := made.EventSourceMappings[0]
	problems := []error{
		same("the cluster of "+name, c.Cluster.ARN, aws.ToString(m.EventSourceArn)),
		same("the topics of "+name, []string{p.Topic}, m.Topics),
		same("the consumer group of "+name, c.ConsumerGroup(p), aws.ToString(m.AmazonManagedKafkaEventSourceConfig.ConsumerGroupId)),
		same("the batch size of "+name, p.BatchSize, int(aws.ToInt32(m.BatchSize))),
		same("the batch window of "+name, p.BatchWindow, time.Duration(aws.ToInt32(m.MaximumBatchingWindowInSeconds))*time.Second),
		same("the state of the mapping of "+name, "Enabled", aws.ToString(m.State)),
		same("partial responses of "+name, p.PartialResponses, len(m.FunctionResponseTypes) == 1),
	}
	if p.Pollers.Minimum > 0 {
		problems = append(problems,
			same("the least pollers of "+name, p.Pollers.Minimum, int(aws.ToInt32(m.ProvisionedPollerConfig.MinimumPollers))),
			same("the most pollers of "+name, p.Pollers.Maximum, int(aws.ToInt32(m.ProvisionedPollerConfig.MaximumPollers))))
	}
	return fact(errors.Join(problems...), "mapping %s: topic %s, group %s, window %s", aws.ToString(m.UUID), p.Topic, c.ConsumerGroup(p), p.BatchWindow)
}

func (a *account) letters(ctx context.Context, c *config.Config, p config.Pipeline, ids map[string]string) error {
	queue, err := a.queueURL(ctx, c, p)
	if err != nil {
		return err
	}
	made, err := a.queues.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: &queue, AttributeNames: []sqstypes.QueueAttributeName{sqstypes.QueueAttributeNameAll}})
	if err != nil {
		return fmt.Errorf("read queue %s: %w", queue, err)
	}
	inStack := false
	for _, id := range ids {
		inStack = inStack || path(id) == path(queue)
	}
	return fact(errors.Join(
		same("whether the stack has queue "+queue, true, inStack),
		same("the retention of "+queue, "1209600", made.Attributes[string(sqstypes.QueueAttributeNameMessageRetentionPeriod)]),
		same("whether a policy guards "+queue, true, strings.Contains(made.Attributes[string(sqstypes.QueueAttributeNamePolicy)], "aws:SecureTransport")),
	), "queue %s: 14 days, by TLS only", c.LettersQueue(p))
}

func (a *account) queueURL(ctx context.Context, c *config.Config, p config.Pipeline) (string, error) {
	name := c.LettersQueue(p)
	got, err := a.queues.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &name})
	if err != nil {
		return "", fmt.Errorf("find queue %s: %w", name, err)
	}
	return aws.ToString(got.QueueUrl), nil
}

// path is /<account>/<queue> of a queue's URL.
func path(url string) string {
	parts := strings.Split(url, "/")
	return "/" + strings.Join(parts[max(0, len(parts)-2):], "/")
}

// lane and letter are what is left in the ledger and in the queues.
const (
	lane   = "deploy-local/clicks/0"
	letter = "a record that fits no table"
)

func (a *account) leave(ctx context.Context, c *config.Config) error {
	name := c.LedgerTable()
	_, err := a.tables.PutItem(ctx, &dynamodb.PutItemInput{TableName: &name, Item: ledgerKey(name)})
	if err != nil {
		return fmt.Errorf("write to the ledger: %w", err)
	}
	for _, p := range c.Pipelines {
		queue, err := a.queueURL(ctx, c, p)
		if err != nil {
			return err
		}
		if _, err := a.queues.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &queue, MessageBody: aws.String(letter)}); err != nil {
			return fmt.Errorf("send a letter: %w", err)
		}
	}
	return nil
}

// find checks that what was left is still there.
func (a *account) find(ctx context.Context, c *config.Config) error {
	name := c.LedgerTable()
	item, err := a.tables.GetItem(ctx, &dynamodb.GetItemInput{TableName: &name, Key: ledgerKey(name)})
	if err != nil || len(item.Item) == 0 {
		return errors.Join(errors.New("the ledger has lost its entry"), err)
	}
	for _, p := range c.Pipelines {
		queue, err := a.queueURL(ctx, c, p)
		if err != nil {
			return err
		}
		if err := a.findLetter(ctx, queue); err != nil {
			return err
		}
	}
	say("", "the ledger's entry and the dead letters are still there")
	return nil
}

// findLetter looks at the letter of a queue and gives it back: a receive hides
// it for the queue's own time, since the SDK does not send a VisibilityTimeout
// of zero.
func (a *account) findLetter(ctx context.Context, queue string) error {
	got, err := a.queues.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &queue})
	if err != nil || len(got.Messages) != 1 || aws.ToString(got.Messages[0].Body) != letter {
		return errors.Join(fmt.Errorf("queue %s has lost its letter", queue), err)
	}
	_, err = a.queues.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{
		QueueUrl: &queue, ReceiptHandle: got.Messages[0].ReceiptHandle, VisibilityTimeout: 0,
	})
	if err != nil {
		return fmt.Errorf("give the letter of queue %s back: %w", queue, err)
	}
	return nil
}

func ledgerKey(table string) map[string]dynamodbtypes.AttributeValue {
	key := aws.ToString(dynamo.Schema(table).KeySchema[0].AttributeName)
	return map[string]dynamodbtypes.AttributeValue{key: &dynamodbtypes.AttributeValueMemberS{Value: lane}}
}

// same is an error that names what differs.
func same[T any](what string, want, got T) error {
	if reflect.DeepEqual(want, got) {
		return nil
	}
	return fmt.Errorf("%s: got %v, want %v", what, got, want)
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
