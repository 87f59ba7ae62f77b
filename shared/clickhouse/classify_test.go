package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"syscall"
	"testing"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/stretchr/testify/require"

	"oncehouse/shared/delivery"
)

func exception(code int32) error {
	return fmt.Errorf("insert: %w", &ch.HTTPError{StatusCode: 500, Err: &ch.Exception{Code: code, Name: "DB::Exception", Message: "text"}})
}

func TestInsertErrorKinds(t *testing.T) {
	const (
		retry = delivery.Retryable
		doubt = delivery.InDoubt
		fatal = delivery.Fatal
	)
	reset := &url.Error{Op: "Post", URL: "http://u:secret@ch/?query=long", Err: &net.OpError{Op: "read", Err: syscall.ECONNRESET}}
	target := &Target{config: *conf()}
	for _, c := range []struct {
		err                     error
		unsent, plain, andViews delivery.Kind
	}{
		{exception(516), retry, retry, retry},
		{exception(192), retry, retry, retry},
		{exception(202), retry, retry, retry},
		{exception(115), fatal, fatal, fatal},
		{exception(452), fatal, fatal, fatal},
		{exception(60), retry, retry, doubt},
		{exception(81), retry, retry, doubt},
		{exception(16), retry, retry, doubt},
		{exception(497), retry, retry, doubt},
		{exception(252), retry, retry, doubt},
		{exception(241), retry, doubt, doubt},
		{exception(242), retry, doubt, doubt},
		{exception(159), retry, doubt, doubt},
		{exception(160), retry, doubt, doubt},
		{exception(216), retry, doubt, doubt},
		{exception(319), retry, doubt, doubt},
		{exception(33), retry, doubt, doubt},
		{exception(469), fatal, doubt, doubt},
		{exception(99999), retry, doubt, doubt},
		{&unprovenError{code: "252", what: "x"}, retry, doubt, doubt},
		{fmt.Errorf("%w: %w", &unprovenError{what: "x"}, exception(252)), retry, doubt, doubt},
		{&ch.HTTPError{StatusCode: 503, Err: errors.New("body")}, retry, doubt, doubt},
		{reset, retry, doubt, doubt},
		{io.ErrUnexpectedEOF, retry, doubt, doubt},
		{context.DeadlineExceeded, retry, doubt, doubt},
		{context.Canceled, retry, doubt, doubt},
		{errors.New("never seen"), retry, doubt, doubt},
	} {
		require.Equal(t, c.unsent, target.insertError(c.err, false, false, true).Kind, "unsent: %v", c.err)
		require.Equal(t, c.plain, target.insertError(c.err, true, false, false).Kind, "sent: %v", c.err)
		require.Equal(t, c.andViews, target.insertError(c.err, true, false, true).Kind, "sent, views: %v", c.err)
		require.NotEqual(t, doubt, target.readError(c.err).Kind, "a read stores nothing: %v", c.err)
	}
	require.NotContains(t, target.insertError(reset, true, false, false).Error(), "secret")
	late := target.insertError(errOutOfTime, false, true, false)
	require.Equal(t, delivery.ReasonOutOfTime, late.Reason)
	require.Equal(t, doubt, target.insertError(errOutOfTime, true, true, false).Kind)
}

func TestConfigValidateNamesEverything(t *testing.T) {
	_, err := New(Config{Endpoints: []string{"http://a:1", "https://b:2"}, Compression: "lz4", Proxy: "::"})
	for _, part := range []string{"all http or all https", "database: missing", "table: missing", "user: missing", `compression "lz4"`, "proxy", "guarantee"} {
		require.ErrorContains(t, err, part)
	}
	for _, endpoint := range []string{"ch:8123", "http://ch", "ftp://ch:21", "http://u:pw@ch:8123", "http://ch:8123/?x=1", "::"} {
		c := conf()
		c.Endpoints = []string{endpoint}
		require.ErrorContains(t, c.Validate(), "endpoint", endpoint)
		require.NotContains(t, c.Validate().Error(), "pw@")
	}
	require.NoError(t, conf().Validate())
}
