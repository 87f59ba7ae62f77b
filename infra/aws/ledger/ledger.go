// Package ledger is the DynamoDB table in which every lane of an installation
// remembers what it has settled (shared/ledger/dynamo).
//
//	ledger.New(stack, "Ledger", ledger.Props{Name: "oncehouse-production-ledger"})
//
// It is the one thing that must not be lost: with an empty ledger every lane
// begins at its first offset again. So it cannot be deleted by mistake, survives
// its stack, and can be set back to any second of the last 35 days.
package ledger

import (
	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsdynamodb"
	"github.com/aws/aws-cdk-go/awscdk/v2/awskms"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"oncehouse/shared/ledger/dynamo"
)

// Props of a ledger.
type Props struct {
	// Name of the table.
	Name string
	// Key encrypts it; nil for DynamoDB's own.
	Key awskms.IKey
}

// New adds the table. Its logical id is part of what a deployment must keep.
func New(scope constructs.Construct, id string, props Props) awsdynamodb.Table {
	key := *dynamo.Schema(props.Name).KeySchema[0].AttributeName
	table := &awsdynamodb.TableProps{
		TableName:    &props.Name,
		PartitionKey: &awsdynamodb.Attribute{Name: &key, Type: awsdynamodb.AttributeType_STRING},
		// Some items of a few kB, written as often as batches come: no capacity to plan.
		BillingMode:                      awsdynamodb.BillingMode_PAY_PER_REQUEST,
		PointInTimeRecoverySpecification: &awsdynamodb.PointInTimeRecoverySpecification{PointInTimeRecoveryEnabled: jsii.Bool(true)},
		DeletionProtection:               jsii.Bool(true),
		RemovalPolicy:                    awscdk.RemovalPolicy_RETAIN,
	}
	if props.Key != nil {
		table.Encryption, table.EncryptionKey = awsdynamodb.TableEncryption_CUSTOMER_MANAGED, props.Key
	}
	return awsdynamodb.NewTable(scope, &id, table)
}
