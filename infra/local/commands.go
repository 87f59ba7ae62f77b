package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"oncehouse/infra/local/demo"
	"oncehouse/infra/local/demo/chain"
	"oncehouse/infra/local/engine"
	"oncehouse/infra/local/mapping"
	"oncehouse/infra/local/repository"
	"oncehouse/infra/local/stack"
	"oncehouse/shared/delivery"
)

type engineCommand struct {
	Data    string `help:"Directory that holds the data." required:"" type:"path"`
	Addr    string `help:"Address to listen on; port 0 is a free one." default:"127.0.0.1:0"`
	Library string `help:"Path of libchdb; default the one that make setup installs." type:"path"`
	Config  string `help:"ClickHouse configuration file; default an empty one." type:"path"`
}

// Run serves until SIGTERM.
func (c *engineCommand) Run(ctx context.Context) error {
	if c.Library == "" {
		library, err := findLibrary()
		if err != nil {
			return err
		}
		c.Library = library
	}
	return engine.Serve(ctx, engine.Options{Data: c.Data, Addr: c.Addr, Library: c.Library, Config: c.Config})
}

type demoCommand struct {
	Records int64  `help:"Records in all; 8 in 10 exactly once." default:"1000000"`
	Seed    uint64 `help:"Seed of the click stream and of the faults." default:"1"`
	Dir     string `help:"Directory for data and logs; emptied at the start." type:"path" default:".cache/demo"`
	Kafka   string `help:"The broker: embedded, apache (Java 17, and Maven once), or host:port of one that runs." env:"KAFKA" default:"embedded"`

	Events int64 `help:"Events of the second part, from PostgreSQL to ClickHouse; 0 leaves it out." default:"20000"`
	Rate   int   `help:"The most transactions a second of the order service; 0: as many as there can be." default:"600"`
}

// Run runs the demo on a fresh stack.
func (c *demoCommand) Run(ctx context.Context) error {
	root, err := repository.Root()
	if err != nil {
		return err
	}
	if c.Records != 0 && c.Records < 100 || c.Events != 0 && c.Events < 100 || c.Records+c.Events == 0 {
		return fmt.Errorf("--records is %d and --events %d: at least 100 expected of one, so that there is something to break", c.Records, c.Events)
	}
	s, err := stack.Start(ctx, stack.Options{Root: root, Dir: c.Dir, Fresh: true, Kafka: c.Kafka, Status: os.Stdout})
	if err != nil {
		return err
	}
	defer s.Stop()
	fmt.Println()
	return errors.Join(c.guarantees(ctx, s, root), c.chain(ctx, s, root))
}

// guarantees is the first part: from Kafka to ClickHouse.
func (c *demoCommand) guarantees(ctx context.Context, s *stack.Stack, root string) error {
	if c.Records == 0 {
		return nil
	}
	proofs, err := demo.Run(ctx, s, demo.Options{Root: root, Dir: shown(c.Dir), Records: c.Records, Seed: c.Seed, Out: os.Stdout, Terminal: isTerminal(os.Stdout)})
	if err != nil {
		return s.Explain(err)
	}
	for _, p := range proofs {
		fmt.Println(p)
	}
	for _, p := range proofs {
		if p.Guarantee == delivery.ExactlyOnce && !p.Exact() {
			return errors.New("exactly-once was not exact")
		}
	}
	return nil
}

// chain is the second: from PostgreSQL.
func (c *demoCommand) chain(ctx context.Context, s *stack.Stack, root string) error {
	if c.Events == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	fmt.Println()
	proof, err := chain.Run(ctx, s, chain.Options{
		Root: root, Dir: c.Dir, Events: c.Events, Rate: c.Rate, Seed: c.Seed, Out: os.Stdout, Terminal: isTerminal(os.Stdout),
	})
	if err != nil {
		return s.Explain(err)
	}
	fmt.Println(proof)
	if !proof.Holds() {
		return errors.New("the chain from PostgreSQL to ClickHouse was not exact, or not in order")
	}
	return nil
}

