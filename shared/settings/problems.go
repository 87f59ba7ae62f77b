package settings

import (
	"fmt"
	"strings"
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

// Problems collects what is wrong with a configuration.
type Problems struct {
	list   []string
	broken map[string]bool // names of settings that have a problem already
}

// None reports whether nothing was found so far.
func (p *Problems) None() bool { return len(p.list) == 0 }

// Add adds a problem of a setting, named without the prefix: "TIMEOUT", "is too long".
func (p *Problems) Add(name, format string, args ...any) {
	p.add(Prefix+name, format, args...)
}

// Unless adds a problem if ok is false.
func (p *Problems) Unless(ok bool, name, format string, args ...any) {
	if !ok {
		p.Add(name, format, args...)
	}
}

// AddWhole adds a problem that is of no one setting.
func (p *Problems) AddWhole(err error) {
	p.add("the settings", "do not fit together: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
}

func (p *Problems) add(name, format string, args ...any) {
	p.broken[name] = true
	p.list = append(p.list, name+" "+fmt.Sprintf(format, args...))
}
