package rowbinary

// json checks the object at i as the value of a JSON column. The server parses
// it, so that whatever it would refuse, or change, is refused here: a row that
// the server refuses takes its whole insert with it.
func (w *Writer) json(i int) int {
	w.strict, w.dots, w.kinds = true, false, 0
	end := w.skip(i, 0)
	w.strict = false
	if end < 0 {
		return -1
	}
	if w.dots && !w.distinctPaths(i) {
		return -1
	}
	return end
}

// distinctPaths checks that no two values of the object at i have one path: the
// column keeps {"a.b":1} and {"a":{"b":1}} alike. The object is valid JSON. It is
// only asked where a key holds a dot, so it may allocate.
func (w *Writer) distinctPaths(i int) bool {
	paths := pathSet{w: w, seen: map[string]struct{}{}}
	paths.object(i, "")
	if paths.twice == "" {
		return true
	}
	w.bad = Refusal{Code: CodeDuplicateKey, Message: "two keys make the path " + excerpt([]byte(paths.twice)) + " of a JSON column"}
	return false
}

type pathSet struct {
	w     *Writer
	seen  map[string]struct{}
	twice string
}

func (p *pathSet) object(i int, prefix string) int {
	w := p.w
	i = space(w.src, i+1)
	for w.src[i] != '}' {
		key, end := w.key(i)
		path := prefix + string(w.keyText(key))
		i = p.value(w.colon(end), path)
		i = space(w.src, i)
		if w.src[i] == ',' {
			i = space(w.src, i+1)
		}
	}
	return i + 1
}

func (p *pathSet) value(i int, path string) int {
	switch p.w.src[i] {
	case '{':
		return p.object(i, path+".")
	case '[':
		p.add(path)
		return p.array(i)
	}
	p.add(path)
	return p.w.skip(i, 0)
}

// array looks into the objects of an array: each has paths of its own.
func (p *pathSet) array(i int) int {
	w := p.w
	i = space(w.src, i+1)
	for w.src[i] != ']' {
		switch w.src[i] {
		case '{':
			inner := pathSet{w: w, seen: map[string]struct{}{}}
			i = inner.object(i, "")
			p.twice = max(p.twice, inner.twice)
		case '[':
			i = p.array(i)
		default:
			i = w.skip(i, 0)
		}
		i = space(w.src, i)
		if w.src[i] == ',' {
			i = space(w.src, i+1)
		}
	}
	return i + 1
}

func (p *pathSet) add(path string) {
	if _, ok := p.seen[path]; ok {
		p.twice = path
	}
	p.seen[path] = struct{}{}
}
