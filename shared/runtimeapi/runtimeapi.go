// Package runtimeapi tells Lambda why a function refuses to start. The runtime
// library of AWS does not: a process that just exits is shown as
// Runtime.ExitError, and what is wrong has to be searched for in the log.
//
//	if err != nil {
//		runtimeapi.FailInit(ctx, api, "Configuration", err) // then exit
//	}
//
// The API: https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html#runtimes-api-initerror
package runtimeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// Variable is the variable of the environment that has the API's address.
const Variable = "AWS_LAMBDA_RUNTIME_API"

const timeout = 2 * time.Second

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
