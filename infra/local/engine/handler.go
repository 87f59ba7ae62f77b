package engine

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"oncehouse/infra/local/engine/chdb"
)

// Handler answers ClickHouse's HTTP interface from the embedded engine.
type Handler struct {
	open     func() (*chdb.Conn, error)
	sessions sessions
	identity identity
	// user and password are asked for when password is not empty.
	user, password string

	mu      sync.Mutex
	running map[string]bool // query ids
}

// identity is what the engine says of itself, asked once.
type identity struct {
	name, version, timezone, uuid string
}

// newHandler returns a handler that opens its connections with open.
func newHandler(open func() (*chdb.Conn, error), id identity, user, password string) *Handler {
	return &Handler{open: open, identity: id, user: cmp.Or(user, "default"), password: password,
		running: map[string]bool{}, sessions: sessions{byID: map[string]*session{}, open: open}}
}

// answer is a successful response.
type answer struct {
	result *chdb.Result
	format string
	data   []byte
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("X-ClickHouse-Server-Display-Name", h.identity.name)
	switch {
	case r.Method == http.MethodOptions:
		head.Set("Access-Control-Allow-Origin", "*")
		head.Set("Access-Control-Allow-Methods", "GET, POST, HEAD, OPTIONS")
		head.Set("Access-Control-Allow-Headers", "*")
		w.WriteHeader(http.StatusNoContent)
	case r.URL.Path == "/ping", r.URL.Path == "/replicas_status", r.URL.Path == "/" && r.Method == http.MethodGet && !r.URL.Query().Has("query"):
		head.Set("Content-Type", "text/html; charset=UTF-8")
		h.write(w, http.StatusOK, []byte("Ok.\n"))
	case r.URL.Path != "/" && r.URL.Path != "":
		head.Set("Content-Type", "text/plain; charset=UTF-8")
		h.write(w, http.StatusNotFound, []byte("There is no handle "+r.URL.Path+"\n\nUse / or /ping for health checks.\n"+
			"Send queries from your program with POST method or GET /?query=...\n"))
	default:
		h.serveQuery(w, r)
	}
}

func (h *Handler) serveQuery(w http.ResponseWriter, r *http.Request) {
	started := time.Now()
	req, err := parseRequest(r)
	if err != nil {
		h.fail(w, r, req, err)
		return
	}
	ans, err := h.run(req)
	if err == nil {
		ans.data, err = compressAnswer(ans.data, req)
	}
	if err != nil {
		h.fail(w, r, req, err)
		return
	}
	h.headers(w, req)
	w.Header().Set("X-ClickHouse-Format", ans.format)
	w.Header().Set("Content-Type", contentType(ans.format))
	res := ans.result
	w.Header().Set("X-ClickHouse-Summary", summary(res.ReadRows, res.ReadBytes, res.WrittenRows, res.WrittenBytes,
		res.ResultRows, len(res.Data), time.Since(started)))
	h.write(w, http.StatusOK, ans.data)
}

func (h *Handler) headers(w http.ResponseWriter, req *request) {
	head := w.Header()
	head.Set("X-ClickHouse-Query-Id", req.queryID)
	head.Set("X-ClickHouse-Timezone", h.identity.timezone)
	head.Set("X-ClickHouse-Exception-Tag", exceptionTag())
	if req.encoding != "" {
		head.Set("Content-Encoding", req.encoding)
	}
}

// errorDrain is how much of a request's body is read after an error, so that
// the client comes to read the answer instead of a broken connection.
const errorDrain = 64 << 20

// fail answers an error: text, header and status as the server gives them.
// req is nil when the request could not be read.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, req *request, err error) {
	_, _ = io.CopyN(io.Discard, r.Body, errorDrain)
	code, message := describe(err, h.identity.version)
	body := []byte(message)
	if req != nil {
		if packed, err := compressAnswer(body, req); err == nil {
			body = packed
			h.headers(w, req)
		}
	}
	w.Header().Set("X-ClickHouse-Exception-Code", strconv.Itoa(code))
	w.Header().Set("Content-Type", "text/plain; charset=UTF-8")
	h.write(w, httpStatus(code), body)
}

// write sends the answer. A client that left cannot be told, so the error of
// the write has no reader.
func (h *Handler) write(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) //nolint:gosec // a database's answer is the client's own data
}

func compressAnswer(data []byte, req *request) ([]byte, error) {
	if req.options.Get("compress") == "1" {
		framed, err := frames(data, req.settings["network_compression_method"])
		if err != nil {
			return nil, err
		}
		data = framed
	}
	return encode(data, req.encoding)
}

