//go:build integration

package mapping

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/broker"
)

// Against Apache Kafka, killed in the middle: order kept, nothing lost, the
// group's offsets survive.
func TestApacheKilled(t *testing.T) {
	kafka, err := broker.Apache(t.Context(), broker.ApacheConfig{Cache: filepath.Join("..", "..", "..", ".cache", "kafka")})
	require.NoError(t, err)
	defer kafka.Close()
	b := newBenchOn(t, kafka, 2)
	b.produce(0, 0, 200)
	b.produce(1, 0, 200)
	half := make(chan struct{})
	goOn := make(chan struct{})
	f := &fake{handle: func(n int, _ seen) (string, error) {
		if n == 10 {
			close(half)
			<-goOn
		}
		return "", nil
	}}
	m := b.start(f, nil)
	<-half
	kafka.Kill()
	require.NoError(t, kafka.Restart(t.Context()))
	close(goOn)
	drain(t, m)
	for p := range 2 {
		got := slices.Concat(f.batches(p)...)
		slices.Sort(got)
		require.Equal(t, upTo(0, 199), slices.Compact(got))
		require.EqualValues(t, 200, b.committed(int32(p)))
	}
}
