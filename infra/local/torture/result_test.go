package torture

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/oracle"
)

// outcome is a result that is right for each subject.
func outcome(subject string) Result {
	r := Result{Subject: subject, Kills: 10, Planned: 10, Took: 5 * time.Second}
	r.Count = oracle.Count{Produced: 100, Stored: 98, DeadLetters: 1, Tombstones: 1}
	switch subject {
	case AtLeastOnce, Naive:
		r.Duplicated = 7
	case AtMostOnce:
		r.Stored, r.Lost = 90, 8
	}
	return r
}

func TestVerdict(t *testing.T) {
	for _, subject := range Names() {
		r := outcome(subject)
		require.NoError(t, r.Verdict(), subject)
		r.Kills, r.CutShort = 9, true
		require.NoError(t, r.Verdict(), "the time was over")
	}
	for name, c := range map[string]struct {
		subject string
		spoil   func(*Result)
	}{
		"exactly-once loses":              {ExactlyOnce, func(r *Result) { r.Lost, r.Stored = 1, 97 }},
		"exactly-once doubles":            {ExactlyOnce, func(r *Result) { r.Duplicated = 1 }},
		"exactly-once changes a value":    {ExactlyOnce, func(r *Result) { r.WrongValues = 1 }},
		"exactly-once does not add up":    {ExactlyOnce, func(r *Result) { r.Stored = 97 }},
		"kills are missing":               {ExactlyOnce, func(r *Result) { r.Kills = 9 }},
		"the chain doubles":               {PostgresChain, func(r *Result) { r.Duplicated = 1 }},
		"the chain changes the order":     {PostgresChain, func(r *Result) { r.Misordered = 1 }},
		"at-least-once loses":             {AtLeastOnce, func(r *Result) { r.Lost = 1 }},
		"at-least-once doubles nothing":   {AtLeastOnce, func(r *Result) { r.Duplicated = 0 }},
		"at-most-once doubles":            {AtMostOnce, func(r *Result) { r.Duplicated = 1 }},
		"at-most-once loses nothing":      {AtMostOnce, func(r *Result) { r.Lost = 0 }},
		"the naive one doubles nothing":   {Naive, func(r *Result) { r.Duplicated = 0 }},
		"the Kafka table changes a value": {KafkaTable, func(r *Result) { r.WrongValues = 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			r := outcome(c.subject)
			c.spoil(&r)
			require.ErrorContains(t, r.Verdict(), c.subject)
		})
	}
}

func TestResultLine(t *testing.T) {
	r := outcome(AtMostOnce)
	line := r.String()
	require.Equal(t, `TORTURE {"subject":"at-most-once","kills":10,"produced":100,"stored":90,"lost":8,"duplicated":0,"rows_per_s":18,"wrong_values":0,"dead_letters":1,"misordered":0}`, line)
	require.True(t, json.Valid([]byte(strings.TrimPrefix(line, "TORTURE "))))
}

// The page is one well-formed document that needs nothing else, and holds every
// figure of the table and a mark for every step.
func TestReport(t *testing.T) {
	report := Report{Command: `make torture ARGS="--seed 1 <"`, Revision: "abc", Broker: "embedded", Machine: "2 processors", Begun: time.Unix(0, 0)}
	for _, subject := range Names() {
		r := outcome(subject)
		for m := range moments {
			r.Events = append(r.Events, Event{time.Duration(m) * 200 * time.Millisecond, m, 1})
		}
		for i := range int64(10) {
			r.Samples = append(r.Samples, Sample{time.Duration(i) * 500 * time.Millisecond, Progress{i * 10, i * 9, i * 8}})
		}
		report.Results = append(report.Results, r)
	}
	report.Results[0].Samples, report.Results[0].Events = nil, nil // one that ended at once
	var out bytes.Buffer
	require.NoError(t, report.Write(&out))
	text := out.String()
	require.Contains(t, text, "--seed 1 &lt;")
	for _, bad := range []string{"NaN", "Inf", "ZgotmplZ", "no value", "<script", "<link", "<img", "http:", "https:"} {
		require.NotContains(t, text, bad)
	}
	require.Equal(t, len(Names()), strings.Count(text, "<svg"))
	for m := range moments {
		require.Contains(t, text, "<td>"+strings.ReplaceAll(m.String(), "'", "&#39;")+"</td>")
	}
	for _, svg := range strings.SplitAfter(text, "</svg>")[:len(Names())] {
		_, drawing, _ := strings.Cut(svg, "<svg")
		decoder := xml.NewDecoder(strings.NewReader("<svg" + drawing))
		for {
			_, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
		}
	}
}

func TestAxes(t *testing.T) {
	require.InDelta(t, 1, niceStep(1, 3), 0)
	require.InDelta(t, 2000, niceStep(4700, 3), 0)
	require.InDelta(t, 200, niceStep(1000, 8), 0)
	require.Equal(t, "1.5M", short(1_500_000))
	require.Equal(t, "20k", short(20_000))
	require.Equal(t, "7", short(7))
}
