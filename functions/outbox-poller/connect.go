package main

import (
	"context"
	"fmt"

	awsconfig "github.com/aws/aws-sdk-go-v2/config"

	"oncehouse/functions/outbox-poller/config"
	"oncehouse/functions/outbox-poller/database"
	"oncehouse/functions/outbox-poller/handler"
	"oncehouse/shared/kafkacluster"
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
	return func(shard outbox.Shard) (handler.Ports, error) {
		log, err := kafkalog.New(cfg.LogOf(shard, cluster))
		if err != nil {
			return handler.Ports{}, err
		}
		table, err := postgres.Open(pool, cfg.TableOf(shard))
		if err != nil {
			return handler.Ports{}, err
		}
		return handler.Ports{
			Table: table, Log: log, Cursor: log.Cursor, Close: table.Close, Retain: retention(cfg, shard, cluster, table),
		}, nil
	}, nil
}

// retention is the work of shard 0, for all: a row may go when every shard has
// passed it.
func retention(cfg *config.Config, shard outbox.Shard, cluster kafkacluster.Cluster, table *postgres.Table) func(context.Context, outbox.Cursor) (handler.Removed, error) {
	rule, ok := cfg.RetentionOf()
	if !ok || shard.Index != 0 {
		return nil
	}
	return func(ctx context.Context, own outbox.Cursor) (removed handler.Removed, err error) {
		cursors := []outbox.Cursor{own}
		for index := 1; index < shard.Of; index++ {
			log, err := kafkalog.New(cfg.LogOf(cfg.Shard(index), cluster))
			if err != nil {
				return removed, err
			}
			cursor, err := log.Cursor(ctx)
			if err != nil || cursor == nil {
				return removed, err // without its cursor nothing is known to be published
			}
			cursors = append(cursors, *cursor)
		}
		done, err := table.Retain(ctx, rule, cursors...)
		return handler.Removed{
			Rows: done.Deleted, Partitions: int64(len(done.Dropped)), More: done.Deleted == int64(rule.Rows), Until: done.Until,
		}, err
	}
}
