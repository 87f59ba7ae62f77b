package queue_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"oncehouse/infra/local/queue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSendReceiveDelete(t *testing.T) {
	client, _ := start(t, queue.Options{})
	url := create(t, client, "q")
	// The SDK verifies every MD5 of a body by itself.
	out, err := client.SendMessage(t.Context(), &sqs.SendMessageInput{
		QueueUrl: url, MessageBody: aws.String("héllo \"<&>"),
		MessageAttributes: map[string]types.MessageAttributeValue{
			"topic": {DataType: aws.String("String"), StringValue: aws.String("orders")},
			"n":     {DataType: aws.String("Number"), StringValue: aws.String("7")},
			"raw":   {DataType: aws.String("Binary"), BinaryValue: []byte{0, 255}},
		},
	})
	require.NoError(t, err)
	require.NotEmpty(t, *out.MessageId)
	require.Equal(t, 1, depth(t, client, url))

	got := receive(t, client, url, 10, 30)
	require.Len(t, got, 1)
	require.Equal(t, "héllo \"<&>", *got[0].Body)
	require.Equal(t, *out.MessageId, *got[0].MessageId)
	require.Equal(t, *out.MD5OfMessageAttributes, *got[0].MD5OfMessageAttributes)
	require.Equal(t, []byte{0, 255}, got[0].MessageAttributes["raw"].BinaryValue)
	require.Equal(t, "1", got[0].Attributes["ApproximateReceiveCount"])
	require.Empty(t, receive(t, client, url, 10, 30), "it is out")
	require.Equal(t, 0, depth(t, client, url))

	_, err = client.DeleteMessage(t.Context(), &sqs.DeleteMessageInput{QueueUrl: url, ReceiptHandle: got[0].ReceiptHandle})
	require.NoError(t, err)
	require.Empty(t, receive(t, client, url, 10, 0))
}

// The checksum of attributes is not verified by the SDK: it is held against the
// value that the documented algorithm gives, worked out apart from this code.
func TestMD5OfAttributes(t *testing.T) {
	client, _ := start(t, queue.Options{})
	out, err := client.SendMessage(t.Context(), &sqs.SendMessageInput{
		QueueUrl: create(t, client, "q"), MessageBody: aws.String("x"),
		MessageAttributes: map[string]types.MessageAttributeValue{
			"topic":    {DataType: aws.String("String"), StringValue: aws.String("orders")},
			"pipeline": {DataType: aws.String("String"), StringValue: aws.String("clicks")},
			"raw":      {DataType: aws.String("Binary"), BinaryValue: []byte{0, 255}},
		},
	})
	require.NoError(t, err)
	require.Equal(t, "f997a99ca2ab8c9d60b1ac0c9f2b2292", *out.MD5OfMessageAttributes)
}

func TestVisibility(t *testing.T) {
	var now atomic.Int64
	now.Store(time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC).Unix())
	client, _ := start(t, queue.Options{Now: func() time.Time { return time.Unix(now.Load(), 0) }})
	url := create(t, client, "q")
	send(t, client, url, "a")
	require.Len(t, receive(t, client, url, 1, 5), 1)
	now.Add(4)
	require.Empty(t, receive(t, client, url, 1, 5))
	now.Add(1)
	again := receive(t, client, url, 1, 5)
	require.Len(t, again, 1)
	require.Equal(t, "2", again[0].Attributes["ApproximateReceiveCount"])
}

func TestLongPollWakesUp(t *testing.T) {
	waiting := make(chan struct{}, 1)
	client, _ := start(t, queue.Options{Control: func(c queue.Call) queue.Fault {
		if c.Action == "ReceiveMessage" {
			waiting <- struct{}{}
		}
		return queue.Fault{}
	}})
	url := create(t, client, "q")
	bodies := make(chan string, 1)
	go func() {
		out, err := client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: url, WaitTimeSeconds: 20})
		if err != nil || len(out.Messages) != 1 {
			bodies <- "nothing"
			return
		}
		bodies <- *out.Messages[0].Body
	}()
	<-waiting
	send(t, client, url, "late")
	require.Equal(t, "late", <-bodies)
}

