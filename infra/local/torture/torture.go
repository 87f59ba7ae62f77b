// Package torture finds out what each way from a Kafka topic into a ClickHouse
// table is worth, by killing it: real processes, kill -9, over and over, at
// random and at chosen moments, on a schedule that a seed determines.
//
//	results, err := torture.Run(ctx, s, torture.Options{Kills: 1000, Controls: 250, Seed: 1, Out: os.Stdout})
//	for i := range results {
//		fmt.Println(&results[i])                     // TORTURE {...}
//		err = errors.Join(err, results[i].Verdict()) // did it keep its promise; did a control fail, as it must
//	}
//
// A [Subject] is one such way. They run one after another (subject.go): our
// three guarantees, and what they are held against: a naive function that trusts
// a token made from the bounds of its batch (naive/), and ClickHouse's own Kafka
// table engine with a materialized view. The last one is the whole chain, from a
// commit in PostgreSQL (chain.go).
//
// # What is real
//
// The function is the bootstrap that is deployed, the engine is ClickHouse, and
// each is a process of its own, as is the event source mapping (poller.go).
// Proxies stand between the function and the engine, the function and its
// ledger, and the mapping and the function. They see the moment to strike
// (trap.go): before, during and after an insert or a write to the ledger, and
// they lose answers after the work is done. Batches are cut anew after each
// failure, and each time the mapping is killed; half of these times a part of what
// was committed comes again, too.
//
// # What decides
//
// Package oracle: the broker's offsets against the rows, every column of every
// row against the generator. The records hold genuine repeats: about one in
// eight is equal to an earlier one and has an offset of its own. To lose it is a
// loss; "count minus unique" would prove nothing.
//
// # Schedules
//
// All subjects meet the same steps (schedule.go); a control may meet fewer of
// them. A subject is spared what it does not have: the Kafka table engine is one
// process, so it meets the engine's kills. A step waits until something was
// settled since the one before it: no subject is killed while it stands.
package torture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"oncehouse/infra/local/stack"
)

// Options of a run.
type Options struct {
	// Root is the repository, Dir the stack's directory.
	Root, Dir string
	// Kills is how many exactly-once meets, Controls how many each of the
	// others: the first of the same schedule.
	Kills, Controls int
	// Limit is how long one subject's schedule may take; 0 is for ever.
	Limit time.Duration
	// Seed of the records and the schedule.
	Seed uint64
	// Subjects are names; none is all.
	Subjects []string
	// Program has the subcommands engine and mapping; "" is the program that
	// runs now.
	Program string
	// Out takes progress, Log every step when it is done.
	Out, Log io.Writer
}

// Run runs the subjects, one after the other. Error: a subject could not be run
// to its end; what it stored is no error.
func Run(ctx context.Context, s *stack.Stack, options Options) ([]Result, error) {
	chosen, err := choose(options.Subjects)
	if err != nil {
		return nil, err
	}
	if options.Program == "" {
		if options.Program, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
	}
	var results []Result
	for _, e := range chosen {
		steps := Schedule(options.Seed, options.Controls)
		switch e.name {
		case ExactlyOnce:
			steps = Schedule(options.Seed, options.Kills)
		case PostgresChain:
			steps = chainSchedule(options.Seed, options.Controls)
		}
		r, err := runOne(ctx, &lab{Options: options, stack: s}, e, steps)
		if err != nil {
			return results, fmt.Errorf("torture %s: %w", e.name, err)
		}
		results = append(results, r)
	}
	return results, nil
}

func runOne(ctx context.Context, l *lab, e entry, steps []Step) (Result, error) {
	subject, err := e.open(ctx, l)
	if err != nil {
		return Result{}, err
	}
	defer subject.Stop()
	t := &trial{Options: l.Options, name: e.name, subject: subject, steps: steps}
	return t.run(ctx)
}

// Check is an error where there is no subject of a name.
func Check(names []string) error {
	_, err := choose(names)
	return err
}

func choose(names []string) ([]entry, error) {
	all := subjects()
	if len(names) == 0 {
		return all, nil
	}
	var chosen []entry
	for _, name := range names {
		i := slices.IndexFunc(all, func(e entry) bool { return e.name == name })
		if i < 0 {
			return nil, errors.New("there is no subject " + name + ": choose among " + strings.Join(Names(), ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}
