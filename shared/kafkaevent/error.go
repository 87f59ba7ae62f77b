package kafkaevent

import (
	"fmt"
	"strconv"
	"strings"
)

// RefusedError says why an event was refused whole, and where.
type RefusedError struct {
	// Byte is the offset into the payload.
	Byte int
	// Partition is the name of the array the fault is in, topic-partition, ""
	// outside of one.
	Partition string
	// Record is the record's index in that array, -1 outside of a record.
	Record int
	// Message says what is wrong.
	Message string
}

// Error is one line: the fault, then the place.
func (e *RefusedError) Error() string {
	var b strings.Builder
	b.WriteString("refuse kafka event: ")
	b.WriteString(e.Message)
	b.WriteString(" (")
	if e.Partition != "" {
		fmt.Fprintf(&b, "partition %s, ", e.Partition)
	}
	if e.Record >= 0 {
		fmt.Fprintf(&b, "record %d, ", e.Record)
	}
	b.WriteString("byte ")
	b.WriteString(strconv.Itoa(e.Byte))
	b.WriteByte(')')
	return b.String()
}
