// Package chdb runs the ClickHouse engine inside this process. It binds
// libchdb, the engine as a shared library, without cgo.
//
//	lib, err := chdb.Load(path)                 // once per process
//	conn, err := lib.Connect("--path=/data")    // cheap: about half a millisecond
//	res, err := conn.Query([]byte("SELECT 1"), "TSV", nil)
//
// All connections of one process share one data directory; each has its own
// settings, current database and temporary tables, and runs one statement at a
// time. Connections may be used in parallel.
//
// Memory: everything the library returns is its own. [Result] copies what it
// keeps and frees the rest before a call returns, so no pointer of the library
// ever reaches a caller. Everything handed to the library is copied by it
// during the call.
//
// The C functions are those of chdb.h of chdb-core 26.7; an older library lacks
// some of them and is refused.
//
//nolint:gosec // calling a C library is made of unsafe pointers
package chdb

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Library is the loaded engine. There is one per process.
type Library struct {
	setSignals func(on int32)
	version    func() unsafe.Pointer
	connect    func(argc int32, argv unsafe.Pointer) unsafe.Pointer
	closeConn  func(conn unsafe.Pointer)

	query    func(conn, sql unsafe.Pointer, sqlLen uintptr, format unsafe.Pointer, formatLen uintptr, names, nameLens, values, valueLens unsafe.Pointer, count uintptr) unsafe.Pointer
	classify func(conn, sql unsafe.Pointer, sqlLen uintptr, database unsafe.Pointer, databaseLen uintptr, out unsafe.Pointer) int32

	resultBuffer, resultError                                              func(res unsafe.Pointer) unsafe.Pointer
	resultLength                                                           func(res unsafe.Pointer) uintptr
	resultRowsRead, resultBytesRead, resultRowsWritten, resultBytesWritten func(res unsafe.Pointer) uint64
	resultRows                                                             func(res unsafe.Pointer) uint64
	destroyResult                                                          func(res unsafe.Pointer)
	insertBegin                                                            func(conn, sql unsafe.Pointer, sqlLen uintptr, format unsafe.Pointer, formatLen uintptr, names, nameLens, values, valueLens unsafe.Pointer, count uintptr) unsafe.Pointer
	insertAppend                                                           func(stream, data unsafe.Pointer, n uintptr) int32
	insertDone, insertError                                                func(stream unsafe.Pointer) unsafe.Pointer
	insertCancel, insertDestroy                                            func(stream unsafe.Pointer)
}

// Load opens the library at path and switches its signal handlers off: signals
// are the Go runtime's. Error: no such file, not a library, or one too old.
func Load(path string) (*Library, error) {
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, fmt.Errorf("load the ClickHouse engine: %w", err)
	}
	lib := &Library{}
	for name, fn := range map[string]any{
		"chdb_set_signal_handlers_enabled": &lib.setSignals,
		"chdb_version":                     &lib.version,
		"chdb_connect":                     &lib.connect,
		"chdb_close_conn":                  &lib.closeConn,
		"chdb_query_with_params_n":         &lib.query,
		"chdb_classify_query_n":            &lib.classify,
		"chdb_result_buffer":               &lib.resultBuffer,
		"chdb_result_error":                &lib.resultError,
		"chdb_result_length":               &lib.resultLength,
		"chdb_result_rows_read":            &lib.resultRows,
		"chdb_result_storage_rows_read":    &lib.resultRowsRead,
		"chdb_result_storage_bytes_read":   &lib.resultBytesRead,
		"chdb_result_rows_written":         &lib.resultRowsWritten,
		"chdb_result_bytes_written":        &lib.resultBytesWritten,
		"chdb_destroy_query_result":        &lib.destroyResult,
		"chdb_stream_insert_with_params_n": &lib.insertBegin,
		"chdb_stream_append":               &lib.insertAppend,
		"chdb_stream_done":                 &lib.insertDone,
		"chdb_stream_insert_error":         &lib.insertError,
		"chdb_stream_cancel_insert":        &lib.insertCancel,
		"chdb_destroy_insert_stream":       &lib.insertDestroy,
	} {
		sym, err := purego.Dlsym(handle, name)
		if err != nil {
			return nil, fmt.Errorf("load the ClickHouse engine: %s is too old: it has no %s", path, name)
		}
		purego.RegisterFunc(fn, sym)
	}
	lib.setSignals(0)
	return lib, nil
}

// Version is the library's own version, e.g. "26.7.3".
func (l *Library) Version() string { return goString(l.version()) }

// Connect opens a connection. Options have the form "--name=value":
// "--path=<directory>" and "--config-file=<file>" matter to the first
// connection, which starts the engine; the others must repeat the same path.
// Error: the directory is locked by another process or unusable; the library
// writes the reason to stderr and does not return it.
func (l *Library) Connect(options ...string) (*Conn, error) {
	args := append([]string{"clickhouse"}, options...)
	var pins runtime.Pinner
	defer pins.Unpin()
	argv := make([]unsafe.Pointer, len(args)+1)
	for i, arg := range args {
		argv[i] = pin(&pins, append([]byte(arg), 0))
	}
	pins.Pin(&argv[0])
	handle := l.connect(int32(len(args)), unsafe.Pointer(&argv[0]))
	if handle == nil {
		return nil, errors.New("connect to the engine: refused")
	}
	return &Conn{lib: l, handle: handle}, nil
}

// pin keeps b in place while the library reads it.
func pin(pins *runtime.Pinner, b []byte) unsafe.Pointer {
	if len(b) == 0 {
		return nil
	}
	p := unsafe.SliceData(b)
	pins.Pin(p)
	return unsafe.Pointer(p)
}

// goString copies a C string.
func goString(p unsafe.Pointer) string {
	if p == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(p, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(p), n))
}
