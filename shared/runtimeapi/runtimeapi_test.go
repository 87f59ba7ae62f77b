package runtimeapi_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/runtimeapi"
)

func TestFailInitPostsTypeAndMessage(t *testing.T) {
	status := http.StatusAccepted
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost || r.URL.Path != "/2018-06-01/runtime/init/error" ||
			r.Header.Get("Lambda-Runtime-Function-Error-Type") != "Configuration" ||
			string(body) != `{"errorMessage":"a \"b\"","errorType":"Configuration"}` {
			t.Errorf("unexpected request %s %s %s", r.Method, r.URL, body)
		}
		w.WriteHeader(status)
	}))
	defer server.Close()
	api := strings.TrimPrefix(server.URL, "http://")
	cause := errors.New(`a "b"`)
	require.NoError(t, runtimeapi.FailInit(t.Context(), api, "Configuration", cause))
	status = http.StatusForbidden
	require.ErrorContains(t, runtimeapi.FailInit(t.Context(), api, "Configuration", cause), "403")
	require.NoError(t, runtimeapi.FailInit(t.Context(), "", "Configuration", cause), "not under Lambda")
	require.Error(t, runtimeapi.FailInit(t.Context(), "127.0.0.1:1", "Configuration", cause))
}
