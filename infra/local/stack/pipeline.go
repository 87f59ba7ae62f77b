package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"oncehouse/functions/sink/config"
	"oncehouse/infra/local/broker"
	"oncehouse/infra/local/dynamodb"
	"oncehouse/infra/local/lambdahost"
	"oncehouse/infra/local/mapping"
	"oncehouse/shared/delivery"
)

// Pipeline is one topic into one table, through one function. Zero fields take
// the defaults named here.
type Pipeline struct {
	// Name is part of the ledger's keys; default Topic.
	Name string `yaml:"name"`
	// Topic is made when it is not there. Required.
	Topic string `yaml:"topic"`
	// Partitions of a topic that has to be made; default 6.
	Partitions int32 `yaml:"partitions"`
	// Table has to be there before the first record; default Topic.
	Table string `yaml:"table"`
	// Guarantee; default exactly-once.
	Guarantee delivery.Guarantee `yaml:"guarantee"`
	// BatchSize and Window are the event source mapping's; default 10000
	// records and none.
	BatchSize int           `yaml:"batch_size"`
	Window    time.Duration `yaml:"window"`
	// Concurrency is how many events are at work at a time; default 2.
	Concurrency int `yaml:"concurrency"`
	// Timeout is the function's; default 60 s.
	Timeout time.Duration `yaml:"timeout"`
	// Settings are further ones of docs/settings.md, without ONCEHOUSE_.
	Settings map[string]string `yaml:"settings"`

	// Bootstrap is another program in the sink's place; default the sink.
	Bootstrap string `yaml:"-"`
	// Env are further variables of the process; they win over the stack's.
	Env map[string]string `yaml:"-"`
}

// cluster names the local broker in the ledger's keys: events of self-managed
// Kafka do not.
const cluster = "local"

// functionMemoryMB is what the function is told it has.
const functionMemoryMB = 512

func (p *Pipeline) setDefaults() {
	p.Name = cmp.Or(p.Name, p.Topic)
	p.Table = cmp.Or(p.Table, p.Topic)
	p.Partitions = cmp.Or(p.Partitions, 6)
	p.Guarantee = cmp.Or(p.Guarantee, delivery.ExactlyOnce)
	p.BatchSize = cmp.Or(p.BatchSize, mapping.MaxBatchSize)
	p.Concurrency = cmp.Or(p.Concurrency, 2)
	p.Timeout = cmp.Or(p.Timeout, time.Minute)
}

// ReadPipelines reads a YAML file: {pipelines: [...]} with the fields above.
// Error: a field that does not exist, a topic missing, a name used twice, or no
// pipeline at all.
func ReadPipelines(path string) ([]Pipeline, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the pipelines: %w", err)
	}
	defer func() { _ = file.Close() }()
	var content struct {
		Pipelines []Pipeline `yaml:"pipelines"`
	}
	decoder := yaml.NewDecoder(file)
	decoder.KnownFields(true)
	if err := decoder.Decode(&content); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the pipelines of %s: %w", path, err)
	}
	names := map[string]bool{}
	for i := range content.Pipelines {
		p := &content.Pipelines[i]
		p.setDefaults()
		switch {
		case p.Topic == "":
			return nil, fmt.Errorf("read the pipelines of %s: pipeline %d has no topic", path, i+1)
		case names[p.Name]:
			return nil, fmt.Errorf("read the pipelines of %s: two pipelines are called %s: give one another name", path, p.Name)
		}
		names[p.Name] = true
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("read the pipelines of %s: there is none in it: pipelines: [{topic: clicks}] expected; infra/local/pipelines.example.yaml explains it", path)
	}
	return content.Pipelines, nil
}

// Check says what would keep the pipeline's function from starting: every setting
// that is wrong. It needs nothing that runs.
func (p Pipeline) Check() error {
	p.setDefaults()
	if p.Bootstrap != "" { // another program has settings of its own
		return nil
	}
	const host = "127.0.0.1:1"
	if _, err := config.Parse(p.environment(addresses{host, "http://" + host, "http://" + host, "http://" + host, "http://" + host})); err != nil {
		return fmt.Errorf("configure pipeline %s: %w", p.Name, err)
	}
	return nil
}

// Running is a pipeline at work.
type Running struct {
	Pipeline Pipeline
	Function *lambdahost.Function
	Mapping  *mapping.Mapping
}

