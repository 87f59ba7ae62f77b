package lambdahost

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const trailerErrorType = "Lambda-Runtime-Function-Error-Type"

// invocation is one event on its way through one environment.
type invocation struct {
	id       string
	traceID  string
	payload  []byte
	deadline time.Time
	// delivered is called when the process is about to get the event.
	delivered func()
	// answer is what the process posted, nil until then. Guarded by
	// runtimeAPI.mu.
	answer *Result
	// ended is closed when the process has answered and asks for more.
	ended chan struct{}
}

// runtimeAPI serves the Runtime API to one process.
// https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html
type runtimeAPI struct {
	arn    string
	addr   string
	server *http.Server
	served chan struct{}

	// events hands an event to the process that waits for one.
	events chan *invocation
	// ready is closed at the first request for an event: init is over.
	ready chan struct{}

	mu        sync.Mutex
	isReady   bool
	initError *Result
	current   *invocation
	extension bool
}

func serveRuntimeAPI(arn string) (*runtimeAPI, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the runtime: %w", err)
	}
	a := &runtimeAPI{
		arn: arn, addr: ln.Addr().String(), served: make(chan struct{}),
		events: make(chan *invocation), ready: make(chan struct{}),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /2018-06-01/runtime/invocation/next", a.next)
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/response", a.response)
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/error", a.failed)
	mux.HandleFunc("POST /2018-06-01/runtime/init/error", a.initFailed)
	mux.HandleFunc("POST /2020-01-01/extension/register", a.registerExtension)
	mux.HandleFunc("GET /2020-01-01/extension/event/next", a.extensionNext)
	a.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		defer close(a.served)
		_ = a.server.Serve(ln) // ends with ErrServerClosed when close is called
	}()
	return a, nil
}

func (a *runtimeAPI) close() {
	_ = a.server.Close() // what it could not close dies with the process
	<-a.served
}

// next ends the invocation that was answered and waits for another event.
func (a *runtimeAPI) next(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	if c := a.current; c != nil {
		if c.answer == nil {
			a.mu.Unlock()
			refuse(w, http.StatusForbidden, "InvalidStateTransition", "the event at hand has no answer yet")
			return
		}
		a.current = nil
		close(c.ended)
	}
	if !a.isReady {
		a.isReady = true
		close(a.ready)
	}
	a.mu.Unlock()
	select {
	case inv := <-a.events:
		a.deliver(w, inv)
	case <-r.Context().Done():
	}
}

func (a *runtimeAPI) deliver(w http.ResponseWriter, inv *invocation) {
	a.mu.Lock()
	a.current = inv
	a.mu.Unlock()
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Lambda-Runtime-Aws-Request-Id", inv.id)
	h.Set("Lambda-Runtime-Deadline-Ms", strconv.FormatInt(inv.deadline.UnixMilli(), 10))
	h.Set("Lambda-Runtime-Invoked-Function-Arn", a.arn)
	h.Set("Lambda-Runtime-Trace-Id", inv.traceID)
	h.Set("Content-Length", strconv.Itoa(len(inv.payload)))
	inv.delivered()
	_, _ = w.Write(inv.payload) // a process that went away: its death ends the invocation
}

func (a *runtimeAPI) response(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxResponseBytes))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		result := hostFailure(TypeResponseTooLarge, "Response payload size exceeded maximum allowed payload size (%d bytes).", MaxResponseBytes)
		if a.settle(w, r, result) {
			refuse(w, http.StatusRequestEntityTooLarge, "RequestEntityTooLarge", result.ErrorMessage)
		}
		return
	}
	if err != nil {
		return // the process broke off in the middle: no answer
	}
	result := Result{Payload: body}
	// A streamed response that failed half-way says so in a trailer.
	if errorType := r.Trailer.Get(trailerErrorType); errorType != "" {
		result = failure(body, errorType)
	}
	if a.settle(w, r, result) {
		w.WriteHeader(http.StatusAccepted)
	}
}

func (a *runtimeAPI) failed(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxResponseBytes))
	if err != nil {
		return
	}
	if a.settle(w, r, failure(body, r.Header.Get(trailerErrorType))) {
		w.WriteHeader(http.StatusAccepted)
	}
}

// settle records the answer of the event at hand. An answer to any other event,
// or a second one, is refused and changes nothing.
func (a *runtimeAPI) settle(w http.ResponseWriter, r *http.Request, result Result) bool {
	a.mu.Lock()
	c := a.current
	known := c != nil && c.id == r.PathValue("id")
	first := known && c.answer == nil
	if first {
		c.answer = &result
	}
	a.mu.Unlock()
	switch {
	case !known:
		refuse(w, http.StatusBadRequest, "InvalidRequestID", "not the event at hand")
	case !first:
		refuse(w, http.StatusForbidden, "InvalidStateTransition", "the event has an answer already")
	}
	return first
}

func (a *runtimeAPI) initFailed(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxResponseBytes))
	if err != nil {
		return
	}
	result := failure(body, r.Header.Get(trailerErrorType))
	a.mu.Lock()
	a.initError = &result
	a.mu.Unlock()
	w.WriteHeader(http.StatusAccepted)
}

// registerExtension is what lambda.WithEnableSIGTERM calls: a function with an
// internal extension gets SIGTERM before SIGKILL.
func (a *runtimeAPI) registerExtension(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	a.extension = true
	a.mu.Unlock()
	w.Header().Set("Lambda-Extension-Identifier", "internal")
	w.WriteHeader(http.StatusOK)
}

// extensionNext never answers: nobody registers for events here.
func (a *runtimeAPI) extensionNext(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// answerOf is what the process posted for inv, nil while it has not.
func (a *runtimeAPI) answerOf(inv *invocation) *Result {
	a.mu.Lock()
	defer a.mu.Unlock()
	return inv.answer
}

func (a *runtimeAPI) initFailure() *Result {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.initError
}

func (a *runtimeAPI) hasExtension() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.extension
}

func refuse(w http.ResponseWriter, status int, errorType, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// Two fixed words: nothing to escape. A process that is gone reads nothing.
	_, _ = fmt.Fprintf(w, `{"errorType":%q,"errorMessage":%q}`, errorType, message)
}
