package engine_test

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/ClickHouse/ch-go/compress"
	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/engine"
	"oncehouse/infra/local/engine/enginetest"
)

// reply is an HTTP answer, read whole.
type reply struct {
	status int
	header http.Header
	body   string
}

// call sends one request; params are "name=value".
func call(t *testing.T, srv *enginetest.Server, method string, body io.Reader, header http.Header, params ...string) reply {
	t.Helper()
	r, err := send(t, srv, method, body, header, params...)
	require.NoError(t, err)
	return r
}

// send is call for a goroutine of its own.
func send(t *testing.T, srv *enginetest.Server, method string, body io.Reader, header http.Header, params ...string) (reply, error) {
	values := url.Values{}
	for _, p := range params {
		name, value, _ := strings.Cut(p, "=")
		values.Add(name, value)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, srv.URL()+"/?"+values.Encode(), body)
	if err != nil {
		return reply{}, err
	}
	if header != nil {
		req.Header = header
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}
	res, err := client.Do(req)
	if err != nil {
		return reply{}, err
	}
	data, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, string(data)}, errors.Join(err, res.Body.Close())
}

// post sends sql as the body, as curl --data-binary does.
func post(t *testing.T, srv *enginetest.Server, sql string, params ...string) reply {
	t.Helper()
	return call(t, srv, http.MethodPost, strings.NewReader(sql), nil, params...)
}

// ok is post, and the answer must be a success.
func ok(t *testing.T, srv *enginetest.Server, sql string, params ...string) string {
	t.Helper()
	r := post(t, srv, sql, params...)
	require.Equal(t, http.StatusOK, r.status, r.body)
	return r.body
}

