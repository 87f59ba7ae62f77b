// Package sam holds what sam local needs beside the templates: the file of
// environment variables, and the tests that the templates are such that SAM can
// run them, and that the function of a template runs with the template's own
// environment. infra/aws/README.md says how it is used.
package sam

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	sink "oncehouse/functions/sink/config"
)

const root = "../../.."

// directory of the assembly of an example, as the CDK CLI makes it by default,
// for this machine's processor.
var directory string

func TestMain(m *testing.M) {
	var err error
	if directory, err = synthesise(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(directory)
	os.Exit(code)
}

// example is the one whose topic and table are those of the sample events.
const example = "serverless-clickhouse-cloud.yaml"

func synthesise() (string, error) {
	dir, err := os.MkdirTemp("", "oncehouse-sam-")
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile("../examples/" + example)
	if err != nil {
		return "", err
	}
	config := filepath.Join(dir, example)
	text = append(text, []byte("\ndefaults: {architecture: "+runtime.GOARCH+"}\n")...)
	if err := os.WriteFile(config, text, 0o600); err != nil {
		return "", err
	}
	cdk, err := filepath.Abs(filepath.Join(root, "node_modules", ".bin", "cdk"))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(cdk); err != nil {
		return "", fmt.Errorf("the CDK CLI is not installed: run make setup")
	}
	cmd := exec.Command(cdk, "synth", "--quiet", "-c", "config="+config, "--output", dir)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cdk synth: %w: %s", err, out)
	}
	return dir, nil
}

type function struct {
	Type     string
	Metadata struct {
		Path     string `json:"aws:asset:path"`
		Property string `json:"aws:asset:property"`
	}
	Properties struct {
		FunctionName, Handler, Runtime string
		Architectures                  []string
		Timeout, MemorySize            int
		Environment                    struct{ Variables map[string]any }
	}
}

// functions are those of the synthesised templates, by name.
func functions(t *testing.T) map[string]function {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(directory, "*.template.json"))
	require.NoError(t, err)
	found := map[string]function{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		var template struct{ Resources map[string]json.RawMessage }
		require.NoError(t, json.Unmarshal(text, &template))
		for _, r := range template.Resources {
			var kind struct{ Type string }
			require.NoError(t, json.Unmarshal(r, &kind))
			if kind.Type == "AWS::Lambda::Function" {
				var f function
				require.NoError(t, json.Unmarshal(r, &f))
				found[f.Properties.FunctionName] = f
			}
		}
	}
	require.NotEmpty(t, found)
	return found
}

// typed is a name that a person types: SAM finds functions by FunctionName.
var typed = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)

func TestTemplatesHaveWhatSAMNeeds(t *testing.T) {
	for name, f := range functions(t) {
		require.Regexp(t, typed, name)
		require.Equal(t, "Code", f.Metadata.Property)
		require.FileExists(t, filepath.Join(directory, f.Metadata.Path), "written by the CLI, without a flag")
		require.Equal(t, ".zip", filepath.Ext(f.Metadata.Path))
		require.Equal(t, "bootstrap", f.Properties.Handler)
		require.Equal(t, "provided.al2023", f.Properties.Runtime)
		require.Equal(t, []string{map[string]string{"amd64": "x86_64", "arm64": "arm64"}[runtime.GOARCH]}, f.Properties.Architectures)
		require.Positive(t, f.Properties.Timeout)
		require.Positive(t, f.Properties.MemorySize)
		for _, service := range []string{"DYNAMODB", "SQS", "SECRETS_MANAGER"} {
			value, declared := f.Properties.Environment.Variables["AWS_ENDPOINT_URL_"+service]
			require.True(t, declared)
			require.Empty(t, value, "AWS's own when deployed")
		}
	}
}

