package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"oncehouse/infra/local/template"
)

// Types of resources that are looked at.
const (
	functionType  = "AWS::Lambda::Function"
	alarmType     = "AWS::CloudWatch::Alarm"
	dashboardType = "AWS::CloudWatch::Dashboard"
)

// readTemplates reads an assembly's, by stack.
func readTemplates(assembly string) (map[string]*template.Template, error) {
	const ending = ".template.json"
	paths, err := filepath.Glob(filepath.Join(assembly, "*"+ending))
	if err != nil || len(paths) == 0 {
		return nil, errors.Join(fmt.Errorf("no template is in %s", assembly), err)
	}
	all := map[string]*template.Template{}
	for _, path := range paths {
		t, err := template.Read(path)
		if err != nil {
			return nil, err
		}
		all[strings.TrimSuffix(filepath.Base(path), ending)] = t
	}
	return all, nil
}

// each calls visit for every resource of a type.
func each(t *template.Template, kind string, visit func(id string, r template.Resource) error) error {
	var problems []error
	for id, r := range t.Resources {
		if r.Type == kind {
			problems = append(problems, visit(id, r))
		}
	}
	return errors.Join(problems...)
}
