// Package stack is oncehouse on one machine: a Kafka broker, the ClickHouse
// engine, DynamoDB for the ledger, SQS for dead letters, and for each pipeline
// the real sink in a Lambda host behind an event source mapping.
//
//	s, err := stack.Start(ctx, stack.Options{Root: root, Dir: ".cache/local", Status: os.Stdout})
//	if err != nil {
//		return err
//	}
//	defer s.Stop()
//	running, err := s.StartPipeline(ctx, stack.Pipeline{Name: "clicks", Topic: "clicks", Table: "clicks"})
//
// Everything listens on loopback only, is checked before Start returns, and
// says so in one line each. What a part prints is in Dir/log/<part>.log. Stop ends
// every process; when this process dies without it, Linux ends them (package
// process). With the same Dir, a later stack goes on where this one stopped.
//
// The sink is built as it is for production (build.go) and configured through
// its environment alone (pipeline.go).
package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"oncehouse/infra/local/broker"
	"oncehouse/infra/local/dynamodb"
	"oncehouse/infra/local/engine"
	"oncehouse/infra/local/engine/chdb"
	"oncehouse/infra/local/postgres"
	"oncehouse/infra/local/queue"
)

const (
	ledgerTable = "oncehouse-ledger"
	letterQueue = "oncehouse-letters"
	// startTimeout bounds the start of one part: a busy machine loads the engine
	// from disk. A build is not bounded: the first one downloads and compiles the
	// AWS SDK, and takes as long as network and machine need.
	startTimeout = 5 * time.Minute
	// minFree is what the parts need before the first record is stored.
	minFree = 512 << 20
)

// Options of a stack. Zero ports are free ones.
type Options struct {
	// Root is the repository: node_modules and the sink's source. Required.
	Root string
	// Dir holds data and logs, and belongs to one stack at a time. Required.
	Dir string
	// Fresh removes the data of earlier stacks from Dir first.
	Fresh bool
	// Kafka is "embedded" (also ""), "apache", or addresses of a broker that
	// runs already: host:port, several with commas.
	Kafka          string
	KafkaPort      int
	ClickHousePort int
	PostgresPort   int
	// Program has the subcommand engine, which calls engine.Serve; "" is the
	// program that runs now.
	Program string
	// Status takes one line for each part; nil discards them.
	Status io.Writer
}

// Stack is what runs.
type Stack struct {
	Engine   *engine.Server
	DynamoDB *dynamodb.Server
	Queue    *queue.Server
	Broker   broker.Broker
	Postgres *postgres.Server // after StartPostgres

	options   Options
	library   string // of the engine
	bootstrap string
	letters   string
	invoke    *invokeAPI
	// stops end the parts, the latest first.
	stops []func()
}

