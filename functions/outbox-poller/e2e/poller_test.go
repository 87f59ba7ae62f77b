package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncehouse/infra/local/broker"
	"oncehouse/infra/local/postgres"
	"oncehouse/infra/local/scheduler"
	"oncehouse/shared/metrics"
	"oncehouse/shared/metrics/metricstest"
)

// TestPoller starts the servers once for all that is below.
func TestPoller(t *testing.T) {
	s := start(t)
	t.Run("Publishes", s.testPublishes)
	t.Run("KilledAtAnyMoment", s.testKilledAtAnyMoment)
	t.Run("Frozen", s.testFrozen)
	t.Run("TwoAtOnce", s.testTwoAtOnce)
	t.Run("RowHalts", s.testRowHalts)
	t.Run("TopicMissing", s.testTopicMissing)
	t.Run("NotInitialised", s.testNotInitialised)
	t.Run("Standby", s.testStandby)
	t.Run("DatabaseCrashes", s.testDatabaseCrashes)
	t.Run("Retention", s.testRetention)
	t.Run("RefusesToStart", s.testRefusesToStart)
	t.Run("Sigterm", s.testSigterm)
}

func (s *stack) testPublishes(t *testing.T) {
	o := s.outbox(t, "publishes", "HEADERS=type:header:eventType", "TIMESTAMP_COLUMN=created_at")
	o.initialise()
	o.insert(100)
	answer := o.poll()
	o.drain()
	o.requireExact()
	require.Contains(t, answer, `"fenced":false`)
	for _, r := range o.published() {
		require.Equal(t, "Placed", header(r, "eventType"))
		require.WithinDuration(t, time.Now(), r.Timestamp, time.Minute)
		require.Regexp(t, `^[A-Z2-7]{16}/0-of-1/publishes\.order/`, header(r, "oncehouse-source"))
		require.Regexp(t, `^\d+\.\d+$`, header(r, "oncehouse-position"))
	}
	line := o.entries("shard polled")
	require.NotEmpty(t, line)
	require.Equal(t, "1.2.3-e2e", line[0]["version"])
	rows := 0.0
	for text := range strings.Lines(o.log.String()) {
		if strings.Contains(text, `"_aws"`) {
			m := metricstest.Check(t, []byte(text))
			rows += m[metrics.PublishedRows][0]
			require.NotEmpty(t, m[metrics.OutboxLag])
		}
	}
	require.InDelta(t, 100, rows, 0)
	require.Len(t, o.seen(), len(o.published()), "nothing was aborted")
}

// kill -9 when the broker gets, or has performed, any request that matters: what
// comes of it is the same.
func (s *stack) testKilledAtAnyMoment(t *testing.T) {
	o := s.outbox(t, "killed")
	o.initialise()
	for _, request := range []struct {
		key kmsg.Key
		n   []int // InitProducerID: the first; Produce: plan, rows of a partition, ..., cursor
	}{{kmsg.InitProducerID, []int{1}}, {kmsg.Produce, []int{1, 2, 3, 4, 5}}, {kmsg.EndTxn, []int{1, 2}}} {
		for _, n := range request.n {
			for _, swallow := range []bool{true, false} {
				what := fmt.Sprintf("%s %d, performed: %t", request.key.Name(), n, !swallow)
				o.insert(60)
				killed := make(chan bool, 1)
				s.at(request.key, n, swallow, func() { killed <- o.KillAny() })
				result := o.call(``)
				for tries := 1; result.ErrorType != "Runtime.ExitError" && tries < 20; tries++ {
					result = o.call(``) // a busy machine does not get so far in one run
				}
				require.Equal(t, "Runtime.ExitError", result.ErrorType, "%s: the request never came: %s%s", what, result.ErrorMessage, result.Payload)
				require.True(t, <-killed, what)
				o.drain()
				o.requireExact()
			}
		}
	}
	require.Greater(t, len(o.seen()), len(o.published()), "some attempts left aborted records")
}

// Two environments poll one shard all the time: no row comes twice, none is lost,
// the order stays, and the one that loses leaves with success (O3, O21).
func (s *stack) testTwoAtOnce(t *testing.T) {
	o := s.outbox(t, "two")
	o.initialise()
	ended := make(chan scheduler.Invocation, 100)
	schedule := scheduler.Start(scheduler.Config{
		Function: o.Function, Events: [][]byte{[]byte(`{"shard":0}`), []byte(`{}`)}, Fast: true,
		OnInvocation: func(i scheduler.Invocation) { ended <- i },
	})
	fenced := 0
	for n := 0; n < 6; {
		o.insert(20)
		select {
		case i := <-ended:
			n++
			require.False(t, i.Failed(), "%s: %s %v", i.Result.ErrorType, i.Result.ErrorMessage, i.Err)
			fenced += strings.Count(string(i.Result.Payload), `"fenced":true`)
		case <-time.After(20 * time.Millisecond):
		}
	}
	schedule.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, o.Shutdown(ctx))
	o.deploy()
	o.drain()
	o.requireExact()
	require.Positive(t, fenced)
}

