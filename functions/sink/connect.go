package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"

	"github.com/aws/aws-sdk-go-v2/aws"
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
	ports.Letters = queue.New(cloud, cfg.LetterQueue)
	if len(cfg.Brokers) > 0 {
		if ports.Source, err = connectKafka(ctx, cfg, cloud); err != nil {
			return ports, err
		}
	}
	return ports, nil
}

func connectKafka(ctx context.Context, cfg *config.Config, cloud aws.Config) (*kafkasource.Source, error) {
	options := kafkasource.Options{Brokers: cfg.Brokers}
	if cfg.KafkaTLS {
		options.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
		if cfg.KafkaCAFile != "" {
			pem, err := os.ReadFile(cfg.KafkaCAFile)
			if err != nil {
				return nil, fmt.Errorf("read the CA file of Kafka: %w", err)
			}
			options.TLS.RootCAs = x509.NewCertPool()
			if !options.TLS.RootCAs.AppendCertsFromPEM(pem) {
				return nil, fmt.Errorf("read the CA file of Kafka: no certificate in %s", cfg.KafkaCAFile)
			}
		}
	}
	user, password := cfg.KafkaUser, cfg.KafkaPassword
	if ref := cfg.KafkaSecret; ref != nil {
		texts, err := secrets.FetchKeys(ctx, secretsmanager.NewFromConfig(cloud), *ref, "username", "password")
		if err != nil {
			return nil, err
		}
		user, password = texts[0].Reveal(), texts[1]
	}
	switch cfg.KafkaAuth {
	case "iam":
		options.SASL = kafkasource.IAM(cloud.Credentials)
	case "scram-sha-512":
		options.SASL = kafkasource.SCRAM512(user, password.Reveal())
	case "scram-sha-256":
		options.SASL = kafkasource.SCRAM256(user, password.Reveal())
	case "plain":
		options.SASL = kafkasource.Plain(user, password.Reveal())
	}
	return kafkasource.New(options)
}
