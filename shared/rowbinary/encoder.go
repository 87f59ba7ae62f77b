package rowbinary

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // zones of columns must not depend on the machine
	"unicode/utf8"
)

// Encoder knows how records become rows of one table. It never changes and is
// safe for concurrent use.
type Encoder struct {
	columns []string
	// row is what keys fill; nil under FormatRaw.
	row *object
	// sources fill the columns behind those of row.
	sources []source

	unknown       Unknown
	tombstones    Tombstones
	nullAsDefault bool
	zero          bool // absent members and elements get their type's default

	keyFormat  KeyFormat
	keyMembers []int  // the key columns among the members of row
	keyKeys    lookup // the same, by name

	slots  int // places for keys with dots
	follow int // predictions
}

// Columns are the columns of the INSERT, in the order of the encoding.
func (e *Encoder) Columns() []string { return slices.Clone(e.columns) }

// absent is what stands for an element without a key; nil refuses the record.
func (e *Encoder) absent(n *node) []byte {
	if n.nullable || e.zero {
		return n.zero
	}
	return nil
}

// defaultMarker is the value of a column whose default the server computes.
func defaultMarker() []byte { return []byte{1} }

// Compile decides how each column is filled. The error joins every problem, each
// naming the column, its type and what to do.
func Compile(columns []Column, opts Options) (*Encoder, error) {
	c := newCompiler(opts)
	c.options()
	c.take(columns)
	c.fillBySources()
	switch opts.Format {
	case FormatRaw:
		c.checkUnmapped()
	default:
		c.buildRow()
	}
	c.deletions()
	if len(c.problems) > 0 {
		return nil, errors.Join(c.problems...)
	}
	return c.finish(), nil
}

// compiler builds an Encoder and gathers what stands in the way.
type compiler struct {
	opts     Options
	types    typeCompiler
	encoder  *Encoder
	problems []error
	// columns are those that can be inserted into, by name; taken those that no
	// key fills.
	columns map[string]Column
	order   []string
	taken   map[string]bool
}

func newCompiler(opts Options) *compiler {
	c := &compiler{
		opts: opts,
		types: typeCompiler{
			fold: opts.CaseInsensitive, zero: opts.Missing == MissingZero,
			truncate: opts.TruncateFraction, epoch: opts.Epoch,
		},
		encoder: &Encoder{},
		columns: map[string]Column{},
		taken:   map[string]bool{},
	}
	if opts.Timezone != nil {
		name := opts.Timezone.String()
		if opts.Timezone == time.Local { // whose name may be a real one
			name = "Local"
		}
		zone, err := loadZone(name)
		if err != nil {
			c.problem("the server's time zone: %w", err)
		}
		c.types.zone = zone
	}
	return c
}

func (c *compiler) problem(format string, args ...any) {
	c.problems = append(c.problems, fmt.Errorf(format, args...))
}

// options checks the settings that are words.
func (c *compiler) options() {
	o := &c.opts
	check(c, "format", &o.Format, FormatJSON, FormatRaw)
	check(c, "unknown", &o.Unknown, UnknownIgnore, UnknownRefuse, UnknownCollect)
	check(c, "missing", &o.Missing, MissingRefuse, MissingZero)
	check(c, "epoch", &o.Epoch, EpochColumn, EpochSeconds, EpochMillis, EpochMicros, EpochNanos)
	check(c, "tombstones", &o.Tombstones, TombstonesSkip, TombstonesLetter, TombstonesDelete)
	check(c, "key format", &o.Delete.KeyFormat, KeyText, KeyJSON)
	if (o.Unknown == UnknownCollect) != (o.Overflow != "") {
		c.problem("an overflow column is named if and only if unknown fields are collected (unknown %q, overflow %q)", o.Unknown, o.Overflow)
	}
	if o.Format == FormatRaw && (o.Raw.Key == "" && o.Raw.Value == "" || o.Overflow != "" || len(o.RawColumns) > 0 || o.Tombstones == TombstonesDelete) {
		c.problem("format raw needs a column for the key or the value, and has no overflow, raw columns or deletions")
	}
	if o.Format != FormatRaw && o.Raw != (RawMapping{}) {
		c.problem("columns for key, value, headers and timestamp are of format raw; use provenance columns with format json")
	}
}

