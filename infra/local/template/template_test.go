package template_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/template"
)

const text = `{"Resources": {
  "Letters": {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": "letters"}},
  "Sink": {"Type": "AWS::Lambda::Function", "Metadata": {"aws:asset:path": "asset.1.zip"}, "Properties": {
    "FunctionName": "clicks", "Runtime": "provided.al2023", "Handler": "bootstrap", "Architectures": ["arm64"],
    "MemorySize": 512, "Timeout": 90, "Environment": {"Variables": {
      "PLAIN": "as it is", "EMPTY": "",
      "REF": {"Ref": "Letters"},
      "GET": {"Fn::GetAtt": ["Letters", "QueueName"]},
      "JOIN": {"Fn::Join": ["/", ["a", {"Ref": "AWS::Region"}, {"Fn::GetAtt": ["Letters", "QueueName"]}]]},
      "SUB": {"Fn::Sub": "${AWS::Partition}:${Letters.QueueName}:${!literal}"}
    }}}},
  "Other": {"Type": "AWS::Lambda::Function", "Metadata": {"aws:asset:path": "asset.2"}, "Properties": {
    "FunctionName": "other", "Environment": {"Variables": {
      "NOWHERE": {"Ref": "Missing"}, "UNKNOWN": {"Fn::Select": [0, ["a"]]}, "NUMBER": 5, "LIST": {"Fn::Join": ["", "text"]},
      "ROLE": {"Fn::GetAtt": ["Letters", "Arn"]}
    }}}}
}}`

func read(t *testing.T, text string) *template.Template {
	t.Helper()
	path := filepath.Join(t.TempDir(), "stack.template.json")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	made, err := template.Read(path)
	require.NoError(t, err)
	return made
}

func queues(r template.Resource, attribute string) (string, error) {
	switch {
	case r.Type != "AWS::SQS::Queue":
	case attribute == "":
		return "http://127.0.0.1/queue", nil
	case attribute == "QueueName":
		return r.Properties["QueueName"].(string), nil
	}
	return "", template.ErrUnresolved
}

func TestFunction(t *testing.T) {
	made := read(t, text)
	for _, name := range []string{"clicks", "Sink"} {
		f, err := made.Function(name)
		require.NoError(t, err)
		require.Equal(t, "Sink", f.ID)
		require.Equal(t, "clicks", f.Name)
		require.Equal(t, "asset.1.zip", filepath.Base(f.Asset))
		require.True(t, filepath.IsAbs(f.Asset), "beside the template")
		require.Equal(t, "arm64", f.Arch)
		require.Equal(t, 512, f.MemoryMB)
		require.Equal(t, 90*time.Second, f.Timeout)
		environ, err := f.Environment(queues)
		require.NoError(t, err)
		require.Equal(t, map[string]string{
			"PLAIN": "as it is", "EMPTY": "", "REF": "http://127.0.0.1/queue", "GET": "letters",
			"JOIN": "a/us-east-1/letters", "SUB": "aws:letters:${literal}",
		}, environ)
	}
	f, err := made.Function("other")
	require.NoError(t, err)
	require.Equal(t, "amd64", f.Arch, "Lambda's default")
}

// What cannot be resolved is an error that names it, and no empty value.
func TestWhatIsNotResolved(t *testing.T) {
	made := read(t, text)
	f, err := made.Function("other")
	require.NoError(t, err)
	_, err = f.Environment(queues)
	require.ErrorIs(t, err, template.ErrUnresolved)
	for _, want := range []string{
		"resolve NOWHERE: Missing is no resource of the template",
		"resolve UNKNOWN: Fn::Select of this form is not read",
		"resolve NUMBER: 5 is no string and no intrinsic function",
		"resolve LIST: Fn::Join of text: a list expected",
		"resolve ROLE: AWS::SQS::Queue Letters Arn: there is nothing like it on this machine",
	} {
		require.ErrorContains(t, err, want)
	}

	_, err = made.Function("")
	require.ErrorContains(t, err, "the template has 2 functions (other, clicks), and one has to be meant: name it")
	_, err = read(t, `{"Resources": {"F": {"Type": "AWS::Lambda::Function", "Properties": {}}}}`).Function("")
	require.ErrorContains(t, err, "read function F: it has no asset")
	_, err = template.Read("nowhere.json")
	require.ErrorContains(t, err, "read the template: open nowhere.json")
}
