package rowbinary

import (
	"slices"
	"strings"
)

// buildRow compiles the columns that keys fill, and what each key addresses.
func (c *compiler) buildRow() {
	row := &object{row: true}
	for _, name := range c.order {
		if c.taken[name] {
			continue
		}
		col := c.columns[name]
		n, err := c.columnType(col)
		if err != nil {
			c.problem("column %s %s: %w", name, col.Type, err)
			continue
		}
		m := member{name: name, typ: n, defaulted: col.DefaultKind != ""}
		if m.defaulted || n.nullable || c.opts.Missing == MissingZero {
			m.absent = defaultMarker()
		}
		row.members = append(row.members, m)
	}
	for _, name := range c.opts.RawColumns {
		if !slices.ContainsFunc(row.members, func(m member) bool { return m.name == name }) {
			c.problem("raw column %s is not a column that keys fill", name)
		}
	}
	if len(row.members)+len(c.encoder.sources) == 0 {
		c.problem("the table has no column that can be inserted into")
	}
	if len(row.members) > maxMembers {
		c.problem("%d columns are more than %d", len(row.members), maxMembers)
		return
	}
	c.address(row)
	c.encoder.row = row
}

// maxMembers bounds the columns: predictions keep an index in 16 bits.
const maxMembers = 1<<16 - 1

func (c *compiler) columnType(col Column) (*node, error) {
	n, err := c.types.compile(col.Type)
	if err != nil || !slices.Contains(c.opts.RawColumns, col.Name) {
		return n, err
	}
	if n.op != opString {
		return nil, errRawColumn
	}
	n.op = opRaw
	return n, nil
}

// address enters the keys: the columns, the Nested that they are of, and the
// places inside Tuple and Nested columns.
func (c *compiler) address(row *object) {
	groups := map[string][]int{}
	var prefixes []string
	for i, m := range row.members {
		if prefix, _, ok := strings.Cut(m.name, "."); ok && prefix != "" {
			if groups[prefix] == nil {
				prefixes = append(prefixes, prefix)
			}
			groups[prefix] = append(groups[prefix], i)
		}
		if root := c.dotted(row, i, m.name, m.typ, nil); len(root.members) > 0 {
			root.slot = -1
			row.roots = append(row.roots, root)
		}
	}
	row.keys = c.types.lookup(len(row.members) + len(prefixes) + len(row.dotted))
	row.keys.predicts = predictable(row.members)
	for i, m := range row.members {
		if !row.keys.add(m.name, target{toMember, i, i}) {
			c.problem("column %s differs from another only in case, and keys are matched whatever their case", m.name)
		}
	}
	for _, prefix := range prefixes {
		c.group(row, prefix, groups[prefix])
	}
	for i, d := range row.dotted {
		row.keys.add(d.name, target{toDotted, i, 0}) // a column of that name comes first
	}
}

// group lets the name before the first dot of columns address them together.
func (c *compiler) group(row *object, prefix string, members []int) {
	g := group{name: prefix, members: members, nested: true, slot: c.slot(), keys: newLookup(len(members), c.opts.CaseInsensitive)}
	for k, m := range members {
		_, name, _ := strings.Cut(row.members[m].name, ".")
		g.keys.add(name, target{toMember, m, k})
		g.nested = g.nested && row.members[m].typ.op == opArray
	}
	row.keys.add(prefix, target{toGroup, len(row.groups), 0}) // a column of that name comes first
	row.groups = append(row.groups, g)
}

func (c *compiler) slot() int {
	c.encoder.slots++
	return c.encoder.slots - 1
}

// dotted enters the places below a column: the members of a Tuple, and so on
// down, or those of a Nested.
func (c *compiler) dotted(row *object, column int, name string, n *node, absent []byte) *dotted {
	d := &dotted{column: column, slot: c.slot(), name: name, typ: n, absent: absent}
	switch n.op {
	case opTuple:
		for _, m := range n.members.members {
			below := c.dotted(row, column, name+"."+m.name, m.typ, m.absent)
			d.members = append(d.members, below)
			row.dotted = append(row.dotted, below)
		}
	case opNested:
		for _, m := range n.elem.members.members {
			below := &dotted{column: column, slot: c.slot(), name: name + "." + m.name, typ: m.typ}
			d.members = append(d.members, below)
			row.dotted = append(row.dotted, below)
		}
	}
	return d
}
