package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"oncehouse/shared/deadletter"
)

// patience is how long an empty queue is watched: SQS asks all of its servers
// only when it may wait, and answers too little otherwise.
const patience = 1

// maxHidden is the longest that SQS hides a message.
const maxHidden = 12 * time.Hour

// Receive takes up to 10 messages that nobody else sees for the given time. The
// role needs sqs:ReceiveMessage (and kms:Decrypt on the queue's key).
func (l *Letters) Receive(ctx context.Context, hidden time.Duration) ([]deadletter.Message, error) {
	seconds := int32(min(hidden, maxHidden).Round(time.Second) / time.Second)
	out, err := l.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: &l.url, MaxNumberOfMessages: maxBatch, VisibilityTimeout: max(seconds, 1), WaitTimeSeconds: patience,
	})
	if err != nil {
		return nil, fmt.Errorf("receive dead letters from %s: %w", l.url, err)
	}
	messages := make([]deadletter.Message, len(out.Messages))
	for i, m := range out.Messages {
		messages[i] = deadletter.Message{ID: aws.ToString(m.MessageId), Body: []byte(aws.ToString(m.Body)), Receipt: aws.ToString(m.ReceiptHandle)}
	}
	return messages, nil
}

// Delete removes a message that was received. The role needs sqs:DeleteMessage.
func (l *Letters) Delete(ctx context.Context, m deadletter.Message) error {
	if _, err := l.client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: &l.url, ReceiptHandle: &m.Receipt}); err != nil {
		return fmt.Errorf("delete dead letter %s from %s: %w", m.ID, l.url, err)
	}
	return nil
}

// Return lets others see a message again at once. The role needs
// sqs:ChangeMessageVisibility.
func (l *Letters) Return(ctx context.Context, m deadletter.Message) error {
	_, err := l.client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{QueueUrl: &l.url, ReceiptHandle: &m.Receipt})
	if err != nil {
		return fmt.Errorf("return dead letter %s to %s: %w", m.ID, l.url, err)
	}
	return nil
}
