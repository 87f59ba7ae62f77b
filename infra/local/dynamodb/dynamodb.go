// Package dynamodb runs DynamoDB on one machine: the npm package dynalite as a
// child process on loopback, with the ledger's table in it.
//
//	server, err := dynamodb.Start(ctx, dynamodb.Options{Table: "ledger", Data: dir})
//	defer server.Stop()
//	l := dynamo.New(server.Config(), "ledger")
//
// With a data directory the tables survive Kill (SIGKILL) and Restart; the
// endpoint stays the same.
package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"oncehouse/infra/local/process"
	"oncehouse/infra/local/repository"
	"oncehouse/shared/attempt"
	"oncehouse/shared/ledger/dynamo"
)

// Region is the region that clients of the emulator name.
const Region = "us-east-1"

// survive keeps dynalite up when a client is killed in the middle of a request:
// DynamoDB does not end for that, dynalite throws (index.js, req.on('error')).
const survive = "data:text/javascript,process.on('uncaughtException',e=>{if(e.code!=='ECONNRESET'){console.error(e);process.exit(1)}})"

const (
	startTimeout = 20 * time.Second
	stopGrace    = 5 * time.Second
	portAttempts = 3
	// clientTimeout is a hang: a call takes milliseconds.
	clientTimeout = 30 * time.Second
)

// Options of a server.
type Options struct {
	// Table is the ledger's table, created when it is not there; "" creates none.
	Table string
	// Data is the directory that keeps the tables; "" keeps them in memory.
	Data string
	// Root is the repository, which holds node_modules; "" looks for it.
	Root string
	// Output takes what the server prints; nil discards it.
	Output io.Writer
}

// Server is a running emulator.
type Server struct {
	options  Options
	node     string
	cli      string
	port     int
	endpoint string
	clients  *http.Transport // of those that Config makes
	process  *process.Process
}

// Start starts a server and returns when it answers and has its table. Error:
// Node.js or the package is missing, or it does not come up.
func Start(ctx context.Context, options Options) (*Server, error) {
	node, err := exec.LookPath("node")
	if err != nil {
		return nil, errors.New("start dynalite: Node.js is not installed: install version 20 or later")
	}
	cli, err := findCLI(options.Root)
	if err != nil {
		return nil, err
	}
	s := &Server{options: options, node: node, cli: cli, clients: &http.Transport{}}
	// A free port can be taken between the look and the child's bind.
	for range portAttempts {
		if s.port, err = process.FreePort(); err != nil {
			return nil, err
		}
		s.endpoint = "http://127.0.0.1:" + strconv.Itoa(s.port)
		if err = s.Restart(ctx); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Endpoint is the server's URL.
func (s *Server) Endpoint() string { return s.endpoint }

// Config is an AWS configuration whose clients talk to the server and leave no
// connection behind when it is stopped.
func (s *Server) Config() aws.Config {
	return aws.Config{
		Region:       Region,
		BaseEndpoint: &s.endpoint,
		HTTPClient:   attempt.Client(&http.Client{Transport: s.clients}, clientTimeout),
		Credentials:  credentials.NewStaticCredentialsProvider("local", "local", ""),
	}
}

// Dead is closed when the present process of the server has ended.
func (s *Server) Dead() <-chan struct{} { return s.process.Dead() }

// Stop ends the server and waits for it.
func (s *Server) Stop() {
	s.clients.CloseIdleConnections()
	s.process.Stop(stopGrace)
	s.clients.CloseIdleConnections() // one that came meanwhile
}

// Kill ends the server at once, as kill -9 does.
func (s *Server) Kill() { s.process.Kill() }

// Restart starts the server again, on the same port, after Kill or Stop.
func (s *Server) Restart(ctx context.Context) error {
	args := []string{
		"--import", survive, s.cli, "--host", "127.0.0.1", "--port", strconv.Itoa(s.port),
		"--createTableMs", "0", "--updateTableMs", "0", "--deleteTableMs", "0",
	}
	if s.options.Data != "" {
		args = append(args, "--path", s.options.Data)
	}
	p, err := process.Start(process.Spec{Name: "dynalite", Path: s.node, Args: args, Output: s.options.Output})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := p.WaitReady(ctx, s.ready); err != nil {
		p.Kill()
		return err
	}
	s.process = p
	return nil
}

// ready is nil when the server answers and the table is active.
func (s *Server) ready(ctx context.Context) error {
	client := dynamodb.NewFromConfig(s.Config(), func(o *dynamodb.Options) { o.RetryMaxAttempts = 1 })
	if s.options.Table == "" {
		_, err := client.ListTables(ctx, &dynamodb.ListTablesInput{})
		return err
	}
	out, err := client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &s.options.Table})
	var missing *types.ResourceNotFoundException
	if errors.As(err, &missing) {
		_, err = client.CreateTable(ctx, dynamo.Schema(s.options.Table))
		return errors.Join(fmt.Errorf("table %s was not there", s.options.Table), err)
	}
	if err != nil {
		return err
	}
	if out.Table.TableStatus != types.TableStatusActive {
		return fmt.Errorf("table %s is %s", s.options.Table, out.Table.TableStatus)
	}
	return nil
}

// findCLI returns dynalite's program.
func findCLI(root string) (string, error) {
	if root == "" {
		found, err := repository.Root()
		if err != nil {
			return "", fmt.Errorf("start dynalite: %w", err)
		}
		root = found
	}
	path := filepath.Join(root, "node_modules", "dynalite", "cli.js")
	if _, err := os.Stat(path); err != nil {
		return "", errors.New("start dynalite: the npm package is not installed: run make setup")
	}
	return path, nil
}
