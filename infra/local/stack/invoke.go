package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"oncehouse/infra/local/lambdahost"
)

// invokeAPI is the Invoke operation of Lambda's API, for the functions that
// run: curl and `aws lambda invoke --endpoint-url` take it. Requests are not
// signed.
//
// https://docs.aws.amazon.com/lambda/latest/api/API_Invoke.html
type invokeAPI struct {
	addr string

	mu        sync.Mutex
	functions map[string]*lambdahost.Function
}

// startInvokeAPI listens until the stack stops.
func (s *Stack) startInvokeAPI(ctx context.Context, _ io.Writer) (string, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", loopback(0))
	if err != nil {
		return "", fmt.Errorf("listen for invocations: %w", err)
	}
	s.invoke = &invokeAPI{addr: listener.Addr().String(), functions: map[string]*lambdahost.Function{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /2015-03-31/functions/{name}/invocations", s.invoke.serve)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // it ends with Close
	s.stops = append(s.stops, func() { _ = server.Close() })
	return s.LambdaURL(), nil
}

// LambdaURL is the endpoint of the functions' Invoke operation.
func (s *Stack) LambdaURL() string { return "http://" + s.invoke.addr }

func (a *invokeAPI) add(name string, fn *lambdahost.Function) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.functions[name] = fn
}

func (a *invokeAPI) find(name string) *lambdahost.Function {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.functions[name]
}

func (a *invokeAPI) serve(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	fn := a.find(name)
	if fn == nil {
		http.Error(w, fmt.Sprintf(`{"Type":"User","Message":"Function not found: %s"}`, name), http.StatusNotFound)
		return
	}
	payload, err := io.ReadAll(http.MaxBytesReader(w, r.Body, lambdahost.MaxRequestBytes+1))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	result, err := fn.Invoke(r.Context(), payload)
	switch {
	case errors.Is(err, lambdahost.ErrThrottled):
		http.Error(w, err.Error(), http.StatusTooManyRequests)
		return
	case errors.Is(err, lambdahost.ErrTooLarge):
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Amz-Executed-Version", "$LATEST")
	if result.FunctionError != "" {
		w.Header().Set("X-Amz-Function-Error", result.FunctionError)
	}
	_, _ = w.Write(result.Payload) // a client that left does not want it
}
