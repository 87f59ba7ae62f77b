package dynamo_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsdynamodb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"oncehouse/infra/local/dynamodb"
	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	"oncehouse/shared/ledger/dynamo"
	"oncehouse/shared/ledger/ledgertest"
	"oncehouse/shared/offsets"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	server := start(t)
	ledgertest.Run(t, func(t *testing.T) delivery.Ledger {
		return dynamo.New(server.Config(), server.createTable(t))
	})
}

func TestFaultConformance(t *testing.T) {
	server := start(t)
	ledgertest.RunFaults(t, func(t *testing.T) ledgertest.Faulty {
		cfg, network := server.faulty()
		cfg.RetryMaxAttempts = 1
		l := dynamo.New(cfg, server.createTable(t), func(o *awsdynamodb.Options) { o.Retryer = aws.NopRetryer{} })
		return ledgertest.Faulty{
			Ledger:     l,
			FailBefore: func() { network.next.Store(failBefore) },
			LoseAnswer: func() { network.next.Store(loseAnswer) },
		}
	})
}

// The SDK sends a write again when its answer is lost, and the second one finds
// the first.
func TestConflictWithOneselfIsSuccess(t *testing.T) {
	server := start(t)
	cfg, network := server.faulty()
	l := dynamo.New(cfg, server.createTable(t))
	for version := int64(1); version < 4; version++ {
		network.next.Store(loseAnswer)
		require.NoError(t, l.Write(t.Context(), lane, entryAt(version, fmt.Sprintf("w%d", version))))
	}
	// The same when another writer comes between the two: then it is his.
	other := dynamo.New(server.Config(), server.table)
	network.afterLost = func() { require.NoError(t, other.Write(t.Context(), lane, entryAt(5, "other"))) }
	network.next.Store(loseAnswer)
	require.ErrorIs(t, l.Write(t.Context(), lane, entryAt(4, "w4")), delivery.ErrConflict)
	got, err := l.Load(t.Context(), lane)
	require.NoError(t, err)
	require.Equal(t, entryAt(5, "other"), got)
}

// When nobody can say who wrote the version, it is not a conflict but unknown.
func TestConflictThatCannotBeReadIsUnknown(t *testing.T) {
	server := start(t)
	cfg, network := server.faulty()
	l := dynamo.New(cfg, server.createTable(t), func(o *awsdynamodb.Options) { o.Retryer = aws.NopRetryer{} })
	require.NoError(t, l.Write(t.Context(), lane, entryAt(1, "a")))
	network.refuseReads.Store(true)
	err := l.Write(t.Context(), lane, entryAt(1, "b"))
	require.ErrorContains(t, err, lane.Key())
	require.NotErrorIs(t, err, delivery.ErrConflict)
}

func TestItemIsReadable(t *testing.T) {
	server := start(t)
	l := dynamo.New(server.Config(), server.createTable(t))
	require.NoError(t, l.Write(t.Context(), lane, ledgertest.Full()))
	shown := map[string]string{}
	for name, v := range server.item(t) {
		switch v := v.(type) {
		case *types.AttributeValueMemberS:
			shown[name] = v.Value
		case *types.AttributeValueMemberN:
			shown[name] = "N " + v.Value
		default:
			require.Fail(t, "neither text nor number", "%s is a %T", name, v)
		}
	}
	require.Equal(t, map[string]string{
		"lane": "clicks/main/clicks/3", "schema": "N 1", "version": "N 1", "writer": "5b0c5c1e",
		"generation": "N 2", "guarantee": "exactly-once", "next": "N 100", "floor": "N 2", "ghosts": "N 70", "skipped": "3-9,40",
		"deadline": "2026-03-29T01:31:00.000000001Z", "held_until": "2026-03-29T01:45:00.000000002Z",
		"topic_id": "2Xv9rFfcQ8yzGxU1b0wK5A", "server_uuid": "6d1b0b3e-0d43-4d4f-b2f3-0c9a3d2f9f5e",
		"samples":    `[{"offset":98,"hash":"0000000000000000"},{"offset":99,"hash":"ffffffffffffffff"}]`,
		"positions":  `{"orders-db/public.outbox":{"window":6,"seq":66,"seen":"66"}}`,
		"recreation": `{"topic_id":"other","since":"2026-03-29T01:00:00Z"}`,
		"intent": `{"attempt":2,"token":"oncehouse:clicks:main:clicks:3:2:110-119:fedcba9876543210:2",` +
			`"created":"2026-03-29T01:30:00.123456789Z","from":100,"through":130,"offsets":"100-119,125","count":21,` +
			`"hash":"0123456789abcdef","send":{"offsets":"110-119","count":10,"hash":"fedcba9876543210"},"settled":"40",` +
			`"letters":[{"offset":120,"code":"not_json","column":"amount","message":"value: \"<&> é\u2028\""}],` +
			`"positions":{"orders-db/public.outbox":{"window":7,"seq":70,"seen":"64-65,70"}},"last":{"offset":125,"hash":"0000000000000005"}}`,
	}, shown)
}

