package kafkasource

import (
	"errors"
	"io"

	"github.com/twmb/franz-go/pkg/kerr"

	"oncehouse/shared/delivery"
)

// explain makes an error say what it means and what to do. A read changes
// nothing, so what a person need not mend is Retryable.
func explain(err error, doing string) error {
	e := &delivery.Error{Kind: delivery.Retryable, Reason: ReasonSource, Message: doing, Err: err}
	for _, known := range []struct {
		errs   []error
		remedy string
	}{
		{[]error{kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.InvalidTopicException}, "check the topic's name, its partitions and the cluster"},
		{[]error{kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState}, "check the mechanism and the credentials"},
		{
			[]error{kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed},
			"allow reading and describing the topic (kafka-cluster:Connect, DescribeTopic, ReadData)",
		},
	} {
		for _, k := range known.errs {
			if errors.Is(err, k) {
				e.Kind, e.Remedy = delivery.Fatal, known.remedy
			}
		}
	}
	if errors.Is(err, io.EOF) {
		e.Remedy = "a broker that closes the connection at once wants TLS or another SASL mechanism: check both and the port"
	}
	return e
}
