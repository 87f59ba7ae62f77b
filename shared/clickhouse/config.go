package clickhouse

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"

	"oncehouse/shared/delivery"
	"oncehouse/shared/rowbinary"
	"oncehouse/shared/secrets"
)

// Config says where the table is, how to reach it and what is asked of it.
type Config struct {
	// Endpoints are the servers: http://host:8123 or https://host:8443. With
	// several, the first that answers is used; a plain MergeTree table lives
	// on one server and takes exactly one.
	Endpoints []string
	Database  string
	Table     string
	User      string
	Password  secrets.Text
	// CAFile is a PEM file with the authorities to trust instead of the
	// system's, ServerName the name the certificate must have instead of the
	// endpoint's. There is no way to switch verification off.
	CAFile     string
	ServerName string
	// Proxy is the HTTP proxy to go through; "" is none. The environment's
	// HTTP_PROXY is not read: a proxy that retries would break "one send".
	Proxy       string
	Compression Compression
	// Rows says how records become rows. Its Provenance names the columns that
	// Probe looks for; its Timezone is filled in by Preflight.
	Rows rowbinary.Options
	// Rules are the pipeline's: guarantee, replay, times, accepted views.
	Rules delivery.Rules
	// Logger takes the warnings of Preflight; nil is slog.Default.
	Logger *slog.Logger
}

// Compression is how the body of an insert travels.
type Compression string

// CompressionNone ("" is the same) and CompressionGzip. The driver frames LZ4
// and ZSTD only around Native blocks and would send these bodies bare.
const (
	CompressionNone Compression = "none"
	CompressionGzip Compression = "gzip"
)

// Validate returns everything that cannot work, joined.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(len(c.Endpoints) > 0, "endpoints: at least one, as http://host:8123 or https://host:8443")
	if _, _, err := c.addresses(); err != nil {
		errs = append(errs, err)
	}
	check(c.Database != "", "database: missing")
	check(c.Table != "", "table: missing")
	check(c.User != "", "user: missing")
	check(c.Compression == "" || c.Compression == CompressionNone || c.Compression == CompressionGzip,
		"compression %q: one of %s, %s", c.Compression, CompressionNone, CompressionGzip)
	if c.Proxy != "" {
		u, err := url.Parse(c.Proxy)
		check(err == nil && u.Host != "", "proxy: not a URL")
	}
	if err := c.Rules.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// addresses are the endpoints as host:port and whether they are https: all or
// none, because the password is sent to each of them.
func (c Config) addresses() (addrs []string, secure bool, err error) {
	for i, endpoint := range c.Endpoints {
		u, err := url.Parse(endpoint)
		switch {
		case err != nil:
			return nil, false, fmt.Errorf("endpoint %d: not a URL", i+1) // err would show a password in it
		case u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "", u.Port() == "":
			return nil, false, fmt.Errorf("endpoint %s: http://host:port or https://host:port expected", u.Redacted())
		case u.User != nil:
			return nil, false, fmt.Errorf("endpoint %s: user and password have settings of their own", u.Redacted())
		case u.Path != "" && u.Path != "/", u.RawQuery != "":
			return nil, false, fmt.Errorf("endpoint %s: no path and no query expected", u.Redacted())
		case i > 0 && (u.Scheme == "https") != secure:
			return nil, false, errors.New("endpoints: all http or all https")
		}
		secure = u.Scheme == "https"
		addrs = append(addrs, u.Host)
	}
	return addrs, secure, nil
}