func TestBatches(t *testing.T) {
	client, _ := start(t, queue.Options{})
	url := create(t, client, "q")
	entries := func(n, size int) (all []types.SendMessageBatchRequestEntry) {
		for i := range n {
			all = append(all, types.SendMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), MessageBody: aws.String(strings.Repeat("x", size))})
		}
		return all
	}
	sendBatch := func(e []types.SendMessageBatchRequestEntry) (*sqs.SendMessageBatchOutput, error) {
		return client.SendMessageBatch(t.Context(), &sqs.SendMessageBatchInput{QueueUrl: url, Entries: e})
	}
	for code, bad := range map[string][]types.SendMessageBatchRequestEntry{
		"EmptyBatchRequest":            {},
		"TooManyEntriesInBatchRequest": entries(11, 1),
		"BatchRequestTooLong":          entries(5, 250_000),
		"BatchEntryIdsNotDistinct":     append(entries(1, 1), entries(1, 1)...),
		"InvalidBatchEntryId":          {{Id: aws.String("a/b"), MessageBody: aws.String("x")}},
	} {
		_, err := sendBatch(bad)
		requireCode(t, err, code)
	}
	mixed := entries(3, 1)
	mixed[1].MessageBody = aws.String("\x01")
	out, err := sendBatch(mixed)
	require.NoError(t, err)
	require.Len(t, out.Successful, 2)
	require.Equal(t, "InvalidMessageContents", *out.Failed[0].Code)
	require.True(t, out.Failed[0].SenderFault)
	require.Equal(t, 2, depth(t, client, url))

	var gone []types.DeleteMessageBatchRequestEntry
	for i, m := range receive(t, client, url, 10, 30) {
		gone = append(gone, types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: m.ReceiptHandle})
	}
	gone = append(gone, types.DeleteMessageBatchRequestEntry{Id: aws.String("bad"), ReceiptHandle: aws.String("no receipt")})
	deleted, err := client.DeleteMessageBatch(t.Context(), &sqs.DeleteMessageBatchInput{QueueUrl: url, Entries: gone})
	require.NoError(t, err)
	require.Len(t, deleted.Successful, 2)
	require.Equal(t, "ReceiptHandleIsInvalid", *deleted.Failed[0].Code)
}

func TestQueuesAndTheirNames(t *testing.T) {
	client, server := start(t, queue.Options{})
	url := create(t, client, "dead-a")
	require.Equal(t, *url, *create(t, client, "dead-a"), "creating again changes nothing")
	create(t, client, "other")
	listed, err := client.ListQueues(t.Context(), &sqs.ListQueuesInput{QueueNamePrefix: aws.String("dead-")})
	require.NoError(t, err)
	require.Equal(t, []string{*url}, listed.QueueUrls)
	found, err := client.GetQueueUrl(t.Context(), &sqs.GetQueueUrlInput{QueueName: aws.String("dead-a")})
	require.NoError(t, err)
	require.Equal(t, *url, *found.QueueUrl)
	_, err = client.GetQueueUrl(t.Context(), &sqs.GetQueueUrlInput{QueueName: aws.String("not-there")})
	var missing *types.QueueDoesNotExist
	require.ErrorAs(t, err, &missing)
	_, err = client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: aws.String("a/b")})
	requireCode(t, err, "InvalidParameterValue")
	_, err = client.ListQueueTags(t.Context(), &sqs.ListQueueTagsInput{QueueUrl: url})
	requireCode(t, err, "UnsupportedOperation")

	send(t, client, url, "a", "b")
	require.Equal(t, 2, server.Len("dead-a"))
	_, err = client.PurgeQueue(t.Context(), &sqs.PurgeQueueInput{QueueUrl: url})
	require.NoError(t, err)
	require.Zero(t, server.Len("dead-a"))
}

func TestChangeMessageVisibility(t *testing.T) {
	client, _ := start(t, queue.Options{})
	url := create(t, client, "dead")
	send(t, client, url, "a")
	receive := func() []types.Message {
		out, err := client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: url, VisibilityTimeout: 60})
		require.NoError(t, err)
		return out.Messages
	}
	first := receive()
	require.Len(t, first, 1)
	require.Empty(t, receive())
	show := func(receipt string) error {
		_, err := client.ChangeMessageVisibility(t.Context(), &sqs.ChangeMessageVisibilityInput{QueueUrl: url, ReceiptHandle: &receipt})
		return err
	}
	require.NoError(t, show(*first[0].ReceiptHandle))
	requireCode(t, show(*first[0].ReceiptHandle), "MessageNotInflight")
	require.Len(t, receive(), 1, "it is seen again at once")
	requireCode(t, show(*first[0].ReceiptHandle), "ReceiptHandleIsInvalid")
}

func TestFIFO(t *testing.T) {
	client, server := start(t, queue.Options{})
	url := create(t, client, "q.fifo")
	put := func(group, id, body string) string {
		out, err := client.SendMessage(t.Context(), &sqs.SendMessageInput{
			QueueUrl: url, MessageBody: &body, MessageGroupId: &group, MessageDeduplicationId: &id,
		})
		require.NoError(t, err)
		return *out.MessageId
	}
	first := put("g", "1", "a")
	require.Equal(t, first, put("g", "1", "a"), "a repeat is dropped")
	put("g", "2", "b")
	put("h", "3", "c")
	require.Equal(t, 3, server.Len("q.fifo"))
	got := receive(t, client, url, 1, 30)
	require.Equal(t, "a", *got[0].Body)
	require.Equal(t, "c", *receive(t, client, url, 10, 30)[0].Body, "group g waits for a")
	_, err := client.DeleteMessage(t.Context(), &sqs.DeleteMessageInput{QueueUrl: url, ReceiptHandle: got[0].ReceiptHandle})
	require.NoError(t, err)
	require.Equal(t, "b", *receive(t, client, url, 10, 30)[0].Body)
	_, err = client.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: url, MessageBody: aws.String("x")})
	requireCode(t, err, "MissingParameter")
}

