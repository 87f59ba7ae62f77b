package engine

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"oncehouse/infra/local/engine/chdb"
)

// Codes of src/Common/ErrorCodes.cpp that the front itself raises.
const (
	codeUnexpectedEndOfFile   = 3
	codeCannotReadAllData     = 33
	codeBadArguments          = 36
	codeNotImplemented        = 48
	codeSyntaxError           = 62
	codeTimeoutExceeded       = 159
	codeReadonly              = 164
	codeQueryIDRunning        = 216
	codeQueryIsTooLarge       = 229
	codeSessionNotFound       = 372
	codeSessionIsLocked       = 373
	codeInvalidSessionTimeout = 374
	codeAuthenticationFailed  = 516
	codeUnknownException      = 1002
)

// exception is an error of the front, printed as the server prints its own.
type exception struct {
	code int
	name string
	text string
}

func (e *exception) Error() string {
	return fmt.Sprintf("Code: %d. DB::Exception: %s (%s)", e.code, sentence(e.text), e.name)
}

// sentence ends text with a full stop, as the server does.
func sentence(text string) string {
	if strings.HasSuffix(text, ".") {
		return text
	}
	return text + "."
}

var codePrefix = regexp.MustCompile(`^Code: (\d+)\.`)

// describe returns an error's code and its text as the server prints it.
func describe(err error, version string) (int, string) {
	message := err.Error()
	if engine := (*chdb.Error)(nil); errors.As(err, &engine) {
		message = engine.Text
	} else if own := (*exception)(nil); errors.As(err, &own) {
		message = own.Error()
	}
	code := codeUnknownException
	if m := codePrefix.FindStringSubmatch(message); m != nil {
		code, _ = strconv.Atoi(m[1]) // the pattern admits digits only
	} else {
		message = (&exception{code, "UNKNOWN_EXCEPTION", message}).Error()
	}
	if suffix := " (version " + version + ")"; !strings.Contains(message, suffix) {
		message = strings.TrimRight(message, "\n") + suffix
	}
	return code, strings.TrimRight(message, "\n") + "\n"
}

// httpStatus is exceptionCodeToHTTPStatus of
// src/Server/HTTP/exceptionCodeToHTTPStatus.cpp.
func httpStatus(code int) int {
	switch code {
	case 194: // REQUIRED_PASSWORD
		return http.StatusUnauthorized
	case 192, 193, 497, 512, 516: // UNKNOWN_USER, WRONG_PASSWORD, ACCESS_DENIED, SET_NON_GRANTED_ROLE, AUTHENTICATION_FAILED
		return http.StatusForbidden
	case 6, 25, 26, 27, 38, 41, 72, 376, 441, 675, 676, // CANNOT_PARSE_*
		8, 15, 36, 37, 44, 53, 62, 117, 123, 167, 168, 223, 321, 427: // columns, arguments, syntax, data
		return http.StatusBadRequest
	case 46, 47, 50, 56, 60, 63, 73, 78, 81, 115, 152, 336, 511: // UNKNOWN_*
		return http.StatusNotFound
	case codeTimeoutExceeded:
		return http.StatusRequestTimeout
	case 229: // QUERY_IS_TOO_LARGE
		return http.StatusRequestEntityTooLarge
	case 381: // HTTP_LENGTH_REQUIRED
		return http.StatusLengthRequired
	case codeNotImplemented:
		return http.StatusNotImplemented
	case 76, 209, 439: // CANNOT_OPEN_FILE, SOCKET_TIMEOUT, CANNOT_SCHEDULE_TASK
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}
