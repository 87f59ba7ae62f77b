package chain

import (
	"fmt"
	"strings"
	"time"
)

// say prints one line of its own. Output that cannot be written does not change
// what is proven.
func (r *run) say(format string, args ...any) {
	r.endProgress()
	_, _ = fmt.Fprintf(r.Out, format+"\n", args...)
}

const barWidth = 10

// progress prints how far the run is: on a terminal over the last one, on less
// than 80 columns, so that no line is broken.
func (r *run) progress() {
	took, committed, kills := time.Since(r.begun).Seconds(), r.chaos.committed.Load(), r.chaos.kills()
	stored := min(r.readers[0].stored, r.readers[1].stored)
	if !r.Terminal {
		_, _ = fmt.Fprintf(r.Out, "%-13s %5.1f s  committed %8d  stored %9d  kills %2d\n", "chain", took, committed, stored, kills)
		return
	}
	full := int(min(barWidth, barWidth*stored/max(1, r.Events)))
	_, _ = fmt.Fprintf(r.Out, "\r\033[K%-13s %5.1f s [%s%s] %d committed, %d stored, %d kills", "chain", took,
		strings.Repeat("#", full), strings.Repeat(".", barWidth-full), committed, stored, kills)
}

func (r *run) endProgress() {
	if r.Terminal {
		_, _ = fmt.Fprint(r.Out, "\r\033[K")
	}
}

// readerLine is one table's part of the proof.
type readerLine struct {
	name       string
	comparison *comparison
	suppressed int64
}

// show prints the proof for people.
func (r *run) show(p Proof, lines []readerLine) {
	_, _ = fmt.Fprintf(r.Out, "\n%-18s %10s %10s %8s %6s %11s %11s %20s\n",
		"the sink reads", "committed", "published", "stored", "lost", "duplicated", "misordered", "aborted, suppressed")
	for _, l := range lines {
		c := l.comparison
		_, _ = fmt.Fprintf(r.Out, "%-18s %10d %10d %8d %6d %11d %11d %20d\n",
			l.name, p.Committed, p.Published, c.stored, c.lost, c.doubled, c.moved, l.suppressed)
		for _, problem := range c.problems {
			_, _ = fmt.Fprintln(r.Out, "  e.g. "+problem)
		}
	}
	c := r.chaos
	_, _ = fmt.Fprintf(r.Out, "(killed: order service %d, database %d, poller %d, sinks %d, ClickHouse %d times; every committed row compared, value by value)\n\n",
		c.writer.Load(), c.database.Load(), c.poller.Load(), c.sink.Load(), c.engine.Load())
}