// What was answered is there after a kill; the half line of an answer that was
// never given is not.
func TestLogSurvives(t *testing.T) {
	log := filepath.Join(t.TempDir(), "queues.jsonl")
	client, server := start(t, queue.Options{Log: log})
	url := create(t, client, "q")
	send(t, client, url, "a", "b", "c")
	got := receive(t, client, url, 1, 30)
	_, err := client.DeleteMessage(t.Context(), &sqs.DeleteMessageInput{QueueUrl: url, ReceiptHandle: got[0].ReceiptHandle})
	require.NoError(t, err)
	// The file as it is now, without any closing: what a kill leaves.
	left, err := os.ReadFile(log)
	require.NoError(t, err)
	require.NoError(t, server.Close())
	require.NoError(t, os.WriteFile(log, append(left, `{"op":"send","queue":"q","messages":[{"id":"x"`...), 0o600))

	client, server = start(t, queue.Options{Log: log})
	require.Equal(t, 2, server.Len("q"))
	send(t, client, url, "d") // an old URL still names the queue
	require.NoError(t, server.Close())

	client, _ = start(t, queue.Options{Log: log})
	var bodies []string
	for _, m := range receive(t, client, url, 10, 30) {
		bodies = append(bodies, *m.Body)
	}
	require.Equal(t, []string{"b", "c", "d"}, bodies)
}

func TestDamagedLogIsRefused(t *testing.T) {
	log := filepath.Join(t.TempDir(), "queues.jsonl")
	require.NoError(t, os.WriteFile(log, []byte("{\"op\":\"create\",\"queue\":\"q\"}\nnonsense\n"), 0o600))
	_, err := queue.Start(queue.Options{Log: log})
	require.ErrorContains(t, err, "at byte 28")
}

func TestFaults(t *testing.T) {
	var fault atomic.Pointer[queue.Fault]
	client, server := start(t, queue.Options{Control: func(c queue.Call) queue.Fault {
		if f := fault.Load(); f != nil && c.Action == "SendMessageBatch" {
			return *f
		}
		return queue.Fault{}
	}})
	url := create(t, client, "q")
	batch := &sqs.SendMessageBatchInput{QueueUrl: url, Entries: []types.SendMessageBatchRequestEntry{
		{Id: aws.String("x"), MessageBody: aws.String("1")}, {Id: aws.String("y"), MessageBody: aws.String("2")},
	}}
	fault.Store(&queue.Fault{Refuse: "ThrottlingException"})
	_, err := client.SendMessageBatch(t.Context(), batch)
	requireCode(t, err, "ThrottlingException")
	require.Zero(t, server.Len("q"))
	fault.Store(&queue.Fault{FailEntries: []int{1}})
	out, err := client.SendMessageBatch(t.Context(), batch)
	require.NoError(t, err)
	require.Equal(t, "y", *out.Failed[0].Id)
	require.False(t, out.Failed[0].SenderFault)
	require.Equal(t, 1, server.Len("q"))
	fault.Store(&queue.Fault{DropAnswer: true})
	_, err = client.SendMessageBatch(t.Context(), batch)
	require.Error(t, err)
	require.Equal(t, 3, server.Len("q"), "it landed all the same")
}

func start(t *testing.T, options queue.Options) (*sqs.Client, *queue.Server) {
	t.Helper()
	server, err := queue.Start(options)
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() }) // a test may have closed it
	return sqs.NewFromConfig(server.Config(), func(o *sqs.Options) { o.Retryer = aws.NopRetryer{} }), server
}

func create(t *testing.T, client *sqs.Client, name string) *string {
	t.Helper()
	out, err := client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: &name})
	require.NoError(t, err)
	return out.QueueUrl
}

func send(t *testing.T, client *sqs.Client, url *string, bodies ...string) {
	t.Helper()
	for _, body := range bodies {
		_, err := client.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: url, MessageBody: &body})
		require.NoError(t, err)
	}
}

func receive(t *testing.T, client *sqs.Client, url *string, most, visibility int32) []types.Message {
	t.Helper()
	out, err := client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{
		QueueUrl: url, MaxNumberOfMessages: most, VisibilityTimeout: visibility, MessageAttributeNames: []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{"All"},
	})
	require.NoError(t, err)
	return out.Messages
}

func depth(t *testing.T, client *sqs.Client, url *string) int {
	t.Helper()
	out, err := client.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{
		QueueUrl: url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameApproximateNumberOfMessages},
	})
	require.NoError(t, err)
	n, err := strconv.Atoi(out.Attributes["ApproximateNumberOfMessages"])
	require.NoError(t, err)
	return n
}

func requireCode(t *testing.T, err error, code string) {
	t.Helper()
	var api smithy.APIError
	require.ErrorAs(t, err, &api, code)
	require.Equal(t, code, api.ErrorCode())
}
