package clickhouse

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"oncehouse/shared/delivery"
	"oncehouse/shared/rowbinary"
	"oncehouse/shared/tlsclient"
)

// maxConns bounds the lanes that talk to the server at once.
const maxConns = 64

// Target is one table of one ClickHouse server or cluster. It is safe for
// concurrent use and meant to outlive many invocations.
type Target struct {
	config    Config
	db        driver.Conn
	transport *transport
	logger    *slog.Logger
	buffers   sync.Pool // of *buffer
	preflight sync.Mutex
	schema    atomic.Pointer[schema]
	seen      atomic.Pointer[sighting] // when the table was last looked at
}

var _ delivery.Target = (*Target)(nil)

// schema is the table as one Preflight found it. Nothing but the pool changes.
type schema struct {
	table     fingerprint
	traits    delivery.Traits
	engine    engine
	columns   []rowbinary.Column
	encoder   *rowbinary.Encoder
	statement string
	known     map[string]string // settings of the server
	pins      ch.Settings
	read      time.Time
	writers   sync.Pool // of *rowbinary.Writer, warm ones know the order of keys
}

// New returns a Target and connects to nothing yet. The error joins every
// problem of the configuration.
func New(config Config) (*Target, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("configure ClickHouse target: %w", err)
	}
	addrs, secure, err := config.addresses()
	if err != nil {
		return nil, err
	}
	t := &Target{config: config, logger: config.Logger}
	if t.logger == nil {
		t.logger = slog.Default()
	}
	var conf *tls.Config
	if secure {
		if conf, err = tlsclient.Config(config.CAFile, config.ServerName); err != nil {
			return nil, fmt.Errorf("configure ClickHouse target: %w", err)
		}
	}
	var proxy *url.URL
	if config.Proxy != "" {
		if proxy, err = url.Parse(config.Proxy); err != nil {
			return nil, errors.New("configure ClickHouse target: proxy is not a URL")
		}
	}
	t.transport = newTransport(conf, proxy)
	t.db, err = ch.Open(t.options(addrs, conf))
	if err != nil {
		return nil, fmt.Errorf("configure ClickHouse target: %w", err)
	}
	return t, nil
}

func (t *Target) options(addrs []string, conf *tls.Config) *ch.Options {
	options := &ch.Options{
		Protocol: ch.HTTP,
		Addr:     addrs,
		Auth:     ch.Auth{Database: t.config.Database, Username: t.config.User, Password: t.config.Password.Reveal()},
		TLS:      conf,
		// The driver's "connections" are handles on the one transport.
		TransportFunc:   func(*http.Transport) (http.RoundTripper, error) { return t.transport, nil },
		DialTimeout:     2 * time.Minute, // an idle service needs one to wake; the context is the other bound
		MaxOpenConns:    maxConns,
		MaxIdleConns:    maxConns,
		ConnMaxLifetime: 24 * time.Hour,
	}
	if t.config.Compression == CompressionGzip {
		options.Compression = &ch.Compression{Method: ch.CompressionGZIP, Level: 1}
	}
	options.ClientInfo.Products = []struct{ Name, Version string }{{Name: "oncehouse", Version: "1"}}
	return options
}

// Close lets the connections go.
func (t *Target) Close() error {
	err := t.db.Close()
	t.transport.base.CloseIdleConnections()
	return err
}

// maxSchemaAge bounds how long a change goes unseen that the fingerprint does
// not cover: of the server's settings, or of a view further down.
const maxSchemaAge = 10 * time.Minute

// Preflight implements delivery.Target. The first call reads everything, later
// ones send one query and read again when the table has changed.
func (t *Target) Preflight(ctx context.Context) (delivery.Traits, error) {
	t.preflight.Lock()
	defer t.preflight.Unlock()
	now, err := t.readFingerprint(ctx)
	if err != nil {
		return delivery.Traits{}, t.preflightError(err)
	}
	t.seen.Store(&sighting{table: now, at: time.Now()})
	if s := t.schema.Load(); s != nil && s.table == now && time.Since(s.read) < maxSchemaAge {
		return s.traits, nil
	}
	s, err := t.readSchema(ctx, now)
	if err != nil {
		return delivery.Traits{}, t.preflightError(err)
	}
	t.schema.Store(s)
	return s.traits, nil
}

// preflightError keeps a refusal and classifies everything else.
func (t *Target) preflightError(err error) error {
	var refused *delivery.Error
	if errors.As(err, &refused) {
		return refused
	}
	out := t.readError(err)
	out.Message = prefix("preflight", out.Message)
	return out
}

// readSchema reads and judges the table. The fingerprint is older than what is
// read after it, so a change in between is seen by the next call.
func (t *Target) readSchema(ctx context.Context, table fingerprint) (*schema, error) {
	f, err := t.readFacts(ctx)
	if err != nil {
		return nil, err
	}
	v := judge(f, &t.config)
	encoder, err := t.compile(f)
	if err != nil && f.table.engine.family != other {
		v.refuse("change the column, or the pipeline's settings", "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if len(v.problems) > 0 {
		return nil, t.refusal(v.problems)
	}
	for _, w := range v.warnings {
		t.logger.WarnContext(ctx, "clickhouse preflight", slog.String("warning", w))
	}
	return &schema{
		table: table, traits: v.traits, engine: f.table.engine, columns: f.columns, encoder: encoder,
		statement: insertStatement(f.table.tableName, encoder.Columns()),
		known:     f.settings, pins: pins(f.settings), read: time.Now(),
	}, nil
}

func (t *Target) compile(f *facts) (*rowbinary.Encoder, error) {
	options := t.config.Rows
	zone, err := time.LoadLocation(f.timezone)
	if err != nil {
		return nil, fmt.Errorf("load the server's time zone: %w", err)
	}
	options.Timezone = zone
	return rowbinary.Compile(f.columns, options)
}

func insertStatement(t tableName, columns []string) string {
	quoted := make([]string, len(columns))
	for i, c := range columns {
		quoted[i] = quoteName(c)
	}
	return "INSERT INTO " + t.String() + " (" + strings.Join(quoted, ", ") + ")"
}

// refusal is one error with every problem and what would solve each.
func (t *Target) refusal(problems []Problem) *delivery.Error {
	messages, remedies := make([]string, len(problems)), make([]string, len(problems))
	for i, p := range problems {
		messages[i], remedies[i] = p.Message, p.Remedy
		if len(problems) > 1 {
			messages[i] = fmt.Sprintf("(%d) %s", i+1, p.Message)
			remedies[i] = fmt.Sprintf("(%d) %s", i+1, p.Remedy)
		}
	}
	return &delivery.Error{
		Kind: delivery.Fatal, Reason: delivery.ReasonTarget,
		Message: fmt.Sprintf("table %s cannot keep %s: %s", tableName{t.config.Database, t.config.Table}, t.config.Rules.Guarantee, strings.Join(messages, "; ")),
		Remedy:  strings.Join(remedies, "; "),
	}
}
