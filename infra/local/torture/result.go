package torture

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Event is a step that was performed.
type Event struct {
	At     time.Duration
	Moment Moment
	Killed int
}

// Sample is how far a subject was at a time.
type Sample struct {
	At time.Duration
	Progress
}

// Result is what one subject came to, and how.
type Result struct {
	Subject string
	Outcome
	Kills, Faults int64
	// Planned is how many kills the schedule has for the subject; CutShort that
	// the time was over before them.
	Planned  int64
	CutShort bool
	// Took is from the first record to the last one settled.
	Took    time.Duration
	Events  []Event
	Samples []Sample
}

// RowsPerSecond is at what rate records were stored, under the kills.
func (r *Result) RowsPerSecond() float64 {
	return float64(r.Stored) / max(r.Took.Seconds(), 0.001)
}

// Verdict is nil when the subject did what its name says: a guarantee was kept,
// and a control failed where it has to. Error: which was not so.
func (r *Result) Verdict() error {
	fail := func(what string) error {
		return fmt.Errorf("%s %s (lost %d, duplicated %d, wrong values %d)", r.Subject, what, r.Lost, r.Duplicated, r.WrongValues)
	}
	switch {
	case r.Kills < r.Planned && !r.CutShort:
		return fmt.Errorf("%s met %d of %d kills: the schedule was not performed", r.Subject, r.Kills, r.Planned)
	case r.WrongValues > 0:
		return fail("stored what was never produced")
	case (r.Subject == ExactlyOnce || r.Subject == PostgresChain) && !r.Exact():
		return fail("is not exact")
	case r.Misordered > 0:
		return fmt.Errorf("%s has stored %d rows out of order", r.Subject, r.Misordered)
	case r.Subject == AtLeastOnce && r.Lost > 0:
		return fail("has lost records")
	case r.Subject == AtMostOnce && r.Duplicated > 0:
		return fail("has doubled records")
	case (r.Subject == AtLeastOnce || r.Subject == Naive) && r.Duplicated == 0:
		return fail("has doubled nothing: as a control it must, so the kills were no test")
	case r.Subject == AtMostOnce && r.Lost == 0:
		return fail("has lost nothing: as a control it must, so the kills were no test")
	}
	return nil
}

// Promise is what the subject says of itself, in a word.
func (r *Result) Promise() string {
	switch r.Subject {
	case ExactlyOnce, AtLeastOnce, AtMostOnce:
		return r.Subject
	case PostgresChain:
		return ExactlyOnce
	case KafkaTable:
		return "at-least-once"
	}
	return "none"
}

// String is the line that scripts look for.
func (r *Result) String() string {
	line, err := json.Marshal(struct {
		Subject     string `json:"subject"`
		Kills       int64  `json:"kills"`
		Produced    int64  `json:"produced"`
		Stored      int64  `json:"stored"`
		Lost        int64  `json:"lost"`
		Duplicated  int64  `json:"duplicated"`
		RowsPerS    int64  `json:"rows_per_s"`
		WrongValues int64  `json:"wrong_values"`
		DeadLetters int64  `json:"dead_letters"`
		Misordered  int64  `json:"misordered"`
	}{r.Subject, r.Kills, r.Produced, r.Stored, r.Lost, r.Duplicated, int64(r.RowsPerSecond()), r.WrongValues, r.DeadLetters, r.Misordered})
	if err != nil { // numbers and a string always marshal
		panic(err)
	}
	return "TORTURE " + string(line)
}

// PrintTable prints the results for people.
func PrintTable(out io.Writer, results []Result) {
	const row = "%-19s %-14s %6v %7v %9v %9v %8v %6v %10v %6v %7v\n"
	_, _ = fmt.Fprintf(out, row, "subject", "guarantee", "kills", "faults", "produced", "stored", "letters", "lost", "duplicated", "wrong", "rows/s")
	for i := range results {
		r := &results[i]
		_, _ = fmt.Fprintf(out, row, r.Subject, r.Promise(), r.Kills, r.Faults, r.Produced, r.Stored, r.DeadLetters, r.Lost, r.Duplicated, r.WrongValues, int64(r.RowsPerSecond()))
	}
}