// An entry that was edited is read exactly or not at all.
func TestStrictDecoding(t *testing.T) {
	server := start(t)
	l := dynamo.New(server.Config(), server.createTable(t))
	require.NoError(t, l.Write(t.Context(), lane, ledgertest.Full()))
	good := server.item(t)
	s := func(v string) types.AttributeValue { return &types.AttributeValueMemberS{Value: v} }
	n := func(v string) types.AttributeValue { return &types.AttributeValueMemberN{Value: v} }
	intent := good["intent"].(*types.AttributeValueMemberS).Value
	edited := func(old, with string) types.AttributeValue {
		require.Contains(t, intent, old)
		return s(strings.Replace(intent, old, with, 1))
	}
	tests := []struct {
		name, attribute string
		value           types.AttributeValue // nil removes the attribute
	}{
		{"newer schema", "schema", n("2")},
		{"no schema", "schema", nil},
		{"attribute of a newer program", "priority", n("1")},
		{"no version", "version", nil},
		{"version as text", "version", s("1")},
		{"fraction", "next", n("100.5")},
		{"beyond int64", "next", n("9223372036854775808")},
		{"no next", "next", nil},
		{"negative next", "next", n("-1")},
		{"no generation", "generation", nil},
		{"no guarantee", "guarantee", nil},
		{"guarantee", "guarantee", s("exactly-twice")},
		{"no writer", "writer", nil},
		{"skipped out of order", "skipped", s("40,3-9")},
		{"skipped empty", "skipped", s("")},
		{"skipped as a number", "skipped", n("3")},
		{"skipped with a blank", "skipped", s("3-9, 40")},
		{"deadline", "deadline", s("yesterday")},
		{"deadline of another zone", "deadline", s("2026-03-29T03:31:00+02:00")},
		{"deadline with a zero too many", "deadline", s("2026-03-29T01:31:00.10Z")},
		{"samples no JSON", "samples", s("[")},
		{"samples as binary", "samples", &types.AttributeValueMemberB{Value: []byte("[]")}},
		{"positions with a misspelt key", "positions", s(`{"a":{"Window":1,"seq":1}}`)},
		{"positions with a key twice", "positions", s(`{"a":{"window":1,"seq":1},"a":{"window":2,"seq":2}}`)},
		{"recreation", "recreation", s(`{}`)},
		{"intent null", "intent", s("null")},
		{"intent empty", "intent", s("{}")},
		{"intent as a map", "intent", &types.AttributeValueMemberM{Value: map[string]types.AttributeValue{"attempt": n("1")}}},
		{"intent cut short", "intent", s(intent[:len(intent)-1])},
		{"two intents", "intent", s(intent + intent)},
		{"intent with an unknown field", "intent", edited(`"attempt":2`, `"attempt":2,"priority":1`)},
		{"intent without a field", "intent", edited(`"attempt":2,`, "")},
		{"intent with white space", "intent", edited(`"attempt":2`, `"attempt": 2`)},
		{"intent with a bad hash", "intent", edited(`"hash":"0123456789abcdef"`, `"hash":"123"`)},
		{"intent with bad offsets", "intent", edited(`"100-119,125"`, `"125,100-119"`)},
		{"intent with a letter's key in capitals", "intent", edited(`"code"`, `"Code"`)},
		{"intent packed but not", "intent", &types.AttributeValueMemberB{Value: []byte(intent)}},
	}
	for _, tt := range tests {
		item := map[string]types.AttributeValue{}
		for name, v := range good {
			item[name] = v
		}
		if item[tt.attribute] = tt.value; tt.value == nil {
			delete(item, tt.attribute)
		}
		server.put(t, item)
		_, err := l.Load(t.Context(), lane)
		require.ErrorContains(t, err, lane.Key(), tt.name)
		require.ErrorContains(t, err, tt.attribute, tt.name)
		require.Equal(t, delivery.Fatal, delivery.KindOf(err), tt.name)
	}
	server.put(t, good)
	got, err := l.Load(t.Context(), lane)
	require.NoError(t, err)
	require.Equal(t, ledgertest.Full(), got)
}

