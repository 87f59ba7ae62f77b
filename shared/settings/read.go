package settings

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
)

// Environ makes a map of what os.Environ returns.
func Environ(list []string) map[string]string {
	environ := make(map[string]string, len(list))
	for _, pair := range list {
		name, value, _ := strings.Cut(pair, "=")
		environ[name] = value
	}
	return environ
}

// Read fills config, a pointer to a struct. together checks what no setting can
// be judged for alone; it is called when each for itself is right. The error is
// an *Error.
func Read(environ map[string]string, config any, together func(*Problems)) error {
	r := reader{
		settings: Of(config), environ: environ, config: reflect.ValueOf(config),
		Problems: Problems{broken: map[string]bool{}},
	}
	r.findUnknown()
	r.read()
	r.checkRanges()
	if len(r.broken) == 0 {
		together(&r.Problems)
	}
	if !r.None() {
		return &Error{r.list}
	}
	return nil
}

type reader struct {
	Problems
	settings []Setting
	environ  map[string]string
	config   reflect.Value // the pointer
}

// findUnknown refuses what looks like a setting and is none.
func (r *reader) findUnknown() {
	for _, name := range slices.Sorted(maps.Keys(r.environ)) {
		if !strings.HasPrefix(name, Prefix) || slices.ContainsFunc(r.settings, func(s Setting) bool { return s.Name == name }) {
			continue
		}
		advice := ""
		if near := r.nearest(name); near != "" {
			advice = ": did you mean " + near + "?"
		}
		// It breaks no setting that exists, so the rest is checked all the same.
		r.list = append(r.list, name+" is not a setting"+advice)
	}
}

// nearest is the setting that the name may be meant to be, "" for none.
func (r *reader) nearest(name string) string {
	best, least := "", len(name[len(Prefix):])/3+1
	for _, s := range r.settings {
		if d := distance(name[len(Prefix):], s.Name[len(Prefix):]); d < least {
			best, least = s.Name, d
		}
	}
	return best
}

// distance is Levenshtein's.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// read fills the struct and says in the user's words what the library found.
func (r *reader) read() {
	environ := maps.Clone(r.environ)
	if environ == nil {
		environ = map[string]string{}
	}
	maps.DeleteFunc(environ, func(_, value string) bool { return value == "" }) // empty: not set
	err := env.ParseWithOptions(r.config.Interface(), env.Options{Environment: environ, Prefix: Prefix})
	var all env.AggregateError
	if err != nil && !errors.As(err, &all) {
		all.Errors = []error{err}
	}
	for _, err := range all.Errors {
		var missing env.VarIsNotSetError
		var unreadable env.ParseError
		switch {
		case errors.As(err, &missing):
			s := r.setting(func(s Setting) bool { return s.Name == missing.Key })
			r.add(s.Name, "is missing: %s expected. %s", s.Allowed, s.Doc)
		case errors.As(err, &unreadable):
			s := r.setting(func(s Setting) bool { return s.field.Name == unreadable.Name })
			r.refuseValue(s, environ[s.Name])
		default:
			r.add("the environment", "cannot be read: %v", err)
		}
	}
}

func (r *reader) setting(is func(Setting) bool) Setting {
	return r.settings[slices.IndexFunc(r.settings, is)]
}

func (r *reader) refuseValue(s Setting, value string) {
	r.add(s.Name, "is %s: %s expected", s.quote(value), s.Allowed)
}

// quote shows a value that is refused, but no password: a URL may hold one.
func (s *Setting) quote(value string) string {
	if strings.Contains(value, "@") {
		return "a text that may hold a password"
	}
	if len(value) > 100 {
		return strconv.Quote(value[:100]) + "..."
	}
	return strconv.Quote(value)
}

// checkRanges checks oneof, min, max and match of every value that could be read.
func (r *reader) checkRanges() {
	for _, s := range r.settings {
		if r.broken[s.Name] {
			continue
		}
		value := r.config.Elem().FieldByIndex(s.field.Index)
		for _, element := range elements(value) {
			text := fmt.Sprint(element.Interface())
			if !s.admits(element, text) {
				r.refuseValue(s, text)
				break
			}
		}
	}
}

// elements are the values of a list, the value itself otherwise, and nothing
// where the setting is not set.
func elements(v reflect.Value) []reflect.Value {
	switch {
	case v.Kind() == reflect.Slice:
		all := make([]reflect.Value, v.Len())
		for i := range all {
			all[i] = v.Index(i)
		}
		return all
	case v.Kind() == reflect.String && v.Len() == 0, v.Kind() == reflect.Pointer:
		return nil
	}
	return []reflect.Value{v}
}

func (s *Setting) admits(v reflect.Value, text string) bool {
	if values := s.field.Tag.Get("oneof"); values != "" && !slices.Contains(strings.Fields(values), text) {
		return false
	}
	if s.form.admits != nil && !s.form.admits(text) {
		return false
	}
	if s.field.Tag.Get("min") == "" {
		return true
	}
	n := number(v)
	return n >= s.bound("min", v.Type()) && n <= s.bound("max", v.Type())
}

// bound is the number of a min or max tag in the unit of the setting's type.
func (s *Setting) bound(key string, t reflect.Type) float64 {
	text := s.field.Tag.Get(key)
	var n float64
	var err error
	switch t {
	case reflect.TypeFor[time.Duration]():
		var d time.Duration
		d, err = time.ParseDuration(text)
		n = float64(d)
	case reflect.TypeFor[Bytes]():
		var b Bytes
		err = b.UnmarshalText([]byte(text))
		n = float64(b)
	default:
		n, err = strconv.ParseFloat(text, 64)
	}
	if err != nil { // a fault of a tag, which every start shows
		panic(fmt.Sprintf("settings: %s of %s: %v", key, s.Name, err))
	}
	return n
}

// number is a value as a number: durations in nanoseconds stay exact far beyond
// any bound.
func number(v reflect.Value) float64 {
	if v.CanInt() {
		return float64(v.Int())
	}
	return v.Float()
}
