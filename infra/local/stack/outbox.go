package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"oncehouse/functions/outbox-poller/handler"
	"oncehouse/infra/local/broker"
	"oncehouse/infra/local/dynamodb"
	"oncehouse/infra/local/lambdahost"
	"oncehouse/infra/local/postgres"
	"oncehouse/infra/local/scheduler"
	"oncehouse/shared/outbox"
	table "oncehouse/shared/outbox/postgres"
)

// Outbox is the table public.outbox of the stack's PostgreSQL, published to Kafka
// by one function. Zero fields take the defaults named here.
type Outbox struct {
	// Name is the outbox's; default orders.
	Name string `yaml:"name"`
	// Template names the topics; default outbox.event.${routedByValue}.
	Template string `yaml:"topic_template"`
	// Aggregates are the aggregate types whose topics are made; default order.
	Aggregates []string `yaml:"aggregates"`
	// Partitions of topics that have to be made; default 6.
	Partitions int32 `yaml:"partitions"`
	// Timeout is the function's; default 60 s.
	Timeout time.Duration `yaml:"timeout"`
	// Fast invokes the function again as soon as it has returned; otherwise it is
	// once a minute.
	Fast bool `yaml:"fast"`
	// Settings are further ones of docs/settings.md, without ONCEHOUSE_.
	Settings map[string]string `yaml:"settings"`
}

func (o *Outbox) setDefaults() {
	o.Name = cmp.Or(o.Name, "orders")
	o.Partitions = cmp.Or(o.Partitions, 6)
	o.Timeout = cmp.Or(o.Timeout, time.Minute)
	o.Template = cmp.Or(o.Template, outbox.DefaultTopic)
	if len(o.Aggregates) == 0 {
		o.Aggregates = []string{"order"}
	}
}

// Topics are those of the aggregates.
func (o Outbox) Topics() []string {
	o.setDefaults()
	var all []string
	for _, aggregate := range o.Aggregates {
		all = append(all, strings.ReplaceAll(o.Template, "${routedByValue}", aggregate))
	}
	return all
}

// RunningOutbox is an outbox at work.
type RunningOutbox struct {
	Outbox    Outbox
	Function  *lambdahost.Function
	Scheduler *scheduler.Scheduler
}

// Stop ends schedule and function at once, as a crash would. It may be called
// more than once.
func (r *RunningOutbox) Stop() {
	r.Scheduler.Stop()
	r.Function.Close()
}

// StartPostgres starts PostgreSQL and makes the outbox table where there is none.
// It is stopped with the stack.
func (s *Stack) StartPostgres(ctx context.Context) error {
	begun := time.Now()
	log, err := s.openLog("postgres")
	if err != nil {
		return err
	}
	dir := filepath.Join(s.options.Dir, "postgres")
	if os.Geteuid() == 0 {
		dir = "" // it runs as nobody, who may not reach a directory of root's
	}
	if s.Postgres, err = postgres.Start(ctx, postgres.Options{Root: s.options.Root, Dir: dir, Port: s.options.PostgresPort, Output: log}); err != nil {
		return err
	}
	s.stops = append(s.stops, s.Postgres.Close)
	conn, err := pgx.Connect(ctx, s.Postgres.URL())
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	var exists bool
	err = conn.QueryRow(ctx, "SELECT to_regclass('public.outbox') IS NOT NULL").Scan(&exists)
	if err == nil && !exists {
		_, err = conn.Exec(ctx, table.Migration(false))
	}
	if err = errors.Join(err, conn.Close(ctx)); err != nil {
		return fmt.Errorf("make the outbox table: %w", err)
	}
	s.status("postgres", s.Postgres.URL()+" "+s.Postgres.Installation().String(), time.Since(begun))
	return nil
}