// The worst chunk: a gap after each of 10,000 records with the longest offsets,
// all of them late, and thousands refused with long messages.
func TestWorstChunkFits(t *testing.T) {
	server := start(t)
	l := dynamo.New(server.Config(), server.createTable(t))
	random := rand.New(rand.NewPCG(1, 2))
	e := ledgertest.Full()
	in := e.Intent
	in.Offsets, in.Settled, in.Letters = nil, nil, nil
	const first = int64(9_000_000_000_000_000_000)
	for offset, i := first, 0; i < 10_000; i++ {
		offset += 2 + random.Int64N(1000)
		in.Settled = in.Settled.Append(offset)
		if i%2 == 0 {
			in.Offsets = in.Offsets.Append(offset)
			continue
		}
		noise := make([]byte, 200)
		for j := range noise {
			noise[j] = byte(' ' + 1 + random.IntN(90))
		}
		in.Letters = append(in.Letters, delivery.Refusal{Offset: offset, Code: "out_of_range", Message: "column amount: value " + string(noise) + "…"})
	}
	in.Send.Offsets = in.Offsets
	require.NoError(t, l.Write(t.Context(), lane, e))
	got, err := l.Load(t.Context(), lane)
	require.NoError(t, err)
	for i, letter := range got.Intent.Letters {
		require.True(t, strings.HasPrefix(in.Letters[i].Message, letter.Message))
		require.NotEmpty(t, letter.Message, "there is room for some of it")
		got.Intent.Letters[i].Message = in.Letters[i].Message
	}
	require.Equal(t, e, got)

	in.Letters, in.Settled = nil, nil
	for offset, i := first, 0; i < 10_000; i++ {
		offset += 2 + random.Int64N(1000)
		in.Settled = in.Settled.Append(offset)
	}
	in.Offsets, in.Send.Offsets = in.Settled, in.Settled
	e.Version = 2
	require.NoError(t, l.Write(t.Context(), lane, e))
	got, err = l.Load(t.Context(), lane)
	require.NoError(t, err)
	require.Equal(t, e, got)
}

func TestWhatDoesNotFitIsNotSent(t *testing.T) {
	sent := atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { sent.Add(1) }))
	defer server.Close()
	l := dynamo.New(stubConfig(t, server.URL), "ledger")

	e := entryAt(1, "w")
	e.Positions = map[string]delivery.Position{strings.Repeat("s", 400<<10): {}}
	err := l.Write(t.Context(), lane, e)
	require.ErrorContains(t, err, "DynamoDB takes 409600")
	require.Equal(t, delivery.Fatal, delivery.KindOf(err))

	long := lane
	long.Cluster = strings.Repeat("c", 2048)
	require.ErrorContains(t, l.Write(t.Context(), long, entryAt(1, "w")), "give the cluster a shorter name")
	require.Zero(t, sent.Load())
}

func TestErrorsSayWhatToDo(t *testing.T) {
	server := start(t)
	missing := dynamo.New(server.Config(), "not-there")
	for _, err := range []error{missing.Write(t.Context(), lane, entryAt(1, "w")), onlyErr(missing.Load(t.Context(), lane))} {
		require.ErrorContains(t, err, "create the table not-there with the string partition key lane")
		require.Equal(t, delivery.Fatal, delivery.KindOf(err))
		require.NotErrorIs(t, err, delivery.ErrConflict)
	}
	tests := []struct {
		code, says        string
		onWrite, onRead   delivery.Kind
		status, attempted int
	}{
		{"AccessDeniedException", "allow dynamodb:GetItem and dynamodb:PutItem on the table ledger", delivery.Fatal, delivery.Fatal, 400, 1},
		{"ExpiredTokenException", "check the credentials", delivery.Fatal, delivery.Fatal, 400, 1},
		{"ValidationException", "needs the string partition key lane", delivery.Fatal, delivery.Fatal, 400, 1},
		{"ProvisionedThroughputExceededException", "use on-demand capacity", delivery.InDoubt, delivery.Retryable, 400, 4},
		{"InternalServerError", "clicks/main/clicks/3", delivery.InDoubt, delivery.Retryable, 500, 4},
	}
	for _, tt := range tests {
		calls := atomic.Int32{}
		stub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			calls.Add(1)
			w.WriteHeader(tt.status)
			_, _ = fmt.Fprintf(w, `{"__type":"com.amazonaws.dynamodb.v20120810#%s","message":"no"}`, tt.code)
		}))
		l := dynamo.New(stubConfig(t, stub.URL), "ledger")
		err := l.Write(t.Context(), lane, entryAt(1, "w"))
		require.ErrorContains(t, err, tt.says)
		require.Equal(t, tt.onWrite, delivery.KindOf(err), tt.code)
		require.EqualValues(t, tt.attempted, calls.Load(), tt.code)
		err = onlyErr(l.Load(t.Context(), lane))
		require.ErrorContains(t, err, tt.says)
		require.Equal(t, tt.onRead, delivery.KindOf(err), tt.code)
		stub.Close()
	}
}

