package mapping

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncehouse/infra/local/lambdahost"
)

// Conditions under which records are given up. The first two are AWS's words.
const (
	RetryAttemptsExhausted     = "RetryAttemptsExhausted"
	MaximumPayloadSizeExceeded = "MaximumPayloadSizeExceeded"
	RecordAgeExceeded          = "RecordAgeExceeded"
)

// The message that an SQS or SNS destination gets: metadata, no records.
// https://docs.aws.amazon.com/lambda/latest/dg/kafka-on-failure.html
type failureMessage struct {
	RequestContext  requestContext   `json:"requestContext"`
	ResponseContext *responseContext `json:"responseContext"`
	Version         string           `json:"version"`
	Timestamp       string           `json:"timestamp"`
	KafkaBatchInfo  kafkaBatchInfo   `json:"KafkaBatchInfo"`
}

type requestContext struct {
	RequestID              string `json:"requestId"`
	FunctionARN            string `json:"functionArn"`
	Condition              string `json:"condition"`
	ApproximateInvokeCount int    `json:"approximateInvokeCount"`
}

type responseContext struct {
	StatusCode      int    `json:"statusCode"`
	ExecutedVersion string `json:"executedVersion"`
	FunctionError   string `json:"functionError,omitempty"`
}

type kafkaBatchInfo struct {
	BatchSize        int                    `json:"batchSize"`
	EventSourceARN   string                 `json:"eventSourceArn,omitempty"`
	BootstrapServers string                 `json:"bootstrapServers"`
	PayloadSize      int                    `json:"payloadSize"`
	RecordsInfo      map[string]recordsInfo `json:"recordsInfo"`
}

// recordsInfo is keyed by topic-partition. Offsets are strings.
type recordsInfo struct {
	FirstRecordOffset    string `json:"firstRecordOffset"`
	LastRecordOffset     string `json:"lastRecordOffset"`
	FirstRecordTimestamp string `json:"firstRecordTimestamp"`
	LastRecordTimestamp  string `json:"lastRecordTimestamp"`
}

const messageTime = "2006-01-02T15:04:05.000Z"

// failureMetadata is the message for the records of ev, which were given up
// after last; nil when they were never sent.
func (m *Mapping) failureMetadata(ev *event, condition string, last *lambdahost.Result) []byte {
	msg := failureMessage{
		RequestContext: requestContext{FunctionARN: m.cfg.FunctionARN, Condition: condition, ApproximateInvokeCount: ev.failed},
		Version:        "1.0",
		Timestamp:      time.Now().UTC().Format(messageTime),
		KafkaBatchInfo: kafkaBatchInfo{
			BatchSize: ev.records(), EventSourceARN: m.cfg.EventSourceARN, BootstrapServers: m.bootstrap,
			PayloadSize: m.format.size(ev), RecordsInfo: map[string]recordsInfo{},
		},
	}
	if last != nil {
		msg.RequestContext.RequestID = last.RequestID
		msg.ResponseContext = &responseContext{StatusCode: 200, ExecutedVersion: "$LATEST", FunctionError: last.FunctionError}
	}
	for _, q := range ev.parts {
		first, last := q.items[0].Record, q.items[len(q.items)-1].Record
		msg.KafkaBatchInfo.RecordsInfo[q.p.tp.String()] = recordsInfo{
			FirstRecordOffset: strconv.FormatInt(first.Offset, 10), FirstRecordTimestamp: recordTime(first),
			LastRecordOffset: strconv.FormatInt(last.Offset, 10), LastRecordTimestamp: recordTime(last),
		}
	}
	b, err := json.Marshal(msg)
	if err != nil { // strings and numbers always marshal
		panic(err)
	}
	return b
}

func recordTime(r *kgo.Record) string { return r.Timestamp.UTC().Format(messageTime) }
