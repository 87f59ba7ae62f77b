// Package e2e runs the sink as Lambda runs it: the real binary behind the real
// Runtime API, against the real ClickHouse engine and emulators of DynamoDB and
// SQS.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncehouse/infra/local/broker"
	"oncehouse/infra/local/clickstream"
	"oncehouse/infra/local/dynamodb"
	"oncehouse/infra/local/engine"
	"oncehouse/infra/local/engine/enginetest"
	"oncehouse/infra/local/engine/faults"
	"oncehouse/infra/local/lambdahost"
	"oncehouse/infra/local/process"
	"oncehouse/infra/local/queue"
	"oncehouse/shared/deadletter"
	"oncehouse/shared/kafka"
)

const (
	user        = "sink"
	password    = "s3cret-of-the-test"
	version     = "1.2.3-e2e"
	ledgerTable = "ledger"
	cluster     = "local"
	// functionTimeout is for a busy machine: nothing waits for it.
	functionTimeout = 2 * time.Minute
	// deliveries are the most of one event: the mapping knows no bound.
	deliveries = 10
)

// short is for pipelines whose function is crashed or frozen: what is sent before
// is over soon, and on a busy machine an insert or a probe may fail for it.
func short(insertTimeout string) []string {
	return []string{"INSERT_TIMEOUT=" + insertTimeout, "SEND_WINDOW=200ms"}
}

// stack is what all pipelines of the tests share.
type stack struct {
	bootstrap string
	engine    *enginetest.Server
	ledger    *dynamodb.Server
	ddl       string // of table clicks
}

// start builds the binary and starts the servers; they end with the test.
func start(t testing.TB) *stack {
	t.Helper()
	return startWith(t, dynamodb.Options{Table: ledgerTable})
}

func startWith(t testing.TB, ledger dynamodb.Options) *stack {
	t.Helper()
	s := &stack{bootstrap: build(t)}
	s.engine = enginetest.RunWith(t, engine.Options{User: user, Password: password})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var err error
	s.ledger, err = dynamodb.Start(ctx, ledger)
	require.NoError(t, err)
	t.Cleanup(s.ledger.Stop)
	ddl, err := os.ReadFile("../../../events/clicks.sql")
	require.NoError(t, err)
	s.ddl = string(ddl)
	return s
}

// build makes the binary as deployment does.
func build(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bootstrap")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-tags", "lambda.norpc", "-trimpath",
		"-ldflags", "-s -w -X main.version="+version+" -X main.commit=abc123", "-o", path, "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return path
}

// pipeline is one deployed sink with a table and a queue of its own, and with
// something to break in front of each server.
type pipeline struct {
	*lambdahost.Function
	t        testing.TB
	stack    *stack
	database string
	conn     clickhouse.Conn
	inserts  *faults.Proxy // in front of the engine
	writes   *gate         // in front of DynamoDB
	letters  *queue.Server
	// ahead is how far the clock of the letters' queue is ahead.
	ahead atomic.Int64
	// onSend is called when letters are sent the next time.
	onSend atomic.Pointer[func() queue.Fault]
	// onDelete is called when a letter is deleted the next time.
	onDelete atomic.Pointer[func() queue.Fault]
	log      *process.Output
}

// options of a pipeline; what is empty gets a default.
type options struct {
	topic    string
	ddl      string // "none" for no table
	settings []string
	env      map[string]string
	memoryMB int
	// concurrency is how many processes there may be; 2 by default.
	concurrency int
}

