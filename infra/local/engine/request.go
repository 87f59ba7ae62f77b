package engine

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// request is an HTTP request as ClickHouse reads one
// (docs/en/interfaces/http.md).
type request struct {
	began          time.Time
	query          string
	body           io.Reader
	form           *multipart.Reader
	database       string
	format         string
	queryID        string
	user, password string
	params         map[string]string
	settings       map[string]string
	// external describes the external tables of a multipart form.
	external map[string]string
	// options are the names that HTTPHandler keeps for itself.
	options url.Values
	session sessionRequest
	// readonly: GET and HEAD may not change anything.
	readonly bool
	// encoding of the answer, "" for none.
	encoding string
}

// reservedNames are not settings (HTTPHandler::reservedParamNames).
var reservedNames = []string{"buffer_size", "client_protocol_version", "close_session", "compress", "database",
	"decompress", "default_format", "password", "query", "query_id", "quota_key", "role", "session_check",
	"session_id", "session_timeout", "stacktrace", "user", "wait_end_of_query"}

func parseRequest(r *http.Request) (*request, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, &exception{codeBadArguments, "BAD_ARGUMENTS", "Cannot read the URL's parameters: " + err.Error()}
	}
	req := &request{
		began: time.Now(),
		query: values.Get("query"), database: cmp.Or(values.Get("database"), r.Header.Get("X-ClickHouse-Database")),
		format:  cmp.Or(values.Get("default_format"), r.Header.Get("X-ClickHouse-Format"), "TabSeparated"),
		queryID: cmp.Or(values.Get("query_id"), r.Header.Get("X-ClickHouse-Query-Id")),
		params:  map[string]string{}, settings: map[string]string{}, external: map[string]string{}, options: url.Values{},
		readonly: r.Method == http.MethodGet || r.Method == http.MethodHead,
	}
	if req.queryID == "" {
		req.queryID = uuid.NewString()
	}
	_, form := multipartBoundary(r)
	for name, value := range values {
		switch {
		case form && isExternal(name):
			req.external[name] = value[0]
		case strings.HasPrefix(name, "param_"):
			req.params[strings.TrimPrefix(name, "param_")] = value[0]
		case slices.Contains(reservedNames, name):
			req.options[name] = value
		default:
			req.settings[name] = value[len(value)-1]
		}
	}
	req.credentials(r)
	if req.settings["enable_http_compression"] == "1" {
		req.encoding = acceptedEncoding(r.Header.Get("Accept-Encoding"))
	}
	if req.session, err = parseSession(req.options); err != nil {
		return nil, err
	}
	return req, req.readBody(r)
}

func (req *request) readBody(r *http.Request) error {
	if boundary, ok := multipartBoundary(r); ok {
		req.form, req.body = multipart.NewReader(r.Body, boundary), strings.NewReader("")
		return nil
	}
	body, err := decodeBody(r, req.options.Get("decompress") == "1")
	req.body = body
	return err
}

// patient gives an insert's data back until max_execution_time is over, which
// the server counts from the request on and the engine from when it got the
// first data: a body that was held up on its way must not be stored late.
func (req *request) patient(data io.Reader) io.Reader {
	seconds, err := strconv.ParseFloat(req.settings["max_execution_time"], 64)
	if err != nil || seconds <= 0 {
		return data
	}
	limit := time.Duration(seconds * float64(time.Second))
	return &patientReader{data, req.began.Add(limit), limit}
}

type patientReader struct {
	data  io.Reader
	until time.Time
	limit time.Duration
}

func (p *patientReader) Read(b []byte) (int, error) {
	n, err := p.data.Read(b)
	if over := time.Since(p.until); over > 0 {
		return 0, &exception{codeTimeoutExceeded, "TIMEOUT_EXCEEDED",
			fmt.Sprintf("Timeout exceeded: elapsed %d ms, maximum: %d ms", (p.limit + over).Milliseconds(), p.limit.Milliseconds())}
	}
	return n, err
}

// multipartBoundary reports whether the body is a form, and its boundary.
func multipartBoundary(r *http.Request) (string, bool) {
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return params["boundary"], err == nil && kind == "multipart/form-data"
}

// isExternal: with a form, names with these endings describe external tables
// (HTTPHandler's reserved_param_suffixes).
func isExternal(name string) bool {
	return strings.HasSuffix(name, "_format") && name != "default_format" ||
		strings.HasSuffix(name, "_structure") || strings.HasSuffix(name, "_types")
}

// credentials are taken from where the server takes them, headers first.
func (req *request) credentials(r *http.Request) {
	req.user, req.password = r.Header.Get("X-ClickHouse-User"), r.Header.Get("X-ClickHouse-Key")
	if req.user == "" {
		if user, password, ok := r.BasicAuth(); ok {
			req.user, req.password = user, password
		} else {
			req.user, req.password = req.options.Get("user"), req.options.Get("password")
		}
	}
	req.user = cmp.Or(req.user, "default")
}

// sqlSettings renders the request's settings as the list of a SET, "" for none.
func (req *request) sqlSettings() string {
	settings := maps.Clone(req.settings)
	if settings["log_comment"] == "" { // the library cannot take a query_id
		settings["log_comment"] = req.queryID
	}
	return setList(settings)
}

func setList(settings map[string]string) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		list = append(list, quoteName(name)+" = "+quoteString(settings[name]))
	}
	return strings.Join(list, ", ")
}

func quoteString(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}

func quoteName(s string) string {
	return "`" + strings.NewReplacer("\\", "\\\\", "`", "\\`").Replace(s) + "`"
}

// exceptionTag is the X-ClickHouse-Exception-Tag of an answer: what marks a
// genuine exception block in a body, so that data cannot be taken for one.
func exceptionTag() string { return strings.ToLower(rand.Text()[:16]) }

// summary is X-ClickHouse-Summary; every figure is a string there.
func summary(readRows, readBytes, writtenRows, writtenBytes, resultRows uint64, resultBytes int, elapsed time.Duration) string {
	return fmt.Sprintf(`{"read_rows":"%d","read_bytes":"%d","written_rows":"%d","written_bytes":"%d","total_rows_to_read":"0","result_rows":"%d","result_bytes":"%d","elapsed_ns":"%d"}`,
		readRows, readBytes, writtenRows, writtenBytes, resultRows, resultBytes, elapsed.Nanoseconds())
}

// contentTypes are those of the formats that have one of their own.
func contentType(format string) string {
	switch {
	case format == "Native" || strings.HasPrefix(format, "RowBinary") || format == "Parquet" || strings.HasPrefix(format, "Arrow"):
		return "application/octet-stream"
	case strings.HasPrefix(format, "CSV"):
		return "text/csv; charset=UTF-8"
	case strings.HasPrefix(format, "TabSeparated"), strings.HasPrefix(format, "TSV"):
		return "text/tab-separated-values; charset=UTF-8"
	case strings.HasPrefix(format, "JSON") && strings.Contains(format, "EachRow"):
		return "application/x-ndjson; charset=UTF-8"
	case strings.HasPrefix(format, "JSON"):
		return "application/json; charset=UTF-8"
	case format == "XML":
		return "application/xml; charset=UTF-8"
	}
	return "text/plain; charset=UTF-8"
}
