package engine

import (
	"bytes"
	"strings"
)

// statement is what the front must know of a query's text before it may hand
// it to the engine: where the data of an INSERT begins, because the library
// would run what follows an empty line in such data as SQL; whether there is a
// second statement, which the library would run and the server refuses; and
// the output format, for the headers.
type statement struct {
	// insert is set for an INSERT that carries data: sql[:head] is the
	// statement without its FORMAT clause, sql[data:] the data.
	insert     bool
	head, data int
	// format is the data's of an insert, else that of the FORMAT clause, "" for
	// the default.
	format string
	// empty: nothing but white space and comments.
	empty bool
	// multiple: text follows the first semicolon.
	multiple bool
	// excess: a semicolon stands between the FORMAT clause and the data.
	excess bool
	// input: an INSERT ... SELECT ... FORMAT with data, that is, from input().
	input bool
	// uuids are the calls of serverUUID(), as [start, end).
	uuids [][2]int
}

// tokenKind is as much of ClickHouse's lexer as the front needs.
type tokenKind int

const (
	end tokenKind = iota
	word
	quoted // a string, a quoted identifier, a heredoc
	other  // one byte
)

type token struct {
	kind       tokenKind
	start, end int
}

// lexer splits SQL like src/Parsers/Lexer.cpp of ClickHouse.
type lexer struct {
	sql []byte
	pos int
}

func (l *lexer) next() token {
	l.skipSpace()
	start := l.pos
	if start >= len(l.sql) {
		return token{end, start, start}
	}
	switch c := l.sql[start]; {
	case c == '\'' || c == '"' || c == '`':
		l.skipQuoted(c)
		return token{quoted, start, l.pos}
	case c == '$' && l.skipHeredoc():
		return token{quoted, start, l.pos}
	case isWord(c):
		for l.pos < len(l.sql) && (isWord(l.sql[l.pos]) || l.sql[l.pos] == '$') {
			l.pos++
		}
		return token{word, start, l.pos}
	}
	l.pos++
	return token{other, start, l.pos}
}

func (l *lexer) skipSpace() {
	for l.pos < len(l.sql) {
		rest := l.sql[l.pos:]
		switch {
		case bytes.IndexByte([]byte(" \t\n\r\f\v"), rest[0]) >= 0:
			l.pos++
		case bytes.HasPrefix(rest, []byte("--")), bytes.HasPrefix(rest, []byte("# ")), bytes.HasPrefix(rest, []byte("#!")):
			l.skipPast(rest, "\n")
		case bytes.HasPrefix(rest, []byte("/*")):
			l.skipPast(rest[2:], "*/")
		default:
			return
		}
	}
}

// skipPast moves behind the first closing in rest, a tail of the text.
func (l *lexer) skipPast(rest []byte, closing string) {
	l.pos = len(l.sql)
	if i := bytes.Index(rest, []byte(closing)); i >= 0 {
		l.pos += i + len(closing) - len(rest)
	}
}

// skipQuoted moves behind a quoted token; a doubled quote continues it, which
// reads as two tokens and needs no rule of its own.
func (l *lexer) skipQuoted(quote byte) {
	for l.pos++; l.pos < len(l.sql); l.pos++ {
		switch l.sql[l.pos] {
		case '\\':
			l.pos++
		case quote:
			l.pos++
			return
		}
	}
	l.pos = len(l.sql)
}