func (s *stack) pipeline(t testing.TB, name string, o options) *pipeline {
	t.Helper()
	p := &pipeline{t: t, stack: s, database: "db_" + strings.ReplaceAll(name, "-", "_"), log: &process.Output{}}
	s.engine.Exec(t, "CREATE DATABASE "+p.database)
	opts := s.engine.Options()
	opts.Auth.Database = p.database
	var err error
	p.conn, err = clickhouse.Open(opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.conn.Close()) })
	if o.ddl == "" {
		o.ddl = s.ddl
	}
	if o.ddl != "none" {
		require.NoError(t, p.conn.Exec(t.Context(), o.ddl))
	}
	p.inserts = enginetest.Faults(t, s.engine)
	p.writes = newGate(t, s.ledger.Endpoint())
	clock := func() time.Time { return time.Now().Add(time.Duration(p.ahead.Load())) }
	p.letters, err = queue.Start(queue.Options{Now: clock, Control: func(c queue.Call) queue.Fault {
		if strings.HasPrefix(c.Action, "SendMessage") {
			if act := p.onSend.Swap(nil); act != nil {
				return (*act)()
			}
		}
		if c.Action == "DeleteMessage" {
			if act := p.onDelete.Swap(nil); act != nil {
				return (*act)()
			}
		}
		return queue.Fault{}
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.letters.Close()) })
	letterURL, err := p.letters.Create(name)
	require.NoError(t, err)

	o.concurrency = max(o.concurrency, 2)
	topic := o.topic
	if topic == "" {
		topic = "clicks"
	}
	env := map[string]string{
		"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_REGION": dynamodb.Region,
		"AWS_ENDPOINT_URL_DYNAMODB": p.writes.url(), "AWS_ENDPOINT_URL_SQS": p.letters.Endpoint(),
		"ONCEHOUSE_PIPELINE": name, "ONCEHOUSE_TOPIC": topic, "ONCEHOUSE_CLUSTER": cluster,
		"ONCEHOUSE_LEDGER_TABLE": ledgerTable, "ONCEHOUSE_DEAD_LETTER_QUEUE_URL": letterURL,
		"ONCEHOUSE_CLICKHOUSE_URL": "http://" + p.inserts.Addr(), "ONCEHOUSE_CLICKHOUSE_DATABASE": p.database,
		"ONCEHOUSE_CLICKHOUSE_TABLE": "clicks", "ONCEHOUSE_CLICKHOUSE_USER": user, "ONCEHOUSE_CLICKHOUSE_PASSWORD": password,
		// A crashed function's lane is undecided for the sum of the last three:
		// tests that crash it want them short, and redeliver.
		"ONCEHOUSE_FUNCTION_TIMEOUT": functionTimeout.String(), "ONCEHOUSE_INSERT_TIMEOUT": "20s", "ONCEHOUSE_SEND_WINDOW": "5s", "ONCEHOUSE_CLOCK_MARGIN": "20ms",
	}
	for _, setting := range o.settings {
		key, value, _ := strings.Cut(setting, "=")
		if env["ONCEHOUSE_"+key] = value; value == "" {
			delete(env, "ONCEHOUSE_"+key)
		}
	}
	maps.Copy(env, o.env)
	p.Function, err = lambdahost.New(lambdahost.Config{
		Name: name, Bootstrap: s.bootstrap, MemoryMB: o.memoryMB, Timeout: functionTimeout, InitTimeout: time.Minute,
		Concurrency: o.concurrency, Env: env, Log: p.log,
	})
	require.NoError(t, err)
	t.Cleanup(p.Close)
	t.Cleanup(func() {
		if t.Failed() {
			log := p.log.String()
			t.Log(log[max(0, len(log)-6000):])
		}
	})
	return p
}

// deliver invokes the function and wants success in words.
func (p *pipeline) deliver(payload []byte) lambdahost.Result {
	p.t.Helper()
	result, err := p.Invoke(p.t.Context(), payload)
	require.NoError(p.t, err)
	p.settled(result)
	return result
}

// redeliver delivers to a pipeline with short time-outs until it succeeds, as the
// mapping does: on a busy machine one of them may not be enough.
func (p *pipeline) redeliver(payload []byte) {
	p.t.Helper()
	p.settled(p.until("", payload))
}

// failAs delivers until that kind of failure comes: "Runtime.ExitError" when the
// function is killed. Success is none.
func (p *pipeline) failAs(errorType string, payload []byte) {
	p.t.Helper()
	result := p.until(errorType, payload)
	require.Equal(p.t, errorType, result.ErrorType, "%s: %s", result.Payload, result.ErrorMessage)
}