// run executes a request.
func (h *Handler) run(req *request) (answer, error) {
	if err := h.authenticate(req); err != nil {
		return answer{}, err
	}
	if err := h.claimID(req.queryID); err != nil {
		return answer{}, err
	}
	defer h.releaseID(req.queryID)
	if req.session.id == "" {
		conn, err := h.open()
		if err != nil {
			return answer{}, err
		}
		defer conn.Close()
		if err := configure(conn, req); err != nil {
			return answer{}, err
		}
		return h.execute(conn, req)
	}
	conn, err := h.sessions.acquire(req.session, req.user)
	if err != nil {
		return answer{}, err
	}
	defer h.sessions.release(req.session, req.user)
	restore, err := remember(conn, req)
	if err != nil {
		return answer{}, err
	}
	defer restore()
	if err := configure(conn, req); err != nil {
		return answer{}, err
	}
	return h.execute(conn, req)
}

func (h *Handler) authenticate(req *request) error {
	if h.password == "" || req.user == h.user && req.password == h.password {
		return nil
	}
	return &exception{codeAuthenticationFailed, "AUTHENTICATION_FAILED",
		req.user + ": Authentication failed: password is incorrect, or there is no user with such name."}
}

func (h *Handler) claimID(id string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.running[id] {
		return &exception{codeQueryIDRunning, "QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING", "Query with id = " + id + " is already running"}
	}
	h.running[id] = true
	return nil
}

func (h *Handler) releaseID(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.running, id)
}

// configure gives a connection the request's database and settings.
func configure(conn *chdb.Conn, req *request) error {
	if req.database != "" {
		if _, err := conn.Query([]byte("USE "+quoteName(req.database)), "Null", nil); err != nil {
			return err
		}
	}
	_, err := conn.Query([]byte("SET "+req.sqlSettings()), "Null", nil)
	return err
}

// remember notes what configure will change in a session and returns the way
// back: on the server, the URL's settings and database are the query's alone.
func remember(conn *chdb.Conn, req *request) (restore func(), err error) {
	names := []string{quoteString("log_comment")}
	for name := range req.settings {
		names = append(names, quoteString(name))
	}
	res, err := conn.Query([]byte("SELECT name, value, changed FROM system.settings WHERE name IN ("+strings.Join(names, ", ")+")"), "JSONCompactStringsEachRow", nil)
	if err != nil {
		return nil, err
	}
	settings, err := resetList(res.Data)
	if err != nil {
		return nil, err
	}
	current, err := conn.Query([]byte("SELECT currentDatabase()"), "TSVRaw", nil)
	if err != nil {
		return nil, err
	}
	database := strings.TrimSuffix(string(current.Data), "\n")
	return func() {
		_, _ = conn.Query([]byte("SET "+settings), "Null", nil)
		if req.database != "" {
			_, _ = conn.Query([]byte("USE "+quoteName(database)), "Null", nil)
		}
	}, nil
}

// resetList is the list of a SET that brings settings back, from rows of name,
// value and whether it was changed.
func resetList(rows []byte) (string, error) {
	var list []string
	for line := range bytes.Lines(rows) {
		var row [3]string
		if err := json.Unmarshal(line, &row); err != nil {
			return "", fmt.Errorf("read the session's settings: %w", err)
		}
		value := "DEFAULT"
		if row[2] != "0" {
			value = quoteString(row[1])
		}
		list = append(list, quoteName(row[0])+" = "+value)
	}
	return strings.Join(list, ", "), nil
}

// Limits of a query's text: a statement with data must show where the data
// begin within the first, the server's max_query_size; any other may be as
// long as the second.
const (
	maxHead  = 256 << 10
	maxQuery = 64 << 20
)

// execute runs the request's statement.
func (h *Handler) execute(conn *chdb.Conn, req *request) (answer, error) {
	if req.form != nil {
		if err := readForm(conn, req); err != nil {
			return answer{}, err
		}
	}
	sql, rest, st, err := readStatement(req)
	if err != nil {
		return answer{}, err
	}
	if err := check(conn, req, sql, st); err != nil {
		return answer{}, err
	}
	ans := answer{format: cmp.Or(st.format, req.format)}
	if st.insert {
		ans.format = req.format
		ans.result, err = conn.Insert(sql[:st.head], st.format, req.params, req.patient(io.MultiReader(strings.NewReader(string(sql[st.data:])), rest)))
	} else {
		ans.result, err = conn.Query(st.withUUID(sql, h.identity.uuid), req.format, req.params)
	}
	if err != nil {
		return answer{}, bodyException(err)
	}
	ans.data = ans.result.Data
	if isHello(sql, req) {
		ans.data, err = reframeHello(ans.data)
	}
	return ans, err
}