// check sets an empty setting to its first allowed value and refuses others.
func check[T ~string](c *compiler, name string, value *T, allowed ...T) {
	if *value == "" {
		*value = allowed[0]
	}
	if !slices.Contains(allowed, *value) {
		c.problem("%s %q is not one of %q", name, *value, allowed)
	}
}

// take sorts out the columns that cannot be inserted into.
func (c *compiler) take(columns []Column) {
	for _, col := range columns {
		switch col.DefaultKind {
		case "MATERIALIZED", "ALIAS":
			if name := c.usedName(col.Name); name != "" {
				c.problem("column %s is %s and cannot be filled as the %s column; make it an ordinary one", col.Name, col.DefaultKind, name)
			}
			c.taken[col.Name] = true // the server computes it: no key reaches it
			continue
		case "", "DEFAULT", "EPHEMERAL":
		default:
			c.problem("column %s: default kind %q is not known", col.Name, col.DefaultKind)
		}
		if _, twice := c.columns[col.Name]; twice {
			c.problem("column %s is listed twice", col.Name)
			continue
		}
		if !utf8.ValidString(col.Name) {
			c.problem("column %q: the name is not UTF-8, no key can name it", col.Name)
		}
		c.columns[col.Name] = col
		c.order = append(c.order, col.Name)
	}
}

// usedName is the role that the options give a column, "" for none.
func (c *compiler) usedName(name string) string {
	o := &c.opts
	for _, role := range []struct{ column, role string }{
		{o.Provenance.Topic, "topic"}, {o.Provenance.Partition, "partition"}, {o.Provenance.Offset, "offset"},
		{o.Provenance.Timestamp, "timestamp"}, {o.Provenance.Key, "key"}, {o.Provenance.Headers, "headers"},
		{o.Raw.Key, "key"}, {o.Raw.Value, "value"}, {o.Raw.Headers, "headers"}, {o.Raw.Timestamp, "timestamp"},
		{o.Overflow, "overflow"}, {o.Delete.Marker, "deletion marker"},
	} {
		if role.column == name && name != "" {
			return role.role
		}
	}
	return ""
}

// fillBySources finds the columns that are not filled by keys.
func (c *compiler) fillBySources() {
	p, r := c.opts.Provenance, c.opts.Raw
	if c.opts.Format == FormatRaw {
		c.source(r.Key, fromKey, true, true)
		c.source(r.Value, fromValue, true, true)
		c.source(r.Headers, fromHeaders, true, true)
		c.source(r.Timestamp, fromTimestamp, true, true)
	}
	c.source(p.Topic, fromTopic, false, false)
	c.source(p.Partition, fromPartition, false, false)
	c.source(p.Offset, fromOffset, false, false)
	c.source(p.Timestamp, fromTimestamp, false, false)
	c.source(p.Key, fromKey, false, false)
	c.source(p.Headers, fromHeaders, false, false)
	c.source(c.opts.Overflow, fromUnknown, true, true)
	c.source(c.opts.Delete.Marker, fromDeletion, true, true)
}

// source fills a column from a record's coordinates, if the table has it.
func (c *compiler) source(name string, from origin, needed, exactly bool) {
	if name == "" || c.taken[name] && !slices.Contains(c.order, name) {
		return
	}
	col, ok := c.columns[name]
	if !ok {
		if needed {
			c.problem("the table has no column %s, which the options name as the %s column", name, c.usedName(name))
		}
		return
	}
	if c.taken[name] {
		c.problem("column %s is named twice, once as the %s column", name, c.usedName(name))
		return
	}
	c.taken[name] = true
	n, err := c.types.compile(col.Type)
	if err == nil {
		err = suits(from, n, c.opts.TruncateFraction)
	}
	if err != nil {
		c.problem("column %s %s as the %s column: %w", name, col.Type, c.usedName(name), err)
		return
	}
	c.encoder.sources = append(c.encoder.sources, source{name: name, from: from, typ: n, exactly: exactly})
}

