package kafkaevent

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"oncehouse/shared/kafka"
)

// oracle decides what Decode has to return, slowly and by other means: the
// standard library reads the JSON, one level at a time.
func oracle(payload []byte) (*Event, error) {
	if !json.Valid(payload) {
		return nil, errors.New("no JSON")
	}
	fields, err := membersOf(payload)
	if err != nil {
		return nil, err
	}
	known, err := knownOf(fields, "eventSource", "eventSourceArn", "bootstrapServers", "records")
	if err != nil {
		return nil, err
	}
	var event Event
	for name, to := range map[string]*string{"eventSource": &event.Source, "eventSourceArn": &event.SourceARN, "bootstrapServers": &event.BootstrapServers} {
		if *to, err = oracleText(known[name]); err != nil {
			return nil, err
		}
	}
	if event.Source != "aws:kafka" && event.Source != "SelfManagedKafka" {
		return nil, errors.New("eventSource")
	}
	partitions, err := membersOf(known["records"])
	if err != nil {
		return nil, err
	}
	event.Batches = []kafka.Batch{}
	seen := map[string]bool{}
	for _, p := range partitions {
		if seen[p.name] {
			return nil, errors.New("a partition twice")
		}
		seen[p.name] = true
		batch, err := oracleBatch(p)
		if err != nil {
			return nil, err
		}
		if len(batch.Records) > 0 {
			event.Batches = append(event.Batches, batch)
		}
	}
	slices.SortFunc(event.Batches, func(a, b kafka.Batch) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return &event, nil
}

var topicPartition = regexp.MustCompile(`^([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]*)$`)

func oracleBatch(p member) (kafka.Batch, error) {
	var batch kafka.Batch
	parts := topicPartition.FindStringSubmatch(p.name)
	if parts == nil || parts[1] == "." || parts[1] == ".." {
		return batch, errors.New("no topic-partition")
	}
	n, err := strconv.ParseInt(parts[2], 10, 32)
	if err != nil {
		return batch, err
	}
	batch.TopicPartition = kafka.TopicPartition{Topic: parts[1], Partition: int32(n)}
	items, err := elementsOf(p.value)
	if err != nil {
		return batch, err
	}
	for i, item := range items {
		record, err := oracleRecord(item, batch.TopicPartition)
		if err != nil {
			return batch, err
		}
		if i > 0 && record.Offset <= batch.Records[i-1].Offset {
			return batch, errors.New("order of offsets")
		}
		batch.Records = append(batch.Records, record)
	}
	return batch, nil
}

func oracleRecord(raw json.RawMessage, tp kafka.TopicPartition) (kafka.Record, error) {
	record := kafka.Record{Timestamp: -1}
	fields, err := membersOf(raw)
	if err != nil {
		return record, err
	}
	known, err := knownOf(fields, "topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers", "keySchemaMetadata", "valueSchemaMetadata")
	if err != nil {
		return record, err
	}
	topic, err := oracleText(known["topic"])
	partition, errPartition := oracleInteger(known["partition"])
	offset, errOffset := oracleInteger(known["offset"])
	if err := errors.Join(err, errPartition, errOffset); err != nil {
		return record, err
	}
	if topic != tp.Topic || partition != int64(tp.Partition) || offset < 0 || offset == math.MaxInt64 {
		return record, errors.New("topic, partition or offset")
	}
	record.Offset = offset
	if raw := known["timestamp"]; raw != nil && string(raw) != "null" {
		if record.Timestamp, err = oracleInteger(raw); err != nil {
			return record, err
		}
	}
	if nesting(known["timestampType"]) > 128 {
		return record, errors.New("depth")
	}
	var errs [5]error
	record.Key, errs[0] = oracleBytes(known["key"])
	record.Value, errs[1] = oracleBytes(known["value"])
	record.Headers, errs[2] = oracleHeaders(known["headers"])
	record.KeySchema, errs[3] = oracleSchema(known["keySchemaMetadata"])
	record.ValueSchema, errs[4] = oracleSchema(known["valueSchemaMetadata"])
	return record, errors.Join(errs[:]...)
}

func oracleHeaders(raw json.RawMessage) ([]kafka.Header, error) {
	if raw == nil || string(raw) == "null" {
		return nil, nil
	}
	objects, err := elementsOf(raw)
	if err != nil {
		return nil, err
	}
	var headers []kafka.Header
	for _, object := range objects {
		fields, err := membersOf(object)
		if err != nil {
			return nil, err
		}
		for _, field := range fields {
			name, err := oracleText(field.rawName)
			if err != nil {
				return nil, err
			}
			header := kafka.Header{Key: []byte(name), Value: []byte{}}
			if string(field.value) != "null" {
				numbers, err := elementsOf(field.value)
				if err != nil {
					return nil, err
				}
				for _, number := range numbers {
					n, err := oracleInteger(number)
					if err != nil || n < -128 || n > 255 {
						return nil, errors.New("no byte")
					}
					header.Value = append(header.Value, byte(n))
				}
			}
			headers = append(headers, header)
		}
	}
	return headers, nil
}

func oracleSchema(raw json.RawMessage) (*kafka.Schema, error) {
	if raw == nil || string(raw) == "null" {
		return nil, nil
	}
	fields, err := membersOf(raw)
	if err != nil {
		return nil, err
	}
	known, err := knownOf(fields, "dataFormat", "schemaId")
	if err != nil {
		return nil, err
	}
	format, err := oracleText(known["dataFormat"])
	if err != nil {
		return nil, err
	}
	id, err := oracleText(known["schemaId"])
	return &kafka.Schema{DataFormat: format, ID: id}, err
}

func oracleBytes(raw json.RawMessage) ([]byte, error) {
	if raw == nil || string(raw) == "null" {
		return nil, nil
	}
	text, err := oracleText(raw)
	if err != nil {
		return nil, err
	}
	if strings.ContainsAny(text, "\r\n") {
		return nil, errors.New("a line break in base64")
	}
	decoded, err := base64.StdEncoding.DecodeString(text)
	return decoded, err
}

// oracleText is the text of a string, "" for null or none. U+FFFD is what the
// standard library makes of bad Unicode, where the text has not got it itself.
func oracleText(raw json.RawMessage) (string, error) {
	if raw == nil || string(raw) == "null" {
		return "", nil
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return "", err
	}
	unslashed := bytes.ReplaceAll(raw, []byte(`\\`), nil)
	itself := strings.Count(strings.ToLower(string(unslashed)), `\ufffd`) + bytes.Count(raw, []byte("\uFFFD"))
	if !utf8.Valid(raw) || strings.Count(text, "\uFFFD") != itself {
		return "", errors.New("bad Unicode")
	}
	return text, nil
}

var integerText = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)