// StartPipeline makes the topic and starts function and mapping. adjust may
// change what the mapping is told (faults); nil changes nothing. It is stopped
// with the stack, or before by its own Stop. Error: among others, every setting
// that keeps the function from starting.
func (s *Stack) StartPipeline(ctx context.Context, p Pipeline, adjust func(*mapping.Config)) (*Running, error) {
	p.setDefaults()
	begun := time.Now()
	if err := p.Check(); err != nil { // the function would say so, too: at the first record
		return nil, err
	}
	topic := broker.Topic{Name: p.Topic, Partitions: p.Partitions, Config: map[string]string{"retention.ms": "-1"}}
	if err := broker.CreateTopics(ctx, s.Broker, topic); err != nil {
		return nil, err
	}
	fn, log, err := s.Function(p)
	if err != nil {
		return nil, err
	}
	cfg := mapping.Config{
		Brokers: s.Broker.Addrs(), Topic: p.Topic, Group: "oncehouse-" + p.Name + "-v1",
		Function: fn, FunctionARN: fn.ARN(),
		BatchSize: p.BatchSize, MaximumBatchingWindow: p.Window,
		Pollers: p.Concurrency, MaxConcurrency: p.Concurrency,
		ReportBatchItemFailures: true, Backoff: 200 * time.Millisecond, MaxBackoff: 2 * time.Second,
		Log: slog.New(slog.NewTextHandler(log, nil)),
	}
	if adjust != nil {
		adjust(&cfg)
	}
	m, err := mapping.Start(ctx, cfg)
	if err != nil {
		fn.Close()
		return nil, err
	}
	r := &Running{p, fn, m}
	s.stops = append(s.stops, r.Stop)
	s.status("sink-"+p.Name, fmt.Sprintf("%s -> %s, %s", p.Topic, p.Table, p.Guarantee), time.Since(begun))
	return r, nil
}

// Stop ends mapping and function at once, as a crash would. It may be called
// more than once.
func (r *Running) Stop() {
	r.Mapping.Stop()
	r.Function.Close()
}

// Function is the pipeline's function without a mapping. Its log is also where
// the mapping's goes.
func (s *Stack) Function(p Pipeline) (*lambdahost.Function, io.Writer, error) {
	p.setDefaults()
	log, err := s.openLog("sink-" + p.Name)
	if err != nil {
		return nil, nil, err
	}
	fn, err := lambdahost.New(lambdahost.Config{
		Name: p.Name, Bootstrap: cmp.Or(p.Bootstrap, s.bootstrap), MemoryMB: functionMemoryMB,
		Timeout: p.Timeout, Concurrency: p.Environments(), Env: s.environment(p), Log: log,
	})
	if err != nil {
		return nil, nil, err
	}
	s.invoke.add(p.Name, fn)
	return fn, log, nil
}

// addresses are where a pipeline's function finds what it talks to.
type addresses struct{ kafka, clickhouse, dynamodb, sqs, letters string }

func (s *Stack) environment(p Pipeline) map[string]string {
	return p.environment(addresses{s.Bootstrap(), s.Engine.URL(), s.DynamoDB.Endpoint(), s.Queue.Endpoint(), s.LetterQueueURL()})
}

// environment is what deployment would set, with this machine's addresses.
func (p Pipeline) environment(at addresses) map[string]string {
	env := map[string]string{
		"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_REGION": dynamodb.Region,
		"AWS_ENDPOINT_URL_DYNAMODB": at.dynamodb,
		"AWS_ENDPOINT_URL_SQS":      at.sqs,
	}
	settings := map[string]string{
		"PIPELINE": p.Name, "TOPIC": p.Topic, "CLUSTER": cluster, "GUARANTEE": string(p.Guarantee),
		"KAFKA_BROKERS": at.kafka, "LEDGER_TABLE": ledgerTable, "DEAD_LETTER_QUEUE_URL": at.letters,
		"CLICKHOUSE_URL": at.clickhouse, "CLICKHOUSE_TABLE": p.Table,
		"FUNCTION_TIMEOUT": p.Timeout.String(), "REPORT_BATCH_ITEM_FAILURES": "true",
	}
	maps.Copy(settings, p.Settings)
	for name, value := range settings {
		env["ONCEHOUSE_"+strings.TrimPrefix(name, "ONCEHOUSE_")] = value
	}
	maps.Copy(env, p.Env)
	return env
}

// Environments is how many events the function takes at a time: one more than
// the mapping sends, for an operator's.
func (p Pipeline) Environments() int {
	p.setDefaults()
	return p.Concurrency + 1
}

// FunctionName is the name after defaults: the function's too.
func (p Pipeline) FunctionName() string {
	p.setDefaults()
	return p.Name
}

// TableName is the table after defaults.
func (p Pipeline) TableName() string {
	p.setDefaults()
	return p.Table
}
