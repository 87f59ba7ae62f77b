// Package faults stands between a ClickHouse client and a server and breaks
// what a test tells it to break, as networks, proxies and servers do.
//
//	proxy, err := faults.New(ctx, srv.Addr())         // in tests: enginetest.Faults(t, srv)
//	proxy.Next(faults.DropAnswer())                   // the next INSERT is committed, its answer lost
//	proxy.When(faults.Contains("_ledger"), faults.Exception(252))
//	conn := clickhouse.Open(&clickhouse.Options{Addr: []string{proxy.Addr()}, Protocol: clickhouse.HTTP})
//
// Every fault is used once. Requests that no fault waits for pass through
// unchanged. [Proxy.Pending] says which faults were never met: a test that
// ends with one has not tested what it meant to.
package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Fault is what happens to one request.
type Fault struct {
	name string
	do   func(*exchange)
}

// String names the fault.
func (f Fault) String() string { return f.name }

// Match says which requests a fault waits for. query is the text as far as it
// stands in the URL or in the first bytes of the body.
type Match func(r *http.Request, query string) bool

// Inserts matches requests that insert; it is what [Proxy.Next] uses.
func Inserts(_ *http.Request, query string) bool {
	return strings.HasPrefix(strings.ToUpper(strings.TrimSpace(query)), "INSERT")
}

// Contains matches requests whose query holds text.
func Contains(text string) Match {
	return func(_ *http.Request, query string) bool { return strings.Contains(query, text) }
}

// Any matches every request, handshakes too.
func Any(*http.Request, string) bool { return true }

// Refuse cuts the connection before any of the body was taken.
func Refuse() Fault { return Fault{"refuse", func(x *exchange) { x.cut() }} }

// CutBody passes on n bytes of the body (in its encoding) and then cuts both
// connections. The server gets a request that is not whole.
func CutBody(n int64) Fault {
	return Fault{fmt.Sprintf("cut the body after %d bytes", n), func(x *exchange) {
		x.body = io.MultiReader(io.LimitReader(x.body, n), failing{})
		_ = x.forward()
		x.cut()
	}}
}

// failing is a body that breaks.
type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("cut by a fault") }

// DropAnswer lets the server do its work to the end and cuts the client off
// without a byte of the answer.
func DropAnswer() Fault {
	return Fault{"drop the answer", func(x *exchange) {
		_ = x.forward()
		x.cut()
	}}
}

// CutAnswer is DropAnswer after the answer's headers and n bytes of its body.
func CutAnswer(n int) Fault {
	return Fault{fmt.Sprintf("cut the answer after %d bytes", n), func(x *exchange) {
		if res := x.forward(); res != nil {
			x.copyHeader(res)
			x.head().Set("Content-Length", fmt.Sprint(len(res.body)+1)) // never reached
			x.w.WriteHeader(res.status)
			_, _ = x.w.Write(res.body[:min(n, len(res.body))])
			_ = http.NewResponseController(x.w).Flush()
		}
		x.cut()
	}}
}

// Delay holds the request back before the server sees it. The wait ends early
// when the client leaves; the server then never sees the request.
func Delay(d time.Duration) Fault {
	return Fault{"delay by " + d.String(), func(x *exchange) {
		if x.wait(d) {
			x.pass()
		}
	}}
}

// DelayAnswer lets the server do its work and holds its answer back.
func DelayAnswer(d time.Duration) Fault {
	return Fault{"delay the answer by " + d.String(), func(x *exchange) {
		res := x.forward()
		if x.wait(d) {
			x.reply(res)
		}
	}}
}

// Hold calls reached when the request has come, before the server sees any of
// it, and goes on when release is closed. It freezes a client where a test
// wants it.
func Hold(reached func(), release <-chan struct{}) Fault {
	return Fault{"hold", func(x *exchange) {
		reached()
		<-release
		x.pass()
	}}
}

// HoldBody is Hold behind the first n bytes of the body: the server has the
// request and waits for its rest, which goes on when release is closed, also if
// the client has left by then. So do bytes that a network or a proxy delays.
func HoldBody(n int64, reached func(), release <-chan struct{}) Fault {
	return Fault{fmt.Sprintf("hold the body after %d bytes", n), func(x *exchange) {
		x.body = io.MultiReader(io.LimitReader(x.body, n), &holding{reached, release}, x.body)
		x.pass()
	}}
}

// holding is an empty part of a body that takes its time.
type holding struct {
	reached func()
	release <-chan struct{}
}

func (h *holding) Read([]byte) (int, error) {
	h.reached()
	<-h.release
	return 0, io.EOF
}

