// Package runtimeapi tells Lambda why a function refuses to start. The runtime
// library of AWS does not: a process that just exits is shown as
// Runtime.ExitError, and what is wrong has to be searched for in the log.
//
//	if err != nil {
//		runtimeapi.Refuse(ctx, logger, "sink", environ, "Configuration", err)
//		os.Exit(1)
//	}
//
// The API: https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html#runtimes-api-initerror
package runtimeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"oncehouse/shared/settings"
)

// Variable is the variable of the environment that has the API's address.
const Variable = "AWS_LAMBDA_RUNTIME_API"

const timeout = 2 * time.Second

// Refuse says why a function does not start: in its log, problem by problem, and
// in Lambda's own answer. It is for the caller to exit.
func Refuse(ctx context.Context, log *slog.Logger, function string, environ map[string]string, errorType string, cause error) {
	attrs := []slog.Attr{slog.String("reason", errorType), slog.String("error", cause.Error())}
	var refused *settings.Error
	if errors.As(cause, &refused) {
		attrs = append(attrs, slog.Any("problems", refused.Problems))
	}
	log.LogAttrs(ctx, slog.LevelError, function+" refuses to start", attrs...) //nolint:sloglint // one of the functions' names, and the rest
	if err := FailInit(ctx, environ[Variable], errorType, cause); err != nil {
		log.ErrorContext(ctx, "init error not reported", slog.String("error", err.Error()))
	}
}

// FailInit reports that the init phase failed. api is host:port as Lambda gives
// it; "" (not under Lambda) reports nothing.
func FailInit(ctx context.Context, api, errorType string, cause error) error {
	if api == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	body, err := json.Marshal(map[string]string{"errorType": errorType, "errorMessage": cause.Error()})
	if err != nil {
		return fmt.Errorf("report init error: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+api+"/2018-06-01/runtime/init/error", bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("report init error: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Lambda-Runtime-Function-Error-Type", errorType)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("report init error: %w", err)
	}
	_ = response.Body.Close() // it says nothing of use
	if response.StatusCode != http.StatusAccepted {
		return fmt.Errorf("report init error: status %s", response.Status)
	}
	return nil
}
