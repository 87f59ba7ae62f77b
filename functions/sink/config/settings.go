package config

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"oncehouse/shared/secrets"
)

// Setting is one variable of the environment, as the struct's tags describe it.
type Setting struct {
	Name     string // with the prefix
	Section  string
	Default  string
	Allowed  string
	Doc      string
	Required bool

	field string
	match rule
	tag   reflect.StructTag
}

// Settings are all of them, in the order of the struct.
func Settings() []Setting {
	var all []Setting
	section := ""
	t := reflect.TypeFor[Config]()
	for i := range t.NumField() {
		f := t.Field(i)
		if s, ok := f.Tag.Lookup("section"); ok {
			section = s
			continue
		}
		name, option, _ := strings.Cut(f.Tag.Get("env"), ",")
		if name == "-" {
			continue
		}
		s := Setting{
			Name: Prefix + name, Section: section, Default: f.Tag.Get("envDefault"), Doc: f.Tag.Get("doc"),
			Required: option == "required", field: f.Name, match: ruleOf(f.Tag.Get("match")), tag: f.Tag,
		}
		s.Allowed = s.allowed(f.Type)
		all = append(all, s)
	}
	return all
}

// allowed says what the value may be, for people.
func (s *Setting) allowed(t reflect.Type) string {
	if values := s.tag.Get("oneof"); values != "" {
		return "one of " + strings.Join(strings.Fields(values), ", ")
	}
	if s.match.says != "" {
		return s.match.says
	}
	var kind string
	switch {
	case t == reflect.TypeFor[time.Duration]():
		kind = "a duration such as 1m30s"
	case t == reflect.TypeFor[Bytes]():
		kind = "a number of bytes such as 64MiB"
	case t == reflect.TypeFor[secrets.Text]():
		return "a secret text"
	case t.Kind() == reflect.Int:
		kind = "a whole number"
	case t.Kind() == reflect.Float64:
		kind = "a number"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Slice:
		return "texts with commas"
	default:
		return "a text"
	}
	return fmt.Sprintf("%s from %s to %s", kind, s.tag.Get("min"), s.tag.Get("max"))
}

// Markdown is the table of all settings, for docs/settings.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString("# Settings of the sink\n\n" +
		"Made from functions/sink/config by `go generate ./functions/sink/config`; change it there.\n\n" +
		"All settings are variables of the function's environment, read once at its start. An empty one\n" +
		"counts as not set. A setting that is missing, out of range or misspelt keeps the function from\n" +
		"starting, and the message names every one of them.\n\n" +
		"Endpoints of AWS itself follow the SDK's own variables (AWS_ENDPOINT_URL_DYNAMODB, AWS_ENDPOINT_URL_SQS, ...).\n")
	section := ""
	for _, s := range Settings() {
		if s.Section != section {
			section = s.Section
			fmt.Fprintf(&b, "\n## %s\n\n| setting | default | allowed | meaning |\n|---|---|---|---|\n", section)
		}
		fallback := "none"
		switch {
		case s.Required:
			fallback = "**required**"
		case s.Default != "":
			fallback = "`" + s.Default + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", s.Name, fallback, cell(s.Allowed), cell(s.Doc))
	}
	return b.String()
}

// cell escapes what would end a cell of a table or begin a tag.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", `\<`, "_", `\_`).Replace(text)
}
