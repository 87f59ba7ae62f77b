package queue

import (
	"crypto/md5" //nolint:gosec // the protocol's checksum, no secret
	"encoding/binary"
	"encoding/hex"
	"hash"
	"maps"
	"slices"
	"strings"
)

func md5Body(body string) string {
	sum := md5.Sum([]byte(body)) //nolint:gosec // the protocol's checksum, no secret
	return hex.EncodeToString(sum[:])
}

// md5Attributes is the checksum that the SQS developer guide defines under
// "Calculating the MD5 message digest for message attributes": by name, each
// part with its length before it as 4 bytes, big endian.
func md5Attributes(attributes map[string]attribute) string {
	h := md5.New() //nolint:gosec // the protocol's checksum, no secret
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		a := attributes[name]
		part(h, []byte(name))
		part(h, []byte(a.DataType))
		if strings.HasPrefix(a.DataType, "Binary") {
			h.Write([]byte{2})
			part(h, a.BinaryValue)
			continue
		}
		h.Write([]byte{1})
		value := ""
		if a.StringValue != nil {
			value = *a.StringValue
		}
		part(h, []byte(value))
	}
	return hex.EncodeToString(h.Sum(nil))
}

func part(h hash.Hash, b []byte) {
	var n [4]byte
	binary.BigEndian.PutUint32(n[:], uint32(len(b)))
	h.Write(n[:])
	h.Write(b)
}
