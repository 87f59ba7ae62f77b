package main

import (
	"context"
	"fmt"
	"log/slog"

	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"

	"oncehouse/functions/sink/config"
	"oncehouse/functions/sink/handler"
	"oncehouse/shared/clickhouse"
	"oncehouse/shared/deadletter/queue"
	"oncehouse/shared/kafkasource"
	"oncehouse/shared/ledger/dynamo"
	"oncehouse/shared/secrets"
)

// connect makes the clients. None of them connects before its first use; only
// secrets that are given by ARN are fetched here.
func connect(ctx context.Context, cfg *config.Config, logger *slog.Logger) (handler.Ports, error) {
	var ports handler.Ports
	cloud, err := awsconfig.LoadDefaultConfig(ctx)
	if err != nil {
		return ports, fmt.Errorf("load the AWS configuration: %w", err)
	}
	if ref := cfg.PasswordSecret; ref != nil {
		if cfg.Password, err = secrets.Fetch(ctx, secretsmanager.NewFromConfig(cloud), *ref); err != nil {
			return ports, err
		}
	}
	target := cfg.Target()
	target.Logger = logger
	if ports.Table, err = clickhouse.New(target); err != nil {
		return ports, err
	}
	if cfg.LedgerTable != "" {
		ports.Ledger = dynamo.New(cloud, cfg.LedgerTable)
	}
	letters := queue.New(cloud, cfg.LetterQueue)
	ports.Letters, ports.Queue = letters, letters
	if len(cfg.Brokers) > 0 {
		cluster, err := cfg.Connect(ctx, cfg.Brokers, cloud)
		if err != nil {
			return ports, err
		}
		ports.Source = kafkasource.New(cluster)
	}
	return ports, nil
}