func TestHTTPBasics(t *testing.T) {
	srv := enginetest.Run(t)
	ok(t, srv, "CREATE DATABASE other")
	ok(t, srv, "CREATE TABLE other.here (a UInt8) ENGINE = Memory")
	t.Run("ping", func(t *testing.T) {
		for _, path := range []string{"/ping", "/", "/replicas_status"} {
			res, err := http.Get(srv.URL() + path)
			require.NoError(t, err)
			data, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			require.Equal(t, "Ok.\n", string(data), path)
		}
	})
	t.Run("where the query is", func(t *testing.T) {
		require.Equal(t, "1\n", call(t, srv, http.MethodGet, nil, nil, "query=SELECT 1").body)
		require.Equal(t, "2\n", ok(t, srv, "SELECT 2"))
		require.Equal(t, "3\n", ok(t, srv, "3", "query=SELECT"))
		require.Equal(t, "4\n", ok(t, srv, "", "query=SELECT 4;"))
		require.Empty(t, call(t, srv, http.MethodHead, nil, nil, "query=SELECT 1").body)
	})
	t.Run("database", func(t *testing.T) {
		require.Equal(t, "other\n", ok(t, srv, "SELECT currentDatabase()", "database=other"))
		require.Equal(t, "other\n", call(t, srv, http.MethodPost, strings.NewReader("SELECT currentDatabase()"), http.Header{"X-Clickhouse-Database": {"other"}}).body)
		require.Equal(t, "default\n", ok(t, srv, "SELECT currentDatabase()"))
		require.Equal(t, "0\n", ok(t, srv, "SELECT count() FROM here", "database=other"))
	})
	t.Run("formats", func(t *testing.T) {
		r := post(t, srv, "SELECT 1 AS a FORMAT JSONEachRow")
		require.Equal(t, "{\"a\":1}\n", r.body)
		require.Equal(t, "JSONEachRow", r.header.Get("X-ClickHouse-Format"))
		r = post(t, srv, "SELECT 1 AS a", "default_format=CSVWithNames")
		require.Equal(t, "\"a\"\n1\n", r.body)
		require.Equal(t, "CSVWithNames", r.header.Get("X-ClickHouse-Format"))
		require.Equal(t, "text/csv; charset=UTF-8", r.header.Get("Content-Type"))
	})
	t.Run("parameters", func(t *testing.T) {
		require.Equal(t, "7 it's\n", ok(t, srv, "SELECT concat(toString({n:UInt8}), ' ', {s:String}) FORMAT TSVRaw", "param_n=7", "param_s=it's"))
		require.Equal(t, "1\n", ok(t, srv, "SELECT count() FROM system.tables WHERE name = {t:String}", "param_t=here"))
	})
	t.Run("headers", func(t *testing.T) {
		r := post(t, srv, "SELECT number FROM numbers(10)", "query_id=mine")
		require.Equal(t, "mine", r.header.Get("X-ClickHouse-Query-Id"))
		require.Equal(t, strings.TrimSpace(ok(t, srv, "SELECT timezone()")), r.header.Get("X-ClickHouse-Timezone"))
		require.Equal(t, strings.TrimSpace(ok(t, srv, "SELECT displayName()")), r.header.Get("X-ClickHouse-Server-Display-Name"))
		require.Len(t, r.header.Get("X-ClickHouse-Exception-Tag"), 16)
		require.Len(t, post(t, srv, "SELECT 1").header.Get("X-ClickHouse-Query-Id"), 36)
		figures := map[string]string{}
		require.NoError(t, json.Unmarshal([]byte(r.header.Get("X-ClickHouse-Summary")), &figures))
		require.Equal(t, "10", figures["read_rows"])
		require.Equal(t, "10", figures["result_rows"])
		require.Equal(t, "20", figures["result_bytes"])
	})
	t.Run("settings are the request's own", func(t *testing.T) {
		require.Equal(t, "3\n", ok(t, srv, "SELECT getSetting('max_threads')", "max_threads=3"))
		require.NotEqual(t, "3\n", ok(t, srv, "SELECT value, changed FROM system.settings WHERE name = 'max_threads'"))
		require.Equal(t, "it's\n", ok(t, srv, "SELECT getSetting('log_comment') FORMAT TSVRaw", "log_comment=it's"))
		require.Equal(t, "q1\n", ok(t, srv, "SELECT getSetting('log_comment')", "query_id=q1"))
	})
	t.Run("serverUUID", func(t *testing.T) {
		id := ok(t, srv, "SELECT serverUUID()")
		require.NotContains(t, id, "00000000-0000-0000")
		require.Equal(t, id, ok(t, srv, "SELECT toString(serverUUID()) AS x"))
		require.Equal(t, "\"serverUUID()\"\n", ok(t, srv, "SELECT serverUUID() LIMIT 0 FORMAT CSVWithNames"))
		require.Equal(t, "serverUUID()\n", ok(t, srv, "SELECT 'serverUUID()'"))
	})
	t.Run("external table", func(t *testing.T) {
		form := "--b\r\nContent-Disposition: form-data; name=\"ids\"; filename=\"ids\"\r\n\r\n1\n2\n\r\n--b--\r\n"
		r := call(t, srv, http.MethodPost, strings.NewReader(form), http.Header{"Content-Type": {"multipart/form-data; boundary=b"}},
			"query=SELECT sum(id) FROM ids", "ids_structure=id UInt32", "ids_format=TSV")
		require.Equal(t, "3\n", r.body)
	})
	t.Run("other paths and methods", func(t *testing.T) {
		res, err := http.Get(srv.URL() + "/nothing")
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusNotFound, res.StatusCode)
		require.Equal(t, http.StatusNoContent, call(t, srv, http.MethodOptions, nil, nil).status)
	})
}

