package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strconv"
	"sync"

	"oncehouse/infra/local/engine"
	"oncehouse/infra/local/repository"
	"oncehouse/infra/local/stack"
)

type serversCommand struct {
	Listen string `help:"Address to listen on. A container reaches the host's loopback on a Mac; on Linux give the address of Docker's bridge, 172.17.0.1." default:"127.0.0.1"`
	Table  string `help:"SQL file that creates the table clicks." type:"existingfile" default:"events/clicks.sql"`
	Dir    string `help:"Directory for data and logs; emptied at the start." type:"path" default:".cache/servers"`

	ClickHousePort int `name:"clickhouse-port" help:"Port of ClickHouse; 0 is a free one, as for the others." default:"8123"`
	DynamoDBPort   int `name:"dynamodb-port" help:"Port of DynamoDB." default:"8000"`
	SQSPort        int `name:"sqs-port" help:"Port of SQS." default:"9324"`
}

// Run serves until ctx is over. The ports are those of infra/aws/sam/env.json.
func (c *serversCommand) Run(ctx context.Context) error {
	root, err := repository.Root()
	if err != nil {
		return err
	}
	ddl, err := os.ReadFile(c.Table)
	if err != nil {
		return fmt.Errorf("read the table's DDL: %w", err)
	}
	servers := []struct {
		name string
		port int
		url  func(*stack.Stack) string
	}{
		{"ClickHouse", c.ClickHousePort, func(s *stack.Stack) string { return s.Engine.URL() }},
		{"DynamoDB", c.DynamoDBPort, func(s *stack.Stack) string { return s.DynamoDB.Endpoint() }},
		{"SQS", c.SQSPort, func(s *stack.Stack) string { return s.Queue.Endpoint() }},
	}
	// An address that is not to be had is refused before anything is started.
	listeners := make([]net.Listener, len(servers))
	for i, server := range servers {
		listeners[i], err = (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(c.Listen, strconv.Itoa(server.port)))
		if err != nil {
			return fmt.Errorf("listen for %s: %w", server.name, err)
		}
		defer func() { _ = listeners[i].Close() }() // its forwarder may have done so
	}
	s, err := stack.Start(ctx, stack.Options{Root: root, Dir: c.Dir, Fresh: true, Status: os.Stdout})
	if err != nil {
		return err
	}
	defer s.Stop()
	if _, err := engine.QueryText(ctx, s.Engine.URL(), string(ddl)); err != nil {
		return err
	}
	fmt.Println()
	for i, server := range servers {
		at, err := url.Parse(server.url(s))
		if err != nil {
			return fmt.Errorf("read the address of %s: %w", server.name, err)
		}
		defer forward(ctx, listeners[i], at.Host).close()
		fmt.Printf("%-11s http://%s\n", server.name, listeners[i].Addr())
	}
	fmt.Println("\nCtrl-C stops everything.")
	return s.Explain(s.Wait(ctx))
}

// forwarder passes connections on to a server that listens on loopback only.
type forwarder struct {
	net.Listener
	to string

	mu      sync.Mutex
	open    map[net.Conn]struct{}
	closed  bool
	running sync.WaitGroup
}

func forward(ctx context.Context, listener net.Listener, to string) *forwarder {
	f := &forwarder{Listener: listener, to: to, open: map[net.Conn]struct{}{}}
	f.running.Go(func() {
		for {
			conn, err := f.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				f.running.Go(func() { f.serve(ctx, conn) })
			}
		}
	})
	return f
}

// serve copies both ways until one side ends.
func (f *forwarder) serve(ctx context.Context, client net.Conn) {
	server, err := (&net.Dialer{}).DialContext(ctx, "tcp", f.to)
	if err != nil {
		_ = client.Close() // as if the server had refused it
		return
	}
	defer f.drop(client, server)
	if !f.keep(client, server) {
		return
	}
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // a broken connection is the clients' to notice
			_ = way[0].(*net.TCPConn).CloseWrite()
		})
	}
	both.Wait()
}

// keep remembers connections for close, and is false after it.
func (f *forwarder) keep(conns ...net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, conn := range conns {
		f.open[conn] = struct{}{}
	}
	return !f.closed
}

func (f *forwarder) drop(conns ...net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close()
		delete(f.open, conn)
	}
}

// close ends the listener and every connection.
func (f *forwarder) close() {
	_ = f.Close()
	f.mu.Lock()
	f.closed = true
	for conn := range f.open {
		_ = conn.Close()
	}
	f.mu.Unlock()
	f.running.Wait()
}
