// Command outbox-poller is the Lambda function that publishes the rows of a
// PostgreSQL outbox table to Kafka. docs/settings.md has its settings.
package main

import (
	"context"
	"log"
	"log/slog"
	"os"

	"github.com/aws/aws-lambda-go/lambda"

	"oncehouse/functions/outbox-poller/config"
	"oncehouse/functions/outbox-poller/handler"
	"oncehouse/shared/memory"
	"oncehouse/shared/runtimeapi"
	"oncehouse/shared/settings"
)

// Set by -ldflags "-X main.version=1.2.3 -X main.commit=abc".
var version, commit = "dev", "unknown"

func main() {
	log.SetFlags(0) // the runtime logs an invocation's error as JSON
	environ := settings.Environ(os.Environ())
	ctx := context.Background()
	cfg, err := config.Parse(environ)
	if err != nil {
		refuse(ctx, environ, "Configuration", err)
	}
	logger := slog.New(slog.NewJSONHandler(os.Stdout, &slog.HandlerOptions{Level: cfg.LogLevel})).
		With("outbox", cfg.Outbox, "version", version, "commit", commit)
	memory.Limit(cfg.MemoryBytes)
	connect, err := connector(ctx, cfg)
	if err != nil {
		refuse(ctx, environ, "Connections", err)
	}
	poller := handler.New(cfg, connect, handler.Output{Log: logger, Metrics: os.Stdout})
	logger.Info("outbox poller started", "table", cfg.Schema+"."+cfg.Table, "shards", cfg.Shards)
	lambda.StartWithOptions(poller, lambda.WithEnableSIGTERM(func() {
		poller.Stop() // nothing is buffered, but a transaction may be open
		logger.Info("outbox poller ends")
		os.Exit(0)
	}))
}

// refuse ends the process with the reason in the log and in Lambda's own answer.
func refuse(ctx context.Context, environ map[string]string, errorType string, err error) {
	logger := slog.New(slog.NewJSONHandler(os.Stdout, nil)).With("version", version, "commit", commit)
	runtimeapi.Refuse(ctx, logger, "outbox poller", environ, errorType, err)
	os.Exit(1)
}
