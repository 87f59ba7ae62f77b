package rowbinary

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// typeExpr is the text of a type taken apart: DateTime64(3, 'UTC') is a name
// with a number and a string.
type typeExpr struct {
	name string
	args []typeArg
	text string
}

// typeArg is one argument of a type. Exactly one of typ, number and str is set;
// name goes with typ (a Tuple's member) and number with str (an Enum's name).
type typeArg struct {
	name   string
	named  bool
	typ    *typeExpr
	str    *string
	number *int64
}

// maxTypeDepth bounds the nesting of a type's text.
const maxTypeDepth = 64

var errTypeDepth = errors.New("nested too deeply")

// parseType reads a type as system.columns writes it. The grammar is that of
// ClickHouse's ParserDataType as far as its answers use it.
func parseType(text string) (*typeExpr, error) {
	p := typeParser{text: text}
	t, err := p.typ(0)
	if err == nil {
		p.space()
		if p.pos != len(p.text) {
			err = p.unexpected()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read type %q: %w", text, err)
	}
	return t, nil
}

type typeParser struct {
	text string
	pos  int
}

func (p *typeParser) typ(depth int) (*typeExpr, error) {
	p.space()
	start := p.pos
	name, _, err := p.identifier()
	if err != nil {
		return nil, err
	}
	return p.rest(name, start, depth)
}

// rest reads the arguments of the type whose name was just read.
func (p *typeParser) rest(name string, start, depth int) (*typeExpr, error) {
	if depth > maxTypeDepth {
		return nil, errTypeDepth
	}
	t := &typeExpr{name: name}
	if p.take('(') && !p.take(')') {
		for {
			arg, err := p.arg(depth + 1)
			if err != nil {
				return nil, err
			}
			t.args = append(t.args, arg)
			if p.take(')') {
				break
			}
			if !p.take(',') {
				return nil, p.unexpected()
			}
		}
	}
	t.text = p.text[start:p.pos]
	return t, nil
}

func (p *typeParser) arg(depth int) (typeArg, error) {
	switch c := p.peek(); {
	case c == '\'':
		s, err := p.quoted('\'')
		if err != nil {
			return typeArg{}, err
		}
		arg := typeArg{str: &s}
		if p.take('=') {
			arg.number, err = p.integer()
		}
		return arg, err
	case c == '-' || c >= '0' && c <= '9':
		n, err := p.integer()
		return typeArg{number: n}, err
	}
	start := p.pos
	name, quoted, err := p.identifier()
	if err != nil {
		return typeArg{}, err
	}
	if p.take('=') { // JSON(max_dynamic_paths=16)
		n, err := p.integer()
		return typeArg{name: name, number: n}, err
	}
	if c := p.peek(); !quoted && c != '`' && c != '"' && !isWordByte(c) {
		t, err := p.rest(name, start, depth)
		return typeArg{typ: t}, err
	}
	t, err := p.typ(depth)
	if err == nil && name == "SKIP" && t.name == "REGEXP" && p.peek() == '\'' {
		_, err = p.quoted('\'')
	}
	return typeArg{name: name, named: true, typ: t}, err
}

// identifier reads a word, dots included (paths of a JSON type), or a name in
// back quotes or double quotes.
func (p *typeParser) identifier() (name string, quoted bool, err error) {
	if c := p.peek(); c == '`' || c == '"' {
		name, err = p.quoted(c)
		return name, true, err
	}
	start := p.pos
	for p.pos < len(p.text) && (isWordByte(p.text[p.pos]) || p.text[p.pos] == '.') {
		p.pos++
	}
	if p.pos == start {
		return "", false, p.unexpected()
	}
	return p.text[start:p.pos], false, nil
}

func (p *typeParser) integer() (*int64, error) {
	p.space()
	start := p.pos
	for p.pos < len(p.text) && (p.text[p.pos] == '-' || p.text[p.pos] >= '0' && p.text[p.pos] <= '9') {
		p.pos++
	}
	n, err := strconv.ParseInt(p.text[start:p.pos], 10, 64)
	if err != nil {
		return nil, p.unexpected()
	}
	return &n, nil
}

// quoted reads a name or string in quote, with ClickHouse's escapes.
func (p *typeParser) quoted(quote byte) (string, error) {
	var b strings.Builder
	for p.pos++; p.pos < len(p.text); p.pos++ {
		c := p.text[p.pos]
		switch {
		case c == quote:
			p.pos++
			if p.pos == len(p.text) || p.text[p.pos] != quote {
				return b.String(), nil
			}
			b.WriteByte(quote) // doubled: the quote itself
		case c == '\\' && p.pos+1 < len(p.text):
			p.pos++
			p.escape(&b)
		default:
			b.WriteByte(c)
		}
	}
	return "", errors.New("a quote is not closed")
}

func (p *typeParser) escape(b *strings.Builder) {
	c := p.text[p.pos]
	if k := strings.IndexByte("bfnrt0ave", c); k >= 0 {
		b.WriteByte("\b\f\n\r\t\x00\a\v\x1b"[k])
		return
	}
	if c == 'x' && p.pos+2 < len(p.text) {
		if n, err := strconv.ParseUint(p.text[p.pos+1:p.pos+3], 16, 8); err == nil {
			b.WriteByte(byte(n))
			p.pos += 2
			return
		}
	}
	if c != '\\' && c != '\'' && c != '"' && c != '`' && c != '/' && c != '=' {
		b.WriteByte('\\') // an escape that means nothing stands for itself
	}
	b.WriteByte(c)
}

func (p *typeParser) space() {
	for p.pos < len(p.text) && strings.IndexByte(" \t\r\n", p.text[p.pos]) >= 0 {
		p.pos++
	}
}

// peek is the next byte behind white space, 0 at the end.
func (p *typeParser) peek() byte {
	p.space()
	if p.pos == len(p.text) {
		return 0
	}
	return p.text[p.pos]
}

func (p *typeParser) take(c byte) bool {
	if p.peek() != c {
		return false
	}
	p.pos++
	return true
}

func (p *typeParser) unexpected() error {
	if p.pos >= len(p.text) {
		return errors.New("the text ends early")
	}
	return fmt.Errorf("unexpected %q at position %d", p.text[p.pos], p.pos+1)
}

func isWordByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
