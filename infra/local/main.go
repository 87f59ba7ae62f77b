// Command oncehouse-local runs oncehouse on one machine: see --help.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

// commands is the command line.
type commands struct {
	Demo    demoCommand    `cmd:"" help:"Send a click stream through every guarantee while functions and the engine are killed, and prove what was stored."`
	Torture tortureCommand `cmd:"" help:"Kill every part of every subject by a schedule, and count what was lost and doubled."`
	Up      upCommand      `cmd:"" help:"Run the whole stack until Ctrl-C: Kafka, ClickHouse, DynamoDB, SQS, and a function for each pipeline."`
	Invoke  invokeCommand  `cmd:"" help:"Hand sample events to the real function and show its answer, the rows and the dead letters."`
	Servers serversCommand `cmd:"" help:"Run ClickHouse, DynamoDB and SQS at fixed ports, for a function in a container (sam local)."`
	Setup   setupCommand   `cmd:"" help:"Check the tools and install what the stack runs."`
	Engine  engineCommand  `cmd:"" help:"Run the ClickHouse engine alone, as a server over HTTP."`
	Mapping mappingCommand `cmd:"" hidden:""`
	Orders  ordersCommand  `cmd:"" help:"Place orders in a PostgreSQL with an outbox, that of up --outbox say."`
}

func main() {
	var cli commands
	parser := kong.Must(&cli, kong.Name("oncehouse-local"), kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Description("oncehouse on one machine, without Docker and without AWS. Everything listens on 127.0.0.1."))
	command, err := parser.Parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "oncehouse-local: "+oneLine(err)+"; see --help")
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	command.BindTo(ctx, (*context.Context)(nil))
	err = command.Run()
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case interrupted:
		fmt.Fprintln(os.Stderr, "oncehouse-local: interrupted, everything is stopped")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "oncehouse-local: "+oneLine(err))
		os.Exit(1)
	}
}

// oneLine is an error for people: one line, with what to do where the system
// said what is wrong.
func oneLine(err error) string {
	text := strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' }), "; ")
	if errors.Is(err, syscall.ENOSPC) {
		return "the disk is full: free some space or choose another --dir (" + text + ")"
	}
	return text
}
