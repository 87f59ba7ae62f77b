// Package secretsmanager is AWS Secrets Manager on one machine: an HTTP server
// on loopback that knows one call, GetSecretValue, and the secrets it was given.
//
//	server, err := secretsmanager.Start(map[string]string{arn: `{"password":"local"}`})
//	defer server.Close()
//	environ["AWS_ENDPOINT_URL_SECRETS_MANAGER"] = server.Endpoint()
//
// https://docs.aws.amazon.com/secretsmanager/latest/apireference/API_GetSecretValue.html
package secretsmanager

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// Server is a running server.
type Server struct {
	http    *http.Server
	addr    string
	served  chan error
	secrets map[string]string
}

// Start starts a server with these secrets, by ARN or name.
func Start(secrets map[string]string) (*Server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for secrets: %w", err)
	}
	s := &Server{addr: listener.Addr().String(), served: make(chan error, 1), secrets: secrets}
	s.http = &http.Server{Handler: http.HandlerFunc(s.serve), ReadHeaderTimeout: time.Minute}
	go func() { s.served <- s.http.Serve(listener) }()
	return s, nil
}

// Endpoint is the server's URL.
func (s *Server) Endpoint() string { return "http://" + s.addr }

// Close ends the server.
func (s *Server) Close() error {
	err := s.http.Close()
	if served := <-s.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	if target := r.Header.Get("X-Amz-Target"); target != "secretsmanager.GetSecretValue" {
		refuse(w, "UnknownOperationException", target)
		return
	}
	var in struct {
		SecretID string `json:"SecretId"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&in); err != nil {
		refuse(w, "SerializationException", err.Error())
		return
	}
	text, ok := s.secrets[in.SecretID]
	if !ok {
		refuse(w, "ResourceNotFoundException", "Secrets Manager can't find the specified secret.")
		return
	}
	answer(w, http.StatusOK, map[string]string{"ARN": in.SecretID, "Name": in.SecretID, "SecretString": text})
}

func refuse(w http.ResponseWriter, code, message string) {
	answer(w, http.StatusBadRequest, map[string]string{"__type": code, "Message": message})
}

func answer(w http.ResponseWriter, status int, body map[string]string) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a client that left does not want it
}
