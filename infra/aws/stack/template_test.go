package stack_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/jsii-runtime-go"

	"oncehouse/infra/aws/config"
	"oncehouse/infra/aws/stack"
)

// installation is one file with the templates that it makes, by stack name.
type installation struct {
	config    *config.Config
	templates map[string]template
	dir       string    // where the templates are
	findings  []finding // what was found wrong with them
}

// finding is an error or a warning on a construct, as cdk-nag makes them.
type finding struct{ path, level, text string }

type template struct {
	Resources map[string]resource
	Outputs   map[string]any
}

type resource struct {
	Type                string
	Properties          map[string]any
	DeletionPolicy      string
	UpdateReplacePolicy string
}

// examples, and a file with the options that they leave out, are synthesised
// once: jsii takes one call at a time, and each takes seconds. Nothing here is run
// in parallel.
var examples map[string]installation

func TestMain(m *testing.M) {
	flag.Parse()
	dir, err := os.MkdirTemp("", "oncehouse-aws")
	if err == nil {
		examples, err = synthesise(dir)
	}
	code := 1
	if err == nil {
		code = m.Run()
	} else {
		fmt.Fprintln(os.Stderr, err)
	}
	jsii.Close()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func synthesise(dir string) (map[string]installation, error) {
	// A stand-in for the function, so that its hash is none of ours.
	asset := filepath.Join(dir, "sink")
	if err := os.Mkdir(asset, 0o750); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(asset, "bootstrap"), []byte("stand-in"), 0o600); err != nil {
		return nil, err
	}
	settings, err := cdkContext()
	if err != nil {
		return nil, err
	}
	paths, err := filepath.Glob("../examples/*.yaml")
	if err != nil {
		return nil, err
	}
	made := map[string]installation{}
	for _, path := range append(paths, "testdata/every-option.yaml") {
		c, err := config.Read(path)
		if err != nil {
			return nil, err
		}
		app := awscdk.NewApp(&awscdk.AppProps{Context: &settings, Outdir: jsii.String(filepath.Join(dir, c.Environment.Name))})
		stack.Add(app, c, func(_, _ string) string { return asset })
		assembly := *app.Synth(nil).Directory()
		templates, err := read(assembly)
		if err != nil {
			return nil, err
		}
		findings, err := findingsOf(assembly)
		if err != nil {
			return nil, err
		}
		made[strings.TrimSuffix(filepath.Base(path), ".yaml")] = installation{c, templates, assembly, findings}
	}
	return made, nil
}

// findingsOf reads what the CDK CLI shows, and fails at, from an assembly.
func findingsOf(dir string) ([]finding, error) {
	text, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		return nil, err
	}
	type entries map[string][]struct {
		Type string
		Data any
	}
	var manifest struct {
		Artifacts map[string]struct {
			Type                   string
			Metadata               entries
			AdditionalMetadataFile string
		}
	}
	if err := json.Unmarshal(text, &manifest); err != nil {
		return nil, err
	}
	var all []finding
	for _, artifact := range manifest.Artifacts {
		metadata := artifact.Metadata
		if artifact.AdditionalMetadataFile != "" {
			text, err := os.ReadFile(filepath.Join(dir, artifact.AdditionalMetadataFile))
			if err != nil {
				return nil, err
			}
			if err := json.Unmarshal(text, &metadata); err != nil {
				return nil, err
			}
		}
		for path, entries := range metadata {
			for _, e := range entries {
				if level, is := strings.CutPrefix(e.Type, "aws:cdk:"); is && (level == "error" || level == "warning") {
					all = append(all, finding{path, level, fmt.Sprint(e.Data)})
				}
			}
		}
	}
	return all, nil
}

// cdkContext is what cdk.json gives to the app.
func cdkContext() (map[string]any, error) {
	text, err := os.ReadFile("../../../cdk.json")
	if err != nil {
		return nil, err
	}
	var file struct{ Context map[string]any }
	return file.Context, json.Unmarshal(text, &file)
}

func read(dir string) (map[string]template, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.template.json"))
	if err != nil {
		return nil, err
	}
	all := map[string]template{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var t template
		if err := json.Unmarshal(text, &t); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		all[strings.TrimSuffix(filepath.Base(path), ".template.json")] = t
	}
	return all, nil
}

// eachPipeline runs a test for every pipeline of every example.
func eachPipeline(t *testing.T, test func(t *testing.T, in installation, p config.Pipeline, made template)) {
	for name, in := range examples {
		for _, p := range in.config.Pipelines {
			t.Run(name+"/"+p.Name, func(t *testing.T) {
				test(t, in, p, in.templates[in.config.FunctionName(p)])
			})
		}
	}
}

// eachOutbox runs a test for every outbox of every example.
func eachOutbox(t *testing.T, test func(t *testing.T, in installation, o config.Outbox, made template)) {
	for name, in := range examples {
		for _, o := range in.config.Outboxes {
			t.Run(name+"/"+o.Name, func(t *testing.T) {
				test(t, in, o, in.templates[in.config.OutboxName(o)])
			})
		}
	}
}

// only is the one resource of a type.
func (t template) only(tb testing.TB, kind string) map[string]any {
	tb.Helper()
	all := t.all(kind)
	if len(all) != 1 {
		tb.Fatalf("%d resources of type %s", len(all), kind)
	}
	return all[0]
}

// id is the logical id of the one resource of a type.
func (t template) id(tb testing.TB, kind string) string {
	tb.Helper()
	t.only(tb, kind)
	for id, r := range t.Resources {
		if r.Type == kind {
			return id
		}
	}
	return ""
}

func (t template) all(kind string) []map[string]any {
	var found []map[string]any
	for _, r := range t.Resources {
		if r.Type == kind {
			found = append(found, t.resolve(r.Properties).(map[string]any))
		}
	}
	return found
}

// resolve replaces the intrinsic functions of a template by what CloudFormation
// would make of them, as far as tests look at it.
func (t template) resolve(v any) any {
	switch v := v.(type) {
	case []any:
		all := make([]any, len(v))
		for i := range v {
			all[i] = t.resolve(v[i])
		}
		return all
	case map[string]any:
		if len(v) == 1 {
			if id, ok := v["Ref"].(string); ok {
				return t.ref(id)
			}
			if get, ok := v["Fn::GetAtt"].([]any); ok {
				return t.attribute(get[0].(string), get[1].(string))
			}
			if join, ok := v["Fn::Join"].([]any); ok {
				var b strings.Builder
				for _, part := range t.resolve(join[1]).([]any) {
					b.WriteString(part.(string))
				}
				return b.String()
			}
		}
		all := make(map[string]any, len(v))
		for key := range v {
			all[key] = t.resolve(v[key])
		}
		return all
	}
	return v
}

func (t template) ref(id string) string {
	switch r := t.Resources[id]; r.Type {
	case "AWS::SQS::Queue":
		return "https://sqs.eu-west-1.amazonaws.com/111122223333/" + r.Properties["QueueName"].(string)
	case "AWS::Logs::LogGroup":
		return r.Properties["LogGroupName"].(string)
	}
	return "<" + id + ">"
}

func (t template) attribute(id, name string) string {
	switch r := t.Resources[id]; {
	case r.Type == "AWS::SQS::Queue" && name == "QueueName":
		return r.Properties["QueueName"].(string)
	case r.Type == "AWS::IAM::Role": // an outbox has two
		return t.ref(id)
	}
	return "<" + t.Resources[id].Type + " " + name + ">"
}
