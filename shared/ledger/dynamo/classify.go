package dynamo

import (
	"errors"

	"github.com/aws/smithy-go"

	"oncehouse/shared/delivery"
)

// explain makes an error of the SDK say what it means and what to do. otherwise
// is the kind of one that says nothing of itself: Retryable for a read, InDoubt
// for a write, throttled ones included, because an earlier attempt of the same
// call may have landed before the last one was turned away.
func (l *Ledger) explain(err error, doing string, otherwise delivery.Kind) error {
	e := &delivery.Error{Kind: otherwise, Reason: delivery.ReasonLedger, Message: doing, Err: err}
	var api smithy.APIError
	if !errors.As(err, &api) {
		return e
	}
	switch api.ErrorCode() {
	case "ResourceNotFoundException":
		e.Kind = delivery.Fatal
		e.Remedy = "create the table " + l.table + " with the string partition key " + attrLane + ", or name the right one"
	case "AccessDeniedException":
		e.Kind = delivery.Fatal
		e.Remedy = "allow dynamodb:GetItem and dynamodb:PutItem on the table " + l.table
	case "UnrecognizedClientException", "InvalidSignatureException", "ExpiredTokenException", "MissingAuthenticationTokenException":
		e.Kind = delivery.Fatal
		e.Remedy = "check the credentials, region and clock"
	case "ValidationException":
		e.Kind = delivery.Fatal
		e.Remedy = "the table " + l.table + " needs the string partition key " + attrLane + " and no sort key"
	case "ProvisionedThroughputExceededException", "RequestLimitExceeded", "ThrottlingException":
		e.Remedy = "the ledger is throttled: use on-demand capacity, or raise the table's"
	}
	return e
}
