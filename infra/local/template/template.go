// Package template reads the functions of a synthesised CloudFormation template,
// so that they run on this machine as they would be deployed.
//
//	t, err := template.Read("cdk.out/oncehouse-production-clicks.template.json")
//	fn, err := t.Function("") // the only one; else by its name or logical id
//	env, err := fn.Environment(func(r template.Resource, attribute string) (string, error) {
//		if r.Type == "AWS::SQS::Queue" && attribute == "" {
//			return localQueueURL, nil
//		}
//		return "", template.ErrUnresolved
//	})
//
// A value of the environment is a string, or made of intrinsic functions: Ref,
// Fn::GetAtt, Fn::Join and Fn::Sub, the ones that CDK writes. What they refer to
// is whatever the caller has in the place of the resource.
package template

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// ErrUnresolved is that nothing on this machine is in the place of a resource.
var ErrUnresolved = errors.New("there is nothing like it on this machine")

// Template is a synthesised stack.
type Template struct {
	Resources map[string]Resource
	directory string
}

// Resource is a resource of a template.
type Resource struct {
	Type       string
	Properties map[string]any
	Metadata   map[string]any
}

// Function is a function of a template.
type Function struct {
	// ID is the logical id, Name the name in AWS.
	ID, Name string
	// Asset is the zip or the directory of its code.
	Asset string
	// Arch is Go's name of its processor.
	Arch     string
	Runtime  string
	Handler  string
	MemoryMB int
	Timeout  time.Duration
	// Variables are the names of its environment.
	Variables []string

	template *Template
	values   map[string]any
}

// functionType is what is looked for.
const functionType = "AWS::Lambda::Function"

// Read reads a template in JSON, which lies in its cloud assembly.
func Read(path string) (*Template, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the template: %w", err)
	}
	t := &Template{directory: filepath.Dir(path)}
	if err := json.Unmarshal(text, t); err != nil {
		return nil, fmt.Errorf("read the template %s: %w", path, err)
	}
	return t, nil
}

// Function finds a function by its name or logical id; "" is the only one.
func (t *Template) Function(name string) (*Function, error) {
	var found []*Function
	var names []string
	for _, id := range slices.Sorted(maps.Keys(t.Resources)) {
		r := t.Resources[id]
		if r.Type != functionType {
			continue
		}
		f, err := t.function(id, r)
		if err != nil {
			return nil, err
		}
		names = append(names, f.Name)
		if name == "" || name == f.Name || name == f.ID {
			found = append(found, f)
		}
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("the template has %d functions (%s), and one has to be meant: name it", len(names), strings.Join(names, ", "))
	}
	return found[0], nil
}

// function reads a function's properties. Error: one is missing, or code that is
// no asset.
func (t *Template) function(id string, r Resource) (*Function, error) {
	var p struct {
		FunctionName, Runtime, Handler string
		Architectures                  []string
		MemorySize, Timeout            int
		Environment                    struct{ Variables map[string]any }
	}
	text, err := json.Marshal(r.Properties)
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err != nil {
		return nil, fmt.Errorf("read function %s: %w", id, err)
	}
	asset, ok := r.Metadata["aws:asset:path"].(string)
	if !ok {
		return nil, fmt.Errorf("read function %s: it has no asset: the CDK CLI writes where one is (aws:asset:path)", id)
	}
	arch := "amd64" // Lambda's default
	if len(p.Architectures) == 1 && p.Architectures[0] == "arm64" {
		arch = "arm64"
	}
	return &Function{
		ID: id, Name: p.FunctionName, Asset: filepath.Join(t.directory, asset), Arch: arch,
		Runtime: p.Runtime, Handler: p.Handler, MemoryMB: p.MemorySize, Timeout: time.Duration(p.Timeout) * time.Second,
		Variables: slices.Sorted(maps.Keys(p.Environment.Variables)), template: t, values: p.Environment.Variables,
	}, nil
}

// Resolve is what stands for a resource: for "" what Ref gives, else for an
// attribute of Fn::GetAtt.
type Resolve func(r Resource, attribute string) (string, error)

// Environment is the function's environment. Error: every variable that cannot
// be resolved.
func (f *Function) Environment(resolve Resolve) (map[string]string, error) {
	environ := make(map[string]string, len(f.values))
	var problems []error
	for _, name := range f.Variables {
		value, err := f.template.text(f.values[name], resolve)
		if err != nil {
			problems = append(problems, fmt.Errorf("resolve %s: %w", name, err))
		}
		environ[name] = value
	}
	return environ, errors.Join(problems...)
}
