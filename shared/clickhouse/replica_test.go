package clickhouse_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/clickhouse"
	"oncehouse/shared/clickhouse/targettest"
	"oncehouse/shared/delivery"
	"oncehouse/shared/offsets"
)

// V7, V8: a replica that lags would show rows as missing. Probe synchronises it
// first, and believes no answer of another server.
func TestProbeSynchronisesTheReplica(t *testing.T) {
	s := run(t)
	s.table(t, "r", "("+provenance+", v String) ENGINE = MergeTree ORDER BY _offset")
	for name, c := range map[string]struct {
		syncedBy, answeredBy string
		syncStatus           int
		problem              string
	}{
		"same server":    {syncedBy: "a", answeredBy: "a", syncStatus: http.StatusOK},
		"another server": {syncedBy: "a", answeredBy: "b", syncStatus: http.StatusOK, problem: `"a" was synchronised and "b" answered`},
		"nameless":       {syncStatus: http.StatusOK, problem: "does not say its name"},
		"no grant":       {syncedBy: "a", answeredBy: "a", syncStatus: http.StatusInternalServerError, problem: "GRANT SYSTEM SYNC REPLICA ON `default`.`r` TO `default`"},
	} {
		t.Run(name, func(t *testing.T) {
			target := open(t, throughCluster(t, s, c.syncedBy, c.answeredBy, c.syncStatus))
			_, err := target.Preflight(t.Context())
			require.NoError(t, err)
			clickhouse.AsReplicated(target)
			there, err := target.Probe(t.Context(), targettest.Lane(), offsets.Between(0, 9))
			require.Empty(t, there)
			if c.problem == "" {
				require.NoError(t, err)
				return
			}
			require.Equal(t, delivery.Retryable, delivery.KindOf(err), err)
			require.ErrorContains(t, err, c.problem)
		})
	}
}

// throughCluster stands for a cluster: one server synchronises, one answers.
func throughCluster(t *testing.T, s server, syncedBy, answeredBy string, status int) clickhouse.Config {
	t.Helper()
	backend, err := url.Parse(s.URL())
	require.NoError(t, err)
	const displayName = "X-ClickHouse-Server-Display-Name"
	pass := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(backend) },
		ModifyResponse: func(r *http.Response) error { r.Header.Set(displayName, answeredBy); return nil },
	}
	cluster := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if strings.HasPrefix(string(body), "SYSTEM SYNC REPLICA `default`.`r` LIGHTWEIGHT") {
			w.Header().Set(displayName, syncedBy)
			if status != http.StatusOK {
				w.Header().Set("X-ClickHouse-Exception-Code", "497")
			}
			w.WriteHeader(status)
			return
		}
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(cluster.Close)
	config := s.config("r")
	config.Endpoints = []string{cluster.URL}
	return config
}