func oracleInteger(raw json.RawMessage) (int64, error) {
	if !integerText.Match(raw) {
		return 0, fmt.Errorf("no integer: %q", raw)
	}
	return strconv.ParseInt(string(raw), 10, 64)
}

type member struct {
	name    string
	rawName json.RawMessage
	value   json.RawMessage
}

// membersOf takes one object apart, in its order and with repeats.
func membersOf(raw json.RawMessage) ([]member, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		return nil, errors.New("no object")
	}
	var members []member
	for decoder.More() {
		before := decoder.InputOffset()
		token, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		rawName := bytes.TrimLeft(raw[before:decoder.InputOffset()], ", \t\r\n")
		m := member{name: token.(string), rawName: rawName}
		if err := decoder.Decode(&m.value); err != nil {
			return nil, err
		}
		members = append(members, m)
	}
	return members, nil
}

func elementsOf(raw json.RawMessage) ([]json.RawMessage, error) {
	if len(raw) == 0 || raw[0] != '[' {
		return nil, errors.New("no array")
	}
	var elements []json.RawMessage
	err := json.Unmarshal(raw, &elements)
	return elements, err
}

// knownOf is the named fields' values, none of them twice, and looks at the
// depth of the others.
func knownOf(fields []member, names ...string) (map[string]json.RawMessage, error) {
	known := map[string]json.RawMessage{}
	for _, field := range fields {
		switch {
		case !slices.Contains(names, field.name):
			if nesting(field.value) > 128 {
				return nil, errors.New("depth")
			}
		case known[field.name] != nil:
			return nil, errors.New("a field twice")
		default:
			known[field.name] = field.value
		}
	}
	return known, nil
}

// nesting is how deep arrays and objects go in a valid value.
func nesting(raw json.RawMessage) (deepest int) {
	depth, inString := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '[' || c == '{':
			depth++
			deepest = max(deepest, depth)
		case c == ']' || c == '}':
			depth--
		}
	}
	return deepest
}
