package clickhouse

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// dialTimeout bounds connecting. An idle ClickHouse Cloud service accepts at
// once and answers late, so waiting for the answer is left to the context.
const dialTimeout = 10 * time.Second

// idleTimeout is below the server's keep_alive_timeout (10 s since 23.11), so
// that no request goes to a connection that the server is about to close. Go
// compares it by wall clock: a function frozen in between starts afresh.
const idleTimeout = 5 * time.Second

// maxAnswer is how much of an insert's answer is read. It should be empty.
const maxAnswer = 64 << 10

const headerExceptionCode = "X-ClickHouse-Exception-Code"

// errOutOfTime: the moment after which nothing may be sent had come.
var errOutOfTime = errors.New("the last send moment is over")

// errSealed: the attempt had ended before the transport wrote to its connection.
var errSealed = errors.New("attempt is over")

// unprovenError is an answer that does not prove that the insert was done.
type unprovenError struct {
	what string
	code string // of an exception that came with a 200; "" for none
}

func (u *unprovenError) Error() string {
	if u.code != "" {
		return "exception " + u.code + " in an answer with status 200: " + u.what
	}
	return u.what
}

// transport is what the driver sends through. It is the one place that knows
// whether a byte of an insert has left, and it never lets an insert be sent
// twice or be taken for done without proof.
type transport struct{ base *http.Transport }

// newTransport makes the one pool that all of the driver's connections share.
func newTransport(conf *tls.Config, proxy *url.URL) *transport {
	dialer := &net.Dialer{Timeout: dialTimeout}
	base := &http.Transport{
		TLSClientConfig:     conf,
		TLSHandshakeTimeout: dialTimeout,
		IdleConnTimeout:     idleTimeout,
		MaxIdleConnsPerHost: maxConns,
		DisableCompression:  true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &conn{Conn: c}, nil
		},
	}
	if proxy != nil {
		base.Proxy = http.ProxyURL(proxy)
	}
	return &transport{base: base}
}

// RoundTrip sends one request. An insert carries an *attempt in its context;
// everything else only reads and may be sent again by the transport when an
// idle connection turns out dead.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	a, inserting := req.Context().Value(attemptKey{}).(*attempt)
	query := req.URL.Query()
	if inserting && query.Has("query") {
		return t.insert(req, a)
	}
	req = req.Clone(req.Context())
	if inserting { // the driver's greeting before the insert, with everything that is the insert's
		req.URL.RawQuery = greeting(query).Encode()
	}
	req.Header["Idempotency-Key"] = nil // net/http: repeatable, and the header itself is not sent
	resp, err := refuseRedirect(t.base.RoundTrip(req))
	if err == nil && resp.StatusCode == http.StatusOK && isException(resp.Header) {
		_ = resp.Body.Close()
		return nil, &unprovenError{code: resp.Header.Get(headerExceptionCode), what: "in its header"}
	}
	if note, ok := req.Context().Value(noteKey{}).(*answerNote); ok && err == nil {
		note.take(resp.Header)
	}
	return resp, err
}

// greeting keeps what the greeting needs. Under the insert's query id it might
// still be known as running when the insert comes (216).
func greeting(query url.Values) url.Values {
	out := url.Values{}
	for _, key := range []string{"database", "default_format", "client_protocol_version"} {
		if query.Has(key) {
			out.Set(key, query.Get(key))
		}
	}
	return out
}

func (t *transport) insert(req *http.Request, a *attempt) (*http.Response, error) {
	trace := &httptrace.ClientTrace{GotConn: a.gotConn}
	req = req.Clone(httptrace.WithClientTrace(req.Context(), trace))
	req.GetBody = nil // without it net/http cannot send a body again
	if req.Header.Get("Content-Encoding") == "" {
		req.ContentLength = int64(len(a.body.data)) // a short body is then an error, not an end
	}
	req.Body = punctual{req.Body, a.body}
	if a.body.isLate() {
		return nil, errOutOfTime
	}
	resp, err := t.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	a.answered.Store(true)
	resp, err = refuseRedirect(resp, nil)
	if err != nil || resp.StatusCode != http.StatusOK {
		return resp, err // the driver makes the exception out of any other status
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end or given up
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read the answer to the insert: %w", err)
	}
	if err := prove(resp, answer, req.URL.Query().Get("query_id")); err != nil {
		return nil, err
	}
	if !a.body.whole() {
		return nil, &unprovenError{what: "the answer came before all rows were sent"}
	}
	resp.Body = http.NoBody
	return resp, nil
}

// refuseRedirect: http.Client would follow it, with a GET that inserts nothing.
func refuseRedirect(resp *http.Response, err error) (*http.Response, error) {
	if err != nil || resp.StatusCode < 300 || resp.StatusCode > 399 {
		return resp, err
	}
	_ = resp.Body.Close()
	return nil, &unprovenError{what: "status " + resp.Status + ", a redirect: this is not ClickHouse"}
}

