package handler_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/functions/sink/redrive"
	"oncehouse/shared/deadletter"
	"oncehouse/shared/deadletter/memory"
	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	ledger "oncehouse/shared/ledger/memory"
	"oncehouse/shared/offsets"
)

// lettered is a world with rows 0-4 of which 1 and 3 are letters.
func lettered(t *testing.T, more ...string) *world {
	t.Helper()
	w := newWorld(t, more...)
	_, failure := w.invoke(t, time.Minute, event(lane(0, 0, 4, 1, 3)))
	require.Nil(t, failure)
	require.Equal(t, map[int32]string{0: "0,2,4"}, w.table.stored())
	require.Len(t, w.letters.Held(), 2)
	return w
}

func (w *world) redrive(t *testing.T, more string) redrive.Answer {
	t.Helper()
	text, failure := w.invoke(t, time.Minute, []byte(`{"oncehouse":{"action":"redrive"`+more+`}}`))
	require.Nil(t, failure)
	var answer redrive.Answer
	require.NoError(t, json.Unmarshal([]byte(text), &answer))
	return answer
}

func TestRedriveStoresWhatFitsNow(t *testing.T) {
	w := lettered(t)
	before := w.redrive(t, "")
	require.Equal(t, map[string]int{"not_json": 2}, before.Kept)
	require.Contains(t, before.Examples["not_json"], "it is bad")
	require.Zero(t, before.Redriven)
	require.Len(t, w.letters.Held(), 2, "they stay, and are not written again")

	w.table.mended = true
	dry := w.redrive(t, `,"dry_run":true`)
	require.Equal(t, map[string]int{redrive.KeptFits: 2}, dry.Kept)
	require.Equal(t, map[int32]string{0: "0,2,4"}, w.table.stored())

	require.Equal(t, redrive.Answer{Redriven: 2, Stored: 2, Kept: map[string]int{}}, w.redrive(t, ""))
	require.Equal(t, map[int32]string{0: "0-4"}, w.table.stored())
	require.Empty(t, w.letters.Held())
	require.Equal(t, redrive.Answer{Kept: map[string]int{}}, w.redrive(t, ""), "nothing is left")
}

// A letter may be in the queue twice, or its message outlive its row.
func TestRedriveStoresALetterOnce(t *testing.T) {
	w := lettered(t)
	require.NoError(t, w.letters.Send(t.Context(), lettersOf(w)))
	copies := lettersOf(w)
	w.table.mended = true
	answer := w.redrive(t, "")
	require.Equal(t, 2, answer.Stored)
	require.Equal(t, map[int32]string{0: "0-4"}, w.table.stored())

	w.redrive(t, "") // copies that met in the ledger
	require.NoError(t, w.letters.Send(t.Context(), copies))
	answer = w.redrive(t, "")
	require.Equal(t, len(copies), answer.Redriven)
	require.Zero(t, answer.Stored)
	require.Equal(t, map[int32]string{0: "0-4"}, w.table.stored())
}

func lettersOf(w *world) []delivery.Letter {
	var all []delivery.Letter
	for _, e := range w.letters.Held() {
		all = append(all, e.Letter)
	}
	return all
}

// An insert whose answer is lost is finished by the next run, like any other.
func TestRedriveInDoubt(t *testing.T) {
	w := lettered(t, "ONCEHOUSE_INSERT_TIMEOUT=1s", "ONCEHOUSE_SEND_WINDOW=10ms", "ONCEHOUSE_CLOCK_MARGIN=1ms", "ONCEHOUSE_DEADLINE_MARGIN=100ms")
	w.table.mended = true
	w.table.before = on(0, errDoubt)
	text, failure := w.invoke(t, 1500*time.Millisecond, []byte(`{"oncehouse":{"action":"redrive","max":1}}`))
	require.Nil(t, failure)
	require.Contains(t, text, `"kept":{"Failed":1}`)
	require.Contains(t, text, `"more":true`)
	require.Len(t, w.letters.Held(), 2)
	w.table.before = nil
	require.Equal(t, 2, w.redrive(t, "").Redriven)
	require.Equal(t, map[int32]string{0: "0-4"}, w.table.stored())
}

