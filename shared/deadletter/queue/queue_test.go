package queue_test

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	localqueue "oncehouse/infra/local/queue"
	"oncehouse/shared/deadletter"
	"oncehouse/shared/deadletter/deadlettertest"
	"oncehouse/shared/deadletter/queue"
	"oncehouse/shared/delivery"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	for _, name := range []string{"letters", "letters.fifo"} {
		t.Run(name, func(t *testing.T) {
			deadlettertest.Run(t, func(t *testing.T) deadlettertest.Subject {
				s := start(t, name)
				return deadlettertest.Subject{Letters: s.letters, Held: s.held}
			})
		})
	}
}

func TestQueueConformance(t *testing.T) {
	for _, name := range []string{"letters", "letters.fifo"} {
		t.Run(name, func(t *testing.T) {
			deadlettertest.RunQueue(t, func(t *testing.T) deadlettertest.Queue { return start(t, name).letters })
		})
	}
}

func TestReceivingSaysWhere(t *testing.T) {
	s := start(t, "letters")
	_, err := s.toMissing().Receive(t.Context(), time.Second)
	require.ErrorContains(t, err, "receive dead letters from "+s.url+"-not-there")
}

func TestAttributesAreForFiltering(t *testing.T) {
	s := start(t, "letters")
	require.NoError(t, s.letters.Send(t.Context(), []delivery.Letter{deadlettertest.Letter(1)}))
	got := map[string]string{}
	for name, a := range s.receive(t)[0].MessageAttributes {
		got[name] = *a.StringValue
	}
	require.Equal(t, map[string]string{"pipeline": "clicks", "topic": "web.clicks-1", "reason": "out_of_range"}, got)
}

func TestFIFODropsRepeats(t *testing.T) {
	s := start(t, "letters.fifo")
	for range 3 {
		require.NoError(t, s.letters.Send(t.Context(), []delivery.Letter{deadlettertest.Letter(1), deadlettertest.Letter(2)}))
	}
	require.Equal(t, 2, s.server.Len("letters.fifo"))
}

// A request never holds more than the service takes, and a value that is too
// large for a message is left out and can be recognised.
func TestLimits(t *testing.T) {
	s := start(t, "letters")
	var requests [][]string
	s.control = func(c localqueue.Call) localqueue.Fault {
		requests = append(requests, c.Bodies)
		return localqueue.Fault{}
	}
	var letters []delivery.Letter
	for i := range int64(30) {
		l := deadlettertest.Letter(i)
		l.Record.Value = bytes.Repeat([]byte{byte(i)}, int(i)*10_000)
		letters = append(letters, l)
	}
	require.NoError(t, s.letters.Send(t.Context(), letters))
	for _, bodies := range requests {
		n := 0
		for _, b := range bodies {
			n += len(b)
		}
		require.LessOrEqual(t, len(bodies), 10)
		require.LessOrEqual(t, n, 256<<10)
	}
	held := s.held(t)
	require.Len(t, held, 30)
	for _, e := range held {
		require.Equal(t, e.Record.Offset >= 20, e.Omitted == deadletter.OmitValue, "offset %d", e.Record.Offset)
		require.True(t, e.Complete(letters[e.Record.Offset].Record))
	}
}

func TestPartialFailuresAreSentAgain(t *testing.T) {
	s := start(t, "letters")
	failures := 0
	s.control = func(c localqueue.Call) localqueue.Fault {
		if failures == 3 {
			return localqueue.Fault{}
		}
		failures++
		return localqueue.Fault{FailEntries: []int{0, len(c.Bodies) - 1}}
	}
	var letters []delivery.Letter
	for i := range int64(10) {
		letters = append(letters, deadlettertest.Letter(i))
	}
	require.NoError(t, s.letters.Send(t.Context(), letters))
	require.Equal(t, 10, s.server.Len("letters"), "each is stored once: only what failed was sent again")
}

