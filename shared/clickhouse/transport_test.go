package clickhouse

import (
	"context"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
)

// fake is a server that greets as ClickHouse does and leaves inserts to a test.
type fake struct {
	insert func(w http.ResponseWriter, r *http.Request)
	seen   atomic.Int64
}

// greetingBlock is a Native block of revision 0: displayName, version, revision,
// timezone.
func greetingBlock() []byte {
	text := func(s string) string { return string(rune(len(s))) + s }
	return []byte("\x01\x00\x02\xff\xff\xff\xff\x00" + "\x04\x01" +
		text("displayName()") + text("String") + "\x00" + text("fake") +
		text("version()") + text("String") + "\x00" + text("25.8.1.1") +
		text("revision()") + text("UInt32") + "\x00" + "\x00\x00\x00\x00" +
		text("timezone()") + text("String") + "\x00" + text("UTC"))
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.URL.Query().Get("query"), "INSERT") {
		if r.URL.Query().Has("query_id") {
			http.Error(w, "the greeting came under the insert's query id", http.StatusTeapot)
			return
		}
		if body, _ := io.ReadAll(r.Body); string(body) == "SELECT 1" {
			_, _ = io.WriteString(w, "\x01\x01\x011\x05UInt8\x01")
			return
		}
		_, _ = w.Write(greetingBlock())
		return
	}
	f.seen.Add(1)
	f.insert(w, r)
}

// done answers as ClickHouse does when an insert is done.
func done(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("X-ClickHouse-Query-Id", r.URL.Query().Get("query_id"))
}

// sending is a target that is past its preflight, and an insert for it.
func sending(t *testing.T, endpoint string, change func(*Config)) (*Target, delivery.Insert) {
	t.Helper()
	config := conf()
	config.Endpoints = []string{endpoint}
	if change != nil {
		change(config)
	}
	target, err := New(*config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, target.Close()) })
	known := map[string]string{deduplicateInsert: ""}
	s := &schema{engine: parseEngine(plainTable), statement: "INSERT INTO `d`.`t` (`v`)", known: known, pins: pins(known)}
	target.schema.Store(s)
	target.seen.Store(&sighting{table: s.table, at: time.Now().Add(time.Hour)})
	return target, delivery.Insert{
		Lane:  delivery.Lane{Pipeline: "p", Cluster: "c", TopicPartition: kafka.TopicPartition{Topic: "t", Partition: 1}},
		Chunk: &delivery.Chunk{Rows: 1, Payload: &block{buffer: &buffer{rows: []byte("\x00\x01x")}, schema: s}},
		First: 10, Last: 19, Token: "tok", Attempt: 2, NotAfter: time.Now().Add(time.Hour), Timeout: 20 * time.Second,
	}
}

// What goes over the wire: one insert with every pin, the deadline, the id.
func TestInsertOnTheWire(t *testing.T) {
	var got url.Values
	var body []byte
	var length int64
	f := &fake{insert: func(w http.ResponseWriter, r *http.Request) {
		got, length = r.URL.Query(), r.ContentLength
		body, _ = io.ReadAll(r.Body)
		done(w, r)
	}}
	srv := httptest.NewServer(f)
	defer srv.Close()
	target, in := sending(t, srv.URL, nil)
	require.NoError(t, target.Insert(t.Context(), in))
	require.Equal(t, int64(1), f.seen.Load())
	require.Equal(t, "\x00\x01x", string(body))
	require.Equal(t, int64(3), length)
	require.Equal(t, "INSERT INTO `d`.`t` (`v`) FORMAT RowBinaryWithDefaults", got.Get("query"))
	require.Equal(t, "oncehouse/p/t/1/10-19/2", got.Get("query_id"))
	for _, pin := range strings.Fields(`async_insert=0 wait_for_async_insert=1 max_insert_block_size=1073741824
		min_insert_block_size_rows=1073741824 min_insert_block_size_bytes=1073741824 input_format_parallel_parsing=0
		max_insert_threads=1 max_threads=1 parallel_view_processing=0 max_partitions_per_insert_block=0
		deduplicate_blocks_in_dependent_materialized_views=1 materialized_views_ignore_errors=0 input_format_allow_errors_num=0
		input_format_allow_errors_ratio=0 timeout_overflow_mode=throw input_format_defaults_for_omitted_fields=1
		send_progress_in_http_headers=0`) {
		name, want, _ := strings.Cut(pin, "=")
		require.Equal(t, want, got.Get(name), name)
	}
	for name := range optional() {
		require.False(t, got.Has(name), "%s is not known to this server (error 115)", name)
	}
	for name, want := range map[string]string{"wait_end_of_query": "1", "insert_deduplication_token": "tok", "insert_deduplicate": "1", "deduplicate_insert": "enable"} {
		require.Equal(t, want, got.Get(name), name)
	}
	limit, err := time.ParseDuration(got.Get("max_execution_time") + "s")
	require.NoError(t, err)
	require.LessOrEqual(t, limit, in.Timeout, "the server gives up before the caller")
	require.Greater(t, limit, in.Timeout-5*time.Second)

	in.Token = ""
	require.NoError(t, target.Insert(t.Context(), in))
	require.Equal(t, "0", got.Get("insert_deduplicate"))
	require.Equal(t, "disable", got.Get("deduplicate_insert"))
}