// suits says which types a source can fill.
func suits(from origin, n *node, truncate bool) error {
	isString := func(n *node) bool { return n.op == opString && !n.nullable }
	ok, want := false, ""
	switch from {
	case fromTopic, fromKey, fromValue:
		ok, want = n.op == opString, "String"
	case fromPartition:
		ok, want = n.op == opInt && n.size >= 4, "Int32, UInt32 or a wider integer"
	case fromOffset:
		ok, want = n.op == opInt && n.size >= 8, "Int64, UInt64 or a wider integer"
	case fromTimestamp:
		ok = n.op == opDateTime64 && (n.scale >= 3 || truncate) || n.op == opDateTime && truncate || n.op == opInt && n.size >= 8
		want = "DateTime64(3), or Int64 for milliseconds (DateTime only where fractions are truncated)"
	case fromHeaders:
		pair := n.op == opArray && !n.elem.nullable && (n.elem.op == opUnnamed || n.elem.op == opTuple) && len(n.elem.unnamed) == 2
		ok = pair && isString(n.elem.unnamed[0]) && isString(n.elem.unnamed[1]) || n.op == opMap && isString(n.key) && isString(n.elem)
		want = "Map(String, String) or Array(Tuple(String, String))"
	case fromUnknown:
		ok = n.op == opJSON || isString(n) || n.op == opMap && isString(n.key) && isString(n.elem)
		want = "JSON, String or Map(String, String)"
	case fromDeletion:
		ok, want = (n.op == opInt && n.size == 1 || n.op == opBool) && !n.nullable, "UInt8 or Bool"
	}
	if !ok {
		return errors.New("must be " + want)
	}
	return nil
}

// checkUnmapped refuses columns that format raw leaves without a value.
func (c *compiler) checkUnmapped() {
	for _, name := range c.order {
		col := c.columns[name]
		if c.taken[name] || col.DefaultKind != "" || c.opts.Missing == MissingZero || strings.HasPrefix(col.Type, "Nullable(") || strings.HasPrefix(col.Type, "LowCardinality(Nullable(") {
			continue
		}
		c.problem("column %s %s has no source in format raw; map it, give it a DEFAULT, or set missing to zero", name, col.Type)
	}
}

// deletions sets up the rows of tombstones.
func (c *compiler) deletions() {
	o := &c.opts
	if o.Tombstones != TombstonesDelete || c.encoder.row == nil {
		return
	}
	if o.Delete.Marker == "" || len(o.Delete.KeyColumns) == 0 || o.Delete.KeyFormat == KeyText && len(o.Delete.KeyColumns) != 1 {
		c.problem("deletions need a marker column and key columns: one for a text key, one or more for a JSON key")
		return
	}
	e := c.encoder
	e.keyKeys = newLookup(len(o.Delete.KeyColumns), o.CaseInsensitive)
	for _, name := range o.Delete.KeyColumns {
		m := slices.IndexFunc(e.row.members, func(m member) bool { return m.name == name })
		if m < 0 {
			c.problem("key column %s is not a column that can be inserted into", name)
			continue
		}
		if typ := e.row.members[m].typ; o.Delete.KeyFormat == KeyText && (typ.op >= opArray || strings.Contains(name, ".")) {
			c.problem("key column %s %s cannot be the text of a key", name, typ.typ)
		}
		if !e.keyKeys.add(name, target{toMember, m, m}) {
			c.problem("key column %s is named twice", name)
		}
		e.keyMembers = append(e.keyMembers, m)
	}
}

func (c *compiler) finish() *Encoder {
	e, o := c.encoder, &c.opts
	if e.row != nil {
		for _, m := range e.row.members {
			e.columns = append(e.columns, m.name)
		}
	}
	for _, s := range e.sources {
		e.columns = append(e.columns, s.name)
	}
	e.unknown, e.tombstones, e.nullAsDefault = o.Unknown, o.Tombstones, o.NullAsDefault
	e.zero = o.Missing == MissingZero
	e.keyFormat = o.Delete.KeyFormat
	e.follow = c.types.follow
	return e
}
