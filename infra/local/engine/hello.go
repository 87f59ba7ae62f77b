package engine

import (
	"encoding/binary"
	"errors"
	"strings"
)

// helloQuery is how clickhouse-go opens a connection over HTTP.
const helloQuery = "SELECT displayName(), version(), revision(), timezone()"

// isHello: the driver's first query, which it reads at its own protocol
// revision because it does not know the server's yet.
func isHello(sql []byte, req *request) bool {
	return req.format == "Native" && req.options.Has("client_protocol_version") && strings.TrimSpace(string(sql)) == helloQuery
}

// reframeHello turns the answer to the handshake, a Native block without
// revision as the library writes it, into one of the driver's revision: a block
// info in front, and a byte for "no custom serialization" behind each type. The
// revision it reports becomes 0, so that the driver reads every later block as
// the library writes it.
func reframeHello(block []byte) ([]byte, error) {
	out := []byte{1, 0, 2, 0xff, 0xff, 0xff, 0xff, 0} // is_overflows = 0, bucket_num = -1
	r := nativeReader{rest: block}
	columns, rows := r.uvarint(), r.uvarint()
	out = binary.AppendUvarint(out, columns)
	out = binary.AppendUvarint(out, rows)
	if rows != 1 {
		return nil, errors.New("read the handshake: not one row")
	}
	for range columns {
		name, kind := r.bytes(r.uvarint()), r.bytes(r.uvarint())
		out = appendBytes(appendBytes(out, name), kind)
		out = append(out, 0)
		switch string(kind) {
		case "String":
			out = appendBytes(out, r.bytes(r.uvarint()))
		case "UInt32":
			r.bytes(4)
			out = append(out, 0, 0, 0, 0)
		default:
			return nil, errors.New("read the handshake: a column of type " + string(kind))
		}
	}
	if r.short {
		return nil, errors.New("read the handshake: it is cut short")
	}
	return out, nil
}

func appendBytes(out, b []byte) []byte {
	return append(binary.AppendUvarint(out, uint64(len(b))), b...)
}

type nativeReader struct {
	rest  []byte
	short bool
}

func (r *nativeReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.short = true
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *nativeReader) bytes(n uint64) []byte {
	if n > uint64(len(r.rest)) {
		r.short, n = true, 0
	}
	out := r.rest[:n]
	r.rest = r.rest[n:]
	return out
}