// A context that ends before the insert's time-out is the bound.
func TestInsertHandsOverTheEarlierDeadline(t *testing.T) {
	var got string
	srv := httptest.NewServer(&fake{insert: func(w http.ResponseWriter, r *http.Request) {
		got = r.URL.Query().Get("max_execution_time")
		done(w, r)
	}})
	defer srv.Close()
	target, in := sending(t, srv.URL, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, target.Insert(ctx, in))
	limit, err := time.ParseDuration(got + "s")
	require.NoError(t, err)
	require.LessOrEqual(t, limit, 10*time.Second)
}

// The last send moment may pass while the connection is made: the rows stay here.
func TestNothingSentWhenDiallingTookTooLong(t *testing.T) {
	for _, compression := range []Compression{CompressionNone, CompressionGzip} {
		t.Run(string(compression), func(t *testing.T) {
			var rows atomic.Int64
			f := &fake{insert: func(w http.ResponseWriter, r *http.Request) {
				n, _ := io.Copy(io.Discard, r.Body)
				rows.Add(n)
				done(w, r)
			}}
			srv := httptest.NewServer(f)
			defer srv.Close()
			target, in := sending(t, srv.URL, func(c *Config) { c.Compression = compression })
			require.NoError(t, target.db.Ping(t.Context()))
			target.transport.base.CloseIdleConnections()
			dial := target.transport.base.DialContext
			target.transport.base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				<-time.After(time.Until(in.NotAfter) + time.Millisecond)
				return dial(ctx, network, addr)
			}
			in.NotAfter = time.Now().Add(50 * time.Millisecond)
			var failed *delivery.Error
			require.ErrorAs(t, target.Insert(t.Context(), in), &failed)
			require.Equal(t, delivery.ReasonOutOfTime, failed.Reason)
			require.Equal(t, delivery.Retryable, failed.Kind)
			require.Zero(t, rows.Load())
		})
	}
}

// net/http would send a request again when an idle connection turns out dead.
// An insert is never sent twice, whatever the server does to the connection.
func TestInsertIsSentOnce(t *testing.T) {
	for name, insert := range map[string]func(http.ResponseWriter, *http.Request){
		"cut before the answer": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"cut after the body": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			panic(http.ErrAbortHandler)
		},
		"redirect 307": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.String(), http.StatusTemporaryRedirect)
		},
		"redirect 303": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.String(), http.StatusSeeOther) },
		"unavailable": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusServiceUnavailable)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{insert: insert}
			srv := httptest.NewServer(f)
			defer srv.Close()
			target, in := sending(t, srv.URL, nil)
			require.NoError(t, target.db.Ping(t.Context())) // the insert finds an idle connection
			require.Equal(t, delivery.InDoubt, delivery.KindOf(target.Insert(t.Context(), in)))
			require.Equal(t, int64(1), f.seen.Load())
		})
	}
}

// An answer that comes before the rows are out is no proof of them. The
// transport is then still at them. (Also for the race detector.)
func TestEarlyAnswerIsNoProof(t *testing.T) {
	srv := httptest.NewServer(&fake{insert: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-ClickHouse-Query-Id", r.URL.Query().Get("query_id"))
	}})
	defer srv.Close()
	target, in := sending(t, srv.URL, nil)
	in.Chunk.Payload.(*block).buffer.rows = make([]byte, 64<<20)
	require.Error(t, target.Insert(t.Context(), in))
}

func TestProve(t *testing.T) {
	header := func(pairs ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(pairs); i += 2 {
			h.Set(pairs[i], pairs[i+1])
		}
		return h
	}
	id := []string{"X-ClickHouse-Query-Id", "q"}
	for name, c := range map[string]struct {
		header, trailer http.Header
		body, problem   string
	}{
		"done":                 {header: header(id...)},
		"done with a new line": {header: header(id...), body: "\n"},
		"code 0":               {header: header(append(id, headerExceptionCode, "0")...)},
		"header":               {header: header(append(id, headerExceptionCode, "252")...), problem: "exception 252"},
		"trailer":              {header: header(id...), trailer: header(headerExceptionCode, "395"), problem: "exception 395"},
		"framed":               {header: header(id...), body: "\r\n__exception__\r\nabc\r\nCode: 241. DB::Exception: x", problem: "exception 241"},
		"bare":                 {header: header(id...), body: "Code: 60. DB::Exception: x", problem: "exception 60"},
		"another's id":         {header: header("X-ClickHouse-Query-Id", "p"), problem: `query id "p", not "q"`},
		"no id":                {header: header(), problem: `query id ""`},
		"a page":               {header: header(id...), body: "<html>", problem: "not empty"},
	} {
		t.Run(name, func(t *testing.T) {
			err := prove(&http.Response{Header: c.header, Trailer: c.trailer}, []byte(c.body), "q")
			if c.problem == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.problem)
		})
	}
}

