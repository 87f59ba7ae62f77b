package e2e

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/engine/faults"
	"oncehouse/infra/local/lambdahost"
)

// freezes are the moments at which an invocation is frozen (SIGSTOP). release
// is closed just before it is thawed.
var freezes = []struct {
	name string
	arm  func(p *pipeline, freeze func(), release <-chan struct{})
}{
	{"before-its-insert", func(p *pipeline, freeze func(), _ <-chan struct{}) { p.writes.beforeAnswer(1, freeze) }},
	{"before-its-commit", func(p *pipeline, freeze func(), _ <-chan struct{}) {
		p.inserts.Next(faults.HoldAnswer(freeze, closed()))
	}},
	{"before-its-answer", func(p *pipeline, freeze func(), _ <-chan struct{}) { p.writes.beforeAnswer(2, freeze) }},
	{"in-its-insert", func(p *pipeline, freeze func(), release <-chan struct{}) {
		p.inserts.Next(faults.HoldBody(700, freeze, release))
	}},
}

func closed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// D20: a zombie, frozen in the middle of its invocation and thawed after others
// have moved its lane on by two chunks, stores nothing and settles nothing.
func (s *stack) testZombies(t *testing.T) {
	t.Parallel()
	for _, f := range freezes {
		for size, first := range map[string]int64{"small": 10, "middle": -1500, "large": -6000} {
			t.Run(f.name+"/"+size, func(t *testing.T) {
				t.Parallel()
				p := s.pipeline(t, "zombie-"+f.name+"-"+size, options{memoryMB: 256, settings: []string{"INSERT_TIMEOUT=3s"}})
				from := max(first, 0)
				if from > 0 {
					p.deliver(event(batch(2, 0, from-1)))
				}
				frozen, release := make(chan int, 1), make(chan struct{})
				f.arm(p, func() {
					pid := int(p.busy.Load())
					_ = syscall.Kill(-pid, syscall.SIGSTOP)
					frozen <- pid
				}, release)
				last := from + 9 - min(first, 0)
				zombie := make(chan lambdahost.Result, 1)
				go func() {
					result, err := p.Invoke(t.Context(), event(batch(2, from, last)))
					if err == nil {
						zombie <- result
					}
					close(zombie)
				}()
				pid := <-frozen
				p.redeliver(event(batch(2, from, last+5)))
				p.redeliver(event(batch(2, last+6, last+15)))
				require.Equal(t, through(0, last+15), p.offsets())
				close(release)
				require.NoError(t, syscall.Kill(-pid, syscall.SIGCONT))
				<-zombie // whatever it says
				p.redeliver(event(batch(2, from, last+20)))
				require.Equal(t, through(0, last+20), p.offsets())
			})
		}
	}
}