func TestErrors(t *testing.T) {
	srv := enginetest.Run(t)
	ok(t, srv, "CREATE TABLE t (a UInt8) ENGINE = MergeTree ORDER BY a")
	version := strings.TrimSpace(ok(t, srv, "SELECT version()"))
	cases := []struct {
		method, sql, params string
		status              int
		code, name          string
	}{
		{"POST", "SELECT * FROM missing", "", 404, "60", "UNKNOWN_TABLE"},
		{"POST", "INSERT INTO missing FORMAT TSV\n1\n", "", 404, "60", "UNKNOWN_TABLE"},
		{"POST", "INSERT INTO t FORMAT TSV\nx\n", "", 400, "27", "CANNOT_PARSE_INPUT_ASSERTION_FAILED"},
		{"POST", "SELEC 1", "", 400, "62", "SYNTAX_ERROR"},
		{"POST", "1", "", 400, "62", "SYNTAX_ERROR"}, // implicit_select is the library's, not the server's
		{"POST", " -- nothing\n", "", 400, "62", "SYNTAX_ERROR"},
		{"POST", "SELECT 1; SELECT 2", "", 400, "62", "SYNTAX_ERROR"},
		{"POST", "INSERT INTO t VALUES (1); SELECT 2", "", 400, "62", "SYNTAX_ERROR"},
		{"POST", "INSERT INTO t FORMAT TSV; 1", "", 400, "62", "SYNTAX_ERROR"},
		{"POST", "SELECT nope", "", 404, "47", "UNKNOWN_IDENTIFIER"},
		{"POST", "SELECT nope()", "", 404, "46", "UNKNOWN_FUNCTION"},
		{"POST", "SELECT 1", "database=missing", 404, "81", "UNKNOWN_DATABASE"},
		{"POST", "SELECT 1", "no_such_setting=1", 404, "115", "UNKNOWN_SETTING"},
		{"POST", "SELECT 1 FORMAT Nope", "", 404, "73", "UNKNOWN_FORMAT"},
		{"POST", "SELECT throwIf(number = 5) FROM numbers(10)", "", 500, "395", "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO"},
		{"POST", "SELECT sleepEachRow(0.01) FROM numbers(1000) SETTINGS max_block_size = 1", "max_execution_time=0.1", 408, "159", "TIMEOUT_EXCEEDED"},
		{"GET", "INSERT INTO t VALUES (1)", "", 500, "164", "READONLY"},
		{"GET", "INSERT INTO t FORMAT TSV 1", "", 500, "164", "READONLY"},
		{"GET", "CREATE TABLE u (a UInt8) ENGINE = Memory", "", 500, "164", "READONLY"},
		{"GET", "SYSTEM STOP MERGES", "", 500, "164", "READONLY"},
		{"POST", "INSERT INTO t SELECT a FROM input('a UInt8') FORMAT TSV\n1\n", "", 501, "48", "NOT_IMPLEMENTED"},
		{"POST", "SELECT 1", "session_id=a&session_timeout=4000", 500, "374", "INVALID_SESSION_TIMEOUT"},
	}
	for _, c := range cases {
		t.Run(c.sql+" "+c.params, func(t *testing.T) {
			params := strings.Split(c.params, "&")
			var body io.Reader = strings.NewReader(c.sql)
			if c.method == http.MethodGet {
				params, body = append(params, "query="+c.sql), nil
			}
			if c.params == "" {
				params = params[1:]
			}
			r := call(t, srv, c.method, body, nil, params...)
			require.Equal(t, c.status, r.status, r.body)
			require.Equal(t, c.code, r.header.Get("X-ClickHouse-Exception-Code"), r.body)
			require.Regexp(t, `(?s)^Code: `+c.code+`\. DB::Exception: .*\(`+c.name+`\) \(version `+version+`.*\)\n$`, r.body)
		})
	}
	require.Equal(t, "0\n", ok(t, srv, "SELECT count() FROM t"), "a refused statement stored rows")
	require.Equal(t, "0\n", ok(t, srv, "SELECT count() FROM system.tables WHERE name = 'u'"))
}

func TestPassword(t *testing.T) {
	srv := enginetest.RunWith(t, engine.Options{User: "sink", Password: "p:w'1"})
	require.Equal(t, 403, post(t, srv, "SELECT 1").status)
	require.Equal(t, "516", post(t, srv, "SELECT 1", "user=sink", "password=no").header.Get("X-ClickHouse-Exception-Code"))
	require.Equal(t, "1\n", ok(t, srv, "SELECT 1", "user=sink", "password=p:w'1"))
	header := http.Header{"X-Clickhouse-User": {"sink"}, "X-Clickhouse-Key": {"p:w'1"}}
	require.Equal(t, "1\n", call(t, srv, http.MethodPost, strings.NewReader("SELECT 1"), header).body)
	require.NoError(t, srv.Open(t).Ping(t.Context()))
}

