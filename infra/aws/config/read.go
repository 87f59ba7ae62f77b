package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Problem is one thing that is wrong with a file.
type Problem struct {
	// Path is where, such as pipelines[2].timeout.
	Path string
	// Line is that of the nearest thing around, where something is missing; 0 for
	// the file as a whole.
	Line int
	// Text says what is wrong and what would be right.
	Text string
}

// Error is a file that is refused, with every problem of it.
type Error struct {
	File     string
	Problems []Problem
}

// Error is one line for each problem.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "configuration refused, problems: %d", len(e.Problems))
	for _, p := range e.Problems {
		place := e.File
		if p.Line > 0 {
			place = fmt.Sprintf("%s:%d", e.File, p.Line)
		}
		fmt.Fprintf(&b, "\n  %s: %s %s", place, p.Path, p.Text)
	}
	return b.String()
}

// Read reads and checks the file. A file that is refused is an *Error.
func Read(path string) (*Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	return Parse(path, text)
}

// Parse reads and checks the text of a file; the name is for messages.
func Parse(file string, text []byte) (*Config, error) {
	r := &reader{lines: map[string]int{}, broken: map[string]bool{}}
	root := r.root(text)
	if root == nil {
		return nil, &Error{file, r.problems}
	}
	r.walk(root, reflect.TypeFor[Config](), "")
	c := r.decode(root)
	r.check(c)
	if len(r.problems) == 0 {
		return c, nil
	}
	// From top to bottom, as one mends them.
	slices.SortFunc(r.problems, func(a, b Problem) int {
		return cmp.Or(a.Line-b.Line, strings.Compare(a.Path, b.Path))
	})
	return nil, &Error{file, r.problems}
}

// reader collects the problems of one file.
type reader struct {
	lines    map[string]int  // of paths that the file has
	broken   map[string]bool // paths that have a problem already
	problems []Problem
}

func (r *reader) problem(path, format string, args ...any) {
	if r.broken[path] {
		return
	}
	r.broken[path] = true
	r.problems = append(r.problems, Problem{path, r.line(path), fmt.Sprintf(format, args...)})
}

// line is that of the path, or of the nearest thing around it that the file has.
func (r *reader) line(path string) int {
	for path != "" {
		if line, there := r.lines[path]; there {
			return line
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return 0
}

// root is the top of the one document, nil for none.
func (r *reader) root(text []byte) *yaml.Node {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document, second yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		r.problem("the file", "is empty: see the examples")
		return nil
	case err != nil:
		r.problem("the file", "is not YAML: %v", err)
		return nil
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		r.problem("the file", "has more than one document, or a broken second one: exactly one expected")
	}
	return document.Content[0]
}

// walk checks that a node has the shape of a Go type, key by key.
func (r *reader) walk(node *yaml.Node, t reflect.Type, path string) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if _, seen := r.lines[path]; !seen {
		r.lines[path] = node.Line
	}
	if node.Tag == "!!null" { // a key without a value: as if it were not there
		return
	}
	switch {
	case t.Kind() == reflect.Pointer:
		r.walk(node, t.Elem(), path)
	case t.Kind() == reflect.Struct || t.Kind() == reflect.Map:
		if r.expect(node, yaml.MappingNode, "keys with values", path) {
			r.walkMapping(node, t, path)
		}
	case t.Kind() == reflect.Slice:
		if r.expect(node, yaml.SequenceNode, "a list", path) {
			for i, element := range node.Content {
				r.walk(element, t.Elem(), fmt.Sprintf("%s[%d]", path, i))
			}
		}
	case r.expect(node, yaml.ScalarNode, kind(t), path):
		if err := node.Decode(reflect.New(t).Interface()); err != nil {
			r.problem(path, "is %q: %s expected", node.Value, kind(t))
		}
	}
}

func (r *reader) expect(node *yaml.Node, want yaml.Kind, says, path string) bool {
	if node.Kind != want {
		found := map[yaml.Kind]string{yaml.MappingNode: "keys with values", yaml.SequenceNode: "a list", yaml.ScalarNode: "one value"}[node.Kind]
		r.problem(orFile(path), "is %s: %s expected", found, says)
	}
	return node.Kind == want
}

func orFile(path string) string {
	if path == "" {
		return "the file"
	}
	return path
}

// kind is a scalar type in the user's words.
func kind(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "a duration such as 1m30s"
	case t.Kind() == reflect.Int:
		return "a whole number"
	case t.Kind() == reflect.Bool:
		return "true or false"
	}
	return "a text"
}

func (r *reader) walkMapping(node *yaml.Node, t reflect.Type, path string) {
	seen := map[string]bool{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if key.Tag == "!!merge" { // <<: *defaults
			r.walk(value, t, path)
			continue
		}
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		r.lines[at] = key.Line
		if seen[key.Value] {
			r.problem(at, "is there twice: one of them expected")
		}
		seen[key.Value] = true
		if t.Kind() == reflect.Map {
			r.walk(value, t.Elem(), at)
			continue
		}
		fields := fieldsOf(t)
		if field, ok := fields[key.Value]; ok {
			r.walk(value, field, at)
			continue
		}
		if reason, known := notOffered[key.Value]; known && t == reflect.TypeFor[Pipeline]() {
			r.problem(at, "is not offered: %s", reason)
			continue
		}
		r.problem(at, "is no key: one of %s expected", strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
	}
}

// fieldsOf are the types of a struct's fields by their names in the file.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for i := range t.NumField() {
		field := t.Field(i)
		if field.Anonymous { // inline
			maps.Copy(fields, fieldsOf(field.Type))
			continue
		}
		fields[field.Tag.Get("yaml")] = field.Type
	}
	return fields
}

// decode fills the struct, each pipeline on top of the defaults. What a node of
// the wrong kind leaves out, walk has reported.
func (r *reader) decode(root *yaml.Node) *Config {
	c := Config{Defaults: builtin()}
	_ = root.Decode(&c)
	c.Pipelines, c.Outboxes = nil, nil
	c.Alarms.Runbook = orElse(c.Alarms.Runbook, "docs/runbook.md")
	var file struct {
		Pipelines []yaml.Node `yaml:"pipelines"`
		Outboxes  []yaml.Node `yaml:"outboxes"`
	}
	_ = root.Decode(&file)
	for _, node := range file.Pipelines {
		p := c.Defaults
		p.Settings = maps.Clone(p.Settings)
		_ = node.Decode(&p)
		p.Topic, p.Table = orElse(p.Topic, p.Name), orElse(p.Table, p.Name)
		p.Pollers.Maximum = orElse(p.Pollers.Maximum, p.Pollers.Minimum)
		if p.MappingLog == "" {
			p.MappingLog = "warn"
			if p.Pollers.Minimum == 0 {
				p.MappingLog = NoLog
			}
		}
		c.Pipelines = append(c.Pipelines, p)
	}
	for _, node := range file.Outboxes {
		o := builtinOutbox()
		_ = node.Decode(&o)
		o.CursorTopic = orElse(o.CursorTopic, "oncehouse.outbox."+o.Name)
		c.Outboxes = append(c.Outboxes, o)
	}
	return &c
}

func orElse[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}
