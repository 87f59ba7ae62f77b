package config

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

	"oncehouse/shared/delivery"
	"oncehouse/shared/rowbinary"
)

// Error is a configuration that is refused, with every problem of it.
type Error struct{ Problems []string }

// Error is one line.
func (e *Error) Error() string {
	if len(e.Problems) == 1 {
		return "configuration refused: " + e.Problems[0]
	}
	var b strings.Builder
	fmt.Fprintf(&b, "configuration refused, %d problems:", len(e.Problems))
	for i, p := range e.Problems {
		fmt.Fprintf(&b, " (%d) %s;", i+1, p)
	}
	return strings.TrimSuffix(b.String(), ";")
}

// Environ makes a map of what os.Environ returns.
func Environ(list []string) map[string]string {
	environ := make(map[string]string, len(list))
	for _, pair := range list {
		name, value, _ := strings.Cut(pair, "=")
		environ[name] = value
	}
	return environ
}

// memoryVariable is Lambda's own: the function's memory in MB.
const memoryVariable = "AWS_LAMBDA_FUNCTION_MEMORY_SIZE"

// Parse reads a configuration. The error is an *Error.
func Parse(environ map[string]string) (*Config, error) {
	p := parser{settings: Settings(), environ: environ, broken: map[string]bool{}}
	p.findUnknown()
	p.read()
	p.checkRanges()
	if len(p.broken) == 0 {
		p.checkTogether()
	}
	if len(p.problems) > 0 {
		return nil, &Error{p.problems}
	}
	return &p.config, nil
}

type parser struct {
	settings []Setting
	environ  map[string]string
	config   Config
	problems []string
	broken   map[string]bool // names of settings that have a problem already
}

func (p *parser) problem(name, format string, args ...any) {
	p.broken[name] = true
	p.problems = append(p.problems, name+" "+fmt.Sprintf(format, args...))
}

// findUnknown refuses what looks like a setting and is none.
func (p *parser) findUnknown() {
	for _, name := range slices.Sorted(maps.Keys(p.environ)) {
		if !strings.HasPrefix(name, Prefix) || slices.ContainsFunc(p.settings, func(s Setting) bool { return s.Name == name }) {
			continue
		}
		advice := ""
		if near := p.nearest(name); near != "" {
			advice = ": did you mean " + near + "?"
		}
		// It breaks no setting that exists, so the rest is checked all the same.
		p.problems = append(p.problems, name+" is not a setting"+advice)
	}
}

