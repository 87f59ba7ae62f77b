package torture

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A schedule is its seed's, and a shorter one is the beginning of a longer one:
// a control meets the first steps of the same schedule.
func TestScheduleIsTheSeeds(t *testing.T) {
	long := Schedule(1, 1000)
	require.Equal(t, long, Schedule(1, 1000))
	short := Schedule(1, 250)
	require.Equal(t, long[:len(short)], short)
	require.NotEqual(t, long, Schedule(2, 1000)[:len(long)])
	kills := 0
	for _, step := range long {
		if step.Moment.Victim() != "" {
			kills++
		}
	}
	require.Equal(t, 1000, kills)
}

// A long schedule holds every moment, and every one of them has a name.
func TestScheduleHoldsEveryMoment(t *testing.T) {
	seen := map[Moment]int{}
	for _, step := range Schedule(1, 1000) {
		seen[step.Moment]++
	}
	for _, step := range chainSchedule(1, 1000) {
		if _, _, weight := strikes(step.Moment); weight == 0 {
			seen[step.Moment]++
		}
	}
	for m := range moments {
		require.NotEmpty(t, m.String())
		require.Greater(t, seen[m], 10, m.String())
	}
}

// The chain's schedule has the kills that it is asked for, a third of them at the
// parts of the outbox, and keeps the others' order.
func TestChainSchedule(t *testing.T) {
	for _, kills := range []int{1, 2, 16, 300} {
		total, own := 0, 0
		common := []Step{}
		for _, step := range chainSchedule(1, kills) {
			if step.Moment.Victim() != "" {
				total++
			}
			if step.Moment >= ServiceAnytime {
				own++
				continue
			}
			common = append(common, step)
		}
		require.Equal(t, kills, total)
		require.InDelta(t, kills/3, own, 1)
		require.Equal(t, Schedule(1, kills)[:len(common)], common)
	}
}

// The moments at which each control must fail come first, in any schedule.
func TestScheduleOpensWithTheMomentsOfControls(t *testing.T) {
	for seed := range uint64(20) {
		steps := Schedule(seed, len(opening()))
		for i, m := range opening() {
			require.Equal(t, m, steps[i].Moment)
		}
	}
	require.Contains(t, opening(), FunctionAfterInsert, "whoever sends again doubles")
	require.Contains(t, opening(), FunctionBeforeInsert, "whoever does not send again loses")
	require.Contains(t, opening(), EngineAfterInsert, "the Kafka table engine reads again")
}

// The stream holds genuine repeats, about one record in eight, of records that
// are not far behind.
func TestStreamHoldsRepeats(t *testing.T) {
	const n = 100_000
	again := 0
	for i := range int64(n) {
		picked := repeat(i)
		require.LessOrEqual(t, picked, i)
		require.GreaterOrEqual(t, picked, max(0, i-1000))
		if picked != i {
			again++
		}
	}
	require.InDelta(t, n/8, again, n/80)
}