// TLS: verified against the given authority, refused against any other.
func TestTLS(t *testing.T) {
	srv := httptest.NewTLSServer(&fake{insert: done})
	defer srv.Close()
	file := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600))

	target, in := sending(t, srv.URL, func(c *Config) { c.CAFile = file })
	require.NoError(t, target.Insert(t.Context(), in))

	target, in = sending(t, srv.URL, nil)
	err := target.Insert(t.Context(), in)
	require.Equal(t, delivery.Retryable, delivery.KindOf(err))
	require.ErrorContains(t, err, "certificate")
	require.ErrorContains(t, err, "nothing was sent")

	target, in = sending(t, srv.URL, func(c *Config) { c.CAFile, c.ServerName = file, "other.example" })
	require.ErrorContains(t, target.Insert(t.Context(), in), "certificate")

	config := conf()
	config.Endpoints, config.CAFile = []string{srv.URL}, file+".missing"
	_, err = New(*config)
	require.ErrorContains(t, err, "CA file")
}

// The environment's proxy is not used: it might send again what it holds.
func TestEnvironmentProxyIsIgnored(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	srv := httptest.NewServer(&fake{insert: done})
	defer srv.Close()
	target, _ := sending(t, srv.URL, nil)
	require.Nil(t, target.transport.base.Proxy)
}

func TestBodyHandsOutNothingBehindItsEnd(t *testing.T) {
	b := &body{data: []byte("rows"), notAfter: time.Now().Add(time.Hour)}
	n, err := b.Read(make([]byte, 2))
	require.NoError(t, err)
	require.Equal(t, 2, n)
	taken, late := b.close()
	require.True(t, taken)
	require.False(t, late)
	_, err = b.Read(make([]byte, 2))
	require.ErrorIs(t, err, errSealed)
	require.False(t, b.whole())
	untouched := &body{data: []byte("rows")}
	taken, late = untouched.close()
	require.False(t, taken)
	require.False(t, late)
	tooLate := &body{data: []byte("rows")}
	_, err = tooLate.Read(make([]byte, 2))
	require.ErrorIs(t, err, errOutOfTime)
	taken, late = tooLate.close()
	require.False(t, taken)
	require.True(t, late)
}

// A connection under a failed attempt writes no more, and knows whether it did.
func TestConnSeal(t *testing.T) {
	here, there := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, there) }()
	c := &conn{Conn: here}
	_, err := c.Write([]byte("x"))
	require.NoError(t, err)
	require.NoError(t, here.Close())
	_, err = c.Write([]byte("x"))
	require.Error(t, err)
	require.Equal(t, int64(1), c.seal(), "a write that surely wrote nothing does not count")
	_, err = c.Write([]byte("x"))
	require.ErrorIs(t, err, errSealed)
}

// The memory of a chunk is another chunk's as soon as Insert returns, also when
// the transport has not noticed that the insert is over. (For the race detector.)
func TestMemoryIsNotReadAfterInsert(t *testing.T) {
	for _, compression := range []Compression{CompressionNone, CompressionGzip} {
		t.Run(string(compression), func(t *testing.T) {
			reached, release := make(chan struct{}), make(chan struct{})
			srv := httptest.NewServer(&fake{insert: func(_ http.ResponseWriter, r *http.Request) {
				_, _ = r.Body.Read(make([]byte, 1))
				close(reached)
				<-release
			}})
			defer srv.Close()
			defer close(release)
			target, in := sending(t, srv.URL, func(c *Config) { c.Compression = compression })
			rows := make([]byte, 64<<20)
			in.Chunk.Payload.(*block).buffer.rows = rows
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-reached; cancel() }()
			require.Equal(t, delivery.InDoubt, delivery.KindOf(target.Insert(ctx, in)))
			clear(rows)
		})
	}
}

func TestSendable(t *testing.T) {
	for name, change := range map[string]func(*delivery.Insert){
		"another target's": func(in *delivery.Insert) { in.Chunk.Payload = 1 },
		"is empty":         func(in *delivery.Insert) { in.Chunk.Rows = 0 },
		"stay one block":   func(in *delivery.Insert) { in.Chunk.Rows = delivery.MaxBlockRows },
		"256 MB": func(in *delivery.Insert) {
			in.Chunk.Payload.(*block).buffer.rows = make([]byte, delivery.MaxBlockBytes)
		},
	} {
		t.Run(name, func(t *testing.T) {
			target, in := sending(t, "http://127.0.0.1:1", nil)
			change(&in)
			require.Equal(t, delivery.Fatal, delivery.KindOf(target.Insert(t.Context(), in)))
		})
	}
}

// The first endpoint that answers is used; the greeting decides, never the insert.
func TestSecondEndpoint(t *testing.T) {
	f := &fake{insert: done}
	srv := httptest.NewServer(f)
	defer srv.Close()
	target, in := sending(t, srv.URL, func(c *Config) { c.Endpoints = []string{"http://127.0.0.1:1", srv.URL} })
	require.NoError(t, target.Insert(t.Context(), in))
	require.Equal(t, int64(1), f.seen.Load())
}