// until delivers, a few times at most, until a delivery succeeds or fails as
// wanted.
func (p *pipeline) until(errorType string, payload []byte) lambdahost.Result {
	p.t.Helper()
	for tries := 1; ; tries++ {
		result, err := p.Invoke(p.t.Context(), payload)
		require.NoError(p.t, err)
		if result.FunctionError == "" || result.ErrorType == errorType || tries == deliveries {
			return result
		}
		p.t.Logf("delivered again after %s: %s", result.ErrorType, result.ErrorMessage)
	}
}

// settled wants an answer that says in words that everything is settled.
func (p *pipeline) settled(result lambdahost.Result) {
	p.t.Helper()
	require.Empty(p.t, result.FunctionError, "%s: %s", result.ErrorType, result.ErrorMessage)
	require.JSONEq(p.t, `{"batchItemFailures":[]}`, string(result.Payload))
}

// fail invokes the function and wants an error.
func (p *pipeline) fail(payload []byte) lambdahost.Result {
	p.t.Helper()
	result, err := p.Invoke(p.t.Context(), payload)
	require.NoError(p.t, err)
	require.NotEmpty(p.t, result.FunctionError, string(result.Payload))
	return result
}

// startKafka starts a broker that holds the records of batches of one topic,
// partition by partition, offset by offset.
func (s *stack) startKafka(t testing.TB, batches ...kafka.Batch) []string {
	t.Helper()
	server, err := broker.Embedded(broker.EmbeddedConfig{})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	require.NoError(t, broker.CreateTopics(t.Context(), server, broker.Topic{Name: batches[0].Topic, Partitions: 1 + slices.MaxFunc(batches, func(a, b kafka.Batch) int { return int(a.Partition - b.Partition) }).Partition}))
	client, err := kgo.NewClient(kgo.SeedBrokers(server.Addrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	defer client.Close()
	for _, b := range batches {
		produce(t, client, b)
	}
	return server.Addrs()
}

func produce(t testing.TB, client *kgo.Client, b kafka.Batch) {
	t.Helper()
	var all []*kgo.Record
	for i := range b.Records {
		r := &b.Records[i]
		out := &kgo.Record{Topic: b.Topic, Partition: b.Partition, Key: r.Key, Value: r.Value, Timestamp: time.UnixMilli(r.Timestamp)}
		for _, h := range r.Headers {
			out.Headers = append(out.Headers, kgo.RecordHeader{Key: string(h.Key), Value: h.Value})
		}
		all = append(all, out)
	}
	for i, produced := range client.ProduceSync(t.Context(), all...) {
		require.NoError(t, produced.Err)
		require.Equal(t, b.Records[i].Offset, produced.Record.Offset)
	}
}

// offsets are the offsets of clicks-2 in the table, sorted, with repeats.
func (p *pipeline) offsets() []int64 {
	p.t.Helper()
	var all []int64
	err := p.conn.QueryRow(p.t.Context(), "SELECT arraySort(groupArray(_offset)) FROM clicks WHERE _topic = 'clicks' AND _partition = 2").Scan(&all)
	require.NoError(p.t, err)
	return all
}

func (p *pipeline) count() int {
	p.t.Helper()
	var n uint64
	require.NoError(p.t, p.conn.QueryRow(p.t.Context(), "SELECT count() FROM clicks").Scan(&n))
	return int(n)
}

// dead takes the letters off the queue and returns their offsets by lane, each
// id once. It is done when the queue is empty: an answer that got lost hides its
// messages for a while.
func (p *pipeline) dead() map[string][]int64 {
	p.t.Helper()
	client := sqs.NewFromConfig(p.letters.Config())
	letterURL, err := p.letters.Create(p.name())
	require.NoError(p.t, err)
	seen, out := map[string]bool{}, map[string][]int64{}
	for {
		got, err := client.ReceiveMessage(p.t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &letterURL, MaxNumberOfMessages: 10, VisibilityTimeout: 5})
		require.NoError(p.t, err)
		if p.letters.Len(p.name()) == 0 {
			for _, list := range out {
				slices.Sort(list)
			}
			return out
		}
		for _, m := range got.Messages {
			_, err := client.DeleteMessage(p.t.Context(), &sqs.DeleteMessageInput{QueueUrl: &letterURL, ReceiptHandle: m.ReceiptHandle})
			require.NoError(p.t, err)
			letter := parse(p.t, m)
			if id := deadletter.ID(letter.Letter); !seen[id] {
				seen[id] = true
				lane := letter.Lane.String()
				out[lane] = append(out[lane], letter.Record.Offset)
			}
		}
	}
}

func parse(t testing.TB, m types.Message) deadletter.Envelope {
	t.Helper()
	letter, err := deadletter.Parse([]byte(*m.Body))
	require.NoError(t, err)
	return letter
}

func (p *pipeline) name() string {
	return strings.ReplaceAll(strings.TrimPrefix(p.database, "db_"), "_", "-")
}

// entries are the log lines with that message.
func (p *pipeline) entries(message string) []map[string]any {
	p.t.Helper()
	var out []map[string]any
	for line := range strings.Lines(p.log.String()) {
		var entry map[string]any
		if json.Unmarshal([]byte(line), &entry) == nil && entry["msg"] == message {
			out = append(out, entry)
		}
	}
	return out
}

// gate forwards to DynamoDB and does something else with one chosen write.
type gate struct {
	server *httptest.Server
	target string
	mu     sync.Mutex
	seen   int
	at     int
	act    func(forward func())
	// answered: act's, then the answer goes its way.
	answered bool
}

func newGate(t testing.TB, target string) *gate {
	g := &gate{target: target}
	g.server = httptest.NewServer(g)
	t.Cleanup(g.server.Close)
	return g
}

func (g *gate) url() string { return g.server.URL }

// onWrite has act done with the n-th write from now on, counted from 1; it is
// then cut off without an answer.
func (g *gate) onWrite(n int, act func(forward func())) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seen, g.at, g.act, g.answered = 0, n, act, false
}

