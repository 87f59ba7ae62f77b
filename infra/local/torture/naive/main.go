// Command naive is a Lambda function as it is often written: it inserts what it
// is handed, each partition under a deduplication token made from the bounds of
// the batch, and remembers nothing. It is what the sink is held against.
//
// It is right as long as a batch comes again as it was. It has no dead letters:
// a record that does not fit fails the event for ever.
package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"
)

func main() {
	settings := map[string]string{}
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		settings[name] = value
	}
	s := &sink{url: settings["ONCEHOUSE_CLICKHOUSE_URL"], table: settings["ONCEHOUSE_CLICKHOUSE_TABLE"]}
	lambda.Start(s.handle)
}

type sink struct{ url, table string }

func (s *sink) handle(ctx context.Context, event events.KafkaEvent) error {
	for _, records := range event.Records {
		if err := s.insert(ctx, records); err != nil {
			return err
		}
	}
	return nil
}

// insert inserts the batch of one partition.
func (s *sink) insert(ctx context.Context, records []events.KafkaRecord) error {
	var body bytes.Buffer
	for i := range records {
		if err := appendRow(&body, &records[i]); err != nil {
			return err
		}
	}
	first, last := records[0], records[len(records)-1]
	query := url.Values{
		"query":                      {"INSERT INTO " + s.table + " FORMAT JSONEachRow"},
		"date_time_input_format":     {"best_effort"},
		"insert_deduplicate":         {"1"},
		"wait_end_of_query":          {"1"},
		"insert_deduplication_token": {fmt.Sprintf("%s-%d-%d-%d", first.Topic, first.Partition, first.Offset, last.Offset)},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/?"+query.Encode(), &body)
	if err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("insert: %s: %s", res.Status, answer)
	}
	return nil
}

// appendRow writes the record's JSON object with where it comes from in front.
func appendRow(body *bytes.Buffer, r *events.KafkaRecord) error {
	value, err := base64.StdEncoding.DecodeString(r.Value)
	if err != nil {
		return fmt.Errorf("decode %s-%d offset %d: %w", r.Topic, r.Partition, r.Offset, err)
	}
	key, err := base64.StdEncoding.DecodeString(r.Key)
	if err != nil {
		return fmt.Errorf("decode the key of %s-%d offset %d: %w", r.Topic, r.Partition, r.Offset, err)
	}
	from, err := json.Marshal(map[string]any{
		"_topic": r.Topic, "_partition": r.Partition, "_offset": r.Offset, "_key": string(key),
		"_timestamp": r.Timestamp.UTC().Format("2006-01-02T15:04:05.000Z"),
	})
	if err != nil {
		return fmt.Errorf("write the row: %w", err)
	}
	body.Write(from[:len(from)-1])
	body.WriteByte(',')
	body.Write(bytes.TrimPrefix(value, []byte("{")))
	body.WriteByte('\n')
	return nil
}
