package rowbinary

import "strconv"

// frame is an object that is being read: its members' values are encoded behind
// each other in dst, from start on, and their places kept in w.spans.
type frame struct {
	o     *object
	base  int // of the members in w.spans
	start int // of the object in dst
	// next is the member that would come next if the keys came in the order of
	// the columns, ordered whether they did so far. Members passed over count as
	// in order: what stands for them was written where they belong.
	next    int
	ordered bool
	// deletion: members that are absent get their default.
	deletion bool
}

func (w *Writer) open(o *object, dst []byte) frame {
	f := frame{o: o, base: len(w.spans), start: len(dst), ordered: true}
	for range o.members {
		w.spans = append(w.spans, span{})
	}
	return f
}

// object encodes the object at i into its members.
func (w *Writer) object(o *object, dst []byte, i int) ([]byte, int) {
	f := w.open(o, dst)
	dst, i = w.fields(&f, &o.keys, dst, i)
	if i < 0 {
		return dst, -1
	}
	return w.close(&f, dst, i)
}

// close puts the members in order and fills in those that are absent.
func (w *Writer) close(f *frame, dst []byte, i int) ([]byte, int) {
	ok := true
	if len(w.used) > 0 && f.o.dotted != nil {
		dst, ok = w.assemble(f, dst)
	}
	if ok && f.o.groups != nil {
		dst, ok = w.level(f, dst)
	}
	if ok && f.ordered {
		dst, ok = w.pass(f, dst, len(f.o.members))
	}
	if ok && !f.ordered {
		dst, ok = w.arrange(f, dst)
	}
	w.spans = w.spans[:f.base]
	if !ok {
		return dst, -1
	}
	return dst, i
}

// fields reads the object at i; l says what its keys address among the members
// of f.
func (w *Writer) fields(f *frame, l *lookup, dst []byte, i int) ([]byte, int) {
	i = space(w.src, i+1)
	if i < len(w.src) && w.src[i] == '}' {
		return dst, i + 1
	}
	first, last := len(w.keys), 0
	for more := true; more; {
		to, key, behind := w.address(f.o, l, last, i)
		if behind < 0 {
			return dst, -1
		}
		value := w.colon(behind)
		if value < 0 {
			return dst, -1
		}
		if to.kind == toMember {
			last = to.index + 1
			dst, i = w.member(f, to.index, dst, value)
		} else {
			dst, i = w.elsewhere(f, l, addressed{to, key, span{i, behind}}, dst, value)
		}
		if i < 0 {
			return dst, -1
		}
		if i, more = w.next(i, '}'); i < 0 {
			return dst, -1
		}
	}
	if !w.distinct(first) {
		return dst, -1
	}
	return dst, i
}

// address finds what the key at i addresses: first by comparing it with the key
// that came here last time, then by looking it up. key is set for keys that are
// not a member's.
func (w *Writer) address(o *object, l *lookup, last, i int) (to target, key keyRef, behind int) {
	src := w.src
	if l.predicts {
		guess := int(w.follow[l.follow+last])
		name := o.members[guess].name
		if end := i + 1 + len(name); end < len(src) && src[end] == '"' && src[i] == '"' && string(src[i+1:end]) == name {
			return target{toMember, guess, guess}, keyRef{}, end + 1
		}
	}
	key, behind = w.key(i)
	if behind < 0 {
		return target{}, key, -1
	}
	text := w.keyText(key)
	if l.fold {
		start := len(w.names)
		w.names = appendFolded(w.names, text)
		text = w.names[start:]
	}
	to = l.find(text)
	if to.kind == toMember && l.predicts {
		w.follow[l.follow+last] = uint16(to.index)
	}
	return to, key, behind
}

// member encodes the value at i as member m of f.
func (w *Writer) member(f *frame, m int, dst []byte, i int) ([]byte, int) {
	at, to := &w.spans[f.base+m], &f.o.members[m]
	if at.end != 0 {
		w.bad = Refusal{Code: CodeDuplicateKey, Message: "given twice"}
		return dst, w.inMember(f.o, m)
	}
	if f.ordered {
		dst = w.skipTo(f, dst, m)
	}
	start := len(dst)
	if f.o.row {
		dst = append(dst, 0)
		if i < len(w.src) && w.src[i] == 'n' && w.encoder.nullAsDefault && !to.typ.nullable && to.typ.op != opRaw {
			dst[start] = 1
			i = w.literal(i, "null")
			w.spans[f.base+m] = span{start, len(dst)}
			return dst, i
		}
	}
	if dst, i = w.value(to.typ, dst, i); i < 0 {
		return dst, w.inMember(f.o, m)
	}
	w.spans[f.base+m] = span{start, len(dst)}
	return dst, i
}

