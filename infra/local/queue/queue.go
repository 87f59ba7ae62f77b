// Package queue is SQS on one machine: an HTTP server on loopback that speaks
// the JSON protocol of the AWS SDKs.
//
//	server, err := queue.Start(queue.Options{Log: filepath.Join(dir, "queues.jsonl")})
//	defer server.Close()
//	url, err := server.Create("dead-letters")
//	client := sqs.NewFromConfig(server.Config())
//
// It knows the calls that send, receive, delete and count messages, with the
// limits of the real service, visibility time-outs, long polling and the MD5
// sums that the SDK verifies. With a log, what was answered survives a kill:
// every change is on disk before its answer. FIFO queues (.fifo) drop repeats
// by deduplication id and hold a group back while one of its messages is out.
package queue

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"oncehouse/shared/attempt"
)

// Region is the region, account the account number that clients see.
const (
	Region  = "us-east-1"
	account = "000000000000"
	// clientTimeout leaves the longest long poll its time.
	clientTimeout = (maxWaitSeconds + 10) * time.Second
)

// Options of a server.
type Options struct {
	// Log is the file that keeps queues and messages; "" keeps them in memory.
	Log string
	// Now is the clock of visibility time-outs; nil is time.Now.
	Now func() time.Time
	// Control decides on every call; nil lets all of them pass.
	Control func(Call) Fault
}

// Call is one request as Control sees it.
type Call struct {
	Action string // "SendMessageBatch"
	Queue  string // name; "" for calls about no queue
	// Bodies are the message bodies of a send.
	Bodies []string
}

// Fault is what happens to one request. The zero Fault lets it pass.
type Fault struct {
	// Refuse answers with this error code (such as "ThrottlingException") and
	// status 400, and does nothing.
	Refuse string
	// FailEntries are the indices of batch entries that fail, with the code
	// InternalError, as the service's own fault.
	FailEntries []int
	// DropAnswer does the call and closes the connection without an answer.
	DropAnswer bool
}

// Server is a running emulator.
type Server struct {
	endpoint string
	http     *http.Server
	clients  *http.Transport // of those that Config makes
	store    *store
	control  func(Call) Fault
	served   chan error
	close    func() error
}

// Start starts a server on a free loopback port. Error: no port, or the log
// cannot be read or written.
func Start(options Options) (*Server, error) {
	now := options.Now
	if now == nil {
		now = time.Now
	}
	store, err := openStore(options.Log, now)
	if err != nil {
		return nil, fmt.Errorf("start queues: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start queues: %w", err), store.close())
	}
	s := &Server{
		endpoint: "http://" + listener.Addr().String(), store: store, control: options.Control, served: make(chan error, 1),
		clients: &http.Transport{},
	}
	s.http = &http.Server{Handler: http.HandlerFunc(s.serve), ReadHeaderTimeout: 10 * time.Second}
	s.close = sync.OnceValue(s.shutdown)
	go func() { s.served <- s.http.Serve(listener) }()
	return s, nil
}

// Endpoint is the server's URL.
func (s *Server) Endpoint() string { return s.endpoint }

// Config is an AWS configuration whose clients talk to the server and leave no
// connection behind when it is closed.
func (s *Server) Config() aws.Config {
	return aws.Config{
		Region: Region, BaseEndpoint: &s.endpoint,
		HTTPClient:  attempt.Client(&http.Client{Transport: s.clients}, clientTimeout),
		Credentials: credentials.NewStaticCredentialsProvider("local", "local", ""),
	}
}

// Create makes a queue, if it is not there, and returns its URL.
func (s *Server) Create(name string) (string, error) {
	if err := s.store.create(name, nil); err != nil {
		return "", err
	}
	return s.url(name), nil
}

// Len is the number of messages in a queue, received ones included.
func (s *Server) Len(name string) int { return s.store.count(name).total() }

// Close ends the server: requests under way get a second to finish. Closing
// again changes nothing.
func (s *Server) Close() error { return s.close() }

func (s *Server) shutdown() error {
	defer s.clients.CloseIdleConnections()
	s.store.endWaits()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = s.http.Close()
	}
	if served := <-s.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return errors.Join(err, s.store.close())
}

func (s *Server) url(name string) string { return s.endpoint + "/" + account + "/" + name }

// queueName is the name in a queue URL; the host part is not looked at, so a
// URL of the time before a restart still works.
func queueName(url string) string { return url[strings.LastIndexByte(url, '/')+1:] }
