// Command bootstrap is a real Lambda function whose event says what it does.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"
)

type command struct {
	Do    string `json:"do"`
	Ms    int    `json:"ms"`
	Bytes int    `json:"bytes"`
	Text  string `json:"text"`
}

type handler struct{ calls int }

// Invoke does what the event says.
func (h *handler) Invoke(ctx context.Context, event []byte) ([]byte, error) {
	var c command
	if err := json.Unmarshal(event, &c); err != nil {
		return nil, fmt.Errorf("parse the command: %w", err)
	}
	h.calls++
	switch c.Do {
	case "echo":
		return event, nil
	case "who":
		return json.Marshal(map[string]any{"pid": os.Getpid(), "calls": h.calls, "env": os.Environ()})
	case "context":
		deadline, _ := ctx.Deadline()
		lc, _ := lambdacontext.FromContext(ctx)
		return json.Marshal(map[string]any{"deadline": deadline.UnixMilli(), "now": time.Now().UnixMilli(), "request": lc.AwsRequestID, "arn": lc.InvokedFunctionArn})
	case "sleep":
		time.Sleep(time.Duration(c.Ms) * time.Millisecond)
		return []byte(`"slept"`), nil
	case "wait": // until the file c.Text exists
		for {
			if _, err := os.Stat(c.Text); err == nil {
				return []byte(`"waited"`), nil
			}
			time.Sleep(5 * time.Millisecond)
		}
	case "exit":
		os.Exit(3)
	case "panic":
		panic(c.Text)
	case "fail":
		return nil, errors.New(c.Text)
	case "allocate":
		b := bytes.Repeat([]byte{1}, c.Bytes)
		return json.Marshal(len(b))
	case "respond":
		return bytes.Repeat([]byte{'1'}, c.Bytes), nil
	}
	return nil, fmt.Errorf("no command %q", c.Do)
}

func main() {
	switch os.Getenv("INIT") {
	case "exit":
		log.Print("init goes wrong")
		os.Exit(7)
	case "hang":
		time.Sleep(time.Hour)
	}
	var options []lambda.Option
	if file := os.Getenv("SIGTERM_FILE"); file != "" {
		options = append(options, lambda.WithEnableSIGTERM(func() {
			if err := os.WriteFile(file, []byte("bye"), 0o600); err != nil {
				log.Print(err)
			}
			os.Exit(0)
		}))
	}
	lambda.StartWithOptions(&handler{}, options...)
}
