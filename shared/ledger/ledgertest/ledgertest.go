// Package ledgertest is the conformance suite of delivery.Ledger. Every adapter
// runs it, so that they differ in where they keep an entry and in nothing else:
//
//	func TestConformance(t *testing.T) {
//		ledgertest.Run(t, func(t *testing.T) delivery.Ledger { return memory.New() })
//	}
package ledgertest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	"oncehouse/shared/offsets"
)

// Run checks the ledgers that open returns. It calls open once per subtest.
func Run(t *testing.T, open func(t *testing.T) delivery.Ledger) {
	t.Helper()
	cases := []struct {
		name string
		run  func(*testing.T, delivery.Ledger)
	}{
		{"an absent lane is the zero entry", absent},
		{"any entry comes back exactly", roundTrip},
		{"a full entry and its memory are apart", apart},
		{"a write is conditional on the version", versions},
		{"one of many writers wins (I6)", race},
		{"one of many first writers wins (I6)", firstRace},
		{"lanes with odd names do not collide", oddNames},
		{"an entry that is not one is refused", refused},
		{"a message that is not UTF-8 stops nothing", badMessage},
		{"a cancelled call stores nothing and is no conflict", cancelled},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
}

// Faulty is a ledger whose next Write can be made to fail.
type Faulty struct {
	delivery.Ledger
	// FailBefore has the next Write fail before it is applied, LoseAnswer after.
	FailBefore, LoseAnswer func()
}

// RunFaults checks that a write of unknown outcome is resolved by reading.
func RunFaults(t *testing.T, open func(t *testing.T) Faulty) {
	t.Helper()
	t.Run("a write that did not land leaves the old entry", func(t *testing.T) {
		l, lane := open(t), laneNamed("before")
		require.NoError(t, l.Write(t.Context(), lane, entryAt(1, "a")))
		l.FailBefore()
		err := l.Write(t.Context(), lane, entryAt(2, "b"))
		require.Error(t, err)
		require.NotErrorIs(t, err, delivery.ErrConflict)
		require.Equal(t, "a", load(t, l, lane).Writer)
		require.NoError(t, l.Write(t.Context(), lane, entryAt(2, "c")), "the fault is for one write")
	})
	t.Run("a write whose answer was lost is known by its writer", func(t *testing.T) {
		l, lane := open(t), laneNamed("after")
		require.NoError(t, l.Write(t.Context(), lane, entryAt(1, "a")))
		l.LoseAnswer()
		err := l.Write(t.Context(), lane, entryAt(2, "b"))
		require.Error(t, err)
		require.NotErrorIs(t, err, delivery.ErrConflict)
		require.Equal(t, entryAt(2, "b"), load(t, l, lane))
	})
	t.Run("a refused write whose answer was lost is not ours", func(t *testing.T) {
		l, lane := open(t), laneNamed("refused")
		require.NoError(t, l.Write(t.Context(), lane, entryAt(1, "a")))
		l.LoseAnswer()
		err := l.Write(t.Context(), lane, entryAt(1, "b"))
		require.Error(t, err)
		require.NotErrorIs(t, err, delivery.ErrConflict)
		require.Equal(t, "a", load(t, l, lane).Writer)
	})
}

func absent(t *testing.T, l delivery.Ledger) {
	require.Equal(t, delivery.Entry{}, load(t, l, laneNamed("never")))
}

func roundTrip(t *testing.T, l delivery.Ledger) {
	n := 0
	rapid.Check(t, func(r *rapid.T) {
		n++
		lane := laneNamed(fmt.Sprintf("round-%d", n))
		first, second := Entries().Draw(r, "first"), Entries().Draw(r, "second")
		first.Version, second.Version = 1, 2
		for _, want := range []delivery.Entry{first, second} {
			require.NoError(r, l.Write(t.Context(), lane, want))
			got, err := l.Load(t.Context(), lane)
			require.NoError(r, err)
			require.Equal(r, want, got)
		}
	})
}

func apart(t *testing.T, l delivery.Ledger) {
	lane := laneNamed("apart")
	given := Full()
	require.NoError(t, l.Write(t.Context(), lane, given))
	scribble(&given)
	got := load(t, l, lane)
	require.Equal(t, Full(), got, "changing what was written changes nothing stored")
	scribble(&got)
	require.Equal(t, Full(), load(t, l, lane), "changing what was read changes nothing stored")
}

func versions(t *testing.T, l delivery.Ledger) {
	lane := laneNamed("versions")
	for _, v := range []int64{2, 3, 1 << 40} {
		require.ErrorIs(t, l.Write(t.Context(), lane, entryAt(v, "x")), delivery.ErrConflict, "absent, version %d", v)
	}
	require.Zero(t, load(t, l, lane).Version)
	require.NoError(t, l.Write(t.Context(), lane, entryAt(1, "a")))
	require.NoError(t, l.Write(t.Context(), lane, entryAt(2, "b")))
	for _, v := range []int64{1, 2, 4} {
		require.ErrorIs(t, l.Write(t.Context(), lane, entryAt(v, "x")), delivery.ErrConflict, "at 2, version %d", v)
	}
	require.Equal(t, entryAt(2, "b"), load(t, l, lane))
	require.NoError(t, l.Write(t.Context(), lane, entryAt(3, "c")))
}

func race(t *testing.T, l delivery.Ledger) {
	lane := laneNamed("race")
	require.NoError(t, l.Write(t.Context(), lane, entryAt(1, "first")))
	for version := int64(2); version < 6; version++ {
		oneWins(t, l, lane, version)
	}
}

func firstRace(t *testing.T, l delivery.Ledger) {
	for i := range 4 {
		oneWins(t, l, laneNamed(fmt.Sprintf("first-race-%d", i)), 1)
	}
}

func oneWins(t *testing.T, l delivery.Ledger, lane delivery.Lane, version int64) {
	t.Helper()
	const writers = 16
	var wg sync.WaitGroup
	start := make(chan struct{})
	answers := make([]error, writers)
	for i := range writers {
		wg.Go(func() {
			<-start
			answers[i] = l.Write(t.Context(), lane, entryAt(version, fmt.Sprintf("w%d", i)))
		})
	}
	close(start)
	wg.Wait()
	winner := ""
	for i, err := range answers {
		if err == nil {
			require.Empty(t, winner, "two writers won version %d", version)
			winner = fmt.Sprintf("w%d", i)
			continue
		}
		require.ErrorIs(t, err, delivery.ErrConflict)
	}
	require.NotEmpty(t, winner, "nobody won version %d", version)
	require.Equal(t, entryAt(version, winner), load(t, l, lane))
}

func oddNames(t *testing.T, l delivery.Ledger) {
	lane := func(pipeline, cluster, topic string, partition int32) delivery.Lane {
		return delivery.Lane{Pipeline: pipeline, Cluster: cluster, TopicPartition: kafka.TopicPartition{Topic: topic, Partition: partition}}
	}
	lanes := []delivery.Lane{
		lane("p", "c", "t", 0), lane("P", "c", "t", 0), lane("p", "C", "t", 0), lane("p", "c", "T", 0), lane("p", "c", "t", 1),
		lane("p", "c", "t-1", 1), lane("p", "c", "t", 11), lane("p", "c", "t-1-1", 1), lane("p-c", "", "t", 0),
		lane("p", "", "t", 0), lane("p", "/", "t", 0), lane("p", "c/t", "t", 0), lane("p", "c/t/0", "t", 0),
		lane("p", "c ", "t", 0), lane("p", " c", "t", 0), lane("p", "c:9092,d:9092", "t", 0), lane("p.x", "c", "t_y", 0),
		lane("p", "arn:aws:kafka:eu-west-1:000000000000:cluster/c/6a7b-1", "t", 0), lane("p", "ç", "t", 0), lane("p", "c\u0327", "t", 0),
		lane("p", strings.Repeat("c", 1500), "t", 0), lane("p", "c%2F", "t", 0), lane("p", "#:v", "t", 2147483647),
	}
	for i, lane := range lanes {
		require.Equal(t, delivery.Entry{}, load(t, l, lane), "lane %d", i)
		e := entryAt(1, fmt.Sprintf("w%d", i))
		require.NoError(t, l.Write(t.Context(), lane, e), "lane %d", i)
	}
	for i, lane := range lanes {
		require.Equal(t, fmt.Sprintf("w%d", i), load(t, l, lane).Writer, "lane %d", i)
	}
}

func refused(t *testing.T, l delivery.Ledger) {
	lane := laneNamed("refused")
	require.NoError(t, l.Write(t.Context(), lane, entryAt(1, "a")))
	for name, spoil := range map[string]func(*delivery.Entry){
		"version 0":      func(e *delivery.Entry) { e.Version = 0 },
		"no writer":      func(e *delivery.Entry) { e.Writer = "" },
		"no generation":  func(e *delivery.Entry) { e.Generation = 0 },
		"no guarantee":   func(e *delivery.Entry) { e.Guarantee = "" },
		"guarantee":      func(e *delivery.Entry) { e.Guarantee = "twice" },
		"next":           func(e *delivery.Entry) { e.Next = -1 },
		"skipped":        func(e *delivery.Entry) { e.Skipped = offsets.Set{{First: 5, Last: 9}, {First: 3, Last: 4}} },
		"adjacent":       func(e *delivery.Entry) { e.Skipped = offsets.Set{{First: 1, Last: 2}, {First: 3, Last: 4}} },
		"intent offsets": func(e *delivery.Entry) { e.Intent = &delivery.Intent{Offsets: offsets.Set{{First: 5, Last: 4}}} },
		"token":          func(e *delivery.Entry) { e.Intent = &delivery.Intent{Token: "t\xff"} },
		"position":       func(e *delivery.Entry) { e.Positions = map[string]delivery.Position{"\xff": {}} },
		"year 10000":     func(e *delivery.Entry) { e.Deadline = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
	} {
		e := entryAt(2, "b")
		spoil(&e)
		err := l.Write(t.Context(), lane, e)
		require.ErrorContains(t, err, lane.Key(), name)
		require.NotErrorIs(t, err, delivery.ErrConflict, name)
	}
	require.Equal(t, entryAt(1, "a"), load(t, l, lane))
}

func badMessage(t *testing.T, l delivery.Ledger) {
	lane := laneNamed("message")
	e := Full()
	e.Intent.Letters[0].Message = "value: \"\xc3\""
	require.NoError(t, l.Write(t.Context(), lane, e))
	require.Equal(t, "value: \"\uFFFD\"", load(t, l, lane).Intent.Letters[0].Message)
}

func cancelled(t *testing.T, l delivery.Ledger) {
	lane := laneNamed("cancelled")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := l.Write(ctx, lane, entryAt(1, "a"))
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, delivery.ErrConflict)
	_, err = l.Load(ctx, lane)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, delivery.Entry{}, load(t, l, lane))
}

func load(t *testing.T, l delivery.Ledger, lane delivery.Lane) delivery.Entry {
	t.Helper()
	e, err := l.Load(t.Context(), lane)
	require.NoError(t, err)
	return e
}

func laneNamed(topic string) delivery.Lane {
	return delivery.Lane{Pipeline: "clicks", Cluster: "main", TopicPartition: kafka.TopicPartition{Topic: topic, Partition: 3}}
}

func entryAt(version int64, writer string) delivery.Entry {
	return delivery.Entry{Generation: 1, Guarantee: delivery.ExactlyOnce, Next: version * 10, Version: version, Writer: writer}
}