// The table changes back between the look and the insert: what is written is a
// letter of the redriven lane, and that one can be redriven, too.
func TestRedriveOfARedrivenLetter(t *testing.T) {
	w := lettered(t)
	all := lettersOf(w)
	again := all[0]
	again.Lane.Pipeline = "clicks+redrive.1.1"
	require.NoError(t, w.letters.Send(t.Context(), []delivery.Letter{again}))
	w.table.mended = true
	require.Equal(t, 3, w.redrive(t, "").Redriven)
	w.ledger.Seed(key(), delivery.Entry{Generation: 2, Guarantee: delivery.ExactlyOnce, Next: 9, Version: 7, Writer: "w"})
	again.Lane.Pipeline = "clicks+redrive.1.1+redrive.1.1"
	require.NoError(t, w.letters.Send(t.Context(), []delivery.Letter{again}))
	require.Equal(t, map[string]int{redrive.KeptSuperseded: 1}, w.redrive(t, "").Kept)
}

func TestRedriveKeeps(t *testing.T) {
	good := func() delivery.Letter {
		return delivery.Letter{Lane: key(), Generation: 1, Code: "not_json", Record: kafka.Record{Offset: 9, Value: []byte(`{}`)}}
	}
	for _, c := range []struct {
		name, why string
		entry     delivery.Entry
		change    func(*delivery.Letter)
	}{
		{"of another pipeline", redrive.KeptForeign, delivery.Entry{}, func(l *delivery.Letter) { l.Lane.Pipeline = "orders" }},
		{"of another reason", redrive.KeptOther, delivery.Entry{}, func(l *delivery.Letter) { l.Code = "out_of_range" }},
		{"of an earlier generation", redrive.KeptSuperseded, delivery.Entry{Generation: 2, Next: 20, Version: 3, Writer: "w"}, func(*delivery.Letter) {}},
		{"behind ghosts", redrive.KeptGhosts, delivery.Entry{Generation: 1, Next: 20, Ghosts: 10, Version: 3, Writer: "w"}, func(*delivery.Letter) {}},
		{"without its value", redrive.KeptOmitted, delivery.Entry{}, func(l *delivery.Letter) { l.Record.Value = make([]byte, deadletter.MaxBody) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.table.mended = true
			if c.entry.Version > 0 {
				w.ledger.Seed(key(), c.entry)
			}
			letter := good()
			c.change(&letter)
			require.NoError(t, w.letters.Send(t.Context(), []delivery.Letter{letter}))
			answer := w.redrive(t, `,"reason":"not_json"`)
			require.Equal(t, map[string]int{c.why: 1}, answer.Kept)
			require.NotEmpty(t, answer.Examples[c.why])
			require.Empty(t, w.table.stored())
			require.Len(t, w.letters.Held(), 1)
			again, err := w.letters.Receive(t.Context(), time.Minute)
			require.NoError(t, err)
			require.Len(t, again, 1, "it can be seen again")
		})
	}
	t.Run("no letter at all", func(t *testing.T) {
		w := newWorld(t)
		w.letters.Put([]byte(`{"hello":"world"}`))
		require.Equal(t, map[string]int{redrive.KeptForeign: 1}, w.redrive(t, "").Kept)
	})
}

