package attempt_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"oncehouse/shared/attempt"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var limits = attempt.Limits{Timeout: 50 * time.Millisecond, Most: 3, Backoff: time.Millisecond}

// An attempt that hangs is given up and made again, whatever HTTP client the
// configuration brings along.
func TestAttemptsThatHang(t *testing.T) {
	own := &http.Transport{}
	defer own.CloseIdleConnections()
	for name, client := range map[string]aws.HTTPClient{
		"none":                  nil,
		"the SDK's":             awshttp.NewBuildableClient(),
		"one that bounds later": awshttp.NewBuildableClient().WithTimeout(time.Hour),
		"net/http's":            &http.Client{Transport: own},
		"somebody's":            doer(func(r *http.Request) (*http.Response, error) { return own.RoundTrip(r) }),
	} {
		for _, hangs := range []string{"before the answer", "in the answer"} {
			t.Run(name+", "+hangs, func(t *testing.T) {
				url := serve(t, func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					if hangs == "in the answer" {
						_, _ = io.WriteString(w, `{"QueueUrls":[`)
						_ = http.NewResponseController(w).Flush()
					}
					<-r.Context().Done()
				})
				_, err := sqs.NewFromConfig(limits.On(config(url, client))).ListQueues(t.Context(), nil)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				var all *retry.MaxAttemptsError
				require.ErrorAs(t, err, &all)
				require.Equal(t, limits.Most, all.Attempt)
			})
		}
	}
}

// AWS_CA_BUNDLE gives the configuration an HTTP client, which knows no limit.
func TestOwnAuthorityIsBounded(t *testing.T) {
	hang := make(chan struct{})
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-hang:
			_, _ = io.WriteString(w, "{}")
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(bundle, authority(server.Certificate()), 0o600))
	t.Setenv("AWS_CA_BUNDLE", bundle)
	cfg, err := awsconfig.LoadDefaultConfig(t.Context(), awsconfig.WithRegion("us-east-1"), awsconfig.WithBaseEndpoint(server.URL),
		awsconfig.WithCredentialsProvider(credentials.NewStaticCredentialsProvider("a", "b", "")))
	require.NoError(t, err)
	require.NotNil(t, cfg.HTTPClient)

	_, err = sqs.NewFromConfig(limits.On(cfg)).ListQueues(t.Context(), nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	close(hang)
	patient := attempt.Limits{Timeout: time.Minute, Most: 1}
	_, err = sqs.NewFromConfig(patient.On(cfg)).ListQueues(t.Context(), nil)
	require.NoError(t, err, "the authority is trusted as before")
}

// The bound is the attempt's: the caller's own context stays the caller's.
func TestTheCallerMayCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		cancel()
		<-r.Context().Done()
	})
	patient := attempt.Limits{Timeout: time.Minute, Most: 3}
	_, err := sqs.NewFromConfig(patient.On(config(url, nil))).ListQueues(ctx, nil)
	require.ErrorIs(t, err, context.Canceled)
}

// The SDK closes a request's body when it has the head of the answer. The write
// of a request may be late to return; the answer is read to its end all the same.
func TestAnswerOutlivesItsRequestsBody(t *testing.T) {
	urls := strings.Split(strings.Repeat("http://127.0.0.1/queue ", 1000), " ")
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = json.NewEncoder(w).Encode(map[string]any{"QueueUrls": urls})
	})
	read := make(chan struct{}) // closed when the SDK reads the answer, its request's body closed
	written := make(chan error, 1)
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		return &lateConn{c, read}, err
	}}
	defer transport.CloseIdleConnections()
	cfg := config(url, doer(func(r *http.Request) (*http.Response, error) {
		ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			WroteRequest: func(info httptrace.WroteRequestInfo) { written <- info.Err },
		})
		response, err := transport.RoundTrip(r.WithContext(ctx))
		if err == nil {
			response.Body = &firstRead{response.Body, sync.OnceFunc(func() {
				close(read)
				written <- <-written // net/http is done with the request
			})}
		}
		return response, err
	}))
	patient := attempt.Limits{Timeout: time.Minute, Most: 1}
	out, err := sqs.NewFromConfig(patient.On(cfg)).ListQueues(t.Context(), nil)
	require.NoError(t, <-written, "what net/http makes of the request's body")
	require.NoError(t, err)
	require.Len(t, out.QueueUrls, len(urls))
}

// lateConn is a connection whose write of a request's end returns late.
type lateConn struct {
	net.Conn
	until <-chan struct{}
}

func (c *lateConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if bytes.HasSuffix(p, []byte("}")) {
		<-c.until
	}
	return n, err
}

type firstRead struct {
	io.ReadCloser
	first func()
}

func (r *firstRead) Read(p []byte) (int, error) {
	r.first()
	return r.ReadCloser.Read(p)
}

type doer func(*http.Request) (*http.Response, error)

func (d doer) Do(r *http.Request) (*http.Response, error) { return d(r) }

func serve(t *testing.T, handle http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)
	return server.URL
}

func config(url string, client aws.HTTPClient) aws.Config {
	return aws.Config{
		Region: "us-east-1", BaseEndpoint: &url, HTTPClient: client,
		Credentials: credentials.NewStaticCredentialsProvider("a", "b", ""),
	}
}

func authority(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
}
