package rowbinary

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// typeCompiler turns types into nodes by the pipeline's options.
type typeCompiler struct {
	fold     bool
	zero     bool // a Tuple's member that is absent gets its type's default
	truncate bool
	epoch    Epoch
	zone     *time.Location
	follow   int // predictions handed out so far
}

var (
	errUnsupported = errors.New("type not supported; make the column MATERIALIZED, or change its type")
	errRawColumn   = errors.New("only a String column can take the JSON text of any value")
	errArguments   = errors.New("these arguments of the type are not known")
)

// typeError is what is wrong with a type, or with one inside it.
type typeError struct {
	text string
	err  error
}

func (e *typeError) Error() string { return e.text + ": " + e.err.Error() }

func (e *typeError) Unwrap() error { return e.err }

// compile reads a type's text. Its error names the type only where that is not
// the whole text.
func (c *typeCompiler) compile(text string) (*node, error) {
	t, err := parseType(text)
	if err != nil {
		return nil, err
	}
	n, err := c.node(t)
	if inner := (*typeError)(nil); errors.As(err, &inner) && inner.text == t.text {
		return nil, inner.err
	}
	return n, err
}

func (c *typeCompiler) node(t *typeExpr) (*node, error) {
	n, err := c.build(t)
	if inner := (*typeError)(nil); err != nil && !errors.As(err, &inner) {
		err = &typeError{t.text, err}
	}
	if err != nil {
		return nil, err
	}
	if n.typ == "" {
		n.typ = t.text
	}
	if n.zero == nil {
		n.zero = make([]byte, n.size)
	}
	return n, nil
}

func (c *typeCompiler) build(t *typeExpr) (*node, error) {
	if n := plainNode(t); n != nil {
		return n, nil
	}
	switch t.name {
	case "Nullable":
		return c.nullable(t)
	case "LowCardinality":
		return c.only(t)
	case "SimpleAggregateFunction":
		if len(t.args) != 2 || t.args[1].typ == nil {
			return nil, errArguments
		}
		return c.node(t.args[1].typ)
	case "FixedString":
		if len(t.args) != 1 || t.args[0].number == nil || *t.args[0].number < 1 {
			return nil, errArguments
		}
		return &node{op: opFixedString, size: int(*t.args[0].number)}, nil
	case "Decimal", "Decimal32", "Decimal64", "Decimal128", "Decimal256":
		return decimalNode(t)
	case "DateTime", "DateTime64":
		return c.dateTime(t)
	case "Enum8", "Enum16", "Enum":
		return enumNode(t)
	case "Array", "Map", "Tuple", "Nested":
		return c.composite(t)
	case "JSON":
		return jsonNode(t)
	}
	if text, ok := geoTypes(t.name); ok && len(t.args) == 0 {
		n, err := c.compile(text)
		if err == nil {
			n.typ = t.text
		}
		return n, err
	}
	return nil, errUnsupported
}

// geoTypes gives what the geometric types are made of.
func geoTypes(name string) (string, bool) {
	switch name {
	case "Point":
		return "Tuple(Float64, Float64)", true
	case "Ring", "LineString":
		return "Array(Point)", true
	case "Polygon":
		return "Array(Ring)", true
	case "MultiLineString":
		return "Array(LineString)", true
	case "MultiPolygon":
		return "Array(Polygon)", true
	}
	return "", false
}

// plainNode is the node of a type without arguments, nil for any other.
func plainNode(t *typeExpr) *node {
	if len(t.args) > 0 {
		return nil
	}
	name := t.name
	if unsigned := strings.HasPrefix(name, "UInt"); unsigned || strings.HasPrefix(name, "Int") {
		switch width := name[strings.IndexByte(name, 't')+1:]; width {
		case "8", "16", "32", "64", "128", "256":
			return intNode(width, unsigned)
		}
		return nil
	}
	switch name {
	case "String":
		return &node{op: opString, size: 1}
	case "Float32":
		return &node{op: opFloat32, size: 4}
	case "Float64":
		return &node{op: opFloat64, size: 8}
	case "BFloat16":
		return &node{op: opBFloat16, size: 2}
	case "Bool":
		return &node{op: opBool, size: 1}
	case "Date":
		return &node{op: opDate, size: 2}
	case "Date32":
		first := int32(minDate32)
		return &node{op: opDate32, size: 4, zero: binary.LittleEndian.AppendUint32(nil, uint32(first))}
	case "UUID":
		return &node{op: opUUID, size: 16}
	case "IPv4":
		return &node{op: opIPv4, size: 4}
	case "IPv6":
		return &node{op: opIPv6, size: 16}
	}
	return nil
}

