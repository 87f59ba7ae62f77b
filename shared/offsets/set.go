// Package offsets is a set of Kafka offsets held as ascending, disjoint,
// inclusive ranges. A batch with gaps (compaction, transaction markers) is such
// a set, so it is never described by its bounds or its count alone.
package offsets

import (
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
)

// Range is the offsets First..Last, both included.
type Range struct{ First, Last int64 }

// Set is a set of offsets: ranges ascending, disjoint, never adjacent. The
// zero value is the empty set. A Set is a value: no method changes it.
type Set []Range

// Of returns the set of the given ascending offsets.
func Of(ascending ...int64) Set {
	var s Set
	for _, o := range ascending {
		s = s.Append(o)
	}
	return s
}

// Between returns the set first..last, empty when last < first.
func Between(first, last int64) Set {
	if last < first {
		return nil
	}
	return Set{{first, last}}
}

// Append returns s with an offset above every one in it. It may reuse s's
// memory, as append does. It panics on a lower offset: order is the caller's
// invariant, checked where the batch enters.
func (s Set) Append(offset int64) Set {
	if n := len(s); n > 0 {
		if offset <= s[n-1].Last {
			panic(fmt.Sprintf("offsets: append %d after %d", offset, s[n-1].Last))
		}
		if offset == s[n-1].Last+1 {
			s[n-1].Last = offset
			return s
		}
	}
	return append(s, Range{offset, offset})
}

// Contains reports whether offset is in s.
func (s Set) Contains(offset int64) bool {
	i, ok := slices.BinarySearchFunc(s, offset, func(r Range, o int64) int {
		switch {
		case r.Last < o:
			return -1
		case r.First > o:
			return 1
		}
		return 0
	})
	return ok && i < len(s)
}

// Len is the number of offsets in s.
func (s Set) Len() int64 {
	var n int64
	for _, r := range s {
		n += r.Last - r.First + 1
	}
	return n
}

// First is the lowest offset of a set that is not empty.
func (s Set) First() int64 { return s[0].First }

// Last is the highest offset of a set that is not empty.
func (s Set) Last() int64 { return s[len(s)-1].Last }

// All yields every offset, ascending.
func (s Set) All() iter.Seq[int64] {
	return func(yield func(int64) bool) {
		for _, r := range s {
			for o := r.First; ; o++ {
				if !yield(o) {
					return
				}
				if o == r.Last {
					break
				}
			}
		}
	}
}

// Union returns the offsets in s or t.
func (s Set) Union(t Set) Set {
	all := make(Set, 0, len(s)+len(t))
	all = append(append(all, s...), t...)
	slices.SortFunc(all, func(a, b Range) int { return cmpInt(a.First, b.First) })
	var out Set
	for _, r := range all {
		if n := len(out); n > 0 && r.First <= out[n-1].Last+1 {
			out[n-1].Last = max(out[n-1].Last, r.Last)
			continue
		}
		out = append(out, r)
	}
	return out
}

// Minus returns the offsets in s and not in t.
func (s Set) Minus(t Set) Set {
	var out Set
	i := 0
	for _, r := range s {
		for first := r.First; first <= r.Last; {
			for i < len(t) && t[i].Last < first {
				i++
			}
			if i == len(t) || t[i].First > r.Last {
				out = append(out, Range{first, r.Last})
				break
			}
			if t[i].First > first {
				out = append(out, Range{first, t[i].First - 1})
			}
			if t[i].Last >= r.Last {
				break
			}
			first = t[i].Last + 1
		}
	}
	return out
}

// Intersect returns the offsets in both s and t.
func (s Set) Intersect(t Set) Set { return s.Minus(s.Minus(t)) }

// Equal reports whether s and t hold the same offsets.
func (s Set) Equal(t Set) bool { return slices.Equal(s, t) }

// String is the set as people and the ledger write it: "10-19,25,30-31".
func (s Set) String() string {
	var b strings.Builder
	for i, r := range s {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatInt(r.First, 10))
		if r.Last > r.First {
			b.WriteByte('-')
			b.WriteString(strconv.FormatInt(r.Last, 10))
		}
	}
	return b.String()
}

// Parse reads what String writes. Anything else (descending, overlapping,
// adjacent, negative) is an error: a ledger entry that was edited by hand is
// never read as something it does not say.
func Parse(text string) (Set, error) {
	if text == "" {
		return nil, nil
	}
	var s Set
	for part := range strings.SplitSeq(text, ",") {
		a, b, ranged := strings.Cut(part, "-")
		first, err := strconv.ParseInt(a, 10, 64)
		last := first
		if err == nil && ranged {
			last, err = strconv.ParseInt(b, 10, 64)
		}
		if err != nil || first < 0 || last < first || (ranged && last == first) {
			return nil, fmt.Errorf("parse offsets %q: bad range %q", text, part)
		}
		if n := len(s); n > 0 && first <= s[n-1].Last+1 {
			return nil, fmt.Errorf("parse offsets %q: range %q is not above the one before it", text, part)
		}
		s = append(s, Range{first, last})
	}
	return s, nil
}

// MarshalText writes what String shows, so that a set is text in JSON too.
func (s Set) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText writes, as Parse does.
func (s *Set) UnmarshalText(text []byte) error {
	set, err := Parse(string(text))
	*s = set
	return err
}

func cmpInt(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
