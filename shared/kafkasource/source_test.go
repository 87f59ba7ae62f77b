package kafkasource_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"go.uber.org/goleak"

	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	"oncehouse/shared/kafkacluster"
	"oncehouse/shared/kafkasource"
	"oncehouse/shared/offsets"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const topic = "clicks"

var partition0 = kafka.TopicPartition{Topic: topic, Partition: 0}

func TestFetchExactlyTheOffsets(t *testing.T) {
	c := start(t)
	c.produce(t, numbered(0, 30)...)
	for _, of := range []offsets.Set{
		offsets.Between(10, 19), offsets.Of(0), offsets.Of(29), offsets.Between(0, 29), offsets.Of(0, 2, 4, 17, 29), nil,
	} {
		got, err := c.source.Fetch(t.Context(), partition0, of)
		require.NoError(t, err)
		requireOffsets(t, of, got)
		for _, r := range got {
			require.Equal(t, fmt.Sprintf("v%d", r.Offset), string(r.Value))
		}
	}
}

// A hash compares these records with those of an event, so nothing may change.
func TestRecordsAreByteIdentical(t *testing.T) {
	c := start(t)
	at := time.UnixMilli(1774748700123)
	sent := []*kgo.Record{
		{Key: nil, Value: nil, Timestamp: at},
		{Key: []byte{}, Value: []byte{}, Timestamp: at},
		{Key: []byte{0, 255}, Value: []byte("\xff\x00{"), Timestamp: time.UnixMilli(0), Headers: []kgo.RecordHeader{
			{Key: "a", Value: []byte{0x80}}, {Key: "a", Value: nil}, {Key: "", Value: []byte{}},
		}},
		{Key: []byte("k"), Value: make([]byte, 900_000), Timestamp: at},
	}
	c.produce(t, sent...)
	got, err := c.source.Fetch(t.Context(), partition0, offsets.Between(0, 3))
	require.NoError(t, err)
	require.Len(t, got, len(sent))
	for i, r := range got {
		require.Equal(t, sent[i].Key, r.Key, "null stays apart from empty")
		require.Equal(t, sent[i].Value, r.Value, "null stays apart from empty")
		require.Equal(t, sent[i].Timestamp.UnixMilli(), r.Timestamp)
		require.Len(t, r.Headers, len(sent[i].Headers))
		for j, h := range r.Headers {
			require.Equal(t, sent[i].Headers[j].Key, string(h.Key))
			require.Equal(t, string(sent[i].Headers[j].Value), string(h.Value))
		}
	}
}

// Every batch is larger than the broker may send at once, and some are small.
func TestManyAnswers(t *testing.T) {
	c := start(t)
	var all []*kgo.Record
	for i := range 40 {
		all = append(all, &kgo.Record{Value: make([]byte, 1+(i%3)*450_000)})
	}
	c.produce(t, all...)
	got, err := c.source.Fetch(t.Context(), partition0, offsets.Between(0, 39))
	require.NoError(t, err)
	requireOffsets(t, offsets.Between(0, 39), got)
}

func TestBeyondTheEnd(t *testing.T) {
	c := start(t)
	c.produce(t, numbered(0, 5)...)
	for _, tt := range []struct{ of, want offsets.Set }{
		{offsets.Between(3, 9), offsets.Between(3, 4)},
		{offsets.Between(5, 9), nil},
		{offsets.Between(100, 200), nil},
	} {
		got, err := c.source.Fetch(t.Context(), partition0, tt.of)
		require.NoError(t, err)
		requireOffsets(t, tt.want, got)
	}
}

func TestDeletedRecordsAreLeftOut(t *testing.T) {
	c := start(t)
	c.produce(t, numbered(0, 30)...)
	require.NoError(t, c.DeleteRecords(topic, 0, 12))
	for _, tt := range []struct{ of, want offsets.Set }{
		{offsets.Between(5, 19), offsets.Between(12, 19)},
		{offsets.Between(0, 11), nil},
		{offsets.Of(0, 11, 12, 29), offsets.Of(12, 29)},
	} {
		got, err := c.source.Fetch(t.Context(), partition0, tt.of)
		require.NoError(t, err)
		requireOffsets(t, tt.want, got)
	}
	require.NoError(t, c.DeleteRecords(topic, 0, -1))
	got, err := c.source.Fetch(t.Context(), partition0, offsets.Between(5, 19))
	require.NoError(t, err)
	require.Empty(t, got)
}

