package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
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

const barWidth = 24

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
			produced := r.producer.done.Load()
			line := fmt.Sprintf("%-13s %5.1f s  produced %9d  stored %9d  kills %2d  re-cuts %2d",
				r.guarantee, time.Since(r.begun).Seconds(), produced, stored, r.chaos.kills.Load(), r.chaos.recuts.Load())
			if r.Terminal {
				full := int(min(barWidth, barWidth*stored/max(1, r.records)))
				_, _ = fmt.Fprintf(r.Out, "\r\033[K%s [%s%s]", line, strings.Repeat("#", full), strings.Repeat(".", barWidth-full))
			} else {
				_, _ = fmt.Fprintln(r.Out, line)
			}
		}
	})
	return func() {
		cancel()
		printing.Wait()
	}
}

// countStored is how many rows there are; last where the engine does not
// answer, because it was just killed.
func (r *run) countStored(ctx context.Context, last int64) int64 {
	within, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	answer, err := r.query(within, "SELECT count() FROM "+r.pipeline.Table)
	if err != nil {
		return last
	}
	defer func() { _ = answer.Close() }()
	text, err := io.ReadAll(answer)
	if err != nil {
		return last
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
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
func showQuery(ctx context.Context, out io.Writer, url string) error {
	query := "SELECT _partition, count() AS records, uniqExact(_offset) AS offsets, max(ts) AS latest, sum(price) AS revenue " +
		"FROM clicks_exactly_once GROUP BY _partition ORDER BY _partition LIMIT 4 FORMAT PrettyCompactMonoBlock"
	_, _ = fmt.Fprintf(out, "\nThe engine speaks ClickHouse's HTTP interface (make local keeps one running):\n"+
		"$ curl -sS '%s/' --data-binary \"%s\"\n", url, query)
	body, err := post(ctx, url, query) // what curl does, where there is no curl
	if err != nil {
		return err
	}
	answer, err := io.ReadAll(body)
	if err = errors.Join(err, body.Close()); err != nil {
		return fmt.Errorf("read the engine's answer: %w", err)
	}
	_, _ = fmt.Fprintln(out, string(answer))
	return nil
}