// Redriving is exactly-once whatever the pipeline promises: a letter that a run
// lost or stored twice would not be settled.
func TestRedriveUnderTheOtherGuarantees(t *testing.T) {
	short := []string{"ONCEHOUSE_INSERT_TIMEOUT=1s", "ONCEHOUSE_SEND_WINDOW=10ms", "ONCEHOUSE_CLOCK_MARGIN=1ms", "ONCEHOUSE_DEADLINE_MARGIN=100ms"}
	t.Run("at-most-once gives no letter up", func(t *testing.T) {
		w := lettered(t, append(short, "ONCEHOUSE_GUARANTEE=at-most-once")...)
		w.table.mended = true
		w.table.before = on(0, errDown)
		text, failure := w.invoke(t, 1500*time.Millisecond, []byte(`{"oncehouse":{"action":"redrive"}}`))
		require.Nil(t, failure)
		require.Contains(t, text, `"kept":{"Failed":2}`)
		require.Len(t, w.letters.Held(), 2)
		w.table.before = nil
		require.Equal(t, 2, w.redrive(t, "").Redriven)
		require.Equal(t, map[int32]string{0: "0-4"}, w.table.stored())
	})
	t.Run("at-least-once doubles none", func(t *testing.T) {
		w := lettered(t, "ONCEHOUSE_GUARANTEE=at-least-once")
		copies := lettersOf(w)
		w.table.mended = true
		require.Equal(t, 2, w.redrive(t, "").Stored)
		require.NoError(t, w.letters.Send(t.Context(), copies))
		require.Equal(t, redrive.Answer{Redriven: 2, Kept: map[string]int{}}, w.redrive(t, ""))
		require.Equal(t, map[int32]string{0: "0-4"}, w.table.stored())
	})
	t.Run("at-least-once trusts no token, since its table was not asked to keep any", func(t *testing.T) {
		w := lettered(t, append(short, "ONCEHOUSE_GUARANTEE=at-least-once", "ONCEHOUSE_REPLAY=token")...)
		w.table.mended, w.table.forgets = true, true
		w.table.after = on(0, errDoubt)
		_, failure := w.invoke(t, 1500*time.Millisecond, []byte(`{"oncehouse":{"action":"redrive"}}`))
		require.Nil(t, failure)
		w.table.after = nil
		require.Equal(t, 2, w.redrive(t, "").Redriven)
		require.Equal(t, map[int32]string{0: "0-4"}, w.table.stored())
	})
}

// At-least-once keeps no account, but its letters name the generation that their
// record was read in: those of before the lane was read again are superseded, also
// when they were written by an environment that knew the lane before; those of
// after it are not.
func TestRedriveOfALaterGeneration(t *testing.T) {
	w := newWorld(t, "ONCEHOUSE_GUARANTEE=at-least-once")
	w.ledger.Seed(key(), delivery.Entry{Generation: 2, Guarantee: delivery.ExactlyOnce, Next: 5, Version: 3, Writer: "w"})
	for generation := range int64(2) {
		for environment := range 2 { // one that marks the lane, and one that has
			_, failure := w.invoke(t, time.Minute, event(lane(0, 0, 4, 1, 3)))
			require.Nil(t, failure)
			for _, l := range lettersOf(w)[4*generation+2*int64(environment):] {
				require.Equal(t, generation+2, l.Generation)
			}
		}
		if generation == 0 {
			clear(w.table.rows) // TRUNCATE
			_, failure := w.invoke(t, time.Minute, action("new-generation", `"partition":0`))
			require.Nil(t, failure)
		}
	}
	clear(w.table.rows)
	w.table.mended = true
	answer := w.redrive(t, "")
	require.Equal(t, map[string]int{redrive.KeptSuperseded: 4}, answer.Kept)
	require.Equal(t, 4, answer.Redriven)
	require.Equal(t, map[int32]string{0: "1,3"}, w.table.stored())
}

// A lane that the ledger has never seen is in its first generation, and so is a
// letter that names none.
func TestRedriveOfTheFirstGeneration(t *testing.T) {
	for _, generation := range []int64{0, 1} {
		w := lettered(t, "ONCEHOUSE_GUARANTEE=at-least-once")
		for _, l := range lettersOf(w) {
			require.EqualValues(t, 1, l.Generation)
			l.Generation = generation
			require.NoError(t, w.letters.Send(t.Context(), []delivery.Letter{l}))
		}
		w.table.mended = true
		w.ledger.Seed(key(), delivery.Entry{Generation: 1, Guarantee: delivery.ExactlyOnce, Next: 5, Version: 3, Writer: "w"})
		require.Equal(t, 4, w.redrive(t, "").Redriven)
		require.Equal(t, map[int32]string{0: "0-4"}, w.table.stored())
	}
}