func intNode(width string, unsigned bool) *node {
	bits := 0
	for _, d := range width {
		bits = bits*10 + int(d-'0')
	}
	n := &node{op: opInt, size: bits / 8}
	if unsigned {
		n.max = wideBits(bits)
		return n
	}
	n.max = wideBits(bits - 1)
	n.min = n.max
	n.min.mulAdd(1, 1)
	return n
}

func decimalNode(t *typeExpr) (*node, error) {
	var args [2]int
	if len(t.args) == 0 || len(t.args) > 2 {
		return nil, errArguments
	}
	for i, a := range t.args {
		if a.number == nil || a.name != "" || *a.number < 0 || *a.number > 76 {
			return nil, errArguments
		}
		args[i] = int(*a.number)
	}
	digits, scale := args[0], args[1]
	switch t.name {
	case "Decimal32":
		digits, scale = 9, args[0]
	case "Decimal64":
		digits, scale = 18, args[0]
	case "Decimal128":
		digits, scale = 38, args[0]
	case "Decimal256":
		digits, scale = 76, args[0]
	}
	if digits < 1 || scale > digits {
		return nil, errArguments
	}
	n := &node{op: opDecimal, scale: scale, max: wideDigits(digits), size: 32}
	for _, fit := range [][2]int{{38, 16}, {18, 8}, {9, 4}} {
		if digits <= fit[0] {
			n.size = fit[1]
		}
	}
	n.min = n.max
	return n, nil
}

func (c *typeCompiler) dateTime(t *typeExpr) (*node, error) {
	n := &node{op: opDateTime, size: 4, truncate: c.truncate, zone: c.zone}
	args := t.args
	if t.name == "DateTime64" {
		if len(args) == 0 || args[0].number == nil || *args[0].number < 0 || *args[0].number > nanosDigits {
			return nil, errArguments
		}
		n.op, n.size, n.scale = opDateTime64, 8, int(*args[0].number)
		args = args[1:]
	}
	if len(args) > 1 || len(args) == 1 && args[0].str == nil {
		return nil, errArguments
	}
	if len(args) == 1 {
		zone, err := loadZone(*args[0].str)
		if err != nil {
			return nil, err
		}
		n.zone = zone
	}
	switch c.epoch {
	case EpochSeconds:
		n.unit = n.scale
	case EpochMillis:
		n.unit = n.scale - 3
	case EpochMicros:
		n.unit = n.scale - 6
	case EpochNanos:
		n.unit = n.scale - 9
	}
	return n, nil
}

// loadZone reads a zone of the database; nil is UTC.
func loadZone(name string) (*time.Location, error) {
	switch name {
	case "UTC", "Etc/UTC", "GMT", "Etc/GMT", "Zulu", "Etc/Zulu":
		return nil, nil //nolint:nilnil // nil is how a node says UTC
	case "", "Local":
		return nil, fmt.Errorf("time zone %q is not one of the database", name)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("load the time zone: %w", err)
	}
	return zone, nil
}

func enumNode(t *typeExpr) (*node, error) {
	n := &node{op: opEnum, size: 1, enum: make(map[string]int16, len(t.args))}
	if t.name == "Enum16" {
		n.size = 2
	}
	value, least := int64(0), int64(1<<16)
	for _, a := range t.args {
		if a.str == nil {
			return nil, errArguments
		}
		value++ // without a number: one more than the name before
		if a.number != nil {
			value = *a.number
		}
		if limit := int64(1) << (8*n.size - 1); value < -limit || value >= limit {
			return nil, errArguments
		}
		n.enum[*a.str] = int16(value)
		least = min(least, value)
	}
	if len(n.enum) == 0 {
		return nil, errArguments
	}
	n.zero = wide{uint64(least)}.appendTo(nil, n.size, false)
	return n, nil
}

