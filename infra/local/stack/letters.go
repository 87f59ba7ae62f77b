package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"oncehouse/infra/local/queue"
)

func (s *Stack) startQueue(_ context.Context, _ io.Writer) (string, error) {
	server, err := queue.Start(queue.Options{Log: filepath.Join(s.options.Dir, "sqs.jsonl")})
	if err != nil {
		return "", err
	}
	s.Queue = server
	s.stops = append(s.stops, func() { _ = server.Close() }) // every message is on disk before its answer
	if s.letters, err = server.Create(letterQueue); err != nil {
		return "", fmt.Errorf("make the dead letter queue: %w", err)
	}
	return s.letters, nil
}

// LetterQueueURL is the queue of all pipelines' dead letters.
func (s *Stack) LetterQueueURL() string { return s.letters }

// ReceiveLetters takes all messages off the dead letter queue. It is done when
// the queue holds none, not when it hands out none: an answer that got lost
// hides its messages for a while. One that was received twice is there twice.
func (s *Stack) ReceiveLetters(ctx context.Context) ([][]byte, error) {
	client := sqs.NewFromConfig(s.Queue.Config())
	var bodies [][]byte
	for {
		got, err := client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
			QueueUrl: &s.letters, MaxNumberOfMessages: 10, VisibilityTimeout: 5, WaitTimeSeconds: 1,
		})
		if err != nil {
			return nil, fmt.Errorf("receive dead letters: %w", err)
		}
		if len(got.Messages) == 0 {
			if s.Queue.Len(letterQueue) > 0 {
				continue
			}
			return bodies, nil
		}
		done := make([]types.DeleteMessageBatchRequestEntry, len(got.Messages))
		for i, m := range got.Messages {
			bodies = append(bodies, []byte(*m.Body))
			done[i] = types.DeleteMessageBatchRequestEntry{Id: m.MessageId, ReceiptHandle: m.ReceiptHandle}
		}
		out, err := client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: &s.letters, Entries: done})
		if err == nil && len(out.Failed) > 0 {
			err = errors.New("some are still there")
		}
		if err != nil {
			return nil, fmt.Errorf("delete received dead letters: %w", err)
		}
	}
}
