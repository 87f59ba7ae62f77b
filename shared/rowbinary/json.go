package rowbinary

// The server writes out the path of every value. A long key over an object of many
// others makes so much of a small record that the insert of all its neighbours takes
// minutes.
const (
	fairPaths    = 1 << 20
	pathsPerByte = 16
)

// When a path has all the types that a JSON column keeps of it, the server makes a
// float of an integer. Of the objects in an array it keeps half as many, and so on;
// where none, each value has its own. No path of one insert should have so many.
const enoughTypes = 8

// json checks the object at i as the value of a JSON column. The server parses
// it, so that whatever it would refuse, or change, is refused here: a row that
// the server refuses takes its whole insert with it.
func (w *Writer) json(n *node, i int) int {
	w.strict, w.types, w.dots, w.arrays, w.prefix, w.paths = true, n.types, false, 0, 0, 0
	end := w.skip(i, 0)
	w.strict = false
	switch {
	case end < 0:
		return -1
	case w.paths > fairPaths+pathsPerByte*(end-i):
		return w.refuse(CodeTooDeep, i, "the paths of a JSON column together are far longer than the text")
	}
	if w.dots && !w.distinctPaths(i) {
		return -1
	}
	return end
}

// distinctPaths checks that every value of the object at i has a path of its own,
// and that none stands in the way of another: the column keeps {"a.b":1} and
// {"a":{"b":1}} alike, and gives {"a":1,"a.b":2} back with a key twice. The object is
// valid JSON. It is only asked where a key holds a dot, so it may allocate.
func (w *Writer) distinctPaths(i int) bool {
	p := paths{w: w, roles: map[uint64]role{}}
	p.object(i, pathStart)
	return !p.clash
}

// paths are those of one object by their hashes: a record may hold very many long
// ones, and two of one hash are refused like two that are one.
type paths struct {
	w     *Writer
	roles map[uint64]role
	clash bool
}

// role is what stands at a path.
type role uint8

const (
	pathValue role = iota + 1
	pathInner      // a path goes on from here
)

// The hash of a path is FNV-1a of its bytes.
const (
	pathStart = 0xcbf29ce484222325
	pathPrime = 0x100000001b3
)

func (p *paths) object(i int, prefix uint64) int {
	w := p.w
	i = space(w.src, i+1)
	for w.src[i] != '}' {
		key, end := w.key(i)
		path := prefix
		for _, c := range w.keyText(key) {
			if c == '.' {
				p.mark(path, pathInner, key)
			}
			path = (path ^ uint64(c)) * pathPrime
		}
		i = w.colon(end)
		switch w.src[i] {
		case '{':
			p.mark(path, pathInner, key)
			i = p.object(i, (path^'.')*pathPrime)
		case '[':
			p.mark(path, pathValue, key)
			i = p.array(i)
		default:
			p.mark(path, pathValue, key)
			i = w.skip(i, 0)
		}
		i = p.behind(i)
	}
	return i + 1
}

// array looks into the objects of an array: each has paths of its own.
func (p *paths) array(i int) int {
	w := p.w
	i = space(w.src, i+1)
	for w.src[i] != ']' {
		switch w.src[i] {
		case '{':
			inner := paths{w: w, roles: map[uint64]role{}}
			i = inner.object(i, pathStart)
			p.clash = p.clash || inner.clash
		case '[':
			i = p.array(i)
		default:
			i = w.skip(i, 0)
		}
		i = p.behind(i)
	}
	return i + 1
}

// behind is where the next key or value begins, or the closing bracket.
func (p *paths) behind(i int) int {
	if i = space(p.w.src, i); p.w.src[i] == ',' {
		i = space(p.w.src, i+1)
	}
	return i
}

func (p *paths) mark(path uint64, as role, key keyRef) {
	before := p.roles[path]
	p.roles[path] = max(before, as)
	if p.clash || before == 0 || before == pathInner && as == pathInner {
		return
	}
	p.clash = true
	p.w.bad = Refusal{Code: CodeDuplicateKey, Message: "the key " + excerpt(p.w.keyText(key)) + " of a JSON column makes a path that another key makes, too, or goes through"}
}