func TestSessions(t *testing.T) {
	srv := enginetest.Run(t)
	require.Equal(t, "372", post(t, srv, "SELECT 1", "session_id=s", "session_check=1").header.Get("X-ClickHouse-Exception-Code"))
	ok(t, srv, "SET max_threads = 5", "session_id=s")
	ok(t, srv, "CREATE TEMPORARY TABLE tmp AS SELECT 42 AS x", "session_id=s")
	require.Equal(t, "42\t5\n", ok(t, srv, "SELECT x, getSetting('max_threads') FROM tmp", "session_id=s"))
	require.Equal(t, "3\n", ok(t, srv, "SELECT getSetting('max_threads')", "session_id=s", "max_threads=3", "database=system"))
	require.Equal(t, "5\tdefault\n", ok(t, srv, "SELECT getSetting('max_threads'), currentDatabase()", "session_id=s"), "the URL's settings outlived their query")
	require.Equal(t, "60", post(t, srv, "SELECT x FROM tmp", "session_id=other").header.Get("X-ClickHouse-Exception-Code"))
	ok(t, srv, "SELECT 1", "session_id=s", "close_session=1")
	require.Equal(t, "372", post(t, srv, "SELECT 1", "session_id=s", "session_check=1").header.Get("X-ClickHouse-Exception-Code"))
}

// held is a request whose body has not ended: it runs until release.
type held struct {
	body *io.PipeWriter
	done chan sent
}

type sent struct {
	reply reply
	err   error
}

// hold starts an INSERT and returns when the server has claimed its query id
// and session.
func hold(t *testing.T, srv *enginetest.Server, params ...string) *held {
	t.Helper()
	r, w := io.Pipe()
	h := &held{body: w, done: make(chan sent, 1)}
	go func() {
		reply, err := send(t, srv, http.MethodPost, r, nil, append(params, "query=INSERT INTO held FORMAT TSV")...)
		h.done <- sent{reply, err}
	}()
	chunk := bytes.Repeat([]byte("1\n"), 200_000) // more than the front reads before it starts
	_, err := w.Write(chunk)
	require.NoError(t, err)
	waitFor(t, func() bool {
		return ok(t, srv, "SELECT count() > 0 FROM system.processes WHERE query LIKE 'INSERT INTO held%'") == "1\n"
	})
	return h
}

func (h *held) release(t *testing.T) reply {
	t.Helper()
	require.NoError(t, h.body.Close())
	out := <-h.done
	require.NoError(t, out.err)
	return out.reply
}

func TestRunningOnce(t *testing.T) {
	srv := enginetest.Run(t)
	ok(t, srv, "CREATE TABLE held (a UInt8) ENGINE = MergeTree ORDER BY a")
	h := hold(t, srv, "query_id=q", "session_id=s")
	require.Equal(t, "216", post(t, srv, "SELECT 1", "query_id=q").header.Get("X-ClickHouse-Exception-Code"))
	require.Equal(t, "373", post(t, srv, "SELECT 1", "session_id=s").header.Get("X-ClickHouse-Exception-Code"))
	require.Equal(t, "q\n", ok(t, srv, "SELECT Settings['log_comment'] FROM system.processes WHERE query LIKE 'INSERT INTO held%'"))
	r := h.release(t)
	require.Equal(t, http.StatusOK, r.status, r.body)
	require.Contains(t, r.header.Get("X-ClickHouse-Summary"), `"written_rows":"200000"`)
	require.Equal(t, "1\n", ok(t, srv, "SELECT 1", "query_id=q", "session_id=s"))
}

// codecs compress a body as clients do.
func codecs(t *testing.T) map[string]func([]byte) []byte {
	through := func(open func(io.Writer) io.WriteCloser) func([]byte) []byte {
		return func(data []byte) []byte {
			var out bytes.Buffer
			w := open(&out)
			_, err := w.Write(data)
			require.NoError(t, err)
			require.NoError(t, w.Close())
			return out.Bytes()
		}
	}
	return map[string]func([]byte) []byte{
		"":        func(data []byte) []byte { return data },
		"gzip":    through(func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }),
		"deflate": through(func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) }),
		"br":      through(func(w io.Writer) io.WriteCloser { return brotli.NewWriter(w) }),
		"lz4":     through(func(w io.Writer) io.WriteCloser { return lz4.NewWriter(w) }),
		"zstd": through(func(w io.Writer) io.WriteCloser {
			z, err := zstd.NewWriter(w)
			require.NoError(t, err)
			return z
		}),
	}
}

