package database

import (
	"context"
	"errors"
	"maps"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"oncehouse/functions/outbox-poller/config"
	"oncehouse/shared/settings"
)

const arn = "arn:aws:secretsmanager:eu-west-1:111122223333:secret:orders-AbCdEf"

// vault has one secret, another one each time.
type vault struct{ texts []string }

func (v *vault) GetSecretValue(context.Context, *secretsmanager.GetSecretValueInput, ...func(*secretsmanager.Options)) (*secretsmanager.GetSecretValueOutput, error) {
	if len(v.texts) == 0 {
		return nil, errors.New("it is gone")
	}
	text := v.texts[0]
	v.texts = v.texts[1:]
	return &secretsmanager.GetSecretValueOutput{SecretString: &text}, nil
}

func loginOf(t *testing.T, v *vault, more ...string) *login {
	t.Helper()
	environ := map[string]string{
		"ONCEHOUSE_OUTBOX": "orders", "ONCEHOUSE_CURSOR_TOPIC": "cursor", "ONCEHOUSE_KAFKA_BROKERS": "b:9092",
	}
	for name, value := range settings.Environ(more) {
		environ["ONCEHOUSE_DATABASE_"+name] = value
	}
	cfg, err := config.Parse(environ)
	require.NoError(t, err)
	cloud := aws.Config{Region: "eu-west-1", Credentials: credentials.NewStaticCredentialsProvider("AK", "SK", "")}
	pool, err := Pool(cfg, cloud)
	require.NoError(t, err)
	require.NotNil(t, pool.BeforeConnect)
	return &login{Config: cfg, cloud: cloud, secrets: v}
}

func (l *login) connection(t *testing.T) *pgx.ConnConfig {
	t.Helper()
	conn, err := pgx.ParseConfig(session)
	require.NoError(t, err)
	require.NoError(t, l.complete(t.Context(), conn))
	return conn
}

func TestSecretsAreFetchedForEachConnection(t *testing.T) {
	l := loginOf(t, &vault{texts: []string{
		`{"username":"u","password":"one","host":"db.example.com","port":6432,"dbname":"shop","engine":"postgres"}`,
		`{"username":"u2","password":"two","host":"db.example.com","port":"6432","dbname":"shop"}`,
	}}, "SECRET="+arn, "NAME=sales")
	first := l.connection(t)
	require.Equal(t, "db.example.com:6432/sales u one", first.Host+":"+"6432"+"/"+first.Database+" "+first.User+" "+first.Password)
	require.Equal(t, uint16(6432), first.Port)
	require.Equal(t, "db.example.com", first.TLSConfig.ServerName)
	require.False(t, first.TLSConfig.InsecureSkipVerify)
	second := l.connection(t)
	require.Equal(t, "u2 two", second.User+" "+second.Password)
	require.Equal(t, uint16(6432), second.Port)
	conn, err := pgx.ParseConfig(session)
	require.NoError(t, err)
	require.ErrorContains(t, l.complete(t.Context(), conn), "it is gone")
}

// RDS keeps no more than user and password in the secret that it manages itself.
func TestSecretOfRDSItself(t *testing.T) {
	v := &vault{texts: []string{`{"username":"u","password":"p"}`}}
	conn := loginOf(t, v, "SECRET="+arn, "HOST=h", "NAME=d").connection(t)
	require.Equal(t, uint16(5432), conn.Port)
	require.Equal(t, "h", conn.Host)

	v.texts = []string{`{"username":"u","password":"p3ssword"}`}
	conn, err := pgx.ParseConfig(session)
	require.NoError(t, err)
	err = loginOf(t, v, "SECRET="+arn).complete(t.Context(), conn)
	require.ErrorContains(t, err, "lacks host, dbname, username")
	require.NotContains(t, err.Error(), "p3ssword")
}

func TestIAM(t *testing.T) {
	conn := loginOf(t, nil, "AUTH=iam", "HOST=db.example.com", "NAME=d", "USER=poller", "PORT=6432").connection(t)
	require.Regexp(t, `^db\.example\.com:6432\?Action=connect&DBUser=poller&.*X-Amz-Credential=AK.*eu-west-1%2Frds-db`, conn.Password)
	require.NotNil(t, conn.TLSConfig)
}

func TestInClear(t *testing.T) {
	conn := loginOf(t, nil, "TLS=disable", "HOST=h", "NAME=d", "USER=u", "PASSWORD=p").connection(t)
	require.Nil(t, conn.TLSConfig)
	require.Equal(t, "p", conn.Password)
	require.Empty(t, conn.Fallbacks)
}

func TestCAFileIsReadAtTheStart(t *testing.T) {
	l := loginOf(t, nil, "HOST=h", "NAME=d", "USER=u")
	l.DatabaseCAFile = "/none"
	_, err := Pool(l.Config, l.cloud)
	require.ErrorContains(t, err, "read CA file")
}

// What a shell may carry for psql decides nothing here.
func TestTheEnvironmentIsNotAsked(t *testing.T) {
	before := *loginOf(t, nil, "TLS=disable", "HOST=h", "NAME=d", "USER=u").connection(t)
	for name, value := range map[string]string{
		"PGHOST": "x", "PGPORT": "1", "PGUSER": "x", "PGPASSWORD": "x", "PGDATABASE": "x", "PGSSLMODE": "require",
		"PGAPPNAME": "x", "PGCONNECT_TIMEOUT": "1", "PGOPTIONS": "-c x=y", "PGTARGETSESSIONATTRS": "standby",
	} {
		t.Setenv(name, value)
	}
	after := *loginOf(t, nil, "TLS=disable", "HOST=h", "NAME=d", "USER=u").connection(t)
	require.Equal(t, before.Host+before.User+before.Password+before.Database, after.Host+after.User+after.Password+after.Database)
	require.Equal(t, before.RuntimeParams, after.RuntimeParams)
	require.Equal(t, before.ConnectTimeout, after.ConnectTimeout)
	require.Equal(t, before.ValidateConnect == nil, after.ValidateConnect == nil)
	require.True(t, maps.Equal(before.RuntimeParams, after.RuntimeParams))
}
