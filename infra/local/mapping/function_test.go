package mapping

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/lambdahost"
)

// storing is a real function process that stores records in a file.
type storing struct {
	*lambdahost.Function
	file string
}

func newStoring(t *testing.T, change func(*lambdahost.Config)) *storing {
	t.Helper()
	dir := t.TempDir()
	s := &storing{file: filepath.Join(dir, "store")}
	bootstrap := filepath.Join(dir, "bootstrap")
	build := exec.Command("go", "build", "-tags", "lambda.norpc", "-trimpath", "-o", bootstrap, "./testdata/bootstrap")
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	cfg := lambdahost.Config{
		Name: "storing", Bootstrap: bootstrap, Timeout: time.Minute, Concurrency: 4,
		Env: map[string]string{"STORE": s.file},
	}
	change(&cfg)
	s.Function, err = lambdahost.New(cfg)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// stored counts the lines of the file by what they say.
func (s *storing) stored(t *testing.T) map[string]int {
	t.Helper()
	text, err := os.ReadFile(s.file)
	require.NoError(t, err)
	count := map[string]int{}
	for line := range strings.Lines(string(text)) {
		count[strings.TrimSpace(line)]++
	}
	return count
}

// The real thing from end to end: a broker, the mapping, function processes
// that are killed with events in their hands. Nothing is lost.
func TestRealFunctionKilled(t *testing.T) {
	const partitions, records = 4, 500
	b := newBench(t, partitions)
	var fn *storing
	var events, kills atomic.Int64
	fn = newStoring(t, func(c *lambdahost.Config) {
		c.OnInvoke = func(d lambdahost.Delivery) {
			if events.Add(1)%4 == 1 && fn.Kill(d.Pid) {
				kills.Add(1)
			}
		}
	})
	var exits atomic.Int64
	m := b.start(fn, func(c *Config) {
		c.BatchSize, c.Pollers = 100, 4
		c.OnDelivery = func(d Delivery) {
			if d.Result.ErrorType == lambdahost.TypeExit {
				exits.Add(1)
			}
		}
	})
	for p := range int32(partitions) {
		b.produce(p, 0, records)
	}
	drain(t, m)
	m.Stop()
	stored := fn.stored(t)
	require.Len(t, stored, partitions*records)
	for p := range partitions {
		for o := range records {
			require.Equal(t, 1, stored[fmt.Sprintf("%d %d %d", p, o, o)], "killed before it had read its event")
		}
	}
	require.Positive(t, kills.Load())
	require.Equal(t, kills.Load(), exits.Load())
}
