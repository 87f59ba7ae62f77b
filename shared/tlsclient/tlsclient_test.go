package tlsclient_test

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/tlsclient"
)

func TestConfig(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	dir := t.TempDir()
	trusted, empty := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "empty.pem")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	require.NoError(t, os.WriteFile(trusted, certificate, 0o600))
	require.NoError(t, os.WriteFile(empty, nil, 0o600))

	get := func(caFile, serverName string) error {
		conf, err := tlsclient.Config(caFile, serverName)
		require.NoError(t, err)
		client := http.Client{Transport: &http.Transport{TLSClientConfig: conf}}
		defer client.CloseIdleConnections()
		response, err := client.Get(server.URL)
		if err == nil {
			err = response.Body.Close()
		}
		return err
	}
	require.NoError(t, get(trusted, ""))
	require.NoError(t, get(trusted, "example.com"))
	require.ErrorContains(t, get(trusted, "other.example.org"), "not other.example.org")
	require.ErrorContains(t, get("", ""), "unknown authority")

	_, err := tlsclient.Config(empty, "")
	require.ErrorContains(t, err, "no certificate in it")
	_, err = tlsclient.Config(filepath.Join(dir, "none"), "")
	require.ErrorContains(t, err, "read CA file")
}