func expand(t *testing.T, encoding string, data string) string {
	t.Helper()
	var r io.Reader
	var err error
	switch encoding {
	case "gzip":
		r, err = gzip.NewReader(strings.NewReader(data))
	case "deflate":
		r, err = zlib.NewReader(strings.NewReader(data))
	case "br":
		r = brotli.NewReader(strings.NewReader(data))
	case "lz4":
		r = lz4.NewReader(strings.NewReader(data))
	case "zstd":
		r, err = zstd.NewReader(strings.NewReader(data))
	default:
		return data
	}
	require.NoError(t, err)
	out, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(out)
}

func TestHTTPCompression(t *testing.T) {
	srv := enginetest.Run(t)
	for encoding, pack := range codecs(t) {
		t.Run("request "+encoding, func(t *testing.T) {
			header := http.Header{}
			if encoding != "" {
				header.Set("Content-Encoding", encoding)
			}
			r := call(t, srv, http.MethodPost, bytes.NewReader(pack([]byte("SELECT 'a body'"))), header)
			require.Equal(t, "a body\n", r.body)
		})
		t.Run("answer "+encoding, func(t *testing.T) {
			header := http.Header{"Accept-Encoding": {encoding}}
			r := call(t, srv, http.MethodPost, strings.NewReader("SELECT number FROM numbers(1000)"), header, "enable_http_compression=1")
			require.Equal(t, encoding, r.header.Get("Content-Encoding"))
			require.Len(t, strings.Split(expand(t, encoding, r.body), "\n"), 1001)
			r = call(t, srv, http.MethodPost, strings.NewReader("SELECT nope"), header, "enable_http_compression=1")
			require.Contains(t, expand(t, encoding, r.body), "UNKNOWN_IDENTIFIER")
		})
	}
	r := call(t, srv, http.MethodPost, strings.NewReader("SELECT 1"), http.Header{"Accept-Encoding": {"gzip"}})
	require.Empty(t, r.header.Get("Content-Encoding"), "compressed although enable_http_compression is off")
}

func TestNativeCompression(t *testing.T) {
	srv := enginetest.Run(t)
	ok(t, srv, "CREATE TABLE t (a UInt32) ENGINE = MergeTree ORDER BY a")
	rows := make([]byte, 0, 4000)
	for i := range 1000 {
		rows = binary.LittleEndian.AppendUint32(rows, uint32(i))
	}
	for name, method := range map[string]compress.Method{"NONE": compress.None, "LZ4": compress.LZ4, "LZ4HC": compress.LZ4HC, "ZSTD": compress.ZSTD} {
		t.Run(name, func(t *testing.T) {
			ok(t, srv, "TRUNCATE TABLE t")
			w := compress.NewWriter(compress.LevelZero, method)
			require.NoError(t, w.Compress(rows))
			r := call(t, srv, http.MethodPost, bytes.NewReader(w.Data), nil, "query=INSERT INTO t FORMAT RowBinary", "decompress=1")
			require.Equal(t, http.StatusOK, r.status, r.body)
			require.Equal(t, "1000\t499500\n", ok(t, srv, "SELECT count(), sum(a) FROM t"))
			r = call(t, srv, http.MethodPost, strings.NewReader("SELECT a FROM t ORDER BY a FORMAT RowBinary"), nil, "compress=1", "network_compression_method="+strings.TrimSuffix(name, "HC"))
			got, err := io.ReadAll(io.LimitReader(compress.NewReader(strings.NewReader(r.body)), 4000))
			require.NoError(t, err)
			require.Equal(t, rows, got)
		})
	}
	t.Run("a frame that lies", func(t *testing.T) {
		r := call(t, srv, http.MethodPost, strings.NewReader(strings.Repeat("x", 100)), nil, "query=INSERT INTO t FORMAT RowBinary", "decompress=1")
		require.NotEqual(t, http.StatusOK, r.status)
		require.Contains(t, r.body, "Code: 33. ")
	})
}

