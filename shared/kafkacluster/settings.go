package kafkacluster

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"

	"oncehouse/shared/secrets"
	"oncehouse/shared/settings"
	"oncehouse/shared/tlsclient"
)

// Settings are embedded in the configuration of a function; the brokers are its
// own, since not every function needs them.
type Settings struct {
	KafkaAuth     string       `env:"KAFKA_AUTH" envDefault:"none" oneof:"none iam scram-sha-512 scram-sha-256 plain" doc:"How the function authenticates. iam is MSK's, with the function's own role."`
	KafkaTLS      bool         `env:"KAFKA_TLS" envDefault:"false" doc:"Connect by TLS. iam needs it."`
	KafkaCAFile   string       `env:"KAFKA_CA_FILE" doc:"A PEM file with the authorities to trust instead of the system's."`
	KafkaUser     string       `env:"KAFKA_USER" doc:"The user of scram and plain."`
	KafkaPassword secrets.Text `env:"KAFKA_PASSWORD" doc:"The password of scram and plain, in clear. Prefer KAFKA_SECRET."`
	KafkaSecret   *secrets.Ref `env:"KAFKA_SECRET" match:"secret" doc:"The ARN of a JSON secret with the keys username and password, as MSK keeps them."`
}

// Check checks the settings as a whole.
func (s *Settings) Check(p *settings.Problems, brokers []string) {
	inClear := s.KafkaUser != "" || s.KafkaPassword != ""
	switch s.KafkaAuth {
	case "none", "iam":
		p.Unless(!inClear && s.KafkaSecret == nil, "KAFKA_AUTH", "is %s, which takes no user and password", s.KafkaAuth)
	default:
		whole := s.KafkaUser != "" && s.KafkaPassword != ""
		p.Unless(inClear != (s.KafkaSecret != nil) && (!inClear || whole), "KAFKA_AUTH",
			"is %s: either ONCEHOUSE_KAFKA_SECRET or both ONCEHOUSE_KAFKA_USER and ONCEHOUSE_KAFKA_PASSWORD expected", s.KafkaAuth)
	}
	p.Unless(s.KafkaAuth != "iam" || s.KafkaTLS, "KAFKA_TLS", "is false: true expected, iam works only by TLS")
	alone := s.KafkaAuth == "none" && !s.KafkaTLS && s.KafkaCAFile == ""
	p.Unless(len(brokers) > 0 || alone, "KAFKA_BROKERS", "is missing: the other settings of Kafka have no meaning without it")
}

// Connect makes a Cluster of settings that Check found right. It reads the CA
// file and fetches the secret.
func (s *Settings) Connect(ctx context.Context, brokers []string, cloud aws.Config) (Cluster, error) {
	c := Cluster{Brokers: brokers}
	if s.KafkaTLS {
		var err error
		if c.TLS, err = tlsclient.Config(s.KafkaCAFile, ""); err != nil {
			return c, fmt.Errorf("configure the Kafka client: %w", err)
		}
	}
	user, password := s.KafkaUser, s.KafkaPassword
	if ref := s.KafkaSecret; ref != nil {
		texts, err := secrets.FetchKeys(ctx, secretsmanager.NewFromConfig(cloud), *ref, "username", "password")
		if err != nil {
			return c, err
		}
		user, password = texts[0].Reveal(), texts[1]
	}
	switch s.KafkaAuth {
	case "iam":
		c.SASL = IAM(cloud.Credentials)
	case "scram-sha-512":
		c.SASL = SCRAM512(user, password.Reveal())
	case "scram-sha-256":
		c.SASL = SCRAM256(user, password.Reveal())
	case "plain":
		c.SASL = Plain(user, password.Reveal())
	}
	return c, c.Validate()
}