// HoldAnswer is Hold between the server's commit and its answer.
func HoldAnswer(reached func(), release <-chan struct{}) Fault {
	return Fault{"hold the answer", func(x *exchange) {
		res := x.forward()
		reached()
		<-release
		x.reply(res)
	}}
}

// Exception answers as the server does when it refuses with code, without
// having done anything: text, X-ClickHouse-Exception-Code and HTTP status.
func Exception(code int) Fault {
	return Fault{fmt.Sprintf("exception %d", code), func(x *exchange) {
		x.drain()
		x.head().Set("X-ClickHouse-Exception-Code", fmt.Sprint(code))
		x.answer(exceptionStatus(code), []byte(exceptionText(code)+"\n"))
	}}
}

// ExceptionAfter is Exception for a server that failed after its work was
// stored: the request passes, its answer is replaced.
func ExceptionAfter(code int) Fault {
	return Fault{fmt.Sprintf("exception %d after the work", code), func(x *exchange) {
		_ = x.forward()
		x.head().Set("X-ClickHouse-Exception-Code", fmt.Sprint(code))
		x.answer(exceptionStatus(code), []byte(exceptionText(code)+"\n"))
	}}
}

// Status answers an HTTP status with a body that is not ClickHouse's, as load
// balancers do (502, 503, 504), without having done anything.
func Status(status int, body string) Fault {
	return Fault{fmt.Sprintf("status %d", status), func(x *exchange) {
		x.drain()
		x.answer(status, []byte(body))
	}}
}

// HeaderException answers 200 and an empty body; only the header says that
// nothing was done.
func HeaderException(code int) Fault {
	return Fault{fmt.Sprintf("200 with exception %d in the header", code), func(x *exchange) {
		x.drain()
		x.head().Set("X-ClickHouse-Exception-Code", fmt.Sprint(code))
		x.answer(http.StatusOK, nil)
	}}
}

// tag is the 16 bytes that mark a framed exception.
const tag = "abcdefghijklmnop"

// FramedException answers 200 and the exception in the body, framed as servers
// do since 25.9 (src/Server/HTTP/WriteBufferFromHTTPServerResponse.cpp):
// \r\n__exception__\r\n<tag>\r\n<text>\n<length> <tag>\r\n__exception__\r\n.
func FramedException(code int) Fault {
	return Fault{fmt.Sprintf("200 with exception %d framed in the body", code), func(x *exchange) {
		x.drain()
		text := exceptionText(code)
		x.head().Set("X-ClickHouse-Exception-Tag", tag)
		x.answer(http.StatusOK, fmt.Appendf(nil, "\r\n__exception__\r\n%s\r\n%s\n%d %s\r\n__exception__\r\n", tag, text, len(text)+1, tag))
	}}
}

// BareException answers 200 and the exception's text in the body, unframed, as
// older servers do.
func BareException(code int) Fault {
	return Fault{fmt.Sprintf("200 with exception %d bare in the body", code), func(x *exchange) {
		x.drain()
		x.answer(http.StatusOK, []byte(exceptionText(code)+"\n"))
	}}
}

// exceptionText is an exception as servers print it.
func exceptionText(code int) string {
	return fmt.Sprintf("Code: %d. DB::Exception: %s (%s) (version 26.7.2.1)", code, "Raised by a fault.", exceptionName(code))
}

func exceptionName(code int) string {
	names := map[int]string{60: "UNKNOWN_TABLE", 159: "TIMEOUT_EXCEEDED", 202: "TOO_MANY_SIMULTANEOUS_QUERIES",
		209: "SOCKET_TIMEOUT", 210: "NETWORK_ERROR", 241: "MEMORY_LIMIT_EXCEEDED", 242: "TABLE_IS_READ_ONLY", 243: "NOT_ENOUGH_SPACE",
		252: "TOO_MANY_PARTS", 319: "UNKNOWN_STATUS_OF_INSERT", 516: "AUTHENTICATION_FAILED"}
	if name := names[code]; name != "" {
		return name
	}
	return "UNKNOWN_EXCEPTION"
}

// exceptionStatus is the server's for the codes above
// (src/Server/HTTP/exceptionCodeToHTTPStatus.cpp).
func exceptionStatus(code int) int {
	switch code {
	case 60:
		return http.StatusNotFound
	case 159:
		return http.StatusRequestTimeout
	case 209:
		return http.StatusServiceUnavailable
	case 516:
		return http.StatusForbidden
	}
	return http.StatusInternalServerError
}

