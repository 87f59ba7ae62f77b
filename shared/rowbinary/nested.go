package rowbinary

import (
	"encoding/binary"
	"slices"
)

// group encodes the value of a Nested whose members are columns: an object of
// arrays, or an array of objects.
func (w *Writer) group(f *frame, g *group, dst []byte, i int) ([]byte, int) {
	src := w.src
	switch {
	case i < len(src) && src[i] == '{':
		return w.fields(f, &g.keys, dst, i)
	case i < len(src) && src[i] == '[' && g.nested:
		return w.transpose(f, g, dst, i)
	case i < len(src) && src[i] == 'n' && w.encoder.nullAsDefault:
		return dst, w.literal(i, "null")
	}
	end := w.skip(i, 0)
	switch {
	case end < 0:
		return dst, -1
	case src[i] == 'n':
		return dst, w.refuse(CodeNull, i, "a Nested is not Nullable")
	}
	return dst, w.refuse(CodeWrongType, i, "a Nested takes an array of objects or an object of arrays")
}

// transpose encodes an array of objects as one array per member.
func (w *Writer) transpose(f *frame, g *group, dst []byte, i int) ([]byte, int) {
	first, width := len(w.cells), len(g.members)
	rows, i := w.table(&g.keys, width, i)
	if i < 0 {
		return dst, -1
	}
	f.ordered = false
	for k, m := range g.members {
		if w.spans[f.base+m].end != 0 {
			w.bad = Refusal{Code: CodeDuplicateKey, Message: "given twice"}
			return dst, w.inMember(f.o, m)
		}
		to := &f.o.members[m]
		if to.defaulted && w.nowhere(first+k, width, rows) {
			continue
		}
		start := len(dst)
		dst = appendLength(append(dst, 0), rows)
		var ok bool
		if dst, ok = w.column(to.typ.elem, dst, first+k, width, rows); !ok {
			return dst, w.inMember(f.o, m)
		}
		w.spans[f.base+m] = span{start, len(dst)}
	}
	w.cells = w.cells[:first]
	return dst, i
}

// table notes where the values of an array of objects stand: w.cells grows by
// width places for each object, in the order of l's targets.
func (w *Writer) table(l *lookup, width, i int) (rows, end int) {
	i = space(w.src, i+1)
	if i < len(w.src) && w.src[i] == ']' {
		return 0, i + 1
	}
	for more := true; more; rows++ {
		if i >= len(w.src) || w.src[i] != '{' {
			if w.skip(i, 0) >= 0 {
				w.refuse(CodeWrongType, i, "an element of a Nested is an object")
			}
			return rows, w.atIndex(rows)
		}
		row := len(w.cells)
		for range width {
			w.cells = append(w.cells, span{})
		}
		if i = w.tableRow(nil, l, row, i); i < 0 {
			return rows, w.atIndex(rows)
		}
		if i, more = w.next(i, ']'); i < 0 {
			return rows, -1
		}
	}
	return rows, i
}

// tableRow notes where the values of the object at i stand.
func (w *Writer) tableRow(o *object, l *lookup, row, i int) int {
	i = space(w.src, i+1)
	if i < len(w.src) && w.src[i] == '}' {
		return i + 1
	}
	first := len(w.keys)
	for more := true; more; {
		to, key, behind := w.address(o, l, 0, i)
		if behind < 0 {
			return -1
		}
		value := w.colon(behind)
		if value < 0 {
			return -1
		}
		if to.kind == toUnknown {
			i = w.unknownField(false, addressed{key: key}, value)
		} else {
			i = w.skip(value, 0)
			place := &w.cells[row+to.place]
			if place.end != 0 && i >= 0 {
				return w.refuse(CodeDuplicateKey, value, "a key is given twice, here with")
			}
			*place = span{value, i}
		}
		if i < 0 {
			return -1
		}
		if i, more = w.next(i, '}'); i < 0 {
			return -1
		}
	}
	if !w.distinct(first) {
		return -1
	}
	return i
}

// nowhere reports whether a column of a table has no value at all.
func (w *Writer) nowhere(first, width, rows int) bool {
	for r := range rows {
		if w.cells[first+r*width].end != 0 {
			return false
		}
	}
	return rows > 0
}

