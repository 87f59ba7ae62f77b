package secretsmanager_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	client "github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager/types"
	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/secretsmanager"
	"oncehouse/shared/secrets"
)

// What the functions read secrets with reads them here, too.
func TestFetch(t *testing.T) {
	const arn = "arn:aws:secretsmanager:eu-west-1:111122223333:secret:clickhouse-AbCdEf"
	server, err := secretsmanager.Start(map[string]string{arn: `{"password":"p:w\"1"}`})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	endpoint := server.Endpoint()
	api := client.NewFromConfig(aws.Config{
		Region: "eu-west-1", BaseEndpoint: &endpoint, Credentials: credentials.NewStaticCredentialsProvider("local", "local", ""),
	})
	password, err := secrets.Fetch(t.Context(), api, secrets.Ref{ARN: arn, Key: "password"})
	require.NoError(t, err)
	require.Equal(t, `p:w"1`, password.Reveal())

	_, err = secrets.Fetch(t.Context(), api, secrets.Ref{ARN: arn + "x"})
	var missing *types.ResourceNotFoundException
	require.ErrorAs(t, err, &missing)

	_, err = api.DeleteSecret(t.Context(), &client.DeleteSecretInput{SecretId: aws.String(arn)})
	require.ErrorContains(t, err, "UnknownOperationException: secretsmanager.DeleteSecret")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, endpoint, strings.NewReader("no JSON"))
	require.NoError(t, err)
	req.Header.Set("X-Amz-Target", "secretsmanager.GetSecretValue")
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusBadRequest, res.StatusCode)
}
