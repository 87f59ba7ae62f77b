package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"oncehouse/infra/local/demo"
	"oncehouse/infra/local/engine"
	"oncehouse/infra/local/stack"
	"oncehouse/shared/delivery"
)

type engineCommand struct {
	Data    string `help:"Directory that holds the data." required:"" type:"path"`
	Addr    string `help:"Address to listen on; port 0 is a free one." default:"127.0.0.1:0"`
	Library string `help:"Path of libchdb; default the one that make setup installs." type:"path"`
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
	return engine.Serve(ctx, engine.Options{Data: c.Data, Addr: c.Addr, Library: c.Library})
}

type demoCommand struct {
	Records int64  `help:"Records in all; 8 in 10 exactly once." default:"1000000"`
	Seed    uint64 `help:"Seed of the click stream and of the faults." default:"1"`
	Dir     string `help:"Directory for data and logs; emptied at the start." type:"path" default:".cache/demo"`
	Kafka   string `help:"The broker: embedded, apache (Java 17, and Maven once), or host:port of one that runs." env:"KAFKA" default:"embedded"`
}

// Run runs the demo on a fresh stack.
func (c *demoCommand) Run(ctx context.Context) error {
	root, err := root()
	if err != nil {
		return err
	}
	if c.Records < 100 {
		return fmt.Errorf("--records is %d: at least 100 expected, so that there is something to break", c.Records)
	}
	s, err := stack.Start(ctx, stack.Options{Root: root, Dir: c.Dir, Fresh: true, Kafka: c.Kafka, Status: os.Stdout})
	if err != nil {
		return err
	}
	defer s.Stop()
	fmt.Println()
	proofs, err := demo.Run(ctx, s, demo.Options{Root: root, Records: c.Records, Seed: c.Seed, Out: os.Stdout, Terminal: isTerminal(os.Stdout)})
	if err != nil {
		return err
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

	Pipelines string             `help:"YAML file of pipelines; infra/local/pipelines.example.yaml explains it." type:"existingfile" xor:"pipeline"`
	Topic     string             `help:"Start one pipeline from this topic." xor:"pipeline"`
	Table     string             `help:"The table of --topic; default the topic's name."`
	Guarantee delivery.Guarantee `help:"The guarantee of --topic: exactly-once, at-least-once or at-most-once." default:"exactly-once" enum:"exactly-once,at-least-once,at-most-once"`
}

// Run runs the stack until ctx is over.
func (c *upCommand) Run(ctx context.Context) error {
	root, err := root()
	if err != nil {
		return err
	}
	var pipelines []stack.Pipeline
	switch {
	case c.Pipelines != "":
		if pipelines, err = stack.ReadPipelines(c.Pipelines); err != nil {
			return err
		}
	case c.Topic == "" && (c.Table != "" || c.Guarantee != delivery.ExactlyOnce):
		return errors.New("--table and --guarantee say more about the pipeline of --topic, and --topic is missing")
	case c.Topic != "":
		pipelines = []stack.Pipeline{{Topic: c.Topic, Table: c.Table, Guarantee: c.Guarantee}}
	}
	s, err := stack.Start(ctx, stack.Options{
		Root: root, Dir: c.Dir, Fresh: c.Fresh, Status: os.Stdout,
		Kafka: c.Kafka, KafkaPort: c.KafkaPort, ClickHousePort: c.ClickHousePort,
	})
	if err != nil {
		return err
	}
	defer s.Stop()
	for _, p := range pipelines {
		if _, err := s.StartPipeline(ctx, p, nil); err != nil {
			return err
		}
	}
	c.explain(s, pipelines)
	return s.Wait(ctx)
}

// explain prints what to do with the stack.
func (c *upCommand) explain(s *stack.Stack, pipelines []stack.Pipeline) {
	topic, table := "clicks", "clicks"
	if len(pipelines) > 0 {
		topic, table = pipelines[0].Topic, pipelines[0].TableName()
	} else {
		fmt.Println("\nno pipeline: start with --topic clicks, or --pipelines infra/local/pipelines.example.yaml")
	}
	fmt.Printf(`
Kafka          %s
ClickHouse     %s
DynamoDB       %s (AWS_ACCESS_KEY_ID=local AWS_SECRET_ACCESS_KEY=local AWS_REGION=us-east-1)
dead letters   %s
functions      %s

  create a table   curl -sS '%s/' --data-binary @events/clicks.sql
  produce          kcat -P -b %s -t %s
  query            curl -sS '%s/' --data-binary "SELECT count() FROM %s"
  invoke           curl -sS '%s/2015-03-31/functions/%s/invocations' --data-binary @events/msk.json

Ctrl-C stops everything; the data stay in %s.
`, s.Bootstrap(), s.Engine.URL(), s.DynamoDB.Endpoint(), s.LetterQueueURL(), s.LambdaURL(),
		s.Engine.URL(), s.Bootstrap(), topic, s.Engine.URL(), table, s.LambdaURL(), topic, filepath.Clean(c.Dir))
}