// network is an HTTP client that can lose a request or its answer.
type network struct {
	next        atomic.Int32 // failBefore or loseAnswer for the next PutItem
	refuseReads atomic.Bool
	afterLost   func()
	client      aws.HTTPClient
}

const (
	failBefore = iota + 1
	loseAnswer
)

var errNetwork = errors.New("connection reset")

func (n *network) Do(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".GetItem") {
		if n.refuseReads.Load() {
			return nil, errNetwork
		}
		return n.client.Do(r)
	}
	fault := n.next.Swap(0)
	if fault == failBefore {
		return nil, errNetwork
	}
	resp, err := n.client.Do(r)
	if fault != loseAnswer || err != nil {
		return resp, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return nil, err
	}
	if n.afterLost != nil {
		n.afterLost()
	}
	return nil, &retryable{errNetwork}
}

// retryable marks an error as the SDK does a reset connection.
type retryable struct{ error }

func (*retryable) RetryableError() bool { return true }

type server struct {
	*dynamodb.Server
	client *awsdynamodb.Client
	tables int
	table  string // the last one made
}

func start(t *testing.T) *server {
	t.Helper()
	s, err := dynamodb.Start(t.Context(), dynamodb.Options{})
	require.NoError(t, err)
	t.Cleanup(s.Stop)
	sv := &server{Server: s}
	sv.client = awsdynamodb.NewFromConfig(s.Config())
	return sv
}

func (s *server) faulty() (aws.Config, *network) {
	cfg := s.Config()
	n := &network{client: cfg.HTTPClient}
	cfg.HTTPClient = n
	return cfg, n
}

func (s *server) createTable(t *testing.T) string {
	t.Helper()
	s.tables++
	s.table = fmt.Sprintf("ledger-%d", s.tables)
	_, err := s.client.CreateTable(t.Context(), dynamo.Schema(s.table))
	require.NoError(t, err)
	waiter := awsdynamodb.NewTableExistsWaiter(s.client, func(o *awsdynamodb.TableExistsWaiterOptions) { o.MinDelay = 10 * time.Millisecond })
	require.NoError(t, waiter.Wait(t.Context(), &awsdynamodb.DescribeTableInput{TableName: &s.table}, 10*time.Second))
	return s.table
}

func (s *server) item(t *testing.T) map[string]types.AttributeValue {
	t.Helper()
	out, err := s.client.GetItem(t.Context(), &awsdynamodb.GetItemInput{
		TableName: &s.table, Key: map[string]types.AttributeValue{"lane": &types.AttributeValueMemberS{Value: lane.Key()}},
	})
	require.NoError(t, err)
	return out.Item
}

func (s *server) put(t *testing.T, item map[string]types.AttributeValue) {
	t.Helper()
	_, err := s.client.PutItem(t.Context(), &awsdynamodb.PutItemInput{TableName: &s.table, Item: item})
	require.NoError(t, err)
}

func stubConfig(t *testing.T, url string) aws.Config {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return aws.Config{
		Region: dynamodb.Region, BaseEndpoint: &url, HTTPClient: &http.Client{Transport: transport},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "local", SecretAccessKey: "local"}, nil
		}),
	}
}

func onlyErr(_ delivery.Entry, err error) error { return err }

var lane = delivery.Lane{Pipeline: "clicks", Cluster: "main", TopicPartition: kafka.TopicPartition{Topic: "clicks", Partition: 3}}

func entryAt(version int64, writer string) delivery.Entry {
	return delivery.Entry{
		Generation: 1, Guarantee: delivery.ExactlyOnce, Next: version, Skipped: offsets.Between(0, 0), Version: version, Writer: writer,
	}
}