func TestCompactionLeavesGaps(t *testing.T) {
	c := start(t)
	require.NoError(t, c.CreateTopic("compacted", 1, map[string]string{"cleanup.policy": "compact"}))
	tp := kafka.TopicPartition{Topic: "compacted"}
	for i := range 20 {
		c.produce(t, &kgo.Record{Topic: tp.Topic, Key: fmt.Appendf(nil, "k%d", i%7), Value: fmt.Appendf(nil, "v%d", i)})
	}
	before, err := c.source.Fetch(t.Context(), tp, offsets.Between(0, 19))
	require.NoError(t, err)
	requireOffsets(t, offsets.Between(0, 19), before)
	c.Compact()
	got, err := c.source.Fetch(t.Context(), tp, offsets.Between(0, 19))
	require.NoError(t, err)
	require.NotEmpty(t, got)
	require.Less(t, len(got), 20, "something was compacted away")
	for _, r := range got {
		require.Equal(t, before[r.Offset], r)
	}
}

// Nobody says that the event source mapping reads committed, so aborted records
// may have arrived and must be found; markers are no records, at the end neither.
func TestTransactions(t *testing.T) {
	c := start(t)
	producer := c.client(t, kgo.TransactionalID("tx"))
	for i, commit := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit} {
		require.NoError(t, producer.BeginTransaction())
		require.NoError(t, producer.ProduceSync(t.Context(), numbered(i*3, i*3+2)...).FirstErr())
		require.NoError(t, producer.EndTransaction(t.Context(), commit))
	}
	// 0 1 commit 3 4 abort 6 7 commit
	got, err := c.source.Fetch(t.Context(), partition0, offsets.Between(0, 8))
	require.NoError(t, err)
	requireOffsets(t, offsets.Of(0, 1, 3, 4, 6, 7), got)
	got, err = c.source.Fetch(t.Context(), partition0, offsets.Of(5))
	require.NoError(t, err)
	require.Empty(t, got)
	// An open transaction holds nothing back.
	require.NoError(t, producer.BeginTransaction())
	require.NoError(t, producer.ProduceSync(t.Context(), numbered(9, 11)...).FirstErr())
	got, err = c.source.Fetch(t.Context(), partition0, offsets.Between(8, 10))
	require.NoError(t, err)
	requireOffsets(t, offsets.Of(9, 10), got)
	require.NoError(t, producer.EndTransaction(t.Context(), kgo.TryAbort))
}

func TestTopicID(t *testing.T) {
	c := start(t)
	first, err := c.source.TopicID(t.Context(), topic)
	require.NoError(t, err)
	require.Regexp(t, `^[A-Za-z0-9_-]{22}$`, first, "as Kafka's tools print it")
	again, err := c.source.TopicID(t.Context(), topic)
	require.NoError(t, err)
	require.Equal(t, first, again)

	require.NoError(t, c.DeleteTopic(topic))
	_, err = c.source.TopicID(t.Context(), topic)
	requireUnknownTopic(t, err)
	_, err = c.source.Fetch(t.Context(), partition0, offsets.Of(0))
	requireUnknownTopic(t, err)

	require.NoError(t, c.CreateTopic(topic, 1, nil))
	recreated, err := c.source.TopicID(t.Context(), topic)
	require.NoError(t, err)
	require.NotEqual(t, first, recreated)
}

func TestPartitionOutOfRange(t *testing.T) {
	c := start(t)
	_, err := c.source.Fetch(t.Context(), kafka.TopicPartition{Topic: topic, Partition: 7}, offsets.Of(0))
	requireUnknownTopic(t, err)
	require.ErrorContains(t, err, "fetch offsets 0-0 of clicks-7, at 0")
	require.ErrorContains(t, err, "the topic has 2 partitions")
}

func TestLeaderMoves(t *testing.T) {
	c := start(t)
	c.produce(t, numbered(0, 10)...)
	var asked []int32
	c.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		asked = append(asked, c.CurrentNode())
		if len(asked) > 2 {
			return nil, nil, false
		}
		req, ok := r.(*kmsg.FetchRequest)
		if !ok || len(req.Topics) != 1 {
			return nil, errors.New("no fetch of one topic"), true
		}
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		topic, part := kmsg.NewFetchResponseTopic(), kmsg.NewFetchResponseTopicPartition()
		topic.Topic, topic.TopicID = req.Topics[0].Topic, req.Topics[0].TopicID
		part.ErrorCode = kerr.NotLeaderForPartition.Code
		topic.Partitions, resp.Topics = append(topic.Partitions, part), append(resp.Topics, topic)
		return resp, nil, true
	})
	got, err := c.source.Fetch(t.Context(), partition0, offsets.Between(0, 9))
	require.NoError(t, err)
	requireOffsets(t, offsets.Between(0, 9), got)
	require.GreaterOrEqual(t, len(asked), 3, "it asked again")
}

