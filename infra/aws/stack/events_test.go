package stack_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/kafkaevent"
)

// otherTriggers are sample events that no mapping of this app sends, and why.
var otherTriggers = map[string]string{
	"self-managed.json": "of self-managed Kafka; the app makes mappings of MSK",
	"dashes.json":       "of the topic clicks-eu-1",
}

// Each sample event is one that the mapping of the first example's pipeline, clicks,
// can send: of MSK, of its topic, and no larger than it says.
func TestSampleEventsFitTheirTrigger(t *testing.T) {
	in := examples["serverless-clickhouse-cloud"]
	mapping := in.templates["oncehouse-production-clicks"].only(t, "AWS::Lambda::EventSourceMapping")
	require.Regexp(t, cluster, mapping["EventSourceArn"])
	files, err := filepath.Glob("../../../events/*.json")
	require.NoError(t, err)
	fitting := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var source struct{ EventSource, EventSourceArn string }
		require.NoError(t, json.Unmarshal(text, &source), file)
		var decoder kafkaevent.Decoder
		event, err := decoder.Decode(text)
		require.NoError(t, err, file)

		fits := source.EventSource == "aws:kafka" && cluster.MatchString(source.EventSourceArn)
		records := 0
		for _, batch := range event.Batches {
			fits = fits && batch.Topic == mapping["Topics"].([]any)[0]
			records += len(batch.Records)
		}
		fits = fits && records <= int(mapping["BatchSize"].(float64)) && len(text) <= 6<<20 // Lambda's limit of a payload
		require.Equal(t, otherTriggers[filepath.Base(file)] == "", fits, file)
		if fits {
			fitting++
		}
	}
	require.Equal(t, len(files)-len(otherTriggers), fitting)
}

var cluster = regexp.MustCompile(`^arn:aws:kafka:[a-z0-9-]+:\d{12}:cluster/[^/]+/[^/]+$`)
