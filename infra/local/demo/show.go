package demo

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"oncehouse/infra/local/engine"
)

// say prints one line of its own. Output that cannot be written does not
// change what is proven.
func (r *run) say(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if r.Terminal {
		line = "\r\033[K" + line
	}
	_, _ = fmt.Fprintln(r.Out, line)
}

const barWidth = 10

// showProgress prints once a second what was produced, stored and broken, until
// the returned function is called.
func (r *run) showProgress(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var printing sync.WaitGroup
	printing.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		var stored int64
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			stored = r.countStored(ctx, stored)
			r.print(time.Since(r.begun), r.producer.Acknowledged(), stored)
		}
	})
	return func() {
		cancel()
		printing.Wait()
		if r.Terminal { // what is printed next has a line of its own
			_, _ = fmt.Fprint(r.Out, "\r\033[K")
		}
	}
}

// print prints the progress: on a terminal over the last one, on less than 80
// columns, so that no line is broken.
func (r *run) print(took time.Duration, produced, stored int64) {
	kills, recuts := r.chaos.kills.Load(), r.chaos.recuts.Load()
	if !r.Terminal {
		_, _ = fmt.Fprintf(r.Out, "%-13s %5.1f s  produced %9d  stored %9d  kills %2d  re-cuts %2d\n",
			r.guarantee, took.Seconds(), produced, stored, kills, recuts)
		return
	}
	full := int(min(barWidth, barWidth*stored/max(1, r.records)))
	_, _ = fmt.Fprintf(r.Out, "\r\033[K%-13s %5.1f s [%s%s] %d/%d stored, %d kills, %d re-cuts", r.guarantee, took.Seconds(),
		strings.Repeat("#", full), strings.Repeat(".", barWidth-full), stored, r.records, kills, recuts)
}

// countStored is how many rows there are; last where the engine does not
// answer, because it was just killed.
func (r *run) countStored(ctx context.Context, last int64) int64 {
	within, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	n, err := engine.Count(within, r.stack.Engine.URL(), r.pipeline.Table)
	if err != nil {
		return last
	}
	return n
}

// printTable prints the proofs for people.
func printTable(out io.Writer, proofs []Proof) {
	_, _ = fmt.Fprintf(out, "\n%-14s %9s %9s %8s %11s %9s %10s %12s %6s %8s\n",
		"guarantee", "produced", "stored", "letters", "tombstones", "lost", "duplicated", "wrong values", "kills", "re-cuts")
	for _, p := range proofs {
		_, _ = fmt.Fprintf(out, "%-14s %9d %9d %8d %11d %9d %10d %12d %6d %8d\n",
			p.Guarantee, p.Produced, p.Stored, p.DeadLetters, p.Tombstones, p.Lost, p.Duplicated, p.WrongValues, p.Kills, p.Recuts)
	}
	_, _ = fmt.Fprintln(out, "(every column of every row and every dead letter compared with the generator; produced is what the broker acknowledged)")
}

// showQuery prints how to ask the engine, and what it answers.
func showQuery(ctx context.Context, out io.Writer, url, dir string) error {
	query := "SELECT _partition, count() AS records, uniqExact(_offset) AS offsets, max(ts) AS latest, sum(price) AS revenue " +
		"FROM clicks_exactly_once GROUP BY _partition ORDER BY _partition LIMIT 4 FORMAT PrettyCompactMonoBlock"
	_, _ = fmt.Fprintf(out, "\nThe engine speaks ClickHouse's HTTP interface (make local ARGS=\"--dir %s\" serves these tables again):\n"+
		"$ curl -sS '%s/' --data-binary \"%s\"\n", dir, url, query)
	answer, err := engine.QueryText(ctx, url, query) // what curl does, where there is no curl
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintln(out, answer)
	return nil
}