// StartOutbox builds and starts the poller, initialises its cursor from the
// beginning of the table, and schedules it: once for each outbox. StartPostgres
// comes before it. It is stopped with the stack, or before by its own Stop.
// onInvocation may be nil.
func (s *Stack) StartOutbox(ctx context.Context, o Outbox, onInvocation func(scheduler.Invocation)) (*RunningOutbox, error) {
	o.setDefaults()
	begun := time.Now()
	log, err := s.openLog("outbox-" + o.Name)
	if err != nil {
		return nil, err
	}
	bootstrap, err := s.build(ctx, "outbox-poller", log)
	if err != nil {
		return nil, err
	}
	var topics []broker.Topic
	for _, name := range o.Topics() {
		topics = append(topics, broker.Topic{Name: name, Partitions: o.Partitions, Config: map[string]string{"retention.ms": "-1"}})
	}
	if err := broker.CreateTopics(ctx, s.Broker, topics...); err != nil {
		return nil, err
	}
	env, err := s.outboxEnvironment(o)
	if err != nil {
		return nil, err
	}
	fn, err := lambdahost.New(lambdahost.Config{
		Name: "outbox-" + o.Name, Bootstrap: bootstrap, MemoryMB: functionMemoryMB,
		Timeout: o.Timeout, Concurrency: 2, // one for an operator
		Env: env, Log: log,
	})
	if err != nil {
		return nil, err
	}
	s.invoke.add("outbox-"+o.Name, fn)
	if err := s.initialise(ctx, fn); err != nil {
		fn.Close()
		return nil, err
	}
	r := &RunningOutbox{o, fn, scheduler.Start(scheduler.Config{
		Function: fn, Events: [][]byte{[]byte(`{"shard":0}`)}, Fast: o.Fast, OnInvocation: onInvocation,
	})}
	s.stops = append(s.stops, r.Stop)
	s.status("outbox-"+o.Name, "public.outbox -> "+strings.Join(o.Topics(), ", "), time.Since(begun))
	return r, nil
}

// initialise is what an operator does once. What has a cursor keeps it, but for
// one of another database: where that of an earlier stack is gone, its cursor may
// still be with the broker. A broker that has just started needs a while for its
// first transaction.
func (s *Stack) initialise(ctx context.Context, fn *lambdahost.Function) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	action := "initialise"
	if s.Postgres.Created() {
		action = "reset"
	}
	event := fmt.Appendf(nil, `{"oncehouse":{"action":%q,"shard":0,"from":"beginning"}}`, action)
	for {
		result, err := fn.Invoke(ctx, event)
		switch {
		case err != nil:
			return fmt.Errorf("initialise the outbox: %w", err)
		case result.FunctionError == "", result.ErrorType == outbox.ReasonInitialised:
			return nil
		case result.ErrorType != handler.ReasonFailed: // it stays
			return fmt.Errorf("initialise the outbox: %s", result.ErrorMessage)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("initialise the outbox: %s", result.ErrorMessage)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// outboxEnvironment is what deployment would set, with this machine's addresses.
func (s *Stack) outboxEnvironment(o Outbox) (map[string]string, error) {
	database, err := url.Parse(s.Postgres.URL())
	if err != nil {
		return nil, fmt.Errorf("read PostgreSQL's address: %w", err)
	}
	port, err := strconv.Atoi(database.Port())
	if err != nil {
		return nil, fmt.Errorf("read PostgreSQL's address: %w", err)
	}
	settings := map[string]string{
		"OUTBOX": o.Name, "TOPIC_TEMPLATE": o.Template, "CREATE_CURSOR_TOPIC": "true", "KAFKA_BROKERS": s.Bootstrap(),
		"DATABASE_HOST": database.Hostname(), "DATABASE_PORT": strconv.Itoa(port), "DATABASE_NAME": "postgres",
		"DATABASE_USER": database.User.Username(), "DATABASE_TLS": "disable",
	}
	maps.Copy(settings, o.Settings)
	env := map[string]string{"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_REGION": dynamodb.Region}
	for name, value := range settings {
		env["ONCEHOUSE_"+strings.TrimPrefix(name, "ONCEHOUSE_")] = value
	}
	return env, nil
}