// beforeAnswer has act done between the n-th write from now on and its answer.
func (g *gate) beforeAnswer(n int, act func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seen, g.at, g.answered = 0, n, true
	g.act = func(forward func()) { forward(); act() }
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	var act func(func())
	var answered bool
	if strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".PutItem") {
		g.mu.Lock()
		if g.seen++; g.seen == g.at {
			act, answered = g.act, g.answered
		}
		g.mu.Unlock()
	}
	if act != nil {
		answer := httptest.NewRecorder()
		act(func() { _ = g.forward(answer, r, body) })
		if !answered {
			panic(http.ErrAbortHandler)
		}
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
		return
	}
	if g.forward(w, r, body) != nil {
		panic(http.ErrAbortHandler)
	}
}

// forward goes on when the client is gone, as a request on its way does.
func (g *gate) forward(w http.ResponseWriter, r *http.Request, body []byte) error {
	request, err := http.NewRequestWithContext(context.WithoutCancel(r.Context()), http.MethodPost, g.target, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header = r.Header.Clone()
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	maps.Copy(w.Header(), response.Header)
	w.WriteHeader(response.StatusCode)
	_, err = io.Copy(w, response.Body)
	return err
}

// stream makes the records of the tests.
var stream = clickstream.Generator{Seed: 7, Size: 320}

// batch is first..last of a partition of clicks; the record of an offset is
// always the same one. Those in poison do not fit the table.
func batch(partition int32, first, last int64, poison ...int64) kafka.Batch {
	b := stream.Batch(kafka.TopicPartition{Topic: "clicks", Partition: partition}, first, first, int(last-first+1))
	for i := range b.Records {
		if slices.Contains(poison, b.Records[i].Offset) {
			b.Records[i].Value = []byte(`{"event_id":`)
		}
	}
	return b
}

func event(batches ...kafka.Batch) []byte {
	return clickstream.Mapping{BootstrapServers: "127.0.0.1:1"}.Payload(nil, batches...)
}

// through are the offsets first..last without some.
func through(first, last int64, without ...int64) []int64 {
	var out []int64
	for o := first; o <= last; o++ {
		if !slices.Contains(without, o) {
			out = append(out, o)
		}
	}
	return out
}
