// Package queue is the delivery.Letters in an SQS queue: one message per letter,
// whose body is the letter's envelope and whose attributes are what people
// filter by.
//
// SQS stores every message before it answers, so a letter is durable when the
// service has named it successful, and Send returns nil only when all are. The
// role needs sqs:SendMessage on the queue.
package queue

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	"golang.org/x/sync/errgroup"

	"oncehouse/shared/attempt"
	"oncehouse/shared/deadletter"
	"oncehouse/shared/delivery"
)

const (
	// maxBatch and maxBytes are the service's limits of one request, the second
	// as it was before August 2025, which every queue takes.
	maxBatch = 10
	maxBytes = 256 << 10
	// rounds is how often the entries of a batch that failed are sent again.
	rounds     = 4
	firstPause = 50 * time.Millisecond
	// parallel requests: thousands of letters take seconds otherwise.
	parallel = 4
)

// Letters is a delivery.Letters in one queue. Its methods are safe for
// concurrent use. Use New.
type Letters struct {
	client *sqs.Client
	url    string
}

var _ delivery.Letters = (*Letters)(nil)

// New returns the letters in the queue with the given URL, standard or FIFO. It
// does no I/O.
func New(cfg aws.Config, url string, optFns ...func(*sqs.Options)) *Letters {
	limits := attempt.Limits{Timeout: 5 * time.Second, Most: 4, Backoff: time.Second}
	return &Letters{client: sqs.NewFromConfig(limits.On(cfg), optFns...), url: url}
}

// Send implements delivery.Letters. Errors are *delivery.Error: Retryable, since
// sending twice is harmless, or Fatal when the queue or the rights are wrong.
func (l *Letters) Send(ctx context.Context, letters []delivery.Letter) error {
	batches, err := l.batches(letters)
	if err != nil {
		return &delivery.Error{Kind: delivery.Fatal, Reason: delivery.ReasonLetters, Message: "send dead letters", Err: err}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, batch := range batches {
		group.Go(func() error { return l.sendBatch(ctx, batch) })
	}
	if err := group.Wait(); err != nil {
		return l.explain(err, len(letters))
	}
	return nil
}

// batches cuts the letters into requests that respect both limits.
func (l *Letters) batches(letters []delivery.Letter) ([][]types.SendMessageBatchRequestEntry, error) {
	var all [][]types.SendMessageBatchRequestEntry
	var batch []types.SendMessageBatchRequestEntry
	bytes := 0
	for _, letter := range letters {
		entry, err := l.entry(letter)
		if err != nil {
			return nil, err
		}
		n := size(entry)
		if len(batch) == maxBatch || (len(batch) > 0 && bytes+n > maxBytes) {
			all, batch, bytes = append(all, batch), nil, 0
		}
		entry.Id = aws.String(strconv.Itoa(len(batch)))
		batch, bytes = append(batch, entry), bytes+n
	}
	if len(batch) > 0 {
		all = append(all, batch)
	}
	return all, nil
}

func (l *Letters) entry(letter delivery.Letter) (types.SendMessageBatchRequestEntry, error) {
	attributes := map[string]types.MessageAttributeValue{}
	room := maxBytes
	for name, value := range map[string]string{"pipeline": letter.Lane.Pipeline, "topic": letter.Lane.Topic, "reason": letter.Code} {
		if value != "" { // SQS refuses empty ones
			attributes[name] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String(value)}
			room -= len(name) + len("String") + len(value)
		}
	}
	body, err := deadletter.New(letter, min(deadletter.MaxBody, room)).Marshal()
	if err != nil {
		return types.SendMessageBatchRequestEntry{}, err
	}
	if len(body) > room {
		return types.SendMessageBatchRequestEntry{}, fmt.Errorf("letter %q has %d bytes without its record", deadletter.ID(letter), len(body))
	}
	entry := types.SendMessageBatchRequestEntry{MessageBody: aws.String(string(body)), MessageAttributes: attributes}
	if l.fifo() {
		// SQS takes 128 characters for either: names can be longer, hashes not. Each
		// letter is a group of its own: of a lane's, one that is kept back would
		// hide all others.
		id := aws.String(hash(deadletter.ID(letter)))
		entry.MessageDeduplicationId, entry.MessageGroupId = id, id
	}
	return entry, nil
}

// sendBatch sends one batch until every entry of it is stored. A batch can fail
// in part, and a request that succeeds can hold failures.
func (l *Letters) sendBatch(ctx context.Context, batch []types.SendMessageBatchRequestEntry) error {
	pause := firstPause
	for round := 1; ; round++ {
		out, err := l.client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: &l.url, Entries: batch})
		if err != nil {
			return err
		}
		stored := map[string]bool{}
		for _, s := range out.Successful {
			stored[aws.ToString(s.Id)] = true
		}
		var rest []types.SendMessageBatchRequestEntry
		for _, entry := range batch {
			if !stored[*entry.Id] { // also one that the answer does not mention
				rest = append(rest, entry)
			}
		}
		if len(rest) == 0 {
			return nil
		}
		for _, f := range out.Failed {
			if f.SenderFault {
				return &refusedError{aws.ToString(f.Code), aws.ToString(f.Message)}
			}
		}
		if round == rounds {
			return fmt.Errorf("%d of %d messages not stored after %d rounds%s", len(rest), len(batch), rounds, firstFailure(out.Failed))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		batch, pause = rest, 2*pause
	}
}

// refusedError is a message that the service will never take.
type refusedError struct{ code, message string }

func (e *refusedError) Error() string { return "message refused: " + e.code + ": " + e.message }

func (l *Letters) explain(err error, letters int) error {
	e := &delivery.Error{
		Kind: delivery.Retryable, Reason: delivery.ReasonLetters,
		Message: fmt.Sprintf("send %d dead letters to %s", letters, l.url), Err: err,
	}
	var refused *refusedError
	if errors.As(err, &refused) {
		e.Kind = delivery.Fatal
		return e
	}
	var api smithy.APIError
	if !errors.As(err, &api) {
		return e
	}
	switch api.ErrorCode() {
	case "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", "InvalidAddress":
		e.Kind, e.Remedy = delivery.Fatal, "create the queue, or name the right one"
	case "AccessDenied", "AccessDeniedException":
		e.Kind, e.Remedy = delivery.Fatal, "allow sqs:SendMessage on the queue (and kms:GenerateDataKey and kms:Decrypt on its key)"
	case "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "InvalidSecurity", "ExpiredTokenException":
		e.Kind, e.Remedy = delivery.Fatal, "check the credentials, region and clock"
	}
	return e
}

func firstFailure(failed []types.BatchResultErrorEntry) string {
	if len(failed) == 0 {
		return ""
	}
	return ": " + aws.ToString(failed[0].Code) + ": " + aws.ToString(failed[0].Message)
}

func (l *Letters) fifo() bool { return strings.HasSuffix(l.url, ".fifo") }

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// size is what counts against SQS's limits.
func size(entry types.SendMessageBatchRequestEntry) int {
	n := len(*entry.MessageBody)
	for name, a := range entry.MessageAttributes {
		n += len(name) + len(*a.DataType) + len(*a.StringValue)
	}
	return n
}
