package faults

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Start is New for a test: closed with it, and every armed fault must have
// been met by then.
func Start(t testing.TB, target string) *Proxy {
	t.Helper()
	p, err := New(t.Context(), target)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, p.Close())
		require.Empty(t, p.Pending(), "faults that no request met")
	})
	return p
}
