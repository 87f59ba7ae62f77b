package secrets_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/stretchr/testify/require"

	"oncehouse/shared/secrets"
)

const arn = "arn:aws:secretsmanager:eu-west-1:111122223333:secret:clickhouse-AbCdEf"

// vault holds secrets by ARN.
type vault map[string]string

func (v vault) GetSecretValue(_ context.Context, in *secretsmanager.GetSecretValueInput, _ ...func(*secretsmanager.Options)) (*secretsmanager.GetSecretValueOutput, error) {
	text, ok := v[*in.SecretId]
	if !ok {
		return nil, errors.New("ResourceNotFoundException")
	}
	return &secretsmanager.GetSecretValueOutput{SecretString: &text}, nil
}

func TestFetch(t *testing.T) {
	for _, c := range []struct{ name, ref, secret, want, err string }{
		{"plain", arn, "s3cret", "s3cret", ""},
		{"a number is a text, too", arn, "12345", "12345", ""},
		{"key", arn + ":password", `{"username":"u","password":"s3cret"}`, "s3cret", ""},
		{"JSON without a key", arn, `{"username":"u","password":"s3cret"}`, "", "append one of its keys (password, username)"},
		{"no such key", arn + ":pass", `{"password":"s3cret"}`, "", `key "pass" is not a text (there are: password)`},
		{"key of a plain secret", arn + ":password", "s3cret", "", "no JSON object"},
		{"not there", strings.Replace(arn, "clickhouse", "other", 1), "s3cret", "", "ResourceNotFoundException"},
		{"empty", arn, "", "", "has no text"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ref, err := secrets.ParseRef(c.ref)
			require.NoError(t, err)
			require.Equal(t, c.ref, ref.String())
			got, err := secrets.Fetch(t.Context(), vault{arn: c.secret}, ref)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				require.NotContains(t, err.Error(), "s3cret")
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got.Reveal())
		})
	}
}

func TestFetchKeys(t *testing.T) {
	ref, err := secrets.ParseRef(arn)
	require.NoError(t, err)
	got, err := secrets.FetchKeys(t.Context(), vault{arn: `{"username":"u","password":"p"}`}, ref, "username", "password")
	require.NoError(t, err)
	require.Equal(t, []secrets.Text{"u", "p"}, got)
	_, err = secrets.FetchKeys(t.Context(), vault{arn: `{"username":"u"}`}, ref, "username", "password")
	require.ErrorContains(t, err, `"password"`)
}

func TestFetchMembers(t *testing.T) {
	ref, err := secrets.ParseRef(arn)
	require.NoError(t, err)
	got, err := secrets.FetchMembers(t.Context(), vault{arn: `{"username":"u","password":"p","port":5432,"tags":["a"],"none":null}`}, ref)
	require.NoError(t, err)
	require.Equal(t, map[string]secrets.Text{"username": "u", "password": "p", "port": "5432", "none": ""}, got)
	_, err = secrets.FetchMembers(t.Context(), vault{arn: "s3cret"}, ref)
	require.ErrorContains(t, err, "it is no JSON object")
	require.NotContains(t, err.Error(), "s3cret")
}

func TestParseRefRefuses(t *testing.T) {
	for _, text := range []string{"", "password", "arn:aws:s3:::bucket", "arn:aws:secretsmanager:eu-west-1:1:secret:"} {
		_, err := secrets.ParseRef(text)
		require.Error(t, err, text)
	}
}

func TestASecretDoesNotShowItself(t *testing.T) {
	holder := struct{ Password secrets.Text }{"s3cret"}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "secret", holder.Password, "holder", holder)
	asJSON, err := json.Marshal(holder)
	require.NoError(t, err)
	for _, text := range []string{log.String(), string(asJSON), fmt.Sprint(holder), fmt.Sprintf("%#v %+v %q", holder, holder, holder.Password)} {
		require.NotContains(t, text, "s3cret")
		require.Contains(t, text, "[redacted]")
	}
}
