package handler_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/delivery"
	"oncehouse/shared/offsets"
)

func action(name, more string) []byte {
	return []byte(`{"oncehouse":{"action":"` + name + `","cluster":"` + cluster + `",` + more + `}}`)
}

func TestInspect(t *testing.T) {
	w := newWorld(t)
	_, failure := w.invoke(t, time.Minute, event(lane(0, 0, 2)))
	require.Nil(t, failure)
	answer, failure := w.invoke(t, time.Minute, action("inspect", `"partitions":[0,3]`))
	require.Nil(t, failure)
	var parsed struct {
		Action string
		Lanes  []struct {
			Lane  string
			Entry delivery.Entry
		}
	}
	require.NoError(t, json.Unmarshal([]byte(answer), &parsed))
	require.Equal(t, "inspect", parsed.Action)
	require.Len(t, parsed.Lanes, 2)
	require.Equal(t, key().Key(), parsed.Lanes[0].Lane)
	require.EqualValues(t, 3, parsed.Lanes[0].Entry.Next)
	require.Zero(t, parsed.Lanes[1].Entry.Version, "a lane never seen")
}

// D25: after an explicit new generation everything is taken again.
func TestD25NewGenerationReadsAgain(t *testing.T) {
	w := newWorld(t)
	_, failure := w.invoke(t, time.Minute, event(lane(0, 0, 2)))
	require.Nil(t, failure)
	w.ledger.Seed(key(), withDeadline(t, w, time.Now().Add(time.Hour)))
	_, failure = w.invoke(t, time.Minute, action("new-generation", `"partition":0`))
	require.Equal(t, "InDoubt", failure.Type, "an insert may still land")

	w.ledger.Seed(key(), withDeadline(t, w, time.Now().Add(-time.Hour)))
	clear(w.table.rows) // TRUNCATE
	_, failure = w.invoke(t, time.Minute, action("new-generation", `"partition":0`))
	require.Nil(t, failure)
	require.Contains(t, w.log.String(), "ledger entry changed by an operator")
	_, failure = w.invoke(t, time.Minute, event(lane(0, 0, 2)))
	require.Nil(t, failure)
	require.Equal(t, map[int32]string{0: "0-2"}, w.table.stored())
	entry, err := w.ledger.Load(t.Context(), key())
	require.NoError(t, err)
	require.EqualValues(t, 2, entry.Generation)
	require.Zero(t, entry.Ghosts, "the table was empty")

	w.ledger.Seed(key(), withDeadline(t, w, time.Now().Add(-time.Hour)))
	_, failure = w.invoke(t, time.Minute, action("new-generation", `"partition":0`))
	require.Nil(t, failure)
	entry, err = w.ledger.Load(t.Context(), key())
	require.NoError(t, err)
	require.EqualValues(t, 3, entry.Ghosts, "offsets 0-2 stay in the table: to find them proves nothing")
}

// D29: on an emptied table a new generation is another way on than a re-base.
func TestD29NewGenerationAfterAtLeastOnce(t *testing.T) {
	w := newWorld(t)
	w.ledger.Seed(key(), delivery.Entry{Generation: 1, Guarantee: delivery.AtLeastOnce, Next: 6, Version: 4, Writer: "w"})
	_, failure := w.invoke(t, time.Minute, event(lane(0, 0, 2)))
	require.Equal(t, "NeedsRebase", failure.Type)
	_, failure = w.invoke(t, time.Minute, action("new-generation", `"partition":0`))
	require.Nil(t, failure)
	_, failure = w.invoke(t, time.Minute, event(lane(0, 0, 2)))
	require.Nil(t, failure)
	require.Equal(t, map[int32]string{0: "0-2"}, w.table.stored())
}

// D29: what at-least-once stored behind the ledger's back is asked for.
func TestD29RebaseMakesExactlyOncePossibleAgain(t *testing.T) {
	w := newWorld(t)
	w.table.put(key(), 3, 8, 9)
	w.ledger.Seed(key(), delivery.Entry{
		Generation: 1, Guarantee: delivery.AtLeastOnce, Next: 6, Skipped: offsets.Between(2, 4), Version: 4, Writer: "w",
	})
	_, failure := w.invoke(t, time.Minute, event(lane(0, 9, 11)))
	require.Equal(t, "NeedsRebase", failure.Type)
	require.Contains(t, failure.Message, `{"oncehouse":{"action":"rebase","cluster":"`+cluster+`","partition":0}}`)

	_, failure = w.invoke(t, time.Minute, action("rebase", `"partition":0`))
	require.Nil(t, failure)
	entry, err := w.ledger.Load(t.Context(), key())
	require.NoError(t, err)
	require.Equal(t, delivery.ExactlyOnce, entry.Guarantee)
	require.EqualValues(t, 10, entry.Next)
	require.Equal(t, "2,4", entry.Skipped.String())
	require.EqualValues(t, 5, entry.Version)
	require.NotEqual(t, "w", entry.Writer)

	// A topic that something else ingested before: the lane begins behind it.
	_, failure = w.invoke(t, time.Minute, action("rebase", `"partition":7`))
	require.Nil(t, failure)
}

func withDeadline(t *testing.T, w *world, deadline time.Time) delivery.Entry {
	t.Helper()
	entry, err := w.ledger.Load(t.Context(), key())
	require.NoError(t, err)
	entry.Deadline = deadline
	return entry
}

// D29: re-based while at-least-once goes on, the entry would no longer say that
// the ledger is behind.
func TestD29RebaseWaitsForTheSwitch(t *testing.T) {
	w := newWorld(t, "ONCEHOUSE_GUARANTEE=at-least-once")
	_, failure := w.invoke(t, time.Minute, action("rebase", `"partition":0`))
	require.Equal(t, "Operation", failure.Type)
	require.Contains(t, failure.Message, "switch it to exactly-once first")
}

func TestOperationsThatAreRefused(t *testing.T) {
	for _, c := range []struct{ name, payload, want string }{
		{"no such action", `{"oncehouse":{"action":"drop","partition":0,"cluster":"c"}}`, `action "drop": inspect, rebase, new-generation or redrive expected`},
		{"redrive by partition", `{"oncehouse":{"action":"redrive","partition":0}}`, "not by partition"},
		{"redrive less than nothing", `{"oncehouse":{"action":"redrive","max":-1}}`, "max is negative"},
		{"no partition", `{"oncehouse":{"action":"rebase","cluster":"c"}}`, `"partition" or "partitions" is missing`},
		{"no cluster", `{"oncehouse":{"action":"rebase","partition":0}}`, `"cluster" is missing`},
		{"a field too many", `{"oncehouse":{"action":"rebase","partition":0,"cluster":"c","force":true}}`, `unknown field "force"`},
		{"with a Kafka event", `{"oncehouse":{"action":"inspect"},"eventSource":"aws:kafka"}`, `unknown field "eventSource"`},
		{"twice", `{"oncehouse":{"action":"inspect","partition":0,"cluster":"c"}}{}`, "more than one JSON value"},
		{"lane that is not there", `{"oncehouse":{"action":"new-generation","partition":0,"cluster":"c"}}`, "the ledger has no such lane"},
		{"partition is negative", `{"oncehouse":{"action":"inspect","partition":-1,"cluster":"c"}}`, "partition -1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			_, failure := w.invoke(t, time.Minute, []byte(c.payload))
			require.NotNil(t, failure)
			require.Equal(t, "Operation", failure.Type)
			require.Contains(t, failure.Message, c.want)
		})
	}
}
