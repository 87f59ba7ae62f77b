// Package dynamo is the delivery.Ledger in a DynamoDB table: one item per lane,
// replaced whole by conditional writes.
//
//	l := dynamo.New(cfg, "oncehouse-ledger")
//	entry, err := l.Load(ctx, lane)
//	entry.Version, entry.Writer = entry.Version+1, newWriter()
//	err = l.Write(ctx, lane, entry)
//
// The table has the partition key lane (a string) and no sort key; Schema
// describes it. An item is meant to be read in the console (item.go); it is not
// meant to be edited there, and an edit that is not exactly what this program
// would have written is refused.
//
// Both calls ask for what the protocol needs and no more: Load is a consistent
// read, Write a put on condition of the version before. So the function's role
// needs dynamodb:GetItem and dynamodb:PutItem on the table.
package dynamo

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"oncehouse/shared/attempt"
	"oncehouse/shared/delivery"
	"oncehouse/shared/ledger"
)

// Ledger is a delivery.Ledger in one DynamoDB table. Its methods are safe for
// concurrent use. Use New.
type Ledger struct {
	client *dynamodb.Client
	table  string
}

var _ delivery.Ledger = (*Ledger)(nil)

// New returns the ledger in the given table. It does no I/O. A call is tried at
// most 4 times, each time for at most 3 seconds; optFns may change that.
func New(cfg aws.Config, table string, optFns ...func(*dynamodb.Options)) *Ledger {
	limits := attempt.Limits{Timeout: 3 * time.Second, Most: 4, Backoff: 500 * time.Millisecond}
	return &Ledger{client: dynamodb.NewFromConfig(limits.On(cfg), optFns...), table: table}
}

// Schema is the table that a Ledger works on.
func Schema(table string) *dynamodb.CreateTableInput {
	return &dynamodb.CreateTableInput{
		TableName:            &table,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String(attrLane), AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String(attrLane), KeyType: types.KeyTypeHash}},
		BillingMode:          types.BillingModePayPerRequest,
	}
}

// Load implements delivery.Ledger. An item that this version of the program
// would not have written is an error of kind Fatal, never an approximation.
func (l *Ledger) Load(ctx context.Context, lane delivery.Lane) (delivery.Entry, error) {
	out, err := l.client.GetItem(ctx, &dynamodb.GetItemInput{
		TableName:      &l.table,
		Key:            map[string]types.AttributeValue{attrLane: text(lane.Key())},
		ConsistentRead: aws.Bool(true),
	})
	if err != nil {
		return delivery.Entry{}, l.explain(err, fmt.Sprintf("read ledger entry of lane %s", lane.Key()), delivery.Retryable)
	}
	if len(out.Item) == 0 {
		return delivery.Entry{}, nil
	}
	entry, err := decode(lane, out.Item)
	if err != nil {
		return delivery.Entry{}, &delivery.Error{
			Kind: delivery.Fatal, Reason: delivery.ReasonLedger,
			Message: fmt.Sprintf("read ledger entry of lane %s in table %s", lane.Key(), l.table), Err: err,
			Remedy: "undo the edit, or run the version of the program that wrote the entry",
		}
	}
	return entry, nil
}

// Write implements delivery.Ledger.
//
// The SDK may send a write again after an answer was lost. When the first one
// had landed, the second finds the condition false: a conflict with oneself. So
// a failed condition is looked into by reading: the entry that carries our
// writer id is ours.
func (l *Ledger) Write(ctx context.Context, lane delivery.Lane, entry delivery.Entry) error {
	if err := ledger.Check(lane, entry); err != nil {
		return &delivery.Error{Kind: delivery.Fatal, Reason: delivery.ReasonLedger, Err: err}
	}
	item, err := encode(lane, entry)
	if err != nil {
		return &delivery.Error{
			Kind: delivery.Fatal, Reason: delivery.ReasonLedger,
			Message: fmt.Sprintf("write ledger entry of lane %s", lane.Key()), Err: err,
		}
	}
	put := &dynamodb.PutItemInput{TableName: &l.table, Item: item}
	if entry.Version == 1 {
		put.ConditionExpression = aws.String("attribute_not_exists(" + attrLane + ")")
	} else {
		put.ConditionExpression = aws.String("#version = :old")
		put.ExpressionAttributeNames = map[string]string{"#version": attrVersion}
		put.ExpressionAttributeValues = map[string]types.AttributeValue{":old": number(entry.Version - 1)}
	}
	_, err = l.client.PutItem(ctx, put)
	if err == nil {
		return nil
	}
	var failed *types.ConditionalCheckFailedException
	if !errors.As(err, &failed) {
		return l.explain(err, fmt.Sprintf("write ledger entry of lane %s", lane.Key()), delivery.InDoubt)
	}
	found, err := l.Load(ctx, lane)
	if err != nil {
		return fmt.Errorf("find out who wrote version %d of lane %s: %w", entry.Version, lane.Key(), err)
	}
	if found.Version == entry.Version && found.Writer == entry.Writer {
		return nil
	}
	return fmt.Errorf("write ledger entry of lane %s at version %d, found %d: %w",
		lane.Key(), entry.Version, found.Version, delivery.ErrConflict)
}

func text(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

func number(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}
