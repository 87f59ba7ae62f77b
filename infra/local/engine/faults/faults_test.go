package faults_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"oncehouse/infra/local/engine/enginetest"
	"oncehouse/infra/local/engine/faults"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// setup returns a server with a table, a driver's connection through a proxy,
// and the proxy.
func setup(t *testing.T) (*enginetest.Server, clickhouse.Conn, *faults.Proxy) {
	t.Helper()
	srv := enginetest.Run(t)
	srv.Exec(t, "CREATE TABLE t (a UInt32) ENGINE = MergeTree ORDER BY a")
	proxy := enginetest.Faults(t, srv)
	opts := srv.Options()
	opts.Addr = []string{proxy.Addr()}
	conn, err := clickhouse.Open(opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return srv, conn, proxy
}

func insert(ctx context.Context, conn clickhouse.Conn) error {
	return conn.InsertFormat(ctx, "TSV", "INSERT INTO t", strings.NewReader(strings.Repeat("7\n", 1000)))
}

func count(t *testing.T, srv *enginetest.Server) uint64 {
	t.Helper()
	var n uint64
	require.NoError(t, srv.Open(t).QueryRow(t.Context(), "SELECT count() FROM t").Scan(&n))
	return n
}

func TestFaults(t *testing.T) {
	srv, conn, proxy := setup(t)
	cases := []struct {
		fault  faults.Fault
		stored bool
		code   int32 // of the exception the driver reports; 0 none, -1 no error at all
	}{
		{faults.Refuse(), false, 0},
		{faults.CutBody(0), false, 0},
		{faults.CutBody(777), false, 0},
		{faults.DropAnswer(), true, 0},
		{faults.Exception(252), false, 252},
		{faults.Exception(516), false, 516},
		{faults.ExceptionAfter(159), true, 159},
		{faults.Status(http.StatusBadGateway, "<html>bad gateway</html>"), false, 0},
		{faults.HeaderException(241), false, -1}, // the driver takes it for success
		{faults.FramedException(242), false, 242},
		{faults.BareException(202), false, -1}, // so too
		{faults.Delay(time.Millisecond), true, -1},
		{faults.DelayAnswer(time.Millisecond), true, -1},
		{faults.Pass(), true, -1},
	}
	for _, c := range cases {
		t.Run(c.fault.String(), func(t *testing.T) {
			before := count(t, srv)
			proxy.Next(c.fault)
			err := insert(t.Context(), conn)
			if c.code < 0 {
				require.NoError(t, err)
			} else {
				require.Error(t, err)
			}
			ex := (*clickhouse.Exception)(nil)
			require.Equal(t, c.code > 0, errors.As(err, &ex), err)
			if c.code > 0 {
				require.Equal(t, c.code, ex.Code)
			}
			want := before
			if c.stored {
				want += 1000
			}
			require.Equal(t, want, count(t, srv))
		})
	}
}

func TestCutAnswer(t *testing.T) {
	_, conn, proxy := setup(t)
	require.NoError(t, insert(t.Context(), conn))
	proxy.When(faults.Contains("sum("), faults.CutAnswer(3))
	var sum uint64
	require.Error(t, conn.QueryRow(t.Context(), "SELECT sum(a) FROM t").Scan(&sum))
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT sum(a) FROM t").Scan(&sum))
	require.Equal(t, uint64(7000), sum)
}

func TestFaultsComeInOrder(t *testing.T) {
	srv, conn, proxy := setup(t)
	proxy.Next(faults.Pass(), faults.Exception(252))
	require.Len(t, proxy.Pending(), 2)
	require.NoError(t, insert(t.Context(), conn))
	require.ErrorContains(t, insert(t.Context(), conn), "TOO_MANY_PARTS")
	require.NoError(t, insert(t.Context(), conn))
	require.Empty(t, proxy.Pending())
	require.Equal(t, uint64(2000), count(t, srv))
}

func TestHold(t *testing.T) {
	srv, conn, proxy := setup(t)
	for _, after := range []bool{false, true} {
		before := count(t, srv)
		reached, release := make(chan struct{}), make(chan struct{})
		hold, want := faults.Hold(func() { close(reached) }, release), before
		if after {
			hold, want = faults.HoldAnswer(func() { close(reached) }, release), before+1000
		}
		proxy.Next(hold)
		done := make(chan error, 1)
		go func() { done <- insert(t.Context(), conn) }()
		<-reached
		require.Equal(t, want, count(t, srv), hold.String())
		close(release)
		require.NoError(t, <-done)
		require.Equal(t, before+1000, count(t, srv))
	}
}
