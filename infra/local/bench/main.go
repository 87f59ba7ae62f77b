// Command bench measures the sink and says how far it is from its targets.
//
//	make bench                                      # go run ./infra/local/bench
//	go run ./infra/local/bench --only path --runs 5
//
// Every figure is the median of several runs, printed with the lowest and the
// highest of them and written to bench.json. What is compared is measured in one
// process, on the same events and in turns (A B C A B C ...), and a ratio is
// made of the two neighbours of each turn before its median is taken: a machine
// that becomes slower half-way slows both. The exit status is 0 when a target is
// missed, because this is a measurement; the lines that say so begin with
// "target missed".
//
// # The path (--only path)
//
// An event is one that Lambda may send: three partitions of click stream records
// (package clickstream) of one size, at most 6 MiB and 10,000 records. Three
// ways go from its bytes to what an insert sends:
//
//   - sink: shared/kafkaevent, then shared/rowbinary into a body of
//     RowBinaryWithDefaults, as clickhouse.Target.Encode has it done;
//   - idiomatic: aws-lambda-go's events.KafkaEvent by encoding/json, base64,
//     encoding/json into a struct, and clickhouse-go's columnar batch: the very
//     code behind PrepareBatch, Append and Send (lib/proto.Block);
//   - floor: find each value, base64-decode it by the standard library, copy it.
//     Nobody who needs the values can do less.
//
// The three end with the same number of rows, for the table of
// events/clicks.sql; the tests insert what the first two made into the engine
// and compare the tables.
//
// Time is the processor's, of the whole process and on one core (GOMAXPROCS 1):
// garbage collection counts for the one who made the garbage, and other
// processes do not count. MB are 10^6 bytes of JSON values before base64.
//
// # The wire (--only wire)
//
// The real bootstrap, built as for production, in the Lambda host, between the
// engine, dynalite and the queue emulator, all processes of their own, gets
// events of 10,000 records of 300 bytes in one partition, back to back. One
// function delivers exactly once, another at least once; both get each event,
// one first and then the other, in turns. Durations are Lambda's (from the event
// handed over to the next one asked for), where the time goes is read in the
// summary lines that the sink logs, and the rest is what no line accounts for:
// the event's way through the Runtime API, decoding, the look at the table, the
// protocol itself. "processor" is what the function's process used, which a busy
// machine changes little. Both tables are counted at the end.
//
// Memory is VmHWM of a fresh process after a few 6 MB events, and its target is
// one for the highest of them. A cold start runs
// from before the process is started to the end of the server's answer to the
// first insert, seen by a proxy, and to the function's answer.
//
// # The outbox (--only outbox)
//
// A backlog of rows of 1 kB in a real PostgreSQL is published to the embedded
// broker in transactions of 1,000 rows, by three ways in turns: oncehouse (the
// poller with its real table and log, in this process), and the two pollers that
// everybody writes first, which send and then delete or mark, in one transaction
// of the database. Those two are there for their speed: they repeat rows after a
// crash and pass over rows that become visible late. Dead rows and log are what
// publishing leaves behind in PostgreSQL. Then single rows are committed while the
// way polls: latency is from the answer to the commit in PostgreSQL to the answer
// to the commit in Kafka.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"oncehouse/infra/local/engine"
	"oncehouse/infra/local/repository"
)

// commands is the command line. The engine runs as a child of this program.
type commands struct {
	Measure measureCommand `cmd:"" default:"withargs" help:"Measure (the default)."`
	Engine  engineCommand  `cmd:"" hidden:"" help:"Run the ClickHouse engine."`
}

type measureCommand struct {
	JSON string `help:"File that takes every figure." default:"bench.json" type:"path"`
	Only string `help:"Measure one part: path (bytes to rows, in this process), wire (through real processes) or outbox (PostgreSQL to Kafka)." enum:",path,wire,outbox" default:""`
	Runs int    `help:"Runs that a figure is the median of." default:"9"`
}

// Run measures and prints. Error: something could not be run; never a target.
func (c *measureCommand) Run(ctx context.Context) error {
	if c.Runs < 1 {
		return fmt.Errorf("--runs is %d: at least 1 expected", c.Runs)
	}
	root, err := repository.Root()
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	report, err := measure(ctx, options{
		root: root, program: program, only: c.Only, runs: c.Runs,
		sizes: []int{300, 1600}, records: maxRecords, least: 300 * time.Millisecond, out: os.Stdout,
		outbox: outboxSize{rows: 30_000, steady: 3 * time.Second, every: 5 * time.Millisecond},
	})
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return fmt.Errorf("write the figures: %w", err)
	}
	if err := os.WriteFile(c.JSON, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the figures: %w", err)
	}
	return nil
}

// options of a measurement.
type options struct {
	root    string // of the repository
	program string // has the subcommand engine
	only    string
	runs    int
	sizes   []int // of values, in bytes
	records int   // the most of an event
	// least is how long one run of one way takes at least.
	least  time.Duration
	outbox outboxSize
	out    io.Writer
}

// measure does what is asked for, and prints it as it comes.
func measure(ctx context.Context, o options) (*report, error) {
	r := &report{Machine: describe(ctx, o.root), out: o.out}
	r.head()
	if o.only == "" || o.only == "path" {
		if err := measurePath(ctx, o, r); err != nil {
			return nil, fmt.Errorf("measure the path: %w", err)
		}
	}
	if o.only == "" || o.only == "wire" {
		if err := measureWire(ctx, o, r); err != nil {
			return nil, fmt.Errorf("measure the wire: %w", err)
		}
	}
	if o.only == "" || o.only == "outbox" {
		if err := measureOutbox(ctx, o, r); err != nil {
			return nil, fmt.Errorf("measure the outbox: %w", err)
		}
	}
	r.judge()
	return r, r.err
}

type engineCommand struct {
	Data    string `help:"Directory that holds the data." required:""`
	Addr    string `help:"Address to listen on." default:"127.0.0.1:0"`
	Library string `help:"Path of libchdb." required:""`
}

// Run serves until SIGTERM.
func (c *engineCommand) Run(ctx context.Context) error {
	return engine.Serve(ctx, engine.Options{Data: c.Data, Addr: c.Addr, Library: c.Library})
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run is the command line args.
func run(ctx context.Context, args []string) error {
	var cli commands
	parser, err := kong.New(&cli, kong.Name("bench"), kong.UsageOnError(), kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Description("Measures the sink against the idiomatic way and the floor, and end to end through real processes."))
	if err != nil {
		return fmt.Errorf("read the command line: %w", err)
	}
	command, err := parser.Parse(args)
	parser.FatalIfErrorf(err)
	command.BindTo(ctx, (*context.Context)(nil))
	return command.Run()
}
