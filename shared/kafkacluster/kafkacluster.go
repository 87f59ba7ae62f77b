// Package kafkacluster says how a function reaches its Kafka cluster: the
// settings, and the client's options that are made from them.
//
//	type Config struct {
//		kafkacluster.Settings
//	}
//
//	cluster, err := cfg.Connect(ctx, cfg.Brokers, aws)
//	client, err := kgo.NewClient(cluster.Options()...)
//
// Nothing here connects: a client does at its first request. Only a secret that
// is given by ARN is fetched.
package kafkacluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	saslaws "github.com/twmb/franz-go/pkg/sasl/aws"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// clientID is how the broker's logs and quotas name a client.
const clientID = "oncehouse"

// Cluster is where Kafka is and how to be let in.
type Cluster struct {
	// Brokers are the bootstrap addresses, host:port.
	Brokers []string
	// TLS is nil for plaintext.
	TLS *tls.Config
	// SASL is nil without authentication; see Plain, SCRAM256, SCRAM512 and IAM.
	SASL sasl.Mechanism
}

// Options are those of a client of the cluster.
func (c Cluster) Options() []kgo.Opt {
	opts := []kgo.Opt{kgo.SeedBrokers(c.Brokers...), kgo.ClientID(clientID), kgo.DisableClientMetrics()}
	if c.TLS != nil {
		opts = append(opts, kgo.DialTLSConfig(c.TLS))
	}
	if c.SASL != nil {
		opts = append(opts, kgo.SASL(c.SASL))
	}
	return opts
}

// Validate refuses what no client could use.
func (c Cluster) Validate() error {
	if len(c.Brokers) == 0 {
		return errors.New("configure the Kafka client: no brokers")
	}
	if err := kgo.ValidateOpts(c.Options()...); err != nil {
		return fmt.Errorf("configure the Kafka client: %w", err)
	}
	return nil
}

// Plain authenticates by SASL/PLAIN.
func Plain(user, password string) sasl.Mechanism {
	return plain.Auth{User: user, Pass: password}.AsMechanism()
}

// SCRAM256 authenticates by SASL/SCRAM-SHA-256.
func SCRAM256(user, password string) sasl.Mechanism {
	return scram.Auth{User: user, Pass: password}.AsSha256Mechanism()
}

// SCRAM512 authenticates by SASL/SCRAM-SHA-512, the one that MSK has.
func SCRAM512(user, password string) sasl.Mechanism {
	return scram.Auth{User: user, Pass: password}.AsSha512Mechanism()
}

// IAM authenticates by AWS_MSK_IAM. The credentials are asked for at every
// authentication, since a role's expire.
func IAM(credentials aws.CredentialsProvider) sasl.Mechanism {
	return saslaws.ManagedStreamingIAM(func(ctx context.Context) (saslaws.Auth, error) {
		c, err := credentials.Retrieve(ctx)
		if err != nil {
			return saslaws.Auth{}, fmt.Errorf("get credentials for Kafka: %w", err)
		}
		return saslaws.Auth{AccessKey: c.AccessKeyID, SecretKey: c.SecretAccessKey, SessionToken: c.SessionToken, UserAgent: clientID}, nil
	})
}