// Start starts all parts. Errors are one line and say what to do about a
// missing tool or package, a taken port, a directory in use, or a full disk;
// what was started by then is ended again.
func Start(ctx context.Context, options Options) (*Stack, error) {
	s := &Stack{options: options}
	if err := s.start(ctx, startTimeout); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

func (s *Stack) start(ctx context.Context, timeout time.Duration) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	s.say("%-20s %s", "logs", s.relative(filepath.Dir(s.logPath(""))))
	if err := s.startPart(ctx, "sink", s.buildSink); err != nil {
		return err
	}
	for _, part := range []struct {
		name  string
		start startFunc
	}{
		{"kafka", s.startBroker},
		{"clickhouse", s.startEngine},
		{"dynamodb", s.startDynamoDB},
		{"sqs", s.startQueue},
		{"lambda", s.startInvokeAPI},
	} {
		within, cancel := context.WithTimeout(ctx, timeout)
		err := s.startPart(within, part.name, part.start)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// startFunc starts a part that writes what it prints to log, and returns where
// the part is.
type startFunc func(ctx context.Context, log io.Writer) (address string, err error)

func (s *Stack) startPart(ctx context.Context, name string, start startFunc) error {
	begun := time.Now()
	log, err := s.openLog(name)
	if err != nil {
		return err
	}
	address, err := start(ctx, log)
	if err != nil {
		return err
	}
	s.status(name, address, time.Since(begun))
	return nil
}

// prepare checks what must be so before anything is started.
func (s *Stack) prepare(ctx context.Context) error {
	var err error
	if s.library, err = chdb.Find(s.options.Root); err != nil {
		return err
	}
	for _, path := range []*string{&s.options.Root, &s.options.Dir} {
		if *path, err = filepath.Abs(*path); err != nil {
			return fmt.Errorf("locate %s: %w", *path, err)
		}
	}
	if err := os.MkdirAll(filepath.Join(s.options.Dir, "log"), 0o750); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	unlock, err := lock(s.options.Dir)
	if err != nil {
		return err
	}
	s.stops = append(s.stops, unlock)
	if s.options.Fresh {
		for _, data := range []string{"kafka", "kafka-apache", "clickhouse", "dynamodb", "postgres", "sqs.jsonl"} {
			if err := os.RemoveAll(filepath.Join(s.options.Dir, data)); err != nil {
				return fmt.Errorf("remove the data of an earlier stack: %w", err)
			}
		}
	}
	if free, err := freeBytes(s.options.Dir); err == nil && free < minFree {
		return fmt.Errorf("the disk is full: %s has %d MB free and %d are needed: free some space or choose another --dir", s.options.Dir, free>>20, minFree>>20)
	}
	if s.options.Program == "" {
		if s.options.Program, err = os.Executable(); err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
	}
	kafka := s.options.KafkaPort
	if !s.ownBroker() {
		kafka = 0 // a broker that runs already has its port
	}
	return errors.Join(
		portIsFree(ctx, "ClickHouse", "--clickhouse-port", s.options.ClickHousePort),
		portIsFree(ctx, "Kafka", "--kafka-port", kafka),
		portIsFree(ctx, "PostgreSQL", "--postgres-port", s.options.PostgresPort),
	)
}

// ownBroker: the stack starts the broker itself.
func (s *Stack) ownBroker() bool {
	return slices.Contains([]string{"", "embedded", "apache"}, s.options.Kafka)
}

func (s *Stack) startBroker(ctx context.Context, log io.Writer) (string, error) {
	var err error
	dir := filepath.Join(s.options.Dir, "kafka")
	switch s.options.Kafka {
	case "", "embedded":
		s.Broker, err = embedded(broker.EmbeddedConfig{Port: s.options.KafkaPort, Dir: dir, Log: log})
	case "apache":
		var b *broker.ApacheBroker
		b, err = broker.Apache(ctx, broker.ApacheConfig{
			Cache: filepath.Join(s.options.Root, ".cache", "kafka"), Dir: dir + "-apache", Port: s.options.KafkaPort, Log: log,
		})
		s.Broker = b
	default:
		s.Broker, err = broker.Dial(ctx, strings.Split(s.options.Kafka, ",")...)
	}
	if err != nil {
		return "", err
	}
	s.stops = append(s.stops, s.Broker.Close)
	return s.Bootstrap(), nil
}

// embedded keeps a nil broker out of the interface when there is an error.
func embedded(cfg broker.EmbeddedConfig) (broker.Broker, error) {
	b, err := broker.Embedded(cfg)
	if err != nil {
		return nil, err
	}
	return b, nil
}

func (s *Stack) startEngine(ctx context.Context, log io.Writer) (string, error) {
	var err error
	s.Engine, err = engine.Start(ctx, engine.Options{
		Binary: s.options.Program, Args: []string{"engine"}, Library: s.library,
		Data: filepath.Join(s.options.Dir, "clickhouse"), Addr: loopback(s.options.ClickHousePort), Output: log,
	})
	if err != nil {
		return "", err
	}
	s.stops = append(s.stops, s.Engine.Stop)
	return s.Engine.URL(), nil
}

func (s *Stack) startDynamoDB(ctx context.Context, log io.Writer) (string, error) {
	var err error
	s.DynamoDB, err = dynamodb.Start(ctx, dynamodb.Options{
		Table: ledgerTable, Data: filepath.Join(s.options.Dir, "dynamodb"), Root: s.options.Root, Output: log,
	})
	if err != nil {
		return "", err
	}
	s.stops = append(s.stops, s.DynamoDB.Stop)
	return s.DynamoDB.Endpoint(), nil
}

// Bootstrap is the broker's addresses as Kafka clients take them.
func (s *Stack) Bootstrap() string { return strings.Join(s.Broker.Addrs(), ",") }

// Stop ends everything that was started, the latest first, and waits for it.
func (s *Stack) Stop() {
	for i := len(s.stops) - 1; i >= 0; i-- {
		s.stops[i]()
	}
	s.stops = nil
}

// Wait blocks until ctx is over (nil), or one of the processes ended by itself.
func (s *Stack) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.Engine.Dead():
		return fmt.Errorf("the ClickHouse engine ended by itself, see %s: %w", s.logPath("clickhouse"), s.Engine.Err())
	case <-s.DynamoDB.Dead():
		return fmt.Errorf("dynalite ended by itself, see %s", s.logPath("dynamodb"))
	}
}

// status prints a part's line.
func (s *Stack) status(name, address string, took time.Duration) {
	s.say("%-20s ready in %6.2f s  %s", name, took.Seconds(), address)
}

// say prints a line. One that cannot be written is no reason to end what runs.
func (s *Stack) say(format string, args ...any) {
	if s.options.Status != nil {
		_, _ = fmt.Fprintf(s.options.Status, format+"\n", args...)
	}
}

func (s *Stack) logPath(name string) string {
	return filepath.Join(s.options.Dir, "log", name+".log")
}

// relative is path as it is shown: from the working directory where it lies
// below it.
func (s *Stack) relative(path string) string {
	wd, err := os.Getwd()
	if err != nil {
		return path
	}
	if short, err := filepath.Rel(wd, path); err == nil && !strings.HasPrefix(short, "..") {
		return short
	}
	return path
}

// openLog starts a part's log anew and closes it with the stack.
func (s *Stack) openLog(name string) (io.Writer, error) {
	file, err := os.Create(s.logPath(name))
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", name, err)
	}
	s.stops = append(s.stops, func() { _ = file.Close() }) // nothing is buffered
	return file, nil
}

// lock makes sure that no other stack uses the directory. The kernel gives the
// lock up when the process ends, however it ends.
func lock(dir string) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("%s is in use by another local stack: stop that one, or choose another --dir", dir)
	}
	return func() { _ = file.Close() }, nil
}