// column encodes one column of a table.
func (w *Writer) column(elem *node, dst []byte, first, width, rows int) ([]byte, bool) {
	for r := range rows {
		at := w.cells[first+r*width]
		if at.end == 0 {
			absent := w.encoder.absent(elem)
			if absent == nil {
				w.bad = Refusal{Code: CodeMissing, Message: "no key for it, and " + elem.typ + " is not Nullable"}
				w.atIndex(r)
				return dst, false
			}
			dst = append(dst, absent...)
			continue
		}
		var i int
		if dst, i = w.value(elem, dst, at.start); i < 0 {
			w.atIndex(r)
			return dst, false
		}
	}
	return dst, true
}

// level checks that the arrays of each Nested are of one length, and fills in
// those that are absent where others are there.
func (w *Writer) level(f *frame, dst []byte) ([]byte, bool) {
	for k := range f.o.groups {
		g := &f.o.groups[k]
		if !g.nested {
			continue
		}
		length, from := -1, -1
		for _, m := range g.members {
			n := w.lengthOf(f, dst, m)
			if n >= 0 && length >= 0 && n != length {
				w.bad = Refusal{Code: CodeLength, Message: "not as long as " + f.o.members[from].name + ", and both are of one Nested"}
				w.inMember(f.o, m)
				return dst, false
			}
			if n >= 0 {
				length, from = n, m
			}
		}
		if length < 0 {
			continue
		}
		var ok bool
		if dst, ok = w.fillUp(f, g, dst, length); !ok {
			return dst, false
		}
	}
	return dst, true
}

// lengthOf is the length of the array that member m was given, -1 for none.
func (w *Writer) lengthOf(f *frame, dst []byte, m int) int {
	at := w.spans[f.base+m]
	if at.end == 0 || dst[at.start] == 1 {
		return -1
	}
	n, _ := binary.Uvarint(dst[at.start+1 : at.end])
	return int(n)
}

func (w *Writer) fillUp(f *frame, g *group, dst []byte, length int) ([]byte, bool) {
	for _, m := range g.members {
		to := &f.o.members[m]
		if w.lengthOf(f, dst, m) >= 0 || to.defaulted {
			continue
		}
		absent := w.encoder.absent(to.typ.elem)
		if absent == nil && length > 0 {
			w.bad = Refusal{Code: CodeMissing, Message: "no key for it, and other arrays of its Nested are given"}
			w.inMember(f.o, m)
			return dst, false
		}
		start := len(dst)
		dst = appendLength(append(dst, 0), length)
		for range length {
			dst = append(dst, absent...)
		}
		w.spans[f.base+m] = span{start, len(dst)}
		f.ordered = false
	}
	return dst, true
}

// columnar encodes an object of arrays as a Nested that is one column.
func (w *Writer) columnar(n *node, dst []byte, i int) ([]byte, int) {
	o := n.elem.members
	first := len(w.cells)
	for range o.members {
		w.cells = append(w.cells, span{})
	}
	if i = w.tableRow(o, &o.keys, first, i); i < 0 {
		return dst, -1
	}
	if _, given := w.openArrays(first, len(o.members)); given == 0 && !w.encoder.zero {
		w.bad = Refusal{Code: CodeMissing, Message: "the Nested is given as an object without arrays"}
		return dst, -1
	}
	dst, ok := w.zip(n, dst, first)
	w.cells = w.cells[:first]
	if !ok {
		return dst, -1
	}
	return dst, i
}

// zip encodes the arrays that stand at w.cells[first:], one for each member of
// the Nested, element by element.
func (w *Writer) zip(n *node, dst []byte, first int) ([]byte, bool) {
	members := n.elem.members.members
	for m := range members {
		at := &w.cells[first+m]
		if at.end == 0 {
			continue
		}
		if w.src[at.start] != '[' {
			w.refuse(CodeWrongType, at.start, "an array is expected: the Nested is given as an object")
			w.under(members[m].name)
			return dst, false
		}
		at.start = space(w.src, at.start+1)
	}
	start := len(dst)
	dst = append(dst, 0)
	for rows := 0; ; rows++ {
		open, given := w.openArrays(first, len(members))
		switch {
		case open == 0:
			return setLength(dst, start, rows), true
		case open != given:
			w.bad = Refusal{Code: CodeLength, Message: "the arrays of the Nested are not of one length"}
			return dst, false
		}
		var ok bool
		if dst, ok = w.zipRow(members, dst, first, rows); !ok {
			return dst, false
		}
	}
}