// check refuses what the engine would run but the server does not.
func check(conn *chdb.Conn, req *request, sql []byte, st statement) error {
	switch {
	case st.empty:
		return &exception{codeSyntaxError, "SYNTAX_ERROR", "Syntax error: failed at position 1 (end of query): . Empty query"}
	case st.multiple:
		return &exception{codeSyntaxError, "SYNTAX_ERROR", "Syntax error (Multi-statements are not allowed)"}
	case st.excess:
		return &exception{codeSyntaxError, "SYNTAX_ERROR", "You have excess ';' symbol before data for INSERT"}
	case st.input:
		return &exception{codeNotImplemented, "NOT_IMPLEMENTED", "The embedded engine cannot read the request's body by input()"}
	case !req.readonly:
		return nil
	}
	class := chdb.Mutating
	if !st.insert {
		var err error
		if class, err = conn.Classify(sql); err != nil {
			return err
		}
	}
	if class == chdb.Mutating || class == chdb.MutatingGlobal || class == chdb.Control && !changesSessionOnly(sql) {
		return &exception{codeReadonly, "READONLY", req.user + ": Cannot execute query in readonly mode. " +
			"For queries over HTTP, method GET implies readonly. You should use method POST for modifying queries"}
	}
	return nil
}

// changesSessionOnly: SET and USE, which readonly = 2 allows.
func changesSessionOnly(sql []byte) bool {
	l := lexer{sql: sql}
	keyword := strings.ToUpper(text(sql, l.next()))
	return keyword == "SET" || keyword == "USE"
}

// readStatement reads as much of the request as must be known before it runs:
// the whole text, or up to the data of an INSERT, whose remainder is rest.
func readStatement(req *request) (sql []byte, rest io.Reader, st statement, err error) {
	source := req.body
	if req.query != "" {
		source = io.MultiReader(strings.NewReader(req.query+"\n"), req.body)
	}
	sql, err = io.ReadAll(io.LimitReader(source, maxHead))
	if err != nil {
		return nil, nil, st, bodyException(err)
	}
	st = scan(sql)
	if st.insert && (st.format != "Values" || len(sql) == maxHead) {
		return sql, source, st, nil
	}
	more, err := io.ReadAll(io.LimitReader(source, maxQuery))
	if err != nil {
		return nil, nil, st, bodyException(err)
	}
	if len(more) == maxQuery {
		return nil, nil, st, &exception{codeQueryIsTooLarge, "QUERY_IS_TOO_LARGE", "Query is too large: more than " + strconv.Itoa(maxQuery) + " bytes"}
	}
	sql = append(sql, more...)
	st = scan(sql)
	if st.insert {
		st.inlineValues(sql)
	}
	return sql, strings.NewReader(""), st, nil
}

// bodyException names the failure of a body that did not arrive whole.
func bodyException(err error) error {
	if engine, own := (*chdb.Error)(nil), (*exception)(nil); errors.As(err, &engine) || errors.As(err, &own) {
		return err
	}
	return &exception{codeUnexpectedEndOfFile, "UNEXPECTED_END_OF_FILE", fmt.Sprintf("The request's body is not whole: %v", err)}
}

// readForm loads the external tables of a multipart form as temporary tables
// (docs/en/engines/table-engines/special/external-data.md) and takes a query
// from its field of that name.
func readForm(conn *chdb.Conn, req *request) error {
	for {
		part, err := req.form.NextPart()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return bodyException(err)
		}
		name := part.FormName()
		if part.FileName() == "" && name == "query" {
			text, err := io.ReadAll(io.LimitReader(part, maxQuery))
			if err != nil {
				return bodyException(err)
			}
			req.query += string(text)
			continue
		}
		create := "CREATE OR REPLACE TEMPORARY TABLE " + quoteName(name) + " (" + req.external[name+"_structure"] + ")"
		if _, err := conn.Query([]byte(create), "Null", nil); err != nil {
			return err
		}
		if _, err := conn.Insert([]byte("INSERT INTO "+quoteName(name)), cmp.Or(req.external[name+"_format"], "TabSeparated"), nil, part); err != nil {
			return bodyException(err)
		}
	}
}
