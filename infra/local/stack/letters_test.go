package stack

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/queue"
)

// TestReceiveLettersWhoseAnswerIsLost: messages that a lost answer hides are
// waited for, not left behind.
func TestReceiveLettersWhoseAnswerIsLost(t *testing.T) {
	var lost atomic.Bool
	server, err := queue.Start(queue.Options{Control: func(c queue.Call) queue.Fault {
		return queue.Fault{DropAnswer: c.Action == "ReceiveMessage" && lost.CompareAndSwap(false, true)}
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	s := &Stack{Queue: server}
	s.letters, err = server.Create(letterQueue)
	require.NoError(t, err)
	client := sqs.NewFromConfig(server.Config())
	for i := range 25 {
		body := fmt.Sprint(i)
		_, err := client.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: &s.letters, MessageBody: &body})
		require.NoError(t, err)
	}

	bodies, err := s.ReceiveLetters(t.Context())
	require.NoError(t, err)
	require.True(t, lost.Load())
	got := map[string]bool{}
	for _, b := range bodies {
		got[string(b)] = true
	}
	require.Len(t, got, 25)
	require.Zero(t, server.Len(letterQueue))
}
