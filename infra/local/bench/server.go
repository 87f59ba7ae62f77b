package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"oncehouse/shared/ledger/dynamo"
)

// server is the engine.
type server struct{ url string }

// query posts a statement, or with a body the statement in the URL.
func (s *server) query(ctx context.Context, statement string, body io.Reader) (string, error) {
	address := s.url + "/"
	if body == nil {
		body = strings.NewReader(statement)
	} else {
		address += "?query=" + url.QueryEscape(statement)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, body)
	if err != nil {
		return "", fmt.Errorf("ask the engine: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", fmt.Errorf("ask the engine: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(strings.TrimSpace(string(text)))
	}
	if err != nil {
		return "", fmt.Errorf("ask the engine: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// createTable makes the table of events/clicks.sql under another name.
func (s *server) createTable(ctx context.Context, root, name string) error {
	text, err := os.ReadFile(tableFile(root))
	if err != nil {
		return fmt.Errorf("read the table: %w", err)
	}
	_, err = s.query(ctx, strings.Replace(string(text), "CREATE TABLE clicks\n", "CREATE TABLE "+name+"\n", 1), nil)
	return err
}

// holds checks that a table has each of the first rows once.
func (s *server) holds(ctx context.Context, table string, rows int64) error {
	got, err := s.query(ctx, "SELECT count(), uniqExact(_partition, _offset), max(_offset) FROM "+table+" FORMAT CSV", nil)
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("%d,%d,%d", rows, rows, rows-1); got != want {
		return fmt.Errorf("%s has (rows, offsets, last) %s, and %s was sent", table, got, want)
	}
	return nil
}

// summaryParts are what a lane's line says of its time, in milliseconds.
var summaryParts = []string{"encode_ms", "insert_ms", "ledger_ms"}

// readSummaries reads the lanes' lines of a function's log, by request.
func readSummaries(path string) (map[string]map[string]float64, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the sink's log: %w", err)
	}
	defer func() { _ = file.Close() }()
	found := map[string]map[string]float64{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line map[string]any
		if json.Unmarshal(lines.Bytes(), &line) != nil || line["msg"] != "lane settled" {
			continue
		}
		id, _ := line["request_id"].(string)
		found[id] = map[string]float64{}
		for name, value := range line {
			if number, ok := value.(float64); ok {
				found[id][name] = number
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the sink's log: %w", err)
	}
	return found, nil
}

// watch is a proxy that notes when the first insert was answered.
type watch struct {
	url   string
	http  *http.Server
	mu    sync.Mutex
	first time.Time
}

func startWatch(ctx context.Context, to string) (*watch, error) {
	target, err := url.Parse(to)
	if err != nil {
		return nil, fmt.Errorf("watch the engine: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", "0"))
	if err != nil {
		return nil, fmt.Errorf("watch the engine: %w", err)
	}
	w := &watch{url: "http://" + listener.Addr().String()}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ModifyResponse: func(r *http.Response) error {
			if strings.HasPrefix(r.Request.URL.Query().Get("query"), "INSERT ") {
				w.note()
			}
			return nil
		},
	}
	w.http = &http.Server{Handler: proxy, ReadHeaderTimeout: time.Minute}
	go func() { _ = w.http.Serve(listener) }() // it ends with close
	return w, nil
}

func (w *watch) note() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.first.IsZero() {
		w.first = time.Now()
	}
}

func (w *watch) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.first = time.Time{}
}

func (w *watch) firstInsert() (time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.first, !w.first.IsZero()
}

func (w *watch) close() { _ = w.http.Close() }

// createLedger makes a table of its own for the ledger's figures.
func createLedger(ctx context.Context, cfg aws.Config, table string) error {
	client := dynamodb.NewFromConfig(cfg)
	if _, err := client.CreateTable(ctx, dynamo.Schema(table)); err != nil {
		return fmt.Errorf("make a ledger's table: %w", err)
	}
	err := dynamodb.NewTableExistsWaiter(client, func(o *dynamodb.TableExistsWaiterOptions) {
		o.MinDelay, o.MaxDelay = 10*time.Millisecond, time.Second
	}).Wait(ctx, &dynamodb.DescribeTableInput{TableName: &table}, time.Minute)
	if err != nil {
		return fmt.Errorf("make a ledger's table: %w", err)
	}
	return nil
}
