// Package tlsclient says how clients speak TLS: at least 1.2, with a certificate
// that is verified for the server's name.
//
//	conf, err := tlsclient.Config("/opt/global-bundle.pem", "db.example.com")
package tlsclient

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// Config trusts the authorities of a PEM file, the system's where there is none.
// serverName is the name that the certificate must have, "" the one dialled.
func Config(caFile, serverName string) (*tls.Config, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: serverName}
	if caFile == "" {
		return conf, nil
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("read CA file: %w", err)
	}
	conf.RootCAs = x509.NewCertPool()
	if !conf.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read CA file %s: no certificate in it", caFile)
	}
	return conf, nil
}