func TestInsertForms(t *testing.T) {
	srv := enginetest.Run(t)
	ok(t, srv, "CREATE TABLE t (a UInt32, s String DEFAULT 'd') ENGINE = MergeTree ORDER BY a")
	native := post(t, srv, "SELECT toUInt32(9) AS a, 'n\n\n;' AS s FORMAT Native").body
	cases := []struct{ name, query, body, want string }{
		{"values", "", "INSERT INTO t VALUES (1, 'x'), (2, 'y;\n\nSELECT')", "1\tx|2\ty;\\n\\nSELECT"},
		{"values in two parts", "INSERT INTO t (a) VALUES", "(1), (1 + 1)", "1\td|2\td"},
		{"values with a semicolon", "", "INSERT INTO t (a) VALUES (1);\n-- done\n", "1\td"},
		{"values by FORMAT", "", "INSERT INTO t FORMAT Values (1, 'it''s')", "1\tit\\'s"},
		{"select", "", "INSERT INTO t (a) SELECT number FROM numbers(2)", "0\td|1\td"},
		{"with", "", "INSERT INTO t (a) WITH 4 AS x SELECT x", "4\td"},
		{"inline with empty lines", "", "INSERT INTO t FORMAT CSV\n1,\"a\n\nb; DROP TABLE t\"\n2,c\n", "1\ta\\n\\nb; DROP TABLE t|2\tc"},
		{"query in the URL", "INSERT INTO t (a) FORMAT JSONEachRow", "{\"a\":1}\n\n{\"a\":2}", "1\td|2\td"},
		{"row binary", "INSERT INTO t FORMAT RowBinary", "\n\x00\x00\x00\x03;\n\n", "10\t;\\n\\n"},
		{"row binary with defaults", "INSERT INTO t FORMAT RowBinaryWithDefaults", "\x00\x07\x00\x00\x00\x01", "7\td"},
		{"native", "INSERT INTO t FORMAT Native", native, "9\tn\\n\\n;"},
		{"comment and odd case", "", "/* INSERT INTO t VALUES */ insert -- FORMAT x\n into `t`(a) format\tTSV\r\n5\n", "5\td"},
		{"settings in the query", "", "INSERT INTO t (a) SETTINGS insert_deduplicate = 0 FORMAT TSV\n6\n", "6\td"},
		{"qualified name", "", "INSERT INTO TABLE default.t (a) FORMAT TSV 6\n", "6\td"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ok(t, srv, "TRUNCATE TABLE t")
			params := []string{"query=" + c.query}
			if c.query == "" {
				params = nil
			}
			ok(t, srv, c.body, params...)
			got := ok(t, srv, "SELECT a, s FROM t ORDER BY a")
			require.Equal(t, c.want, strings.ReplaceAll(strings.TrimSuffix(got, "\n"), "\n", "|"))
		})
	}
	t.Run("parameters", func(t *testing.T) {
		ok(t, srv, "TRUNCATE TABLE t")
		ok(t, srv, "INSERT INTO {t:Identifier} (a) FORMAT TSV\n1\n", "param_t=t")
		ok(t, srv, "INSERT INTO t VALUES ({a:UInt32}, {s:String})", "param_a=2", "param_s=z")
		require.Equal(t, "1\td\n2\tz\n", ok(t, srv, "SELECT a, s FROM t ORDER BY a"))
	})
}

