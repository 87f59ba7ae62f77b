//nolint:gosec // calling a C library is made of unsafe pointers
package chdb

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"unsafe"
)

// Conn is one connection. It runs one statement at a time.
type Conn struct {
	lib *Library
	// handle points to the connection pointer, as chdb_connect returns it.
	handle unsafe.Pointer
}

// Close frees the connection and everything it holds. It must not be used
// afterwards.
func (c *Conn) Close() {
	if c.handle != nil {
		c.lib.closeConn(c.handle)
		c.handle = nil
	}
}

func (c *Conn) pointer() unsafe.Pointer { return *(*unsafe.Pointer)(c.handle) }

// Result is what a statement returned.
type Result struct {
	// Data is the output in the asked format.
	Data []byte
	// ResultRows is the number of rows in Data.
	ResultRows uint64
	// ReadRows and ReadBytes were read from storage.
	ReadRows, ReadBytes uint64
	// WrittenRows and WrittenBytes include what materialized views wrote.
	WrittenRows, WrittenBytes uint64
}

// Error is an exception of the engine: its text as the engine prints it,
// "Code: 60. DB::Exception: ... (UNKNOWN_TABLE)".
type Error struct{ Text string }

func (e *Error) Error() string { return e.Text }

// Query runs sql, which may hold zero bytes, with {name:Type} parameters.
// Error: *Error, an exception of the engine.
func (c *Conn) Query(sql []byte, format string, params map[string]string) (*Result, error) {
	var pins runtime.Pinner
	defer pins.Unpin()
	f, p := []byte(format), pinParams(&pins, params)
	return c.lib.take(c.lib.query(c.pointer(), pin(&pins, sql), uintptr(len(sql)), pin(&pins, f), uintptr(len(f)),
		p.names, p.nameLens, p.values, p.valueLens, p.count))
}

// paramArrays are parameters as the library takes them: parallel arrays.
type paramArrays struct {
	names, nameLens, values, valueLens unsafe.Pointer
	count                              uintptr
}

func pinParams(pins *runtime.Pinner, params map[string]string) paramArrays {
	n := len(params)
	names, values := make([]unsafe.Pointer, 0, n+1), make([]unsafe.Pointer, 0, n+1)
	nameLens, valueLens := make([]uintptr, 0, n+1), make([]uintptr, 0, n+1)
	for name, value := range params {
		names, nameLens = append(names, pin(pins, append([]byte(name), 0))), append(nameLens, uintptr(len(name)))
		values, valueLens = append(values, pin(pins, append([]byte(value), 0))), append(valueLens, uintptr(len(value)))
	}
	return paramArrays{pinSlice(pins, names), pinSlice(pins, nameLens), pinSlice(pins, values), pinSlice(pins, valueLens), uintptr(n)}
}

// pinSlice pins the array of s, which has room for one element at least.
func pinSlice[T any](pins *runtime.Pinner, s []T) unsafe.Pointer {
	p := unsafe.SliceData(s)
	pins.Pin(p)
	return unsafe.Pointer(p)
}

// Class is what a statement does, as the engine's own parser sees it.
type Class uint32

// The classes, by how restricted a statement is.
const (
	ReadOnly       Class = iota // SELECT, SHOW, DESCRIBE, EXPLAIN, EXISTS, CHECK
	Mutating                    // INSERT, CREATE, ALTER, DROP and their like
	MutatingGlobal              // functions, users, named collections
	Control                     // USE, SET, SYSTEM, KILL, BACKUP, INTO OUTFILE
	Unknown                     // it does not parse
)

// analysis is chdb_query_analysis_v1.
type analysis struct{ size, statements, flags, class uint32 }

// Classify parses sql without running it; Unknown when it does not parse.
func (c *Conn) Classify(sql []byte) (Class, error) {
	var pins runtime.Pinner
	defer pins.Unpin()
	out := &analysis{size: uint32(unsafe.Sizeof(analysis{}))}
	pins.Pin(out)
	if c.lib.classify(c.pointer(), pin(&pins, sql), uintptr(len(sql)), nil, 0, unsafe.Pointer(out)) != 0 {
		return Unknown, errors.New("classify the statement: the connection is closed")
	}
	return Class(out.class), nil
}

// insertBuffer is how much of the data the library gets at once.
const insertBuffer = 1 << 20

// Insert runs sql, an INSERT without FORMAT clause and data, on the data in the
// given format. It holds about one block of the data in memory at a time. When
// data fails, the insert is cancelled: blocks that the engine has already
// written out stay (none below min_insert_block_size_rows and -bytes).
// Error: *Error, an exception of the engine; or what data returned.
func (c *Conn) Insert(sql []byte, format string, params map[string]string, data io.Reader) (*Result, error) {
	stream, err := c.beginInsert(sql, format, params)
	if err != nil {
		return nil, err
	}
	defer c.lib.insertDestroy(stream)
	buf := make([]byte, insertBuffer)
	for {
		n, err := fill(data, buf)
		if err != nil && !errors.Is(err, io.EOF) {
			c.lib.insertCancel(stream)
			return nil, fmt.Errorf("read the data of the insert: %w", err)
		}
		if n > 0 && !c.append(stream, buf[:n]) {
			break // done reports why
		}
		if err != nil {
			break
		}
	}
	return c.lib.take(c.lib.insertDone(stream))
}

// fill reads until buf is full or data ends. Not io.ReadFull: its
// ErrUnexpectedEOF for a short last buffer is also what a truncated HTTP body
// returns, and the one commits the insert where the other cancels it.
func fill(data io.Reader, buf []byte) (int, error) {
	n := 0
	for n < len(buf) {
		m, err := data.Read(buf[n:])
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func (c *Conn) beginInsert(sql []byte, format string, params map[string]string) (unsafe.Pointer, error) {
	var pins runtime.Pinner
	defer pins.Unpin()
	f, p := []byte(format), pinParams(&pins, params)
	stream := c.lib.insertBegin(c.pointer(), pin(&pins, sql), uintptr(len(sql)), pin(&pins, f), uintptr(len(f)),
		p.names, p.nameLens, p.values, p.valueLens, p.count)
	if text := goString(c.lib.insertError(stream)); text != "" {
		c.lib.insertDestroy(stream)
		return nil, &Error{Text: text}
	}
	return stream, nil
}

func (c *Conn) append(stream unsafe.Pointer, data []byte) bool {
	var pins runtime.Pinner
	defer pins.Unpin()
	return c.lib.insertAppend(stream, pin(&pins, data), uintptr(len(data))) == 0
}

// take copies a result of the library and frees it.
func (l *Library) take(res unsafe.Pointer) (*Result, error) {
	if res == nil {
		return nil, errors.New("read the engine's answer: there is none")
	}
	defer l.destroyResult(res)
	if text := goString(l.resultError(res)); text != "" {
		return nil, &Error{Text: text}
	}
	out := &Result{
		ResultRows: l.resultRows(res), ReadRows: l.resultRowsRead(res), ReadBytes: l.resultBytesRead(res),
		WrittenRows: l.resultRowsWritten(res), WrittenBytes: l.resultBytesWritten(res),
	}
	if n := l.resultLength(res); n > 0 {
		out.Data = append([]byte(nil), unsafe.Slice((*byte)(l.resultBuffer(res)), n)...)
	}
	return out, nil
}
