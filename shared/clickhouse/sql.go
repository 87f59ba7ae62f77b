package clickhouse

import (
	"slices"
	"strconv"
	"strings"
)

// tableName is a table with its database, as the server knows them.
type tableName struct{ database, table string }

// String is the name as it stands in SQL.
func (n tableName) String() string { return quoteName(n.database) + "." + quoteName(n.table) }

// quoteName is an identifier that no word in it can turn into SQL.
func quoteName(name string) string {
	return "`" + strings.NewReplacer("\\", "\\\\", "`", "\\`").Replace(name) + "`"
}

// quoteText is a string literal.
func quoteText(text string) string {
	return "'" + strings.NewReplacer("\\", "\\\\", "'", "\\'").Replace(text) + "'"
}

func quoteTexts(texts []string) string {
	quoted := make([]string, len(texts))
	for i, t := range texts {
		quoted[i] = quoteText(t)
	}
	return strings.Join(quoted, ", ")
}

// token is one word, name, literal or sign of the server's own SQL.
type token struct {
	kind  tokenKind
	text  string // unquoted
	depth int    // of brackets around it
}

type tokenKind int

const (
	word tokenKind = iota // bare: a keyword, an identifier, a number
	name                  // in backquotes or double quotes
	literal
	sign
)

// isWord reports whether t is the bare keyword. The server writes keywords in
// capitals and quotes the identifiers that could be taken for one.
func (t token) isWord(keyword string) bool { return t.kind == word && t.text == keyword }

func (t token) isSign(s string) bool { return t.kind == sign && t.text == s }

// lex splits the text of a table's definition as the server formats it, so that
// a keyword inside a comment, a default or a name is not taken for one.
func lex(sql string) []token {
	var out []token
	depth := 0
	for i := 0; i < len(sql); {
		c := sql[i]
		switch {
		case c == ' ' || c == '\n' || c == '\t':
			i++
		case c == '\'' || c == '`' || c == '"':
			text, n := unquote(sql[i:])
			kind := name
			if c == '\'' {
				kind = literal
			}
			out = append(out, token{kind, text, depth})
			i += n
		case isWordByte(c):
			n := 1
			for i+n < len(sql) && isWordByte(sql[i+n]) {
				n++
			}
			out = append(out, token{word, sql[i : i+n], depth})
			i += n
		default:
			if strings.IndexByte(")]}", c) >= 0 {
				depth--
			}
			out = append(out, token{sign, string(c), depth})
			if strings.IndexByte("([{", c) >= 0 {
				depth++
			}
			i++
		}
	}
	return out
}

func isWordByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

// unquote reads the quoted text that s begins with and its length with quotes.
func unquote(s string) (text string, n int) {
	quote := s[0]
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
		case s[i] == quote && i+1 < len(s) && s[i+1] == quote:
			i++
			b.WriteByte(quote)
		case s[i] == quote:
			return b.String(), i + 1
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String(), len(s)
}

// engine is what engine_full says of a table.
type engine struct {
	// name is the whole name: ReplicatedReplacingMergeTree.
	name   string
	family family
	// variant is what stands before MergeTree: "" or Replacing, Summing, ...
	variant string
	// args are the identifiers among the engine's arguments (a Replicated
	// table's path and replica are literals, and left out).
	args []string
	// settings are the table's own, after SETTINGS.
	settings map[string]string
	// deletes: a TTL of the table takes rows away.
	deletes bool
}

// family is how a table treats tokens, which is all that delivery cares for.
type family int

const (
	other family = iota
	plain
	replicated
	shared
	null
)

// variants of MergeTree. In all but the first rows disappear by themselves.
var variants = [...]string{"", "Replacing", "Summing", "Aggregating", "Collapsing", "VersionedCollapsing", "Graphite", "Coalescing"}

func parseEngine(full string) engine {
	tokens := lex(full)
	if len(tokens) == 0 {
		return engine{}
	}
	e := engine{name: tokens[0].text}
	e.family, e.variant = familyOf(e.name)
	rest := tokens[1:]
	if len(rest) > 0 && rest[0].isSign("(") {
		end := closing(rest)
		for _, t := range rest[1:end] {
			if t.depth == 1 && (t.kind == word || t.kind == name) {
				e.args = append(e.args, t.text)
			}
		}
		rest = rest[end:]
	}
	settings := lastWord(rest, "SETTINGS")
	e.settings = parseSettings(rest[settings:])
	if ttl := lastWord(rest[:settings], "TTL"); ttl < settings {
		e.deletes = ttlDeletes(rest[ttl+1 : settings])
	}
	return e
}

