// Command sink is the Lambda function that stores the records of one Kafka topic
// in one ClickHouse table. docs/settings.md has its settings.
package main

import (
	"context"
	"log"
	"log/slog"
	"os"
	_ "time/tzdata" // Lambda's base image has no time zones

	"github.com/aws/aws-lambda-go/lambda"

	"oncehouse/functions/sink/config"
	"oncehouse/functions/sink/handler"
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
		With("pipeline", cfg.Pipeline, "version", version, "commit", commit)
	memory.Limit(cfg.MemoryBytes)
	ports, err := connect(ctx, cfg, logger)
	if err != nil {
		refuse(ctx, environ, "Connections", err)
	}
	sink, err := handler.New(cfg, ports, handler.Output{Log: logger, Metrics: os.Stdout})
	if err != nil {
		refuse(ctx, environ, "Configuration", err)
	}
	logger.Info("sink started", "topic", cfg.Topic, "guarantee", cfg.Guarantee, "table", cfg.Database+"."+cfg.Table)
	lambda.StartWithOptions(sink, lambda.WithEnableSIGTERM(func() {
		logger.Info("sink ends") // nothing is buffered: every line is out when its Write returns
		os.Exit(0)
	}))
}

// refuse ends the process with the reason in the log and in Lambda's own answer.
func refuse(ctx context.Context, environ map[string]string, errorType string, err error) {
	logger := slog.New(slog.NewJSONHandler(os.Stdout, nil)).With("version", version, "commit", commit)
	runtimeapi.Refuse(ctx, logger, "sink", environ, errorType, err)
	os.Exit(1)
}