// Proxy forwards to one server.
type Proxy struct {
	target   string
	listener net.Listener
	server   *http.Server
	client   *http.Transport

	mu      sync.Mutex
	armed   []armed
	queries []string
}

type armed struct {
	match Match
	fault Fault
}

// New listens on a free loopback port and forwards to target, host:port.
func New(ctx context.Context, target string) (*Proxy, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for a client: %w", err)
	}
	p := &Proxy{target: target, listener: listener, client: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}
	p.server = &http.Server{Handler: http.HandlerFunc(p.serve), ReadHeaderTimeout: time.Minute}
	go func() { _ = p.server.Serve(listener) }() // it ends with Close
	return p, nil
}

// Addr is host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Close ends the proxy and the connections that are open.
func (p *Proxy) Close() error { return p.server.Close() }

// Next arms faults for the next inserts, one each, in order.
func (p *Proxy) Next(faults ...Fault) {
	for _, f := range faults {
		p.When(Inserts, f)
	}
}

// Pass lets the next insert through: it takes a place in Next's order.
func Pass() Fault { return Fault{"pass", func(x *exchange) { x.pass() }} }

// When arms a fault for the next request that matches.
func (p *Proxy) When(match Match, fault Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = append(p.armed, armed{match, fault})
}

// Pending are the faults that no request has met yet.
func (p *Proxy) Pending() []Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Fault
	for _, a := range p.armed {
		out = append(out, a.fault)
	}
	return out
}

// Disarm takes back the faults that no request has met yet.
func (p *Proxy) Disarm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = nil
}

// Queries are the texts of the requests so far, as [Match] sees them.
func (p *Proxy) Queries() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.queries...)
}

// take returns the first fault that waits for r.
func (p *Proxy) take(r *http.Request, query string) Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queries = append(p.queries, query)
	for i, a := range p.armed {
		if a.match(r, query) {
			p.armed = append(p.armed[:i:i], p.armed[i+1:]...)
			return a.fault
		}
	}
	return Pass()
}

// peek is how much of a body is read to know its query.
const peek = 4096

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	query, body := r.URL.Query().Get("query"), io.Reader(r.Body)
	if query == "" {
		head, err := io.ReadAll(io.LimitReader(r.Body, peek))
		query = string(head)
		body = io.MultiReader(bytes.NewReader(head), r.Body)
		if err != nil {
			body = io.MultiReader(bytes.NewReader(head), failing{})
		}
	}
	x := &exchange{proxy: p, w: w, r: r, body: body}
	p.take(r, query).do(x)
}

// exchange is one request on its way.
type exchange struct {
	proxy *Proxy
	w     http.ResponseWriter
	r     *http.Request
	body  io.Reader
}

// response is the server's answer, read whole; nil when there was none.
type response struct {
	status int
	header http.Header
	body   []byte
}

// forward sends the request to the server and reads its answer. The client's
// leaving does not stop it unless the body breaks.
func (x *exchange) forward() *response {
	target := url.URL{Scheme: "http", Host: x.proxy.target, Path: x.r.URL.Path, RawQuery: x.r.URL.RawQuery}
	out, err := http.NewRequestWithContext(context.WithoutCancel(x.r.Context()), x.r.Method, target.String(), x.body)
	if err != nil {
		return nil
	}
	out.Header, out.ContentLength = x.r.Header.Clone(), x.r.ContentLength
	if out.ContentLength == 0 {
		out.Body = http.NoBody
	}
	res, err := x.proxy.client.RoundTrip(out)
	if err != nil {
		return nil
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return nil
	}
	return &response{res.StatusCode, res.Header, body}
}

// pass forwards the request and its answer.
func (x *exchange) pass() { x.reply(x.forward()) }

// reply answers with the server's answer, or by a cut where it gave none.
func (x *exchange) reply(res *response) {
	if res == nil {
		x.cut()
	}
	x.copyHeader(res)
	x.answer(res.status, res.body)
}

func (x *exchange) copyHeader(res *response) {
	for name, values := range res.header {
		x.head()[name] = values
	}
}

func (x *exchange) head() http.Header { return x.w.Header() }

func (x *exchange) answer(status int, body []byte) {
	x.head().Set("Content-Length", fmt.Sprint(len(body)))
	x.w.WriteHeader(status)
	_, _ = x.w.Write(body)
}

// drain takes the body, so that the client is done sending.
func (x *exchange) drain() { _, _ = io.Copy(io.Discard, x.body) }

// wait reports whether the client is still there after d.
func (x *exchange) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-x.r.Context().Done():
		return false
	}
}

// cut ends the connection without an answer.
func (x *exchange) cut() { panic(http.ErrAbortHandler) }
