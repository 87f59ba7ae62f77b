package lambdahost

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Limits of a synchronous invocation, in bytes, as Lambda's own errors state
// them: "Request must be smaller than 6291456 bytes", "Response payload size
// exceeded maximum allowed payload size (6291556 bytes)".
const (
	MaxRequestBytes  = 6 << 20
	MaxResponseBytes = 6<<20 + 100
)

// Errors of Invoke: the function did not run.
var (
	// ErrThrottled: every environment is busy and the concurrency is used up.
	ErrThrottled = errors.New("TooManyRequestsException: reserved concurrency is used up")
	// ErrTooLarge: the payload is over MaxRequestBytes.
	ErrTooLarge = errors.New("RequestEntityTooLargeException: request must be smaller than 6291456 bytes")
	// ErrClosed: Shutdown or Close was called.
	ErrClosed = errors.New("function is shut down")
)

// Error types that the host itself gives. The function's own are the names of
// its error types, for example errorString.
const (
	TypeTimeout           = "Sandbox.Timedout"
	TypeExit              = "Runtime.ExitError"
	TypeInvalidEntrypoint = "Runtime.InvalidEntrypoint"
	TypeResponseTooLarge  = "Function.ResponseSizeTooLarge"
)

// Result is what one invocation came to.
type Result struct {
	// Payload is the function's answer, or the error as JSON.
	Payload []byte
	// FunctionError is "" for success, else "Unhandled", as in the header
	// X-Amz-Function-Error.
	FunctionError string
	// ErrorType and ErrorMessage are read from an error's payload.
	ErrorType, ErrorMessage string
	// Cold: the environment was started for this event.
	Cold bool
	// Duration runs from the event's hand-over to the next request for an
	// event, InitDuration from the start of the process to the first one (0
	// when warm).
	Duration, InitDuration time.Duration
	// MaxMemoryUsedMB is the highest resident memory of the process so far; 0
	// where the system does not tell (it is read from /proc).
	MaxMemoryUsedMB int
	RequestID       string
}

// failure is the result of an error that carries payload, in the shape that
// the runtime posts: {"errorType", "errorMessage"}. fallback is the type where
// the payload names none.
func failure(payload []byte, fallback string) Result {
	var body struct {
		Type    string `json:"errorType"`
		Message string `json:"errorMessage"`
	}
	if err := json.Unmarshal(payload, &body); err != nil {
		body.Message = string(payload)
	}
	if body.Type == "" {
		body.Type = fallback
	}
	return Result{Payload: payload, FunctionError: "Unhandled", ErrorType: body.Type, ErrorMessage: body.Message}
}

// hostFailure is the result of an error that the host itself found.
func hostFailure(errorType, format string, args ...any) Result {
	body := struct {
		Type    string `json:"errorType"`
		Message string `json:"errorMessage"`
	}{errorType, fmt.Sprintf(format, args...)}
	payload, err := json.Marshal(body)
	if err != nil { // two strings always marshal
		panic(err)
	}
	return failure(payload, errorType)
}

func timedOut(requestID string, after time.Duration) Result {
	return hostFailure(TypeTimeout, "RequestId: %s Error: Task timed out after %.2f seconds", requestID, after.Seconds())
}

func exited(requestID string, how error) Result {
	if how == nil {
		return hostFailure(TypeExit, "RequestId: %s Error: Runtime exited without providing a reason", requestID)
	}
	return hostFailure(TypeExit, "RequestId: %s Error: Runtime exited with error: %v", requestID, how)
}
