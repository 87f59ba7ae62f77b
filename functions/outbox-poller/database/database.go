// Package database says how the poller reaches PostgreSQL.
//
//	pool, err := database.Pool(cfg, aws)
//	table, err := postgres.Open(pool, cfg.TableOf(shard))
//
// User and password are asked for at each connection: RDS rotates a secret while
// a function is warm, and a token of IAM lasts for a quarter of an hour.
package database

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/rds/auth"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"oncehouse/functions/outbox-poller/config"
	"oncehouse/shared/secrets"
	"oncehouse/shared/tlsclient"
)

// session are settings of pgx that would come from the environment (PGOPTIONS and
// the like) were they not here.
const session = "application_name=oncehouse connect_timeout=5 sslmode=disable target_session_attrs=any options=''"

const defaultPort = 5432

// Pool says how to connect. It does no I/O but to read the CA file.
func Pool(cfg *config.Config, cloud aws.Config) (*pgxpool.Config, error) {
	pool, err := pgxpool.ParseConfig(session)
	if err != nil {
		return nil, fmt.Errorf("configure the connections to PostgreSQL: %w", err)
	}
	l := login{Config: cfg, cloud: cloud, secrets: secretsmanager.NewFromConfig(cloud)}
	if cfg.DatabaseTLS == "verify-full" {
		if _, err := tlsclient.Config(cfg.DatabaseCAFile, ""); err != nil {
			return nil, fmt.Errorf("configure the connections to PostgreSQL: %w", err)
		}
	}
	pool.BeforeConnect = l.complete
	return pool, nil
}

type login struct {
	*config.Config
	cloud   aws.Config
	secrets secrets.Client
}

// complete fills in where to connect, and as whom.
func (l *login) complete(ctx context.Context, conn *pgx.ConnConfig) error {
	var secret map[string]secrets.Text
	if l.DatabaseSecret != nil {
		var err error
		if secret, err = secrets.FetchMembers(ctx, l.secrets, *l.DatabaseSecret); err != nil {
			return err
		}
	}
	member := func(set, name string) string { return cmp.Or(set, secret[name].Reveal()) }
	conn.Host, conn.Database = member(l.DatabaseHost, "host"), member(l.DatabaseName, "dbname")
	conn.User, conn.Password = member(l.DatabaseUser, "username"), member(l.DatabasePassword.Reveal(), "password")
	port, err := strconv.ParseUint(cmp.Or(secret["port"].Reveal(), strconv.Itoa(defaultPort)), 10, 16)
	if l.DatabasePort != 0 {
		port, err = uint64(l.DatabasePort), nil
	}
	if err != nil || conn.Host == "" || conn.Database == "" || conn.User == "" {
		return fmt.Errorf("secret %s lacks host, dbname, username or a port that is a number, and no setting names it", l.DatabaseSecret)
	}
	conn.Port = uint16(port)
	if l.DatabaseAuth == "iam" {
		endpoint := net.JoinHostPort(conn.Host, strconv.Itoa(int(conn.Port)))
		if conn.Password, err = auth.BuildAuthToken(ctx, endpoint, l.cloud.Region, conn.User, l.cloud.Credentials); err != nil {
			return fmt.Errorf("make a token for PostgreSQL: %w", err)
		}
	}
	if l.DatabaseTLS == "verify-full" {
		if conn.TLSConfig, err = tlsclient.Config(l.DatabaseCAFile, conn.Host); err != nil {
			return fmt.Errorf("configure TLS to PostgreSQL: %w", err)
		}
	}
	return nil
}
