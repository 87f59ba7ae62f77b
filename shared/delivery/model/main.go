// Command model steps the delivery machine through every schedule of small
// worlds: invocations of one lane that overlap, every way to cut a batch, a crash
// before and after every side effect, answers that are lost, inserts and ledger
// writes that land late or in part, tokens forgotten, topics made again, brokers
// that are away, clocks that jump and that disagree, records of aborted outbox
// attempts that are delivered or not.
//
//	go run ./shared/delivery/model                  the standard size
//	go run ./shared/delivery/model -size large      one of everything more, and GBs of memory
//	go run ./shared/delivery/model -world outbox    worlds whose name matches
//	go run ./shared/delivery/model -world '^plain$' -faults 2 -jumps 1
//
// In every state the invariants of ARCHITECTURE.md hold, and from every state, once
// faults stop, the lane drains or is blocked with a reason that its world may have.
// What breaks one is printed as a scenario, as short as can be: put it into
// shared/delivery/testdata/scenarios. The machine is the one that production runs;
// a state is known again by its hash (world.Keyer). The last line is for machines.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"oncehouse/shared/delivery/world"
)

func main() {
	size := flag.String("size", "standard", "standard or large")
	match := flag.String("world", "", "only the worlds whose name matches this regular expression")
	var change Bounds
	flag.IntVar(&change.Invocations, "invocations", -1, "invocations in all, instead of the size's")
	flag.IntVar(&change.Live, "live", -1, "invocations at once")
	flag.IntVar(&change.Faults, "faults", -1, "side effects that do not go fine")
	flag.IntVar(&change.Jumps, "jumps", -1, "jumps of the clock")
	parallel := flag.Int("parallel", runtime.GOMAXPROCS(0), "worlds at once")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	violations, err := explore(ctx, *size, *match, change, *parallel)
	if err != nil {
		fmt.Fprintln(os.Stderr, "model:", err)
	}
	if err != nil || violations > 0 {
		stop()
		os.Exit(1) //nolint:gocritic // stop has run
	}
}

// explore explores the chosen worlds and prints what came of each.
func explore(ctx context.Context, size, match string, change Bounds, parallel int) (violations int, err error) {
	configs, err := choose(size, match, change)
	if err != nil {
		return 0, err
	}
	debug.SetGCPercent(300) // the states under way are the heap; collecting them is most of the rest
	begun, states := time.Now(), 0
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	fmt.Printf("%-36s %10s %10s %6s %8s  %s\n", "world", "states", "steps", "depth", "drained", "blocked by")
	for _, c := range configs {
		group.Go(func() error {
			r := Explore(ctx, c)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			mu.Lock()
			defer mu.Unlock()
			states += r.States
			fmt.Printf("%-36s %10d %10d %6d %8d  %s(%.1f s)\n", r.Name, r.States, r.Steps, r.Depth, r.Drained, blocked(r), r.Elapsed.Seconds())
			if r.Violation != nil {
				violations++
				fmt.Println(world.Story(c.begin, r.Trace, fmt.Sprintf("Found by the model in the world %q:\n%v", c.Name, r.Violation)))
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return violations, err
	}
	line, err := json.Marshal(struct {
		States     int     `json:"states"`
		Violations int     `json:"violations"`
		Seconds    float64 `json:"seconds"`
	}{states, violations, math.Round(time.Since(begun).Seconds()*10) / 10})
	if err == nil {
		fmt.Printf("\nMODEL %s\n", line)
	}
	return violations, err
}

// choose returns the worlds of a size, with the bounds that the flags change.
func choose(size, match string, change Bounds) ([]Config, error) {
	if size != "standard" && size != "large" {
		return nil, fmt.Errorf("size %q: standard or large", size)
	}
	pattern, err := regexp.Compile(match)
	if err != nil {
		return nil, fmt.Errorf("-world: %w", err)
	}
	var chosen []Config
	for _, c := range worlds() {
		if !pattern.MatchString(c.Name) {
			continue
		}
		if size == "large" {
			c.Bounds = c.Large
		}
		for to, by := range map[*int]int{&c.Invocations: change.Invocations, &c.Live: change.Live, &c.Faults: change.Faults, &c.Jumps: change.Jumps} {
			if by >= 0 {
				*to = by
			}
		}
		chosen = append(chosen, c)
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no world matches %q", match)
	}
	return chosen, nil
}

func blocked(r Result) string {
	out := ""
	for _, reason := range r.blockedBy() {
		out += fmt.Sprintf("%s: %d ", reason, r.Blocked[reason])
	}
	return out
}