// prove returns nil only for an answer that ClickHouse gives when the insert is
// done: no exception in header, trailer or body, framed or not, and our own
// query id, which no proxy's page and no other query has. The row count in
// X-ClickHouse-Summary proves nothing: it counts deduplicated rows or not, and
// those of views, by version.
func prove(resp *http.Response, answer []byte, queryID string) error {
	text := strings.TrimSpace(string(answer))
	for _, h := range []http.Header{resp.Header, resp.Trailer} {
		if isException(h) {
			return &unprovenError{code: h.Get(headerExceptionCode), what: excerpt(text)}
		}
	}
	if i := strings.Index(text, "Code: "); i >= 0 {
		code, _, _ := strings.Cut(text[i+len("Code: "):], ".")
		return &unprovenError{code: code, what: excerpt(text[i:])}
	}
	if text != "" {
		return &unprovenError{what: "the answer to an insert is not empty: " + excerpt(text)}
	}
	if got := resp.Header.Get("X-ClickHouse-Query-Id"); got != queryID {
		return &unprovenError{what: fmt.Sprintf("the answer carries query id %q, not %q: it is not ClickHouse's answer to this insert", got, queryID)}
	}
	return nil
}

func isException(h http.Header) bool {
	code := h.Get(headerExceptionCode)
	return code != "" && code != "0"
}

const maxExcerpt = 512

func excerpt(text string) string {
	if len(text) > maxExcerpt {
		return strings.ToValidUTF8(text[:maxExcerpt], "") + "..."
	}
	return text
}

type attemptKey struct{}

// attempt is one send of one insert.
type attempt struct {
	body     *body
	answered atomic.Bool // a status came, be it good or bad
	mu       sync.Mutex
	conn     *conn
	from     int64 // conn's writes before this attempt
}

func (a *attempt) gotConn(info httptrace.GotConnInfo) {
	c := info.Conn
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if own, ok := c.(*conn); ok {
		a.conn, a.from = own, own.writes()
	}
}

// over ends a failed attempt and reports whether rows may have left: they were
// handed out, and a write to the connection began. After it nothing can leave.
// It also reports whether they were kept back because it was too late for them.
// A connection that brought an answer is not sealed, it goes on to be used.
func (a *attempt) over() (left, late bool) {
	taken, late := a.body.close()
	if !taken || a.answered.Load() {
		return taken, late
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.conn != nil && a.conn.seal() > a.from, late
}

// conn counts the writes that may have put a byte on the wire, and can be sealed
// against further ones.
type conn struct {
	net.Conn
	mu     sync.Mutex
	begun  int64
	sealed bool
}

// Write counts before it writes: one that is still under way counts as done,
// one that is known to have written nothing does not.
func (c *conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	if c.sealed {
		c.mu.Unlock()
		return 0, errSealed
	}
	c.begun++
	c.mu.Unlock()
	n, err := c.Conn.Write(b)
	if n == 0 && err != nil {
		c.mu.Lock()
		c.begun--
		c.mu.Unlock()
	}
	return n, err
}

func (c *conn) writes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.begun
}

func (c *conn) seal() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sealed = true
	return c.begun
}

// body hands the encoded rows to the transport. The transport may go on reading
// after the driver has returned; close ends that before the memory is used again.
type body struct {
	notAfter time.Time
	mu       sync.Mutex
	data     []byte
	off      int
	closed   bool
	late     bool
}

// isLate reports whether the last send moment is over, and remembers it.
func (b *body) isLate() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.checkLate()
}

func (b *body) checkLate() bool {
	b.late = b.late || b.off == 0 && time.Now().After(b.notAfter)
	return b.late
}

// Read hands out no first byte after notAfter: the clock is looked at behind
// dialling, handshakes and queues, directly before the rows go. (The request's
// header may be out by then; a header stores nothing.)
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return 0, errSealed
	case b.checkLate():
		return 0, errOutOfTime
	case b.off == len(b.data):
		return 0, io.EOF
	}
	n := copy(p, b.data[b.off:])
	b.off += n
	return n, nil
}

// punctual keeps a compressor behind which the rows stand from writing its own
// header and footer when it is too late for them.
type punctual struct {
	io.ReadCloser
	body *body
}

func (p punctual) Read(b []byte) (int, error) {
	if p.body.isLate() {
		return 0, errOutOfTime
	}
	return p.ReadCloser.Read(b)
}

// whole reports whether all bytes were handed out.
func (b *body) whole() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.off == len(b.data)
}

// close ends reading and reports whether a byte was handed out, and whether one
// was refused because the last send moment was over.
func (b *body) close() (taken, late bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return b.off > 0, b.late
}