// nearest is the setting that the name may be meant to be, "" for none.
func (p *parser) nearest(name string) string {
	best, least := "", len(name[len(Prefix):])/3+1
	for _, s := range p.settings {
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
func (p *parser) read() {
	environ := maps.Clone(p.environ)
	if environ == nil {
		environ = map[string]string{}
	}
	maps.DeleteFunc(environ, func(_, value string) bool { return value == "" }) // empty: not set
	err := env.ParseWithOptions(&p.config, env.Options{Environment: environ, Prefix: Prefix})
	var all env.AggregateError
	if err != nil && !errors.As(err, &all) {
		all.Errors = []error{err}
	}
	for _, err := range all.Errors {
		var missing env.VarIsNotSetError
		var unreadable env.ParseError
		switch {
		case errors.As(err, &missing):
			s := p.setting(func(s Setting) bool { return s.Name == missing.Key })
			p.problem(s.Name, "is missing: %s expected. %s", s.Allowed, s.Doc)
		case errors.As(err, &unreadable):
			s := p.setting(func(s Setting) bool { return s.field == unreadable.Name })
			p.refuseValue(s, environ[s.Name])
		default:
			p.problem("environment", "cannot be read: %v", err)
		}
	}
	if size, err := strconv.ParseInt(environ[memoryVariable], 10, 32); err == nil {
		p.config.MemoryBytes = size << 20
	}
}

func (p *parser) setting(is func(Setting) bool) Setting {
	return p.settings[slices.IndexFunc(p.settings, is)]
}

func (p *parser) refuseValue(s Setting, value string) {
	p.problem(s.Name, "is %s: %s expected", s.quote(value), s.Allowed)
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
func (p *parser) checkRanges() {
	for _, s := range p.settings {
		if p.broken[s.Name] {
			continue
		}
		value := reflect.ValueOf(p.config).FieldByName(s.field)
		for _, element := range elements(value) {
			text := fmt.Sprint(element.Interface())
			if !s.admits(element, text) {
				p.refuseValue(s, text)
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
	if values := s.tag.Get("oneof"); values != "" && !slices.Contains(strings.Fields(values), text) {
		return false
	}
	if s.match.admits != nil && !s.match.admits(text) {
		return false
	}
	if s.tag.Get("min") == "" {
		return true
	}
	n := number(v)
	return n >= s.bound("min", v.Type()) && n <= s.bound("max", v.Type())
}

// bound is the number of a min or max tag in the unit of the setting's type.
func (s *Setting) bound(key string, t reflect.Type) float64 {
	text := s.tag.Get(key)
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
		panic(fmt.Sprintf("config: %s of %s: %v", key, s.Name, err))
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

// checkTogether checks what no setting can be judged for alone.
func (p *parser) checkTogether() {
	c := &p.config
	together := func(ok bool, name, format string, args ...any) {
		if !ok {
			p.problem(Prefix+name, format, args...)
		}
	}
	needed := c.InsertTimeout + c.ClockMargin + c.DeadlineMargin
	together(c.FunctionTimeout > needed, "FUNCTION_TIMEOUT",
		"is %s: more than ONCEHOUSE_INSERT_TIMEOUT + ONCEHOUSE_CLOCK_MARGIN + ONCEHOUSE_DEADLINE_MARGIN (%s) expected, or nothing could be sent", c.FunctionTimeout, needed)
	together(c.LedgerTable != "" || c.Guarantee == delivery.AtLeastOnce, "LEDGER_TABLE",
		"is missing: %s needs a ledger", c.Guarantee)
	together(c.Password == "" || c.PasswordSecret == nil, "CLICKHOUSE_PASSWORD",
		"is set, and so is ONCEHOUSE_CLICKHOUSE_PASSWORD_SECRET: one of the two expected")
	together((c.Overflow != "") == (c.Unknown == rowbinary.UnknownCollect), "OVERFLOW_COLUMN",
		"goes with ONCEHOUSE_UNKNOWN_FIELDS=collect: both or neither expected")
	together(c.Format != rowbinary.FormatRaw || c.RawKey != "" || c.RawValue != "", "FORMAT",
		"is raw: ONCEHOUSE_RAW_KEY_COLUMN or ONCEHOUSE_RAW_VALUE_COLUMN expected, or both")
	together(c.Format == rowbinary.FormatRaw || c.RawKey+c.RawValue+c.RawHeaders+c.RawTimestamp == "", "FORMAT",
		"is %s, which the ONCEHOUSE_RAW_..._COLUMN settings have no meaning for", c.Format)
	marked := c.DeleteMarker != "" && len(c.DeleteKeys) > 0
	together(c.Tombstones != rowbinary.TombstonesDelete || marked, "TOMBSTONES",
		"is delete: ONCEHOUSE_DELETE_MARKER_COLUMN and ONCEHOUSE_DELETE_KEY_COLUMNS expected")
	p.checkKafka()
	if len(p.problems) > 0 {
		return
	}
	target := c.Target()
	if err := target.Validate(); err != nil { // what only the adapter knows
		p.problem("the settings", "do not fit together: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
}

// checkKafka checks the route to Kafka as a whole.
func (p *parser) checkKafka() {
	c := &p.config
	inClear := c.KafkaUser != "" || c.KafkaPassword != ""
	switch c.KafkaAuth {
	case "none", "iam":
		if inClear || c.KafkaSecret != nil {
			p.problem(Prefix+"KAFKA_AUTH", "is %s, which takes no user and password", c.KafkaAuth)
		}
	default:
		whole := c.KafkaUser != "" && c.KafkaPassword != ""
		if inClear == (c.KafkaSecret != nil) || inClear && !whole {
			p.problem(Prefix+"KAFKA_AUTH", "is %s: either ONCEHOUSE_KAFKA_SECRET or both ONCEHOUSE_KAFKA_USER and ONCEHOUSE_KAFKA_PASSWORD expected", c.KafkaAuth)
		}
	}
	if c.KafkaAuth == "iam" && !c.KafkaTLS {
		p.problem(Prefix+"KAFKA_TLS", "is false: true expected, iam works only by TLS")
	}
	if len(c.Brokers) == 0 && (c.KafkaAuth != "none" || c.KafkaTLS || c.KafkaCAFile != "") {
		p.problem(Prefix+"KAFKA_BROKERS", "is missing: the other settings of Kafka have no meaning without it")
	}
}
