package offsets

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestSetAgainstMap holds every operation against a plain set of numbers.
func TestSetAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := rapid.SliceOfNDistinct(rapid.Int64Range(0, 40), 0, 20, rapid.ID[int64])
		a, b := draw.Draw(t, "a"), draw.Draw(t, "b")
		slices.Sort(a)
		slices.Sort(b)
		s, u := Of(a...), Of(b...)

		require.Equal(t, int64(len(a)), s.Len())
		require.Equal(t, len(a) > 0, len(s) > 0)
		require.True(t, slices.Equal(a, slices.Collect(s.All())))
		require.True(t, Of(a...).Equal(s))
		for o := range int64(42) {
			inA, inB := slices.Contains(a, o), slices.Contains(b, o)
			require.Equal(t, inA, s.Contains(o))
			require.Equal(t, inA || inB, s.Union(u).Contains(o))
			require.Equal(t, inA && !inB, s.Minus(u).Contains(o))
			require.Equal(t, inA && inB, s.Intersect(u).Contains(o))
		}
		for _, r := range []Set{s.Union(u), s.Minus(u), s.Intersect(u)} {
			parsed, err := Parse(r.String())
			require.NoError(t, err, "canonical: ascending, disjoint, never adjacent")
			require.True(t, r.Equal(parsed))
		}
		require.True(t, slices.Equal(a, slices.Collect(s.All())), "no operation changes its receiver")
	})
}

// TestParseRefuses: what String never writes is never read as something else.
func TestParseRefuses(t *testing.T) {
	for _, text := range []string{",", "1,", "a", "-1", "2-1", "1-1", "1,2", "5,3", "1-3,2-4", "1-2-3", " 1", "1, 3", "99999999999999999999"} {
		_, err := Parse(text)
		require.Error(t, err, "%q", text)
	}
}

// TestAppendKeepsOrder: an offset that does not ascend is a broken caller.
func TestAppendKeepsOrder(t *testing.T) {
	require.Panics(t, func() { Of(3, 3) })
	require.Panics(t, func() { Of(3, 2) })
}

// TestBounds of sets that reach the largest offset.
func TestBounds(t *testing.T) {
	const most = int64(1<<63 - 1)
	s := Between(most-1, most)
	require.Equal(t, int64(2), s.Len())
	require.Equal(t, []int64{most - 1, most}, slices.Collect(s.All()))
	require.True(t, s.Union(Of(0)).Equal(Set{{0, 0}, {most - 1, most}}))
	require.Empty(t, Between(2, 1))
	require.True(t, Set{{0, most}}.Minus(Of(most)).Equal(Between(0, most-1)))
}