func TestWhatIsNotStoredIsAnError(t *testing.T) {
	s := start(t, "letters")
	s.control = func(localqueue.Call) localqueue.Fault { return localqueue.Fault{FailEntries: []int{0}} }
	err := s.letters.Send(t.Context(), []delivery.Letter{deadlettertest.Letter(1), deadlettertest.Letter(2)})
	require.ErrorContains(t, err, "1 of 1 messages not stored after 4 rounds: InternalError")
	require.Equal(t, delivery.Retryable, delivery.KindOf(err))
}

// A lost answer is retried: the letter may be there twice, under one id.
func TestLostAnswerIsSentAgain(t *testing.T) {
	s := start(t, "letters")
	lost := false
	s.control = func(localqueue.Call) localqueue.Fault {
		defer func() { lost = true }()
		return localqueue.Fault{DropAnswer: !lost}
	}
	require.NoError(t, s.letters.Send(t.Context(), []delivery.Letter{deadlettertest.Letter(1)}))
	held := s.held(t)
	require.Len(t, held, 2)
	require.Equal(t, held[0], held[1])
}

func TestErrorsSayWhatToDo(t *testing.T) {
	one := []delivery.Letter{deadlettertest.Letter(1)}
	for code, want := range map[string]struct {
		kind delivery.Kind
		says string
	}{
		"QueueDoesNotExist":     {delivery.Fatal, "create the queue"},
		"AccessDeniedException": {delivery.Fatal, "allow sqs:SendMessage"},
		"ExpiredTokenException": {delivery.Fatal, "check the credentials"},
		"ThrottlingException":   {delivery.Retryable, "send 1 dead letters to http://"},
	} {
		s := start(t, "letters")
		s.control = func(localqueue.Call) localqueue.Fault { return localqueue.Fault{Refuse: code} }
		err := s.letters.Send(t.Context(), one)
		require.ErrorContains(t, err, want.says)
		require.Equal(t, want.kind, delivery.KindOf(err), code)
	}
	var e *delivery.Error
	require.ErrorAs(t, start(t, "letters").toMissing().Send(t.Context(), one), &e)
	require.Equal(t, delivery.ReasonLetters, e.Reason)
	require.Equal(t, delivery.Fatal, e.Kind)
}

type subject struct {
	server  *localqueue.Server
	client  *sqs.Client
	cfg     aws.Config
	url     string
	letters *queue.Letters
	mu      sync.Mutex
	control func(localqueue.Call) localqueue.Fault // of sends
}

func start(t *testing.T, name string) *subject {
	t.Helper()
	s := &subject{}
	var err error
	s.server, err = localqueue.Start(localqueue.Options{Control: func(c localqueue.Call) localqueue.Fault {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.control == nil || c.Action != "SendMessageBatch" {
			return localqueue.Fault{}
		}
		return s.control(c)
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.server.Close()) })
	s.url, err = s.server.Create(name)
	require.NoError(t, err)
	s.cfg = s.server.Config()
	s.client = sqs.NewFromConfig(s.cfg)
	s.letters = queue.New(s.cfg, s.url)
	return s
}

func (s *subject) toMissing() *queue.Letters { return queue.New(s.cfg, s.url+"-not-there") }

func (s *subject) receive(t *testing.T) (all []types.Message) {
	t.Helper()
	for {
		out, err := s.client.ReceiveMessage(context.WithoutCancel(t.Context()), &sqs.ReceiveMessageInput{
			QueueUrl: &s.url, MaxNumberOfMessages: 10, MessageAttributeNames: []string{"All"},
		})
		require.NoError(t, err)
		if len(out.Messages) == 0 {
			return all
		}
		for _, m := range out.Messages {
			_, err := s.client.DeleteMessage(t.Context(), &sqs.DeleteMessageInput{QueueUrl: &s.url, ReceiptHandle: m.ReceiptHandle})
			require.NoError(t, err)
		}
		all = append(all, out.Messages...)
	}
}

func (s *subject) held(t *testing.T) (all []deadletter.Envelope) {
	t.Helper()
	for _, m := range s.receive(t) {
		e, err := deadletter.Parse([]byte(*m.Body))
		require.NoError(t, err)
		all = append(all, e)
	}
	return all
}
