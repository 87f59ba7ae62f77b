package settings

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"oncehouse/shared/secrets"
)

// Prefix is what the names of all settings begin with.
const Prefix = "ONCEHOUSE_"

// Setting is one variable of the environment, as the struct's tags describe it.
type Setting struct {
	Name     string // with the prefix
	Section  string
	Default  string
	Allowed  string
	Doc      string
	Required bool

	field reflect.StructField // its Index begins at the whole configuration
	form  form
}

// Of are the settings of a configuration, in the order of its struct. config is
// a pointer to it.
func Of(config any) []Setting {
	var all []Setting
	section := ""
	var walk func(t reflect.Type, index []int)
	walk = func(t reflect.Type, index []int) {
		for i := range t.NumField() {
			f := t.Field(i)
			f.Index = append(slices.Clone(index), i)
			if s, ok := f.Tag.Lookup("section"); ok {
				section = s
			}
			name, option, _ := strings.Cut(f.Tag.Get("env"), ",")
			switch {
			case f.Anonymous:
				walk(f.Type, f.Index)
			case name != "" && name != "-":
				s := Setting{
					Name: Prefix + name, Section: section, Default: f.Tag.Get("envDefault"), Doc: f.Tag.Get("doc"),
					Required: option == "required", field: f, form: formOf(f.Tag.Get("match")),
				}
				s.Allowed = s.allowed(f.Type)
				all = append(all, s)
			}
		}
	}
	walk(reflect.TypeOf(config).Elem(), nil)
	return all
}

// allowed says what the value may be, for people.
func (s *Setting) allowed(t reflect.Type) string {
	if values := s.field.Tag.Get("oneof"); values != "" {
		return "one of " + strings.Join(strings.Fields(values), ", ")
	}
	if s.form.says != "" {
		return s.form.says
	}
	var kind string
	switch {
	case t == reflect.TypeFor[time.Duration]():
		kind = "a duration such as 1m30s"
	case t == reflect.TypeFor[Bytes]():
		kind = "a number of bytes such as 64MiB"
	case t == reflect.TypeFor[secrets.Text]():
		return "a secret text"
	case t.Kind() == reflect.Int, t.Kind() == reflect.Int64:
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
	return fmt.Sprintf("%s from %s to %s", kind, s.field.Tag.Get("min"), s.field.Tag.Get("max"))
}

// Tables are the tables of settings, one for each section, as Markdown.
func Tables(all []Setting) string {
	var b strings.Builder
	section := ""
	for _, s := range all {
		if s.Section != section {
			section = s.Section
			fmt.Fprintf(&b, "\n### %s\n\n| setting | default | allowed | meaning |\n|---|---|---|---|\n", section)
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