// openArrays counts the arrays that have a further element, and all of them.
func (w *Writer) openArrays(first, width int) (open, given int) {
	for _, at := range w.cells[first : first+width] {
		if at.end == 0 {
			continue
		}
		given++
		if w.src[at.start] != ']' {
			open++
		}
	}
	return open, given
}

// zipRow encodes the next element of each array and moves behind it.
func (w *Writer) zipRow(members []member, dst []byte, first, row int) ([]byte, bool) {
	for m := range members {
		at := w.cells[first+m]
		if at.end == 0 {
			if members[m].absent == nil {
				w.bad = Refusal{Code: CodeMissing, Message: "no key for it, and " + members[m].typ.typ + " is not Nullable"}
				w.under(members[m].name)
				return dst, false
			}
			dst = append(dst, members[m].absent...)
			continue
		}
		i := at.start
		if dst, i = w.value(members[m].typ, dst, i); i < 0 {
			w.atIndex(row)
			w.under(members[m].name)
			return dst, false
		}
		i = space(w.src, i)
		if w.src[i] == ',' {
			i = space(w.src, i+1)
		}
		w.cells[first+m].start = i
	}
	return dst, true
}

// assemble encodes the columns that keys with dots gave values for.
func (w *Writer) assemble(f *frame, dst []byte) ([]byte, bool) {
	for _, d := range f.o.roots {
		if !w.given(d) {
			continue
		}
		if w.spans[f.base+d.column].end != 0 {
			w.bad = Refusal{Code: CodeDuplicateKey, Message: "given whole and by keys with dots"}
			w.inMember(f.o, d.column)
			return dst, false
		}
		f.ordered = false
		start := len(dst)
		dst = append(dst, 0)
		if d.typ.nullable {
			dst = append(dst, 0)
		}
		var ok bool
		if dst, ok = w.gather(d, dst); !ok {
			w.bad.Column = f.o.members[d.column].name
			return dst, false
		}
		w.spans[f.base+d.column] = span{start, len(dst)}
	}
	return dst, true
}

// given reports whether a key addressed d or anything below it.
func (w *Writer) given(d *dotted) bool {
	return d.slot >= 0 && w.slots[d.slot].end != 0 || slices.ContainsFunc(d.members, w.given)
}

// gather encodes the members of d, a Tuple or a Nested, one by one.
func (w *Writer) gather(d *dotted, dst []byte) ([]byte, bool) {
	if d.typ.op == opNested {
		first := len(w.cells)
		for _, m := range d.members {
			w.cells = append(w.cells, w.slots[m.slot])
		}
		dst, ok := w.zip(d.typ, dst, first)
		w.cells = w.cells[:first]
		if !ok {
			w.under(d.name)
		}
		return dst, ok
	}
	for _, m := range d.members {
		var ok bool
		if dst, ok = w.gatherMember(m, dst); !ok {
			return dst, false
		}
	}
	return dst, true
}

func (w *Writer) gatherMember(d *dotted, dst []byte) ([]byte, bool) {
	at := w.slots[d.slot]
	below := slices.ContainsFunc(d.members, w.given)
	switch {
	case at.end != 0 && below:
		w.bad = Refusal{Code: CodeDuplicateKey, Message: "given whole and by keys with dots", Path: d.name}
		return dst, false
	case at.end != 0:
		dst, i := w.value(d.typ, dst, at.start)
		if i < 0 {
			w.under(d.name)
		}
		return dst, i >= 0
	case below:
		if d.typ.nullable {
			dst = append(dst, 0)
		}
		return w.gather(d, dst)
	case d.absent != nil:
		return append(dst, d.absent...), true
	}
	w.bad = Refusal{Code: CodeMissing, Message: "no key for it, and " + d.typ.typ + " is not Nullable", Path: d.name}
	return dst, false
}
