// Command bootstrap is a real Lambda function that appends the records of each
// event to the file STORE: one line "partition offset value" each. It decodes
// with AWS's own types, so that what it reads is what any function would read.
package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"strings"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"
)

func store(_ context.Context, event events.KafkaEvent) error {
	var lines strings.Builder
	for _, records := range event.Records {
		for _, r := range records {
			value, err := base64.StdEncoding.DecodeString(r.Value)
			if err != nil {
				return fmt.Errorf("decode offset %d: %w", r.Offset, err)
			}
			fmt.Fprintf(&lines, "%d %d %s\n", r.Partition, r.Offset, value)
		}
	}
	file, err := os.OpenFile(os.Getenv("STORE"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the store: %w", err)
	}
	if _, err := file.WriteString(lines.String()); err != nil {
		return fmt.Errorf("write the store: %w", err)
	}
	return file.Close()
}

func main() { lambda.Start(store) }
