package main

import (
	"context"
	"fmt"

	awsconfig "github.com/aws/aws-sdk-go-v2/config"

	"oncehouse/functions/outbox-poller/config"
	"oncehouse/functions/outbox-poller/database"
	"oncehouse/functions/outbox-poller/handler"
	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/kafkalog"
	"oncehouse/shared/outbox/postgres"
)

// connector makes what opens a shard. Nothing connects before its first use; only
// the secret of Kafka is fetched here.
func connector(ctx context.Context, cfg *config.Config) (handler.Connect, error) {
	cloud, err := awsconfig.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, fmt.Errorf("load the AWS configuration: %w", err)
	}
	pool, err := database.Pool(cfg, cloud)
	if err != nil {
		return nil, err
	}
	cluster, err := cfg.Connect(ctx, cfg.Brokers, cloud)
	if err != nil {
		return nil, err
	}
	return func(_ context.Context, shard outbox.Shard) (handler.Ports, error) {
		log, err := kafkalog.New(cfg.LogOf(shard, cluster))
		if err != nil {
			return handler.Ports{}, err
		}
		table, err := postgres.Open(pool, cfg.TableOf(shard))
		if err != nil {
			return handler.Ports{}, err
		}
		return handler.Ports{Table: table, Log: log, Cursor: log.Cursor, Close: table.Close}, nil
	}, nil
}