func familyOf(engineName string) (family, string) {
	if engineName == "Null" {
		return null, ""
	}
	variant, ok := strings.CutSuffix(engineName, "MergeTree")
	if !ok {
		return other, ""
	}
	f := plain
	if v, ok := strings.CutPrefix(variant, "Replicated"); ok {
		f, variant = replicated, v
	} else if v, ok := strings.CutPrefix(variant, "Shared"); ok {
		f, variant = shared, v
	}
	if !slices.Contains(variants[:], variant) {
		return other, ""
	}
	return f, variant
}

// closing is the index of the bracket that closes tokens[0], len(tokens) when
// none does.
func closing(tokens []token) int {
	for i, t := range tokens[1:] {
		if t.kind == sign && t.depth == tokens[0].depth && strings.ContainsAny(t.text, ")]}") {
			return i + 1
		}
	}
	return len(tokens)
}

// lastWord is the index of the last keyword outside brackets, len(tokens) when
// there is none.
func lastWord(tokens []token, keyword string) int {
	for i := len(tokens) - 1; i >= 0; i-- {
		if tokens[i].depth == 0 && tokens[i].isWord(keyword) {
			return i
		}
	}
	return len(tokens)
}

// parseSettings reads "SETTINGS a = 1, b = 'x'".
func parseSettings(tokens []token) map[string]string {
	out := map[string]string{}
	for i := 1; i+2 < len(tokens); i++ {
		if tokens[i+1].isSign("=") && tokens[i].kind == word {
			out[tokens[i].text] = tokens[i+2].text
		}
	}
	return out
}

// ttlDeletes reports whether one of the TTLs takes rows away: all do that do
// not move or recompress them (GROUP BY melts rows together).
func ttlDeletes(tokens []token) bool {
	keeps := false
	for _, t := range tokens {
		switch {
		case t.depth == 0 && t.isSign(","):
			if !keeps {
				return true
			}
			keeps = false
		case t.depth == 0 && (t.isWord("TO") || t.isWord("RECOMPRESS")):
			keeps = true
		}
	}
	return !keeps
}

// ttlColumns are the columns whose value a TTL resets, out of the list in a
// CREATE TABLE.
func ttlColumns(ddl string) []string {
	tokens := lex(ddl)
	open := slices.IndexFunc(tokens, func(t token) bool { return t.isSign("(") })
	if open < 0 {
		return nil
	}
	var out []string
	column := ""
	begins := true
	for _, t := range tokens[open+1 : open+closing(tokens[open:])] {
		switch {
		case t.depth == 1 && t.isSign(","):
			begins = true
		case begins:
			column, begins = t.text, false
		case t.depth == 1 && t.isWord("TTL"):
			out = append(out, column)
		}
	}
	return out
}

// viewTarget is the table that a materialized view writes to: the one after TO,
// else its inner one, named by the view's UUID or, in old databases, its name.
func viewTarget(v tableName, uuid, ddl string) tableName {
	tokens := lex(ddl)
	for i, t := range tokens {
		if t.depth > 0 || t.isSign("(") || t.isWord("AS") {
			break
		}
		if !t.isWord("TO") || i+1 >= len(tokens) || tokens[i+1].isWord("INNER") {
			continue
		}
		if i+3 < len(tokens) && tokens[i+2].isSign(".") {
			return tableName{tokens[i+1].text, tokens[i+3].text}
		}
		return tableName{v.database, tokens[i+1].text}
	}
	if uuid != "" && strings.Trim(uuid, "0-") != "" {
		return tableName{v.database, ".inner_id." + uuid}
	}
	return tableName{v.database, ".inner." + v.table}
}

// versionAtLeast compares the first two numbers of a version.
func versionAtLeast(version string, major, minor int) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	a, errA := strconv.Atoi(parts[0])
	b, errB := strconv.Atoi(parts[1])
	return errA == nil && errB == nil && (a > major || a == major && b >= minor)
}