// inMember puts the member's name into the refusal.
func (w *Writer) inMember(o *object, m int) int {
	w.under(o.members[m].name)
	if o.row {
		w.bad.Column = o.members[m].name
	}
	return -1
}

// skipTo writes what stands for the members before m, or gives the order up.
func (w *Writer) skipTo(f *frame, dst []byte, m int) []byte {
	for ; f.next < m; f.next++ {
		absent := f.o.members[f.next].absent
		if absent == nil {
			f.ordered = false
			return dst
		}
		dst = append(dst, absent...)
	}
	f.ordered = f.next == m
	f.next++
	return dst
}

// pass writes what stands for the members up to end.
func (w *Writer) pass(f *frame, dst []byte, end int) ([]byte, bool) {
	for ; f.next < end; f.next++ {
		absent := w.standIn(f, f.next)
		if absent == nil {
			return dst, false
		}
		dst = append(dst, absent...)
	}
	return dst, true
}

// arrange writes the members again, in their order.
func (w *Writer) arrange(f *frame, dst []byte) ([]byte, bool) {
	w.pieces = append(w.pieces[:0], dst[f.start:]...)
	dst = dst[:f.start]
	for m := range f.o.members {
		if at := w.spans[f.base+m]; at.end != 0 {
			dst = append(dst, w.pieces[at.start-f.start:at.end-f.start]...)
			continue
		}
		absent := w.standIn(f, m)
		if absent == nil {
			return dst, false
		}
		dst = append(dst, absent...)
	}
	return dst, true
}

// standIn is what stands for the absent member m; nil after refusing the record.
func (w *Writer) standIn(f *frame, m int) []byte {
	to := &f.o.members[m]
	switch {
	case to.absent != nil:
		return to.absent
	case f.deletion:
		return defaultMarker()
	}
	w.bad = Refusal{Code: CodeMissing, Message: "no key for it, and " + to.typ.typ + " has neither a default nor NULL"}
	w.inMember(f.o, m)
	return nil
}

// addressed is a key and what it addresses.
type addressed struct {
	to     target
	key    keyRef
	quoted span // where it stands in src, quotes included
}

// elsewhere takes the value of a key that is not one member's.
func (w *Writer) elsewhere(f *frame, l *lookup, key addressed, dst []byte, i int) ([]byte, int) {
	switch to := key.to; to.kind {
	case toGroup:
		g := &f.o.groups[to.index]
		if w.slots[g.slot].end != 0 {
			w.bad = Refusal{Code: CodeDuplicateKey, Message: "given twice", Path: g.name}
			return dst, -1
		}
		w.occupy(g.slot, span{i, i + 1})
		if dst, i = w.group(f, g, dst, i); i < 0 && w.bad.Column == "" {
			w.under(g.name)
			w.bad.Column = g.name
		}
		return dst, i
	case toDotted:
		d := f.o.dotted[to.index]
		if w.slots[d.slot].end != 0 {
			w.bad = Refusal{Code: CodeDuplicateKey, Message: "given twice", Path: d.name}
			return dst, -1
		}
		end := w.skip(i, 0)
		if end < 0 {
			w.under(d.name)
			return dst, -1
		}
		w.occupy(d.slot, span{i, end})
		return dst, end
	}
	return dst, w.unknownField(f.o.row && l == &f.o.keys, key, i)
}

func (w *Writer) occupy(slot int, at span) {
	w.slots[slot] = at
	w.used = append(w.used, slot)
}

// unknownField takes a field that no column takes. Only those at the top can be
// collected: one inside an array would lose its place.
func (w *Writer) unknownField(top bool, field addressed, i int) int {
	key := field.key
	w.unknown++
	w.remember(key)
	e := w.encoder
	if e.unknown == UnknownRefuse || e.unknown == UnknownCollect && !top {
		w.bad = Refusal{Code: CodeUnknownField, Message: "no column takes the key " + excerpt(w.keyText(key))}
		return -1
	}
	start := i
	if i = w.skip(i, 0); i < 0 {
		w.under(excerpt(w.keyText(key)))
		return -1
	}
	if e.unknown == UnknownCollect {
		w.extra = append(w.extra, unknownField{field.quoted, span{start, i}})
	}
	return i
}

// atIndex says that the refusal lies below an index of its path.
func (w *Writer) atIndex(n int) int {
	w.under("[" + strconv.Itoa(n) + "]")
	return -1
}