// With env.json, by SAM's rule (only declared variables are replaced), the sink
// takes its environment, and every server in it is on this machine.
func TestEnvironmentFileMakesTheFunctionLocal(t *testing.T) {
	text, err := os.ReadFile("env.json")
	require.NoError(t, err)
	var file struct{ Parameters map[string]string }
	require.NoError(t, json.Unmarshal(text, &file))
	for name, f := range functions(t) {
		environ := map[string]string{}
		for variable, value := range f.Properties.Environment.Variables {
			text, ok := value.(string)
			if replaced, there := file.Parameters[variable]; there {
				text, ok = replaced, true
			}
			require.True(t, ok, "%s of %s is an intrinsic function, which SAM makes no address of", variable, name)
			require.NotRegexp(t, `amazonaws|clickhouse\.cloud|^arn:`, text, "%s of %s", variable, name)
			environ[variable] = text
		}
		cfg, err := sink.Parse(environ)
		require.NoError(t, err)
		require.Nil(t, cfg.PasswordSecret)
		require.Empty(t, cfg.Brokers)
	}
}

// expected is a row of the table of events/README.md.
var expected = regexp.MustCompile(`(?m)^\| \[([^\]]+\.json)\].*\| (?:(\d+) stored.*?(?:(\d+) dead-lettered.*)?|refused whole.*) \|$`)

// The function runs out of the zip that is deployed, with the environment that is
// deployed, and does with each sample event what events/README.md says.
func TestFunctionRunsWithItsEnvironment(t *testing.T) {
	program := filepath.Join(t.TempDir(), "oncehouse-local")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./infra/local")
	build.Dir = root
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	readme, err := os.ReadFile(filepath.Join(root, "events", "README.md"))
	require.NoError(t, err)
	table := expected.FindAllStringSubmatch(string(readme), -1)
	files, err := filepath.Glob(filepath.Join(root, "events", "*.json"))
	require.NoError(t, err)
	refused, err := filepath.Glob(filepath.Join(root, "events", "refused", "*.json"))
	require.NoError(t, err)
	require.Len(t, table, len(files)+len(refused), "the table has a row for each file")
	// As the shell lists them. With gaps.json before lower offsets the sink would
	// ask Kafka for records, and no mapping delivers so.
	slices.SortFunc(table, func(a, b []string) int { return strings.Compare(a[1], b[1]) })

	args := []string{"invoke", "--dir", t.TempDir(), "--rows", "0", "--template", filepath.Join(directory, "oncehouse-production-clicks.template.json")}
	for _, row := range table {
		args = append(args, "events/"+row[1])
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = root
	out, err = cmd.CombinedOutput()
	require.Error(t, err, "some of the events are to be refused")
	said := string(out)
	require.Contains(t, said, ".zip, as it is deployed")
	require.Contains(t, said, "variables of the template; for this machine: "+strings.Join(replaced, ", ")+"\n")
	for i, row := range table {
		_, part, found := strings.Cut(said, "events/"+row[1]+"\n")
		require.True(t, found, said)
		if i+1 < len(table) {
			part, _, _ = strings.Cut(part, "events/"+table[i+1][1]+"\n")
		}
		check(t, row, part)
	}
}

// replaced is all that differs from the environment as it is deployed.
var replaced = []string{
	"AWS_ACCESS_KEY_ID", "AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL_SECRETS_MANAGER", "AWS_ENDPOINT_URL_SQS", "AWS_SECRET_ACCESS_KEY",
	"ONCEHOUSE_CLICKHOUSE_URL", "ONCEHOUSE_KAFKA_AUTH", "ONCEHOUSE_KAFKA_BROKERS", "ONCEHOUSE_KAFKA_TLS",
}

// notForIt are events that this function of one topic of an MSK cluster refuses.
var notForIt = map[string]string{
	"dashes.json":       `the event is of topic \"clicks-eu-1\", and pipeline clicks reads \"clicks\"`,
	"self-managed.json": "does not name an MSK cluster",
}

func check(t *testing.T, row []string, part string) {
	t.Helper()
	file, stored, letters := row[1], row[2], row[3]
	if letters == "" {
		letters = "0"
	}
	if reason := notForIt[file]; reason != "" {
		require.Contains(t, part, reason)
		stored = "0"
	} else if stored == "" {
		require.Contains(t, part, "refuse kafka event", file)
		require.NotContains(t, part, "  rows ", file)
	} else {
		require.Contains(t, part, `answer   {"batchItemFailures":[]}`, file)
	}
	if stored != "" {
		require.Regexp(t, `(?m)^  rows     `+stored+` of \d+ records$`, part, file)
	}
	require.Contains(t, part, "  letters  "+letters+"\n", file)
}
