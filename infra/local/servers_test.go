package main

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What goes through the forwarder arrives whole, both ways; after close nothing
// of it is left, connections neither.
func TestForward(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body) // what is cut short is seen below
	}))
	t.Cleanup(server.Close)
	f := forward(t.Context(), listen(t), strings.TrimPrefix(server.URL, "http://"))
	body := bytes.Repeat([]byte("records"), 1<<18)
	for range 3 {
		res, err := http.Post("http://"+f.Addr().String(), "text/plain", bytes.NewReader(body)) //nolint:noctx // the test's own server
		require.NoError(t, err)
		got, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.True(t, bytes.Equal(body, got), "%d bytes of %d", len(got), len(body)) // too long to print
	}
	idle, err := net.Dial("tcp", f.Addr().String())
	require.NoError(t, err)
	f.close()
	_, err = idle.Read(make([]byte, 1))
	require.Error(t, err)
	_, err = net.Dial("tcp", f.Addr().String())
	require.Error(t, err)

	dead := forward(t.Context(), listen(t), f.Addr().String())
	t.Cleanup(dead.close)
	conn, err := net.Dial("tcp", dead.Addr().String())
	require.NoError(t, err)
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "nobody answers behind it")
}

// An address that is not to be had is refused before anything is started.
func TestServersListenFirst(t *testing.T) {
	taken := listen(t)
	defer func() { require.NoError(t, taken.Close()) }()
	_, port, err := net.SplitHostPort(taken.Addr().String())
	require.NoError(t, err)
	p := start(t, nil, "servers", "--clickhouse-port=0", "--dynamodb-port=0", "--sqs-port="+port, "--dir="+t.TempDir())
	require.Equal(t, 1, p.exit(t))
	require.Contains(t, p.stderr.String(), "listen for SQS: ")
	require.Empty(t, p.stdout.String())
}
