// Package attempt bounds calls of AWS services: how often a call is tried, and
// how long one attempt may take.
//
//	limits := attempt.Limits{Timeout: 3 * time.Second, Most: 4, Backoff: 500 * time.Millisecond}
//	client := dynamodb.NewFromConfig(limits.On(cfg))
//
// The SDK has no bound for an attempt of its own: one that hangs (a connection
// that was frozen together with the function, say) would take the invocation
// with it.
package attempt

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
)

// Limits of the calls of one client.
type Limits struct {
	// Timeout of one attempt, from dialling to the last byte of the answer.
	Timeout time.Duration
	// Most attempts of one call.
	Most int
	// Backoff is the longest pause between two of them.
	Backoff time.Duration
}

// On returns a configuration whose clients keep the limits, whichever HTTP
// client it has: AWS_CA_BUNDLE, for one, makes it have one.
func (l Limits) On(cfg aws.Config) aws.Config {
	cfg.HTTPClient = Client(cfg.HTTPClient, l.Timeout)
	cfg.Retryer = func() aws.Retryer {
		return retry.NewStandard(func(o *retry.StandardOptions) { o.MaxAttempts, o.MaxBackoff = l.Most, l.Backoff })
	}
	return cfg
}

// Client returns base, nil for the SDK's own, with a time-out for every request.
//
// It also keeps answers that the SDK would lose. Once it has the head of an
// answer, smithy-go (1.28) closes the request's body, and a body that is closed
// says io.EOF where io.WriterTo wants nil. If net/http only then gets to look
// whether the body ends where it should, it takes that for a failed write and
// closes the connection, with the rest of the answer in it: on a busy machine
// one in hundreds. Through Read, the same end is none.
func Client(base aws.HTTPClient, timeout time.Duration) aws.HTTPClient {
	if base == nil {
		base = awshttp.NewBuildableClient()
	}
	return &client{base, timeout}
}

type client struct {
	base    aws.HTTPClient
	timeout time.Duration
}

// Do implements aws.HTTPClient.
func (c *client) Do(request *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(request.Context(), c.timeout)
	request = request.WithContext(ctx)
	if request.Body != nil {
		request.Body = struct{ io.ReadCloser }{request.Body} // without its WriteTo
	}
	response, err := c.base.Do(request)
	if err != nil {
		cancel()
		return response, err
	}
	response.Body = &answer{response.Body, cancel}
	return response, nil
}

// answer is a body that ends its attempt when it is closed.
type answer struct {
	io.ReadCloser
	done context.CancelFunc
}

func (a *answer) Close() error {
	defer a.done()
	return a.ReadCloser.Close()
}
