package stack

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/functions/sink/config"
	"oncehouse/shared/delivery"
)

func pipelinesOf(t *testing.T, text string) ([]Pipeline, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "p.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return ReadPipelines(path)
}

func TestReadPipelines(t *testing.T) {
	got, err := pipelinesOf(t, "pipelines:\n  - topic: a\n  - {name: b, topic: a, table: t, guarantee: at-least-once, window: 300ms, settings: {UNKNOWN_FIELDS: refuse}}\n")
	require.NoError(t, err)
	require.Equal(t, []Pipeline{
		{Name: "a", Topic: "a", Table: "a", Partitions: 6, Guarantee: delivery.ExactlyOnce, BatchSize: 10_000, Concurrency: 2, Timeout: time.Minute},
		{Name: "b", Topic: "a", Table: "t", Partitions: 6, Guarantee: delivery.AtLeastOnce, BatchSize: 10_000, Concurrency: 2, Timeout: time.Minute,
			Window: 300 * time.Millisecond, Settings: map[string]string{"UNKNOWN_FIELDS": "refuse"}},
	}, got)
}

func TestReadPipelinesRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"pipelines: [{name: a}]":              "pipeline 1 has no topic",
		"pipelines: [{topic: a, tabel: b}]":   "field tabel not found",
		"pipelines: [{topic: a}, {topic: a}]": "two pipelines are called a",
		"":                                    "there is none in it",
		"pipelines:":                          "there is none in it",
		"pipelines: []":                       "there is none in it",
	} {
		_, err := pipelinesOf(t, text)
		require.ErrorContains(t, err, want)
	}
}

// The documented example says the defaults.
func TestExample(t *testing.T) {
	got, err := ReadPipelines("../pipelines.example.yaml")
	require.NoError(t, err)
	byDefault := Pipeline{Topic: "clicks", Settings: map[string]string{}}
	byDefault.setDefaults()
	require.Equal(t, []Pipeline{byDefault}, got)
}

// What keeps a function from starting is known before anything runs.
func TestCheck(t *testing.T) {
	require.NoError(t, Pipeline{Topic: "clicks", Settings: map[string]string{"INSERT_TIMEOUT": "3s"}}.Check())
	for want, p := range map[string]Pipeline{
		`configure pipeline a b: .*ONCEHOUSE_TOPIC is "a b": a Kafka topic of letters`:                        {Topic: "a b"},
		`configure pipeline clicks: .*ONCEHOUSE_GUARANTEE is "twice"`:                                         {Topic: "clicks", Guarantee: "twice"},
		`configure pipeline clicks: .*ONCEHOUSE_SEND_WINDO is not a setting: did you mean ONCEHOUSE_SEND_WIN`: {Topic: "clicks", Settings: map[string]string{"SEND_WINDO": "1s"}},
	} {
		require.Regexp(t, want, p.Check().Error())
	}
	require.NoError(t, Pipeline{Topic: "clicks", Bootstrap: "other", Settings: map[string]string{"OTHER": "1"}}.Check())
}

// The sink's own parser takes the environment of a pipeline.
func TestEnvironment(t *testing.T) {
	s := startForTest(t)
	p := Pipeline{Topic: "clicks", Settings: map[string]string{"INSERT_TIMEOUT": "3s"}}
	p.setDefaults()
	cfg, err := config.Parse(s.environment(p))
	require.NoError(t, err)
	require.Equal(t, "clicks", cfg.Table)
	require.Equal(t, 3*time.Second, cfg.InsertTimeout)
	require.True(t, cfg.PartialBatch)
	require.Equal(t, []string{s.Engine.URL()}, cfg.Endpoints)
}