// TestCutBody: whatever ends a body early, nothing of it is stored.
func TestCutBody(t *testing.T) {
	srv := enginetest.Run(t)
	ok(t, srv, "CREATE TABLE t (a UInt32) ENGINE = MergeTree ORDER BY a")
	rows := bytes.Repeat([]byte("1234\n"), 40_000) // whole rows at every cut below, and more than maxHead
	framed := func() []byte {
		w := compress.NewWriter(compress.LevelZero, compress.LZ4)
		var out []byte
		for _, part := range [][]byte{rows[:100_000], rows[100_000:]} {
			require.NoError(t, w.Compress(part))
			out = append(out, w.Data...)
		}
		return out
	}()
	for encoding, pack := range codecs(t) {
		for _, small := range []bool{true, false} {
			body := rows
			if small {
				body = rows[:500]
			}
			body = pack(body)
			if encoding != "" { // a compressed body that ends early inside a whole request
				for _, cut := range []int{1, 4, 8, len(body) / 2} {
					t.Run(fmt.Sprintf("%s of %d less %d", encoding, len(body), cut), func(t *testing.T) {
						r := call(t, srv, http.MethodPost, bytes.NewReader(body[:len(body)-cut]), http.Header{"Content-Encoding": {encoding}}, "query=INSERT INTO t FORMAT TSV")
						require.NotEqual(t, http.StatusOK, r.status)
					})
				}
			}
			for _, kind := range []string{"chunked", "length"} {
				t.Run(fmt.Sprintf("%s %s of %d", kind, encoding, len(body)), func(t *testing.T) {
					leave(t, srv, kind, "INSERT INTO t FORMAT TSV", encoding, body)
				})
			}
		}
	}
	for _, at := range []int{10, 16, 25, 30, len(framed)/2 + 7, len(framed) - 1} {
		t.Run(fmt.Sprintf("native frame cut at %d", at), func(t *testing.T) {
			r := call(t, srv, http.MethodPost, bytes.NewReader(framed[:at]), nil, "query=INSERT INTO t FORMAT TSV", "decompress=1")
			require.NotEqual(t, http.StatusOK, r.status)
		})
	}
	waitFor(t, func() bool { return ok(t, srv, "SELECT count() FROM system.processes") == "1\n" })
	require.Equal(t, "0\n", ok(t, srv, "SELECT count() FROM t"))
	require.Equal(t, "200\n", func() string {
		ok(t, srv, string(rows[:1000]), "query=INSERT INTO t FORMAT TSV")
		return ok(t, srv, "SELECT count() FROM t")
	}(), "the table takes no rows at all")
}

// TestHeldUpBody: what arrives after max_execution_time is not stored, however
// much of the body came before. The time is the subject here: it has to pass.
func TestHeldUpBody(t *testing.T) {
	srv := enginetest.Run(t)
	ok(t, srv, "CREATE TABLE t (a UInt32) ENGINE = MergeTree ORDER BY a")
	rows := bytes.Repeat([]byte("1234\n"), 600_000) // more than maxHead and than the library gets at once
	for _, at := range []int{5, 100_000, 1_000_000, 2_500_000} {
		body, sender := io.Pipe()
		go func() {
			_, _ = sender.Write(rows[:at])
			time.Sleep(400 * time.Millisecond)
			_, _ = sender.Write(rows[at:])
			_ = sender.Close()
		}()
		r := call(t, srv, http.MethodPost, body, nil, "query=INSERT INTO t FORMAT TSV", "max_execution_time=0.3",
			"min_insert_block_size_rows=1000000000", "min_insert_block_size_bytes=1000000000")
		require.Equal(t, http.StatusRequestTimeout, r.status, "%d bytes in time: %s", at, r.body)
		require.Equal(t, "159", r.header.Get("X-ClickHouse-Exception-Code"))
	}
	require.Equal(t, "0\n", ok(t, srv, "SELECT count() FROM t"))
	ok(t, srv, string(rows[:500]), "query=INSERT INTO t FORMAT TSV", "max_execution_time=30")
	require.Equal(t, "100\n", ok(t, srv, "SELECT count() FROM t"))
}

// leave sends a request whose body promises more than comes, and hangs up.
func leave(t *testing.T, srv *enginetest.Server, kind, query, encoding string, body []byte) {
	t.Helper()
	conn, err := net.Dial("tcp", srv.Addr())
	require.NoError(t, err)
	var req bytes.Buffer
	fmt.Fprintf(&req, "POST /?query=%s HTTP/1.1\r\nHost: x\r\nContent-Encoding: %s\r\n", url.QueryEscape(query), encoding)
	if kind == "chunked" {
		fmt.Fprintf(&req, "Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(body), body)
	} else {
		fmt.Fprintf(&req, "Content-Length: %d\r\n\r\n%s", len(body)+5, body)
	}
	_, err = conn.Write(req.Bytes())
	require.NoError(t, err)
	require.NoError(t, conn.Close())
}
