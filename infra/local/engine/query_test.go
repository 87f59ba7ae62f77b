package engine_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/engine"
	"oncehouse/infra/local/engine/enginetest"
)

// An answer, a number of rows, and what the server says instead of them.
func TestQuery(t *testing.T) {
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	url := enginetest.Run(t).URL()
	answer, err := engine.QueryText(t.Context(), url, "SELECT 'a', 1")
	require.NoError(t, err)
	require.Equal(t, "a\t1\n", answer)
	n, err := engine.Count(t.Context(), url, "numbers(10) WHERE number > 6")
	require.NoError(t, err)
	require.EqualValues(t, 3, n)
	_, err = engine.Count(t.Context(), url, "nowhere")
	require.ErrorContains(t, err, "query the engine: Code: 60")
}