// skipHeredoc moves behind $tag$...$tag$, or not at all.
func (l *lexer) skipHeredoc() bool {
	rest := l.sql[l.pos:]
	n := 1
	for n < len(rest) && isWord(rest[n]) {
		n++
	}
	if n == len(rest) || rest[n] != '$' {
		return false
	}
	i := bytes.Index(rest[n+1:], rest[:n+1])
	if i < 0 {
		return false
	}
	l.pos += n + 1 + i + n + 1
	return true
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

// scan reads sql up to the data of an INSERT or to its end.
func scan(sql []byte) statement {
	l := &lexer{sql: sql}
	first := l.next()
	if first.kind == end {
		return statement{empty: true}
	}
	st := statement{}
	if strings.EqualFold(text(sql, first), "INSERT") {
		skipTarget(l)
		st.scanInsert(l)
		return st
	}
	l.pos = first.start
	st.scanRest(l, false)
	return st
}

// skipTarget moves behind the name of an INSERT's table, whatever it is called.
func skipTarget(l *lexer) {
	for {
		t := l.next()
		switch strings.ToUpper(text(l.sql, t)) {
		case "INTO", "TABLE", "FUNCTION":
			continue
		}
		mark := l.pos
		if dot := l.next(); text(l.sql, dot) == "." {
			l.next()
			return
		}
		l.pos = mark
		return
	}
}

// scanInsert looks for the clause that says where an INSERT's rows come from.
func (st *statement) scanInsert(l *lexer) {
	depth := 0
	for t := l.next(); t.kind != end; t = l.next() {
		switch s := text(l.sql, t); {
		case s == "(":
			depth++
		case s == ")":
			depth--
		case s == ";" && depth == 0:
			l.pos = t.start
			st.scanRest(l, true)
			return
		case t.kind != word || depth > 0:
		case strings.EqualFold(s, "VALUES"):
			*st = statement{insert: true, head: t.start, data: t.end, format: "Values"}
			return
		case strings.EqualFold(s, "FORMAT"):
			mark := l.pos
			name := l.next()
			if name.kind != word {
				l.pos = mark
				continue
			}
			*st = statement{insert: true, head: t.start, data: name.end, format: text(l.sql, name)}
			st.skipToData(l.sql)
			return
		case strings.EqualFold(s, "SELECT"), strings.EqualFold(s, "WITH"), strings.EqualFold(s, "WATCH"), strings.EqualFold(s, "INFILE"):
			st.scanRest(l, strings.EqualFold(s, "SELECT") || strings.EqualFold(s, "WITH"))
			return
		}
	}
}

// inlineValues makes a whole INSERT ... VALUES an ordinary statement: the
// library parses such data as the server does, parameters and all.
func (st *statement) inlineValues(sql []byte) {
	l := &lexer{sql: sql, pos: st.data}
	*st = statement{}
	st.scanRest(l, false)
	st.format = ""
}

// skipToData applies ParserInsertQuery's rule: blanks and then one line break
// may stand between the format and the data, a semicolon may not.
func (st *statement) skipToData(sql []byte) {
	for st.data < len(sql) && bytes.IndexByte([]byte(" \t\f"), sql[st.data]) >= 0 {
		st.data++
	}
	if st.data < len(sql) && sql[st.data] == ';' {
		st.excess = true
	}
	if st.data < len(sql) && sql[st.data] == '\r' {
		st.data++
	}
	if st.data < len(sql) && sql[st.data] == '\n' {
		st.data++
	}
}

// scanRest reads a statement without data to its end.
func (st *statement) scanRest(l *lexer, insertSelect bool) {
	depth := 0
	for t := l.next(); t.kind != end; t = l.next() {
		switch s := text(l.sql, t); {
		case s == "(":
			depth++
		case s == ")":
			depth--
		case s == ";" && depth == 0:
			st.multiple = l.next().kind != end
			return
		case t.kind == word && s == "serverUUID":
			st.markUUID(l, t)
		case t.kind == word && depth == 0 && strings.EqualFold(s, "FORMAT"):
			mark := l.pos
			name := l.next()
			if name.kind != word {
				l.pos = mark
				continue
			}
			st.format = text(l.sql, name)
			if insertSelect {
				following := l.next()
				st.input = following.kind != end && text(l.sql, following) != ";"
				l.pos = following.start
			}
		}
	}
}

// markUUID notes a call of serverUUID().
func (st *statement) markUUID(l *lexer, name token) {
	mark := l.pos
	if text(l.sql, l.next()) == "(" {
		if closing := l.next(); text(l.sql, closing) == ")" {
			st.uuids = append(st.uuids, [2]int{name.start, closing.end})
			return
		}
	}
	l.pos = mark
}

func text(sql []byte, t token) string { return string(sql[t.start:t.end]) }

// withUUID puts id in the place of the calls of serverUUID(): the library does
// not know the identity of its data directory and answers with zeros.
func (st *statement) withUUID(sql []byte, id string) []byte {
	if len(st.uuids) == 0 {
		return sql
	}
	var out []byte
	from := 0
	for _, call := range st.uuids {
		out = append(out, sql[from:call[0]]...)
		out = append(out, "(toUUID('"+id+"') AS `serverUUID()`)"...)
		from = call[1]
	}
	return append(out, sql[from:]...)
}
