package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// template is what is looked at of a synthesised template.
type template struct {
	Resources map[string]resource
	// assembly is the directory that the template and its assets are in.
	assembly string
}

type resource struct {
	Type       string
	Properties map[string]any
	Metadata   map[string]any
}

// Types of resources that are looked at.
const (
	functionType  = "AWS::Lambda::Function"
	alarmType     = "AWS::CloudWatch::Alarm"
	dashboardType = "AWS::CloudWatch::Dashboard"
)

// readTemplates reads an assembly's, by stack.
func readTemplates(assembly string) (map[string]template, error) {
	const ending = ".template.json"
	paths, err := filepath.Glob(filepath.Join(assembly, "*"+ending))
	if err != nil || len(paths) == 0 {
		return nil, errors.Join(fmt.Errorf("no template is in %s", assembly), err)
	}
	all := map[string]template{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read a template: %w", err)
		}
		t := template{assembly: assembly}
		if err := json.Unmarshal(text, &t); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		all[strings.TrimSuffix(filepath.Base(path), ending)] = t
	}
	return all, nil
}

// each calls visit for every resource of a type.
func (t template) each(kind string, visit func(id string, r resource) error) error {
	var problems []error
	for id, r := range t.Resources {
		if r.Type == kind {
			problems = append(problems, visit(id, r))
		}
	}
	return errors.Join(problems...)
}
