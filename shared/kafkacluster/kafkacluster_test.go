package kafkacluster_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/stretchr/testify/require"

	"oncehouse/shared/kafkacluster"
)

func TestIAMAsksForCredentialsEachTime(t *testing.T) {
	asked := 0
	mechanism := kafkacluster.IAM(aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		asked++
		if asked == 3 {
			return aws.Credentials{}, errors.New("role is gone")
		}
		return aws.Credentials{AccessKeyID: fmt.Sprintf("AK%d", asked), SecretAccessKey: "s", SessionToken: "t"}, nil
	}))
	require.Equal(t, "AWS_MSK_IAM", mechanism.Name())
	for i := 1; i <= 2; i++ {
		_, message, err := mechanism.Authenticate(t.Context(), "b-1.demo.abcdef.c1.kafka.eu-west-1.amazonaws.com:9098")
		require.NoError(t, err)
		require.Contains(t, string(message), fmt.Sprintf("AK%d/", i))
		require.Contains(t, string(message), "eu-west-1")
	}
	_, _, err := mechanism.Authenticate(t.Context(), "b-1.demo.abcdef.c1.kafka.eu-west-1.amazonaws.com:9098")
	require.ErrorContains(t, err, "get credentials for Kafka: role is gone")
}

func TestValidate(t *testing.T) {
	require.NoError(t, kafkacluster.Cluster{Brokers: []string{"127.0.0.1:1"}, TLS: &tls.Config{MinVersion: tls.VersionTLS12}}.Validate())
	require.EqualError(t, kafkacluster.Cluster{}.Validate(), "configure the Kafka client: no brokers")
	require.ErrorContains(t, kafkacluster.Cluster{Brokers: []string{"host:port"}}.Validate(), "configure the Kafka client")
}

func TestConnect(t *testing.T) {
	brokers := []string{"b-1:9098"}
	for auth, mechanism := range map[string]string{
		"iam": "AWS_MSK_IAM", "scram-sha-512": "SCRAM-SHA-512", "scram-sha-256": "SCRAM-SHA-256", "plain": "PLAIN",
	} {
		s := kafkacluster.Settings{KafkaAuth: auth, KafkaTLS: true, KafkaUser: "u", KafkaPassword: "p"}
		c, err := s.Connect(t.Context(), brokers, aws.Config{})
		require.NoError(t, err, auth)
		require.Equal(t, mechanism, c.SASL.Name())
		require.NotNil(t, c.TLS)
	}
	c, err := (&kafkacluster.Settings{KafkaAuth: "none"}).Connect(t.Context(), brokers, aws.Config{})
	require.NoError(t, err)
	require.Equal(t, kafkacluster.Cluster{Brokers: brokers}, c)

	_, err = (&kafkacluster.Settings{KafkaAuth: "none", KafkaTLS: true, KafkaCAFile: "/none"}).Connect(t.Context(), brokers, aws.Config{})
	require.ErrorContains(t, err, "configure the Kafka client: read CA file")
}