// jsonNode accepts the parameters that only say how the server stores the paths.
// A path with a type would let the server convert, and refuse, values by itself.
// defaultTypes is the server's max_dynamic_types.
const defaultTypes = 32

func jsonNode(t *typeExpr) (*node, error) {
	n := &node{op: opJSON, zero: []byte("\x02{}"), types: defaultTypes}
	for _, a := range t.args {
		if a.name == "max_dynamic_types" && a.number != nil {
			n.types = *a.number
		}
		if a.named && a.name != "SKIP" {
			return nil, fmt.Errorf("path %s has a type, which the server would convert values to by itself; use JSON without it, or a column of its own", a.name)
		}
	}
	return n, nil
}

func (c *typeCompiler) only(t *typeExpr) (*node, error) {
	if len(t.args) != 1 || t.args[0].typ == nil || t.args[0].named {
		return nil, errArguments
	}
	return c.node(t.args[0].typ)
}

func (c *typeCompiler) nullable(t *typeExpr) (*node, error) {
	inner, err := c.only(t)
	if err != nil {
		return nil, err
	}
	if inner.nullable {
		return nil, errArguments
	}
	n := *inner
	n.nullable, n.zero, n.typ = true, []byte{1}, t.text
	return &n, nil
}

func (c *typeCompiler) composite(t *typeExpr) (*node, error) {
	var err error
	n := &node{zero: []byte{0}}
	switch t.name {
	case "Array":
		n.op = opArray
		n.elem, err = c.only(t)
	case "Map":
		if len(t.args) != 2 || t.args[0].typ == nil || t.args[1].typ == nil {
			return nil, errArguments
		}
		n.op = opMap
		if n.key, err = c.node(t.args[0].typ); err != nil {
			return nil, err
		}
		if n.key.op >= opArray || n.key.nullable {
			return nil, errors.New("a key of this type is not a JSON key; use String keys")
		}
		n.elem, err = c.node(t.args[1].typ)
	case "Nested":
		n.op = opNested
		n.elem, err = c.tuple(t)
		if err == nil && n.elem.op != opTuple {
			err = errArguments
		}
	default:
		return c.tuple(t)
	}
	return n, err
}

func (c *typeCompiler) tuple(t *typeExpr) (*node, error) {
	if len(t.args) == 0 {
		return nil, errUnsupported
	}
	n := &node{op: opUnnamed, typ: t.text}
	var members []member
	for _, a := range t.args {
		if a.typ == nil || a.named != t.args[0].named {
			return nil, errArguments
		}
		m, err := c.node(a.typ)
		if err != nil {
			return nil, err
		}
		n.unnamed = append(n.unnamed, m)
		n.zero = append(n.zero, m.zero...)
		members = append(members, member{name: a.name, typ: m, absent: c.absent(m)})
	}
	if !t.args[0].named {
		return n, nil
	}
	n.op = opTuple
	n.members = &object{members: members, keys: c.lookup(len(members))}
	n.members.keys.predicts = predictable(members)
	for i, m := range members {
		if !utf8.ValidString(m.name) || !n.members.keys.add(m.name, target{toMember, i, i}) {
			return nil, fmt.Errorf("member %q is there twice or not UTF-8", m.name)
		}
	}
	return n, nil
}

// absent is what stands for an element or a Tuple's member without a key.
func (c *typeCompiler) absent(n *node) []byte {
	if n.nullable || c.zero {
		return n.zero
	}
	return nil
}

// lookup makes a table for n keys and hands out its predictions.
func (c *typeCompiler) lookup(n int) lookup {
	l := newLookup(n, c.fold)
	l.follow = c.follow
	c.follow += n + 1
	return l
}
