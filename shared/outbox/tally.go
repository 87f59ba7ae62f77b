package outbox

import "time"

// Tally is what a run did, for metrics and the summary line.
type Tally struct {
	Rows         int64 // published, dead letters included
	Bytes        int64 // of those, before compression
	DeadLetters  int64
	Tombstones   int64
	Transactions int64
	Reopened     int64 // times that the log was opened again after an error
	Fenced       int64 // 1: another poller took over
	Halted       int64 // 1: a refusal stopped the run
	// Lag is the age of the oldest row that is left unpublished at the end of the
	// run: by its timestamp, or by when it was first seen. 0 if none is known.
	Lag time.Duration
	// SilentSeqs is how far the sequence advanced in a run that saw no row: what
	// took the values was rolled back, is not committed yet, or inserts and
	// deletes its row in one transaction, which no poller ever sees.
	SilentSeqs int64
}

// Commit is one committed transaction, for distributions of its figures.
type Commit struct {
	Rows  int
	Bytes int
	// Took is the time from the transaction's begin to its commit.
	Took time.Duration
	// Lag is the age of its oldest row: by its timestamp, or by when the window
	// was first seen.
	Lag time.Duration
}
