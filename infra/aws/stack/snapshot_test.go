package stack_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write the templates of the first example anew into testdata/snapshot")

// What a change makes of the templates is to be seen in its review. What moves by
// itself (hashes, CDK's own metadata and parameters) is left out, dashboards are
// their titles, and intrinsic functions what they make.
func TestTemplatesAreTheReviewedOnes(t *testing.T) {
	in := examples["serverless-clickhouse-cloud"]
	var want []string
	for name, made := range in.templates {
		file := filepath.Join("testdata", "snapshot", name+".yaml")
		want = append(want, file)
		text := snapshot(t, made)
		if *update {
			require.NoError(t, os.WriteFile(file, text, 0o600))
		}
		reviewed, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(reviewed), string(text), "go test ./stack -update writes it anew")
	}
	there, err := filepath.Glob("testdata/snapshot/*")
	require.NoError(t, err)
	require.ElementsMatch(t, want, there)
}

func snapshot(t *testing.T, made template) []byte {
	t.Helper()
	all := map[string]any{}
	for id, r := range made.Resources {
		if r.Type == "AWS::CDK::Metadata" {
			continue
		}
		properties := made.resolve(r.Properties).(map[string]any)
		switch r.Type {
		case "AWS::Lambda::Function":
			properties["Code"] = "<asset>"
		case "AWS::CloudWatch::Dashboard":
			properties["DashboardBody"] = outline(t, properties["DashboardBody"].(string))
		}
		shown := map[string]any{"Type": r.Type, "Properties": properties}
		for key, value := range map[string]string{"DeletionPolicy": r.DeletionPolicy, "UpdateReplacePolicy": r.UpdateReplacePolicy} {
			if value != "" {
				shown[key] = value
			}
		}
		all[id] = shown
	}
	document := map[string]any{"Resources": all}
	if outputs := made.resolve(made.Outputs).(map[string]any); len(outputs) > 0 {
		document["Outputs"] = outputs
	}
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	require.NoError(t, encoder.Encode(document))
	return text.Bytes()
}

// outline is a line for each widget: its title and what it shows.
func outline(t *testing.T, body string) []string {
	t.Helper()
	var dashboard struct {
		Widgets []struct {
			Type       string
			Properties struct {
				Title, Markdown, Query string
				Alarms                 []string
				Metrics                [][]any
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(body), &dashboard))
	var lines []string
	for _, w := range dashboard.Widgets {
		p := w.Properties
		switch w.Type {
		case "text":
			lines = append(lines, strings.ReplaceAll(p.Markdown, "\n", ": "))
		case "alarm":
			lines = append(lines, fmt.Sprintf("%s: the states of %d alarms", p.Title, len(p.Alarms)))
		case "log":
			lines = append(lines, p.Title+": "+strings.ReplaceAll(p.Query, "\n", " "))
		default:
			lines = append(lines, p.Title+": "+strings.Join(namesOf(p.Metrics), ", "))
		}
	}
	return lines
}

// namesOf are the metrics and the formulas of a graph's rows.
func namesOf(rows [][]any) []string {
	var names []string
	for _, row := range rows {
		name, last := "", row[len(row)-1]
		options, _ := last.(map[string]any)
		if formula, is := options["expression"].(string); is {
			name = formula
		} else if options["visible"] != false {
			name = fmt.Sprint(row[1])
		}
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
