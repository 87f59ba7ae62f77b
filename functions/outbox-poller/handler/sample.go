package handler

import (
	"math/rand/v2"
	"time"

	"oncehouse/shared/outbox"
)

// maxSample is what one line of metrics takes of a distribution.
const maxSample = 100

// sample keeps some of the transactions of a run, each as likely as any other
// (reservoir sampling), and the slowest of all.
type sample struct {
	seen int64
	kept []outbox.Commit
	// maxLag and maxTook are over all.
	maxLag, maxTook time.Duration
}

func (s *sample) add(c outbox.Commit) {
	s.seen++
	s.maxLag, s.maxTook = max(s.maxLag, c.Lag), max(s.maxTook, c.Took)
	if len(s.kept) < maxSample-1 { // room for the slowest
		s.kept = append(s.kept, c)
	} else if i := rand.Int64N(s.seen); i < int64(len(s.kept)) { //nolint:gosec // a sample, not a secret
		s.kept[i] = c
	}
}