func isTerminal(file *os.File) bool {
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

type upCommand struct {
	Dir            string `help:"Directory for data and logs; data stay from one run to the next." type:"path" default:".cache/local"`
	Fresh          bool   `help:"Begin without the data of earlier runs."`
	Kafka          string `help:"The broker: embedded, apache (Java 17, and Maven once), or host:port of one that runs." env:"KAFKA" default:"embedded"`
	KafkaPort      int    `help:"Port of the broker; 0 is a free one." default:"9092"`
	ClickHousePort int    `name:"clickhouse-port" help:"Port of ClickHouse's HTTP interface; 0 is a free one." default:"8123"`

	Outbox       bool `help:"Run PostgreSQL with an outbox table too, the poller that publishes it, and a pipeline from it into the table orders."`
	PostgresPort int  `help:"Port of PostgreSQL; 0 is a free one." default:"5432"`

	Pipelines string             `help:"YAML file of pipelines; infra/local/pipelines.example.yaml explains it." type:"existingfile" xor:"pipeline"`
	Topic     string             `help:"Start one pipeline from this topic." xor:"pipeline"`
	Table     string             `help:"The table of --topic; default the topic's name."`
	Guarantee delivery.Guarantee `help:"The guarantee of --topic: exactly-once, at-least-once or at-most-once." default:"exactly-once" enum:"exactly-once,at-least-once,at-most-once"`
}

// repeatAfter is how often a failure that stays is told.
const repeatAfter = 30 * time.Second

// Run runs the stack until ctx is over.
func (c *upCommand) Run(ctx context.Context) error {
	root, err := repository.Root()
	if err != nil {
		return err
	}
	pipelines, err := c.pipelines()
	if err != nil {
		return err
	}
	running := pipelines
	if c.Outbox {
		running = append(slices.Clone(pipelines), stack.Pipeline{Name: "orders", Topic: stack.Outbox{}.Topics()[0], Table: "orders"})
	} else {
		c.PostgresPort = 0
	}
	s, err := stack.Start(ctx, stack.Options{
		Root: root, Dir: c.Dir, Fresh: c.Fresh, Status: os.Stdout,
		Kafka: c.Kafka, KafkaPort: c.KafkaPort, ClickHousePort: c.ClickHousePort, PostgresPort: c.PostgresPort,
	})
	if err != nil {
		return err
	}
	defer s.Stop()
	if c.Outbox {
		if err := startOutbox(ctx, s); err != nil {
			return err
		}
	}
	for _, p := range running {
		w := newWatch(os.Stdout, "sink-"+p.FunctionName(), repeatAfter)
		if _, err := s.StartPipeline(ctx, p, func(cfg *mapping.Config) { cfg.OnDelivery = w.delivered }); err != nil {
			return err
		}
	}
	c.explain(s, pipelines)
	return s.Explain(s.Wait(ctx))
}

// pipelines are those of the file or of --topic. Error: all that is wrong with them,
// as far as it shows before anything runs.
func (c *upCommand) pipelines() (all []stack.Pipeline, err error) {
	switch {
	case c.Pipelines != "":
		if all, err = stack.ReadPipelines(c.Pipelines); err != nil {
			return nil, err
		}
	case c.Topic == "" && (c.Table != "" || c.Guarantee != delivery.ExactlyOnce):
		return nil, errors.New("--table and --guarantee say more about the pipeline of --topic, and --topic is missing")
	case c.Topic != "":
		all = []stack.Pipeline{{Topic: c.Topic, Table: c.Table, Guarantee: c.Guarantee}}
	}
	var problems []error
	for _, p := range all {
		problems = append(problems, p.Check())
		if strings.ContainsAny(p.TableName(), "'`\\/&\n") { // they end, or mean something, in what explain prints
			problems = append(problems, fmt.Errorf("configure pipeline %s: its table is %q: a name without any of ' ` \\ / & expected", p.FunctionName(), p.TableName()))
		}
	}
	return all, errors.Join(problems...)
}

// explain prints what to do with the stack.
func (c *upCommand) explain(s *stack.Stack, pipelines []stack.Pipeline) {
	clickhouse, letters := s.Engine.URL(), s.LetterQueueURL()
	fmt.Printf(`
Kafka          %s
ClickHouse     %s
DynamoDB       %s (AWS_ACCESS_KEY_ID=local AWS_SECRET_ACCESS_KEY=local AWS_REGION=us-east-1)
dead letters   %s
functions      %s

`, s.Bootstrap(), clickhouse, s.DynamoDB.Endpoint(), letters, s.LambdaURL())
	switch {
	case len(pipelines) == 0 && s.Postgres == nil:
		fmt.Printf(`No pipeline runs. Stop this and start one with
  make local ARGS="--topic clicks"
  make local ARGS="--pipelines infra/local/pipelines.example.yaml"
  make local ARGS="--outbox"
`)
	case len(pipelines) > 0:
		topic, table, function := pipelines[0].Topic, pipelines[0].TableName(), pipelines[0].FunctionName()
		ddl := "curl -sS '" + clickhouse + "/' --data-binary @"
		if table == "clicks" {
			ddl += "events/clicks.sql"
		} else {
			ddl = "sed 's/^CREATE TABLE clicks/CREATE TABLE `" + table + "`/' events/clicks.sql | " + ddl + "-"
		}
		fmt.Printf(`  create a table   %s
  produce          kcat -P -b %s -t %s -l events/clicks.jsonl
  query            curl -sS '%s/' --data-binary 'SELECT * FROM `+"`%s`"+` LIMIT 10 FORMAT PrettyCompact'
  dead letters     curl -sS '%s' -H 'X-Amz-Target: AmazonSQS.ReceiveMessage' -d '{"QueueUrl":"%[6]s","MaxNumberOfMessages":10,"VisibilityTimeout":0}'
  store them       curl -sS '%s/2015-03-31/functions/%s/invocations' -d '{"oncehouse":{"action":"redrive"}}'  (when they fit: docs/runbook.md, DeadLetters)
  ledger           curl -sS '%[7]s/2015-03-31/functions/%[8]s/invocations' -d '{"oncehouse":{"action":"inspect","partition":0}}'
`, ddl, s.Bootstrap(), topic, clickhouse, table, letters, s.LambdaURL(), function)
	}
	if s.Postgres != nil {
		explainOutbox(s)
	}
	fmt.Printf("\nCtrl-C stops everything; the data stay in %s.\n", shown(c.Dir))
	if s.Postgres != nil && s.Postgres.Temporary() {
		fmt.Println("Those of PostgreSQL do not: for root it runs as nobody, in a temporary directory.")
	}
}