// While a leader is elected the metadata say so, at the start and after a move.
func TestNoLeaderYet(t *testing.T) {
	c := start(t)
	c.produce(t, numbered(0, 10)...)
	asked := 0
	c.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req, ok := r.(*kmsg.MetadataRequest)
		if !ok || len(req.Topics) == 0 {
			return nil, nil, false
		}
		if asked++; asked > 2 {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.MetadataResponse)
		named, part := kmsg.NewMetadataResponseTopic(), kmsg.NewMetadataResponseTopicPartition()
		named.Topic, part.ErrorCode, part.Leader = kmsg.StringPtr(topic), kerr.LeaderNotAvailable.Code, -1
		named.Partitions, resp.Topics = append(named.Partitions, part), append(resp.Topics, named)
		return resp, nil, true
	})
	got, err := c.source.Fetch(t.Context(), partition0, offsets.Between(0, 9))
	require.NoError(t, err)
	requireOffsets(t, offsets.Between(0, 9), got)
	require.Equal(t, 3, asked)
}

func TestContextBoundsACall(t *testing.T) {
	c := start(t)
	c.produce(t, numbered(0, 10)...)
	ctx, cancel := context.WithCancel(t.Context())
	c.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		cancel()
		return nil, errors.New("no answer"), true
	})
	_, err := c.source.Fetch(ctx, partition0, offsets.Between(0, 9))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, delivery.Retryable, delivery.KindOf(err))
	_, err = c.source.TopicID(ctx, topic)
	require.ErrorIs(t, err, context.Canceled)
}

func TestAuthentication(t *testing.T) {
	for name, mechanism := range map[string]func(user, password string) sasl.Mechanism{
		"PLAIN":         kafkacluster.Plain,
		"SCRAM-SHA-256": kafkacluster.SCRAM256,
		"SCRAM-SHA-512": kafkacluster.SCRAM512,
	} {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, topic), kfake.EnableSASL(), kfake.Superuser(name, "reader", "secret"))
		require.NoError(t, err)
		as := func(password string) *kafkasource.Source {
			return kafkasource.New(kafkacluster.Cluster{Brokers: cluster.ListenAddrs(), SASL: mechanism("reader", password)})
		}
		source := as("secret")
		id, err := source.TopicID(t.Context(), topic)
		require.NoError(t, err, name)
		require.NotEmpty(t, id)
		// kfake hangs up on a wrong password where Kafka says so; both are told.
		source = as("wrong")
		_, err = source.TopicID(t.Context(), topic)
		require.ErrorContains(t, err, "wants TLS or another SASL mechanism", name)
		require.NotContains(t, err.Error(), "wrong", "no secret in an error")
		cluster.ControlKey(int16(kmsg.SASLAuthenticate), func(r kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			resp, ok := r.ResponseKind().(*kmsg.SASLAuthenticateResponse)
			resp.ErrorCode = kerr.SaslAuthenticationFailed.Code
			return resp, nil, ok
		})
		_, err = source.TopicID(t.Context(), topic)
		require.ErrorContains(t, err, "check the mechanism and the credentials", name)
		require.Equal(t, delivery.Fatal, delivery.KindOf(err), name)
		cluster.Close()
	}
}

type cluster struct {
	*kfake.Cluster
	source *kafkasource.Source
	writer *kgo.Client
}

func start(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{}
	var err error
	c.Cluster, err = kfake.NewCluster(kfake.NumBrokers(2), kfake.SeedTopics(2, topic))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	c.source = kafkasource.New(kafkacluster.Cluster{Brokers: c.ListenAddrs()})
	c.writer = c.client(t)
	return c
}

func (c *cluster) client(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(c.ListenAddrs()...), kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DisableClientMetrics(),
	}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

func (c *cluster) produce(t *testing.T, records ...*kgo.Record) {
	t.Helper()
	require.NoError(t, c.writer.ProduceSync(t.Context(), records...).FirstErr())
}

func numbered(from, to int) (records []*kgo.Record) {
	for i := from; i < to; i++ {
		records = append(records, &kgo.Record{Value: fmt.Appendf(nil, "v%d", i)})
	}
	return records
}

func requireOffsets(t *testing.T, want offsets.Set, records []kafka.Record) {
	t.Helper()
	var got offsets.Set
	for _, r := range records {
		got = got.Append(r.Offset)
	}
	require.Equal(t, want.String(), got.String())
}

func requireUnknownTopic(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, kerr.UnknownTopicOrPartition)
	require.ErrorContains(t, err, "check the topic's name")
	require.Equal(t, delivery.Fatal, delivery.KindOf(err))
}