// A lane is held before its letters are sent, whatever becomes of that write; one that
// the ledger has never seen, too: somebody may begin it, and read it again.
func TestRedriveHoldsTheLane(t *testing.T) {
	for name, fault := range map[string]ledger.Fault{
		"fine": ledger.Pass, "lost": ledger.LoseAnswer, "not written": ledger.FailBefore, "overtaken": ledger.Conflict,
	} {
		for _, guarantee := range []string{"exactly-once", "at-least-once"} {
			t.Run(name+", "+guarantee, func(t *testing.T) {
				w := lettered(t, "ONCEHOUSE_GUARANTEE="+guarantee)
				w.table.mended = true
				writes := 0
				w.ledger.Control(func(c ledger.Call) ledger.Fault {
					if c.Op != ledger.Write || c.Lane != key() {
						return ledger.Pass
					}
					require.Empty(t, w.table.stored()[0][5:], "it is held before")
					if writes++; writes == 1 {
						return fault
					}
					return ledger.Pass
				})
				require.Equal(t, 2, w.redrive(t, "").Stored)
				require.Equal(t, map[int32]string{0: "0-4"}, w.table.stored())
				require.LessOrEqual(t, writes, 2, "once a run")
				entry, err := w.ledger.Load(t.Context(), key())
				require.NoError(t, err)
				require.WithinDuration(t, time.Now().Add(time.Minute), entry.HeldUntil, 10*time.Second)
				require.Equal(t, guarantee, string(entry.Guarantee))

				_, failure := w.invoke(t, time.Minute, action("new-generation", `"partition":0`))
				require.Contains(t, failure.Message, "letters of this one are being redriven")
			})
		}
	}
}

// A lane that found its entry changed in the midst of an insert would have to find
// out what became of it: so the insert is waited for, or its deadline.
func TestRedriveWaitsForAnInsertOfTheLane(t *testing.T) {
	for name, ends := range map[string]bool{"it ends": true, "it was killed": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := lettered(t, "ONCEHOUSE_LANE_CONCURRENCY=1")
				w.table.mended = true
				idle, err := w.ledger.Load(t.Context(), key())
				require.NoError(t, err)
				busy := idle
				busy.Intent, busy.Deadline = &delivery.Intent{Offsets: offsets.Of(5)}, time.Now().Add(10*time.Second)
				w.ledger.Seed(key(), busy)
				loads := 0
				w.ledger.Control(func(c ledger.Call) ledger.Fault {
					if loads++; ends && loads == 8 {
						w.ledger.Seed(key(), idle)
					}
					if c.Op == ledger.Write && c.Lane == key() {
						require.True(t, c.Entry.Intent == nil || time.Now().After(busy.Deadline))
					}
					return ledger.Pass
				})
				begun := time.Now()
				require.Equal(t, 2, w.redrive(t, "").Stored)
				require.Equal(t, ends, time.Since(begun) < time.Second)
			})
		})
	}
}

// A lane that is at work without a gap keeps its letters, and nobody else's: those of
// other lanes are redriven, beside it and after it.
func TestRedriveBesideABusyLane(t *testing.T) {
	for _, concurrency := range []string{"1", "4"} {
		synctest.Test(t, func(t *testing.T) {
			w := lettered(t, "ONCEHOUSE_LANE_CONCURRENCY="+concurrency)
			_, failure := w.invoke(t, time.Minute, event(lane(1, 0, 4, 1, 3)))
			require.Nil(t, failure)
			w.table.mended = true
			busy, err := w.ledger.Load(t.Context(), key())
			require.NoError(t, err)
			var mu sync.Mutex
			w.ledger.Control(func(c ledger.Call) ledger.Fault {
				mu.Lock()
				defer mu.Unlock()
				if c.Lane == key() {
					busy.Version++
					busy.Intent, busy.Deadline = &delivery.Intent{Offsets: offsets.Of(5)}, time.Now().Add(10*time.Second)
					w.ledger.Seed(key(), busy)
				}
				return ledger.Pass
			})
			begun := time.Now()
			answer := w.redrive(t, "")
			require.Equal(t, map[string]int{redrive.KeptFailed: 2}, answer.Kept)
			require.Contains(t, answer.Examples[redrive.KeptFailed], "under way")
			require.Equal(t, map[int32]string{0: "0,2,4", 1: "0-4"}, w.table.stored())
			require.Less(t, time.Since(begun), 15*time.Second)
		})
	}
}

// What is kept is seen again as soon as the run is over, also when one message
// cannot be returned.
func TestRedriveReturnsWhatItKeeps(t *testing.T) {
	w := newWorld(t)
	var all []delivery.Letter
	for i := range int64(35) {
		all = append(all, delivery.Letter{Lane: key(), Generation: 1, Code: "not_json", Record: kafka.Record{Offset: i, Value: []byte("bad")}})
	}
	require.NoError(t, w.letters.Send(t.Context(), all))
	w.queue.before = func(m deadletter.Message) error {
		if m.ID == "1" {
			return errors.New("the receipt has expired")
		}
		return nil
	}
	require.Equal(t, map[string]int{"not_json": 35}, w.redrive(t, "").Kept)
	require.Contains(t, w.log.String(), "the receipt has expired")
	require.Equal(t, map[string]int{"not_json": 34}, w.redrive(t, "").Kept)
}

