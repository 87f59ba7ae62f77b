package e2e

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/engine/faults"
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
				// On a busy machine the moment may have passed when it is seen.
				for tries := 1; !s.zombie(t, fmt.Sprintf("zombie-%s-%s-%d", f.name, size, tries), f.arm, first); tries++ {
					require.Less(t, tries, deliveries, "it was never frozen")
				}
			})
		}
	}
}

// zombie reports whether there was one: an invocation that was frozen while
// others moved on.
func (s *stack) zombie(t *testing.T, name string, arm func(p *pipeline, freeze func(), release <-chan struct{}), first int64) bool {
	t.Helper()
	p := s.pipeline(t, name, options{memoryMB: 256, settings: short("3s")})
	from := max(first, 0)
	last := from + 9 - min(first, 0)
	if from > 0 {
		p.redeliver(event(batch(2, 0, from-1)))
	}
	frozen, release := make(chan int, 1), make(chan struct{})
	let := sync.OnceFunc(func() { close(release) })
	defer let()
	arm(p, func() {
		if pid, ok := p.Freeze(); ok {
			frozen <- pid
		}
	}, release)
	zombie := make(chan struct{})
	go func() {
		defer close(zombie)
		_, _ = p.Invoke(t.Context(), event(batch(2, from, last))) // whatever it says
	}()
	var pid int
	select {
	case pid = <-frozen:
	case <-zombie:
		return false
	}
	p.redeliver(event(batch(2, from, last+5)))
	p.redeliver(event(batch(2, last+6, last+15)))
	require.Equal(t, through(0, last+15), p.offsets())
	select {
	case <-zombie: // its answer was under way
		return false
	default:
	}
	let()
	p.Thaw(pid)
	<-zombie
	p.redeliver(event(batch(2, from, last+20)))
	require.Equal(t, through(0, last+20), p.offsets())
	return true
}