// One row that is too large among many: those before it are published, and the
// shard stands; with a dead letter topic it goes on (O12).
func (s *stack) testRowHalts(t *testing.T) {
	o := s.outbox(t, "halts")
	o.initialise()
	o.insert(10)
	o.exec("INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', 'order-1', 'Large', to_jsonb(repeat('x', 2000000)))")
	o.insert(10)
	result := o.fail("RowHalted")
	require.Contains(t, result.ErrorMessage, "is over the")
	require.NotContains(t, result.ErrorMessage, "xxx")
	require.Len(t, o.published(), 10)
	o.fail("RowHalted")
	require.Len(t, o.published(), 10, "once")

	require.NoError(t, broker.CreateTopics(t.Context(), s.broker, broker.Topic{Name: "halts-dead", Partitions: 1}))
	o.deploy("DEAD_LETTER_TOPIC=halts-dead")
	o.poll()
	for range 10 {
		if len(o.published()) == 20 {
			break
		}
		o.poll()
	}
	require.Len(t, o.published(), 20)
	dead := o.read("halts-dead", kgo.ReadCommitted())
	require.Len(t, dead, 1)
	require.Contains(t, header(dead[0], "oncehouse-dead-letter"), "is over the")
}

// A topic that is not there: nothing behind it is published, the cursor stays, and
// it goes on when the topic is made (O11).
func (s *stack) testTopicMissing(t *testing.T) {
	o := s.outbox(t, "missing")
	o.initialise()
	o.exec("INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('refund', 'order-1', 'Paid', '{}')")
	result := o.fail("TopicMissing")
	require.Contains(t, result.ErrorMessage, "missing.refund")
	require.NoError(t, broker.CreateTopics(t.Context(), s.broker, broker.Topic{Name: "missing.refund", Partitions: 1}))
	require.Contains(t, o.poll(), `"rows":1`)
	require.Len(t, o.read("missing.refund", kgo.ReadCommitted()), 1)
}

// An empty cursor topic may be a lost one: nothing begins without a word (O10).
func (s *stack) testNotInitialised(t *testing.T) {
	o := s.outbox(t, "fresh", "CREATE_CURSOR_TOPIC=")
	o.insert(5)
	o.fail("CursorTopicWrong")
	o.deploy()
	o.fail("NotInitialised")
	require.Empty(t, o.published())
	o.initialise()
	require.Equal(t, "AlreadyInitialised", o.call(`{"oncehouse":{"action":"initialise","from":"now"}}`).ErrorType)
	o.drain()
	o.requireExact()
	inspected := o.call(`{"oncehouse":{"action":"inspect"}}`)
	var answer struct {
		Shards []struct {
			Cursor struct {
				LastSeq int64 `json:"last_seq"`
			} `json:"cursor"`
			Sequence int64 `json:"sequence"`
		} `json:"shards"`
	}
	require.NoError(t, json.Unmarshal(inspected.Payload, &answer), string(inspected.Payload))
	require.Equal(t, int64(5), answer.Shards[0].Cursor.LastSeq)
	require.Equal(t, int64(5), answer.Shards[0].Sequence)
}

// A standby shows no open transactions: rows would be lost (O25).
func (s *stack) testStandby(t *testing.T) {
	o := s.outbox(t, "standby")
	o.initialise()
	o.insert(5)
	follower, err := s.database.Standby(t.Context(), postgres.Options{Root: root})
	require.NoError(t, err)
	t.Cleanup(follower.Close)
	port := follower.URL()[strings.LastIndex(follower.URL(), ":")+1 : strings.LastIndex(follower.URL(), "/")]
	o.deploy("DATABASE_PORT=" + port)
	result := o.fail("Replica")
	require.Contains(t, result.ErrorMessage, "writer endpoint")
	o.deploy()
	o.drain()
	o.requireExact()
}

// The database stops at once while the poller works: it waits, and goes on.
func (s *stack) testDatabaseCrashes(t *testing.T) {
	o := s.outbox(t, "crash")
	o.initialise()
	o.insert(200)
	ended, crashed := make(chan struct{}), make(chan struct{})
	s.at(kmsg.EndTxn, 1, false, func() { close(ended) })
	go func() {
		defer close(crashed)
		<-ended
		s.database.Crash()
	}()
	result := o.call(``)
	for tries := 1; !closed(ended) && tries < 20; tries++ {
		result = o.call(``) // a busy machine does not get so far in one run
	}
	t.Logf("while the database was down: %s %s%s", result.ErrorType, result.ErrorMessage, result.Payload)
	<-crashed
	<-s.database.Dead()
	o.fail("OutboxFailed")
	require.NoError(t, s.database.Restart(t.Context()))
	o.connect()
	o.exec("SET search_path = crash")
	o.insert(10)
	o.drain()
	o.requireExact()
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (s *stack) testRetention(t *testing.T) {
	o := s.outbox(t, "retained", "RETENTION=delete")
	o.initialise()
	o.insert(50)
	for range 20 {
		if o.poll(); o.committed() == 0 {
			break
		}
	}
	require.Zero(t, o.committed(), "what is published is gone")
	require.Len(t, o.published(), 50)
}

func (s *stack) testRefusesToStart(t *testing.T) {
	o := s.outbox(t, "refuses", "OUTBOX=", "SHARDS=none", "DATABASE_TLS=maybe")
	result := o.call(``)
	require.Equal(t, "Configuration", result.ErrorType)
	for _, setting := range []string{"ONCEHOUSE_OUTBOX is missing", "ONCEHOUSE_SHARDS is", "ONCEHOUSE_DATABASE_TLS is"} {
		require.Contains(t, result.ErrorMessage, setting)
	}
	o.deploy("DATABASE_TLS=verify-full", "DATABASE_CA_FILE=/none.pem")
	result = o.call(``)
	require.Equal(t, "Connections", result.ErrorType)
	require.Contains(t, result.ErrorMessage, "/none.pem")
}

func (s *stack) testSigterm(t *testing.T) {
	o := s.outbox(t, "sigterm")
	o.initialise()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, o.Shutdown(ctx))
	require.Len(t, o.entries("outbox poller ends"), 1)
	require.False(t, bytes.Contains([]byte(o.log.String()), []byte("panic")))
}