// A row that is in the table already (stored by hand, or by its own lane, which
// took the record again) is not stored a second time.
func TestRedriveLooksIntoTheTable(t *testing.T) {
	w := lettered(t)
	w.table.mended = true
	w.table.put(key(), 3)
	require.Equal(t, redrive.Answer{Redriven: 2, Stored: 1, Kept: map[string]int{}}, w.redrive(t, ""))
	require.Equal(t, map[int32]string{0: "0-4"}, w.table.stored())
	require.Empty(t, w.letters.Held())
}

// Anybody who may write to the queue can write anything: it stays there, and the
// letters around it are redriven.
func TestRedriveAmongOddLetters(t *testing.T) {
	w := lettered(t)
	w.table.mended = true
	odd := []func(*delivery.Letter){
		func(l *delivery.Letter) { l.Record.Offset = -1 },
		func(l *delivery.Letter) { l.Record.Offset = math.MaxInt64 },
		func(l *delivery.Letter) {
			l.Record.Offset, l.Record.Value = math.MaxInt64, make([]byte, deadletter.MaxBody)
		},
		func(l *delivery.Letter) { l.Record.Offset = math.MinInt64 },
		func(l *delivery.Letter) { l.Lane.Pipeline = "clicks+redrive." },
		func(l *delivery.Letter) { l.Lane.Pipeline = "clicks+redrive.x.1" },
		func(l *delivery.Letter) { l.Lane.Pipeline = "+redrive.1.1" },
		func(l *delivery.Letter) { l.Lane.Pipeline = "" },
	}
	for _, change := range odd {
		letter := delivery.Letter{Lane: key(), Generation: 1, Code: "not_json", Record: kafka.Record{Offset: 9, Value: []byte("{}")}}
		change(&letter)
		require.NoError(t, w.letters.Send(t.Context(), []delivery.Letter{letter}))
	}
	for _, body := range []string{"", "null", "[]", "{", `{"version":1}`, strings.Repeat("[", 1<<20)} {
		w.letters.Put([]byte(body))
	}
	require.Equal(t, 2, w.redrive(t, "").Redriven)
	require.Equal(t, map[int32]string{0: "0-4"}, w.table.stored())
	require.Zero(t, w.redrive(t, "").Redriven)
}

// Headers by which the outbox's repeats are known are of the attempt that failed.
func TestRedriveDropsOutboxHeaders(t *testing.T) {
	w := newWorld(t)
	w.table.mended = true
	letter := delivery.Letter{Lane: key(), Generation: 1, Code: "not_json", Record: kafka.Record{Offset: 9, Value: []byte(`{}`), Headers: []kafka.Header{
		{Key: []byte(delivery.HeaderSource), Value: []byte("i/0-of-1/clicks/0")}, {Key: []byte("id"), Value: []byte("x")},
		{Key: []byte(delivery.HeaderPosition), Value: []byte("1.1")},
	}}}
	require.NoError(t, w.letters.Send(t.Context(), []delivery.Letter{letter}))
	require.Equal(t, 1, w.redrive(t, "").Stored)
	entry, err := w.ledger.Load(t.Context(), delivery.Lane{Pipeline: "clicks+redrive.1.9", Cluster: cluster, TopicPartition: key().TopicPartition})
	require.NoError(t, err)
	require.EqualValues(t, 10, entry.Next)
	require.Empty(t, entry.Positions)
}

// At most as many as asked for, and near its end a run begins nothing.
func TestRedriveEndsInTime(t *testing.T) {
	w := lettered(t)
	w.table.mended = true
	answer := w.redrive(t, `,"max":1`)
	require.Equal(t, 1, answer.Redriven)
	require.True(t, answer.More)
	text, failure := w.invoke(t, 20*time.Second, []byte(`{"oncehouse":{"action":"redrive"}}`)) // an insert may take 30 s
	require.Nil(t, failure)
	require.JSONEq(t, `{"redriven":0,"stored":0,"kept":{},"more":true}`, text)
}

var _ redrive.Queue = (*memory.Letters)(nil)
