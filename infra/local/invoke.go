package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"oncehouse/infra/local/engine"
	"oncehouse/infra/local/lambdahost"
	"oncehouse/infra/local/repository"
	"oncehouse/infra/local/stack"
	"oncehouse/shared/deadletter"
	"oncehouse/shared/kafkaevent"
)

type invokeCommand struct {
	Files []string `arg:"" help:"Events: the files of events/, or your own." type:"existingfile"`
	Table string   `help:"SQL file that creates the table clicks." type:"existingfile" default:"events/clicks.sql"`
	Rows  int      `help:"How many rows of a file to show." default:"3"`
	Dir   string   `help:"Directory for data and logs; emptied at the start." type:"path" default:".cache/invoke"`

	Template string `help:"Run the sink of this synthesised template (cdk.out/…/*.template.json) with its own environment, and servers of this machine in the place of AWS's." type:"existingfile"`
	Function string `help:"The function's name or logical id, if the template has several."`
}

// Run hands the files, one after the other, to one function per topic, or to
// that of a template.
func (c *invokeCommand) Run(ctx context.Context) error {
	root, err := repository.Root()
	if err != nil {
		return err
	}
	fmt.Printf("starting ClickHouse, DynamoDB and SQS for the function; their logs are in %s\n", shown(filepath.Join(c.Dir, "log")))
	s, err := stack.Start(ctx, stack.Options{Root: root, Dir: c.Dir, Fresh: true})
	if err != nil {
		return err
	}
	defer s.Stop()
	functions := map[string]*lambdahost.Function{}
	defer func() {
		for _, fn := range functions {
			fn.Close()
		}
	}()
	table := tableName{"default", "clicks"}
	functionOf := func(topic string) (*lambdahost.Function, error) {
		if functions[topic] == nil {
			fn, _, err := s.Function(stack.Pipeline{Topic: topic, Table: table.name})
			if err != nil {
				return nil, err
			}
			functions[topic] = fn
		}
		return functions[topic], nil
	}
	if c.Template != "" {
		d, err := c.startDeployed(ctx, root, s)
		if err != nil {
			return err
		}
		defer func() { _ = d.close() }() // it ends with this program at the latest
		table, functionOf = d.table, func(string) (*lambdahost.Function, error) { return d.Function, nil }
	}
	if err := c.createTable(ctx, s, table); err != nil {
		return err
	}
	return c.invokeAll(ctx, s, functionOf, table)
}

func (c *invokeCommand) invokeAll(ctx context.Context, s *stack.Stack, functionOf func(topic string) (*lambdahost.Function, error), table tableName) error {
	failed := 0
	for _, file := range c.Files {
		payload, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read the event: %w", err)
		}
		e := readEvent(payload)
		fn, err := functionOf(e.topic)
		if err != nil {
			return err
		}
		ok, err := c.invoke(ctx, s, fn, file, payload, e, table)
		if err != nil {
			return err
		}
		if !ok {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d events failed", failed, len(c.Files))
	}
	return nil
}

// tableName is a table's name with its database.
type tableName struct{ database, name string }

func (t tableName) String() string { return "`" + t.database + "`.`" + t.name + "`" }

// createTable runs the DDL of the table clicks, under another name and in another
// database where a template says so.
func (c *invokeCommand) createTable(ctx context.Context, s *stack.Stack, table tableName) error {
	ddl, err := os.ReadFile(c.Table)
	if err != nil {
		return fmt.Errorf("read the table's DDL: %w", err)
	}
	if _, err := engine.QueryText(ctx, s.Engine.URL(), "CREATE DATABASE IF NOT EXISTS `"+table.database+"`"); err != nil {
		return err
	}
	_, err = engine.QueryText(ctx, s.Engine.URL(), strings.Replace(string(ddl), "CREATE TABLE clicks", "CREATE TABLE "+table.String(), 1))
	return err
}

// invoke hands over one event and prints what came of it.
func (c *invokeCommand) invoke(ctx context.Context, s *stack.Stack, fn *lambdahost.Function, file string, payload []byte, e event, table tableName) (bool, error) {
	result, err := fn.Invoke(ctx, payload)
	if err != nil {
		return false, err
	}
	fmt.Printf("%s\n  answer   %s (%.0f ms)\n", shown(file), strings.TrimSpace(string(result.Payload)), float64(result.Duration.Microseconds())/1000)
	if err := c.showRows(ctx, s, e, table); err != nil {
		return false, err
	}
	letters, err := s.ReceiveLetters(ctx)
	if err != nil {
		return false, err
	}
	fmt.Printf("  letters  %d\n", len(letters))
	for _, body := range letters {
		letter, err := deadletter.Parse(body)
		if err != nil {
			return false, err
		}
		printIndented(fmt.Sprintf("%s offset %d: %s: %s", letter.Lane.TopicPartition, letter.Record.Offset, letter.Code, letter.Message))
	}
	return result.FunctionError == "", nil
}

// showRows prints which of the event's records are in the table now. Those of
// an event that is refused whole are not known.
func (c *invokeCommand) showRows(ctx context.Context, s *stack.Stack, e event, table tableName) error {
	if e.refused {
		return nil
	}
	from := table.String() + " WHERE (_topic, _partition, _offset) IN (" + strings.Join(append(e.records, "('', 0, -1)"), ", ") + ")"
	count, err := engine.Count(ctx, s.Engine.URL(), from)
	if err != nil {
		return err
	}
	rows, err := engine.QueryText(ctx, s.Engine.URL(), fmt.Sprintf("SELECT * FROM %s ORDER BY _topic, _partition, _offset LIMIT %d FORMAT JSONEachRow "+
		"SETTINGS output_format_json_escape_forward_slashes = 0", from, c.Rows))
	if err != nil {
		return err
	}
	fmt.Printf("  rows     %d of %d records\n", count, len(e.records))
	printIndented(rows)
	return nil
}

// shown is a path from the working directory where it lies below it.
func shown(path string) string {
	wd, err := os.Getwd()
	if err != nil {
		return path
	}
	if short, err := filepath.Rel(wd, path); err == nil && filepath.IsLocal(short) {
		return short
	}
	return path
}

func printIndented(text string) {
	for line := range strings.Lines(text) {
		fmt.Println("    " + strings.TrimRight(line, "\n"))
	}
}

// event is what the command has to know of a file: its records as SQL tuples.
type event struct {
	topic   string
	records []string
	refused bool
}

// readEvent reads an event as the function does; one that it refuses is a
// sample too.
func readEvent(payload []byte) event {
	e := event{topic: "clicks"}
	var decoder kafkaevent.Decoder
	content, err := decoder.Decode(payload)
	if err != nil {
		e.refused = true
		return e
	}
	for _, batch := range content.Batches {
		e.topic = batch.Topic
		for i := range batch.Records {
			e.records = append(e.records, fmt.Sprintf("('%s', %d, %d)", batch.Topic, batch.Partition, batch.Records[i].Offset))
		}
	}
	return e
}
