package handler_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/delivery"
	"oncehouse/shared/ledger/memory"
)

// meet runs one thing and lets another happen right before a step of it: a call of
// the ledger, a look into the table, or the landing of an insert, which fails if it
// comes too late by then. It says whether there was such a step. What happens in
// between takes steps of its own, several at once.
func (w *world) meet(step int, run, other func()) bool {
	var count atomic.Int64
	next := func() {
		if count.Add(1) == int64(step) {
			other()
		}
	}
	w.ledger.Control(func(memory.Call) memory.Fault { next(); return memory.Pass })
	w.table.looking = next
	w.table.before = func(_ context.Context, in delivery.Insert) error {
		if next(); time.Now().After(in.NotAfter.Add(in.Timeout)) {
			return errDoubt
		}
		return nil
	}
	run()
	w.ledger.Control(nil)
	w.table.looking, w.table.before = nil, nil
	return count.Load() >= int64(step)
}

// operator reads the lane again from its start, as the runbook says: the table is
// emptied, and again while the answer says that it was not.
type operator struct {
	*world
	over, read bool
}

// act tries once, and says whether it is done.
func (o *operator) act(t *testing.T) bool {
	t.Helper()
	clear(o.table.rows)
	answer, failure := o.invoke(t, time.Minute, action("new-generation", `"partition":0`))
	if failure != nil {
		require.Contains(t, []string{"InDoubt", "Fenced"}, failure.Type, failure.Message)
		return false
	}
	var parsed struct {
		Lanes []struct{ Entry delivery.Entry }
	}
	require.NoError(t, json.Unmarshal([]byte(answer), &parsed))
	o.over = parsed.Lanes[0].Entry.Ghosts == 0
	return o.over
}

// finish is done in the end, and reads the topic again.
func (o *operator) finish(t *testing.T) {
	t.Helper()
	for tries := 0; !o.over && !o.act(t); tries++ {
		require.Less(t, tries, 100)
		time.Sleep(time.Second)
	}
	if !o.read {
		_, failure := o.invoke(t, time.Minute, event(lane(0, 0, 4, 1, 3)))
		require.Nil(t, failure)
	}
	o.read = true
}

// A lane is read again while its letters are redriven: whichever comes in the midst
// of the other, no record is stored twice (I1) and none is missing (I2).
func TestNewGenerationBesideARedrive(t *testing.T) {
	for _, guarantee := range []delivery.Guarantee{delivery.ExactlyOnce, delivery.AtLeastOnce, delivery.AtMostOnce} {
		begin := func(t *testing.T) (first, second *world) {
			setting := "ONCEHOUSE_GUARANTEE=" + string(guarantee)
			w := newWorld(t, setting, "ONCEHOUSE_LANE_CONCURRENCY=1")
			if guarantee == delivery.AtLeastOnce { // else the ledger has no such lane
				w.ledger.Seed(key(), delivery.Entry{Generation: 1, Guarantee: delivery.ExactlyOnce, Version: 1, Writer: "w"})
			}
			_, failure := w.invoke(t, time.Minute, event(lane(0, 0, 4, 1, 3)))
			require.Nil(t, failure)
			time.Sleep(time.Hour)
			w.table.mended = true
			return w, w.environment(t, setting)
		}
		end := func(t *testing.T, w *world) {
			w.redrive(t, "") // whatever is left
			require.Equal(t, map[int32]string{0: "0-4"}, w.table.stored())
		}
		for how, finished := range map[string]func(done bool) bool{
			"who may have to come again":       func(done bool) bool { return done },
			"who waits in its midst":           func(bool) bool { return true },
			"who has it read again afterwards": func(bool) bool { return false },
		} {
			everyStep(t, fmt.Sprintf("%s, an operator %s", guarantee, how), func(t *testing.T, step int) bool {
				w, other := begin(t)
				operator := &operator{world: other}
				met := w.meet(step, func() { w.redrive(t, "") }, func() {
					if finished(operator.act(t)) {
						operator.finish(t)
					}
				})
				operator.finish(t)
				end(t, other)
				return met
			})
		}
		everyStep(t, fmt.Sprintf("%s, a redrive in the midst of an operator's", guarantee), func(t *testing.T, step int) bool {
			w, other := begin(t)
			operator := &operator{world: w}
			met := w.meet(step, func() { operator.finish(t) }, func() { other.redrive(t, "") })
			end(t, other)
			return met
		})
	}
}

// everyStep runs a test for each step that there is.
func everyStep(t *testing.T, name string, test func(t *testing.T, step int) bool) {
	t.Helper()
	for step, met := 1, true; met; step++ {
		t.Run(fmt.Sprintf("%s, step %d", name, step), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { met = test(t, step) })
		})
		require.Less(t, step, 200)
	}
}
