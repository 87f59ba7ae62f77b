package settings

import (
	"fmt"
	"strconv"
	"strings"
)

// Bytes is a number of bytes, written with or without a unit: 65536, 64KiB,
// 64MiB, 64MB.
type Bytes int64

// UnmarshalText reads a number with a unit.
func (b *Bytes) UnmarshalText(text []byte) error {
	digits, factor := strings.TrimSpace(string(text)), int64(1)
	for _, unit := range []struct {
		name string
		size int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}} {
		if head, ok := strings.CutSuffix(digits, unit.name); ok {
			digits, factor = strings.TrimSpace(head), unit.size
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > 1<<50/factor {
		return fmt.Errorf("%q is not a number of bytes such as 64MiB", text)
	}
	*b = Bytes(n * factor)
	return nil
}

// String is the number in the largest unit that divides it.
func (b Bytes) String() string {
	for _, unit := range []struct {
		name string
		size Bytes
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if b > 0 && b%unit.size == 0 {
			return strconv.FormatInt(int64(b/unit.size), 10) + unit.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// MarshalText is String.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }
