package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/memory"
	"oncehouse/shared/outbox/outboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a database, a broker and a poller of one shard between them.
type rig struct {
	db    *memory.Database
	kafka *memory.Kafka
	table *memory.Table
	log   *memory.Log
	rules outbox.Rules
	route outbox.Routing
	// plans and cursors are what was committed, in this order.
	plans   []outbox.Plan
	cursors []outbox.Cursor
}

func newRig() *rig {
	r := &rig{
		db: memory.NewDatabase(), kafka: memory.NewKafka(),
		rules: outbox.Rules{Initialise: outbox.FromBeginning}, route: outbox.Routing{Placement: "type:header:eventType"},
	}
	r.kafka.Create(simTopic, 1, 1000)
	r.table, r.log = r.db.Table(outbox.Shard{Of: 1}), r.kafka.Log("orders", outbox.Shard{Of: 1})
	return r
}

// recorder is the rig's log.
type recorder struct {
	*memory.Log
	*rig
}

func (r recorder) Commit(ctx context.Context, t outbox.Transaction) error {
	err := r.Log.Commit(ctx, t)
	if err == nil {
		r.cursors = append(r.cursors, t.Cursor)
		if t.Plan != nil {
			r.plans = append(r.plans, *t.Plan)
		}
	}
	return err
}

// insert commits one row.
func (r *rig) insert(row outbox.Row) {
	if row.AggregateType == "" {
		row.AggregateType = "order"
	}
	tx := r.db.Begin()
	tx.Insert(row)
	tx.Commit()
}

func (r *rig) rows(ids ...string) {
	for _, id := range ids {
		r.insert(outbox.Row{ID: id, Payload: []byte(id)})
	}
}

func (r *rig) poller(t *testing.T, rules outbox.Rules) *outbox.Poller {
	t.Helper()
	router, err := outbox.NewRouter(r.route)
	require.NoError(t, err)
	p, err := outbox.NewPoller(r.table.Shard, r.table, recorder{r.log, r}, router, rules)
	require.NoError(t, err)
	return p
}

// run runs the poller until it has looked twice and found nothing.
func (r *rig) run(t *testing.T) (outbox.Tally, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	looks, rules := 0, r.rules
	rules.Wait = func(context.Context, time.Duration) {
		if looks++; looks == 2 {
			cancel()
		}
	}
	return r.poller(t, rules).Run(ctx, time.Now().Add(time.Hour))
}

func (r *rig) mustRun(t *testing.T) outbox.Tally {
	t.Helper()
	tally, err := r.run(t)
	require.NoError(t, err)
	return tally
}

// fail makes the next effect of that name fail.
func (r *rig) fail(name string, fault memory.Fault) {
	done := false
	r.log.Effects = func(_ context.Context, effect string) memory.Fault {
		if done || effect != name {
			return memory.Fine
		}
		done = true
		return fault
	}
}

func ids(records []kafka.Record) []string {
	var out []string
	for i := range records {
		id, _ := records[i].FindHeader("id")
		out = append(out, string(id))
	}
	return out
}

func (r *rig) published(topic string, committed bool) []kafka.Record {
	records, _ := r.kafka.Read(topic, 0, 0, committed)
	return records
}

func (r *rig) requireIDs(t *testing.T, want ...string) {
	t.Helper()
	require.Equal(t, want, ids(r.published(simTopic, true)))
}

func requireRefusal(t *testing.T, err error, reason string, words ...string) {
	t.Helper()
	var refusal *outbox.Refusal
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, reason, refusal.Reason, "%v", err)
	require.NotEmpty(t, refusal.Problems)
	require.NotEmpty(t, refusal.Remedy)
	for _, w := range words {
		require.ErrorContains(t, refusal, w)
	}
}

func TestRecord(t *testing.T) {
	r := newRig()
	r.route = outbox.Routing{Placement: "type:header:eventType,trace:header:traceparent,tenant:header"}
	key, trace := "order-1", "00-ab"
	r.insert(outbox.Row{
		ID: "018f", AggregateID: &key, Type: "OrderCreated", Payload: []byte(`{"b": [],"a":null}`),
		Timestamp: 1774748700123, Extra: []*string{&trace, nil},
	})
	r.mustRun(t)
	got := r.published(simTopic, true)
	require.Len(t, got, 1)
	c := r.cursors[len(r.cursors)-1]
	require.Equal(t, kafka.Record{
		Timestamp: 1774748700123, Key: []byte("order-1"), Value: []byte(`{"b": [],"a":null}`),
		Headers: []kafka.Header{
			{Key: []byte("id"), Value: []byte("018f")},
			{Key: []byte("eventType"), Value: []byte("OrderCreated")},
			{Key: []byte("traceparent"), Value: []byte("00-ab")},
			{Key: []byte("tenant")},
			{Key: []byte(delivery.HeaderSource), Value: []byte(c.Incarnation + "/0-of-1/" + simTopic + "/0")},
			{Key: []byte(delivery.HeaderPosition), Value: []byte("1.1")},
		},
	}, got[0])
	require.Len(t, c.Incarnation, 16)
}

// No aggregate id is no key; an empty one is an empty key.
func TestKeys(t *testing.T) {
	r, empty := newRig(), ""
	r.insert(outbox.Row{ID: "empty", AggregateID: &empty, Payload: []byte("x")})
	r.insert(outbox.Row{ID: "none", Payload: []byte("x")})
	r.mustRun(t)
	got := r.published(simTopic, true)
	require.Equal(t, []byte{}, got[0].Key)
	require.Nil(t, got[1].Key)
}

// A restored database, another one, or another table may never have seen what the
// cursor says is published.
func TestO2AnotherHistoryIsRefused(t *testing.T) {
	for name, change := range map[string]func(*memory.Database){
		outbox.ReasonOtherDatabase: func(d *memory.Database) { d.Identify(func(i *outbox.Identity) { i.SystemID++ }) },
		outbox.ReasonOtherTable:    func(d *memory.Database) { d.Identify(func(i *outbox.Identity) { i.TableOID++ }) },
		outbox.ReasonTimeline:      func(d *memory.Database) { d.Identify(func(i *outbox.Identity) { i.Timeline++ }) },
		outbox.ReasonCursorAhead:   func(d *memory.Database) { d.RestartSequence(1) },
		// A copy in the same cluster has the table's oid, too (CREATE DATABASE ... TEMPLATE).
		outbox.ReasonOtherDatabase + " of one cluster": func(d *memory.Database) { d.Identify(func(i *outbox.Identity) { i.DatabaseOID++ }) },
		// A snapshot says nothing of another column's transaction ids.
		outbox.ReasonOtherTable + " by its xid": func(d *memory.Database) { d.Identify(func(i *outbox.Identity) { i.XIDColumn++ }) },
		outbox.ReasonOtherTable + " by its seq": func(d *memory.Database) { d.Identify(func(i *outbox.Identity) { i.SeqColumn++ }) },
	} {
		reason, _, _ := strings.Cut(name, " ")
		t.Run(name, func(t *testing.T) {
			r := newRig()
			r.rows("a", "b")
			r.mustRun(t)
			change(r.db)
			r.rows("c")
			if reason == outbox.ReasonCursorAhead {
				r.db.RestartSequence(1)
			}
			tally, err := r.run(t)
			requireRefusal(t, err, reason)
			require.EqualValues(t, 1, tally.Halted)
			r.requireIDs(t, "a", "b")
		})
	}
	t.Run("transaction ids start over", func(t *testing.T) {
		r := newRig()
		r.rows("a", "b")
		r.mustRun(t)
		r.table.DB = memory.NewDatabase()
		r.table.DB.RestartSequence(100)
		_, err := r.run(t)
		requireRefusal(t, err, outbox.ReasonCursorAhead, "was taken after the database's present")
	})
}

// Clocks decide nothing: equal and backward timestamps go out in the order of seq.
func TestO8OrderIsThatOfSeq(t *testing.T) {
	r := newRig()
	for i, at := range []int64{5000, 3000, 3000, 9000, 1} {
		r.insert(outbox.Row{ID: fmt.Sprint(i), Payload: []byte("x"), Timestamp: at})
	}
	r.mustRun(t)
	r.requireIDs(t, "0", "1", "2", "3", "4")
}

func TestO10ACursorIsMadeOnlyWhenToldTo(t *testing.T) {
	r := newRig()
	r.rules.Initialise = ""
	r.rows("a")
	_, err := r.run(t)
	requireRefusal(t, err, outbox.ReasonNotInitialised)
	require.Empty(t, r.published(simTopic, false))

	cursor, err := r.poller(t, r.rules).Initialise(t.Context(), outbox.FromNow)
	require.NoError(t, err)
	require.NotEmpty(t, cursor.Done)
	_, err = r.poller(t, r.rules).Initialise(t.Context(), outbox.FromBeginning)
	requireRefusal(t, err, outbox.ReasonInitialised)
	r.rows("b")
	r.mustRun(t)
	r.requireIDs(t, "b")

	r.kafka.Expire("orders", outbox.Shard{Of: 1})
	r.rules.Initialise = outbox.FromBeginning
	_, err = r.run(t)
	requireRefusal(t, err, outbox.ReasonCursorLost)
	r.requireIDs(t, "b")
}

func TestO11AMissingTopicKeepsTheCursor(t *testing.T) {
	r := newRig()
	r.rules.DeadLetters = "dead" // it is for rows, and this is no fault of a row's
	r.kafka.Create("dead", 1, 1000)
	r.rows("a")
	r.insert(outbox.Row{ID: "b", AggregateType: "invoice", Payload: []byte("b")})
	r.rows("c")
	for range 2 {
		_, err := r.run(t)
		requireRefusal(t, err, outbox.ReasonTopicMissing, "topic outbox.event.invoice does not exist")
		r.requireIDs(t, "a")
		require.EqualValues(t, 1, r.cursors[len(r.cursors)-1].Seq)
	}
	r.kafka.Create("outbox.event.invoice", 1, 1000)
	r.mustRun(t)
	r.requireIDs(t, "a", "c")
	require.Equal(t, []string{"b"}, ids(r.published("outbox.event.invoice", true)))
}

func TestO12ARowThatIsTooLarge(t *testing.T) {
	large := func(r *rig) {
		r.rules.Rows = 2
		r.rows("a", "b", "c")
		r.insert(outbox.Row{ID: "large", Payload: make([]byte, 900)})
		r.rows("d", "e")
	}
	t.Run("halts the shard behind the rows before it", func(t *testing.T) {
		r := newRig()
		large(r)
		for i := range 3 {
			tally, err := r.run(t)
			requireRefusal(t, err, outbox.ReasonHalted, "row large (seq 4")
			require.EqualValues(t, 1, tally.Halted)
			require.Positive(t, tally.Lag)
			require.Equal(t, []int64{2, 0, 0}[i], tally.Transactions)
			r.requireIDs(t, "a", "b", "c")
		}
		r.db.Delete(4) // a person's remedy
		r.mustRun(t)
		r.requireIDs(t, "a", "b", "c", "d", "e")
	})
	t.Run("becomes a dead letter in its place", func(t *testing.T) {
		r := newRig()
		large(r)
		r.rules.DeadLetters = "dead"
		r.kafka.Create("dead", 1, 2000)
		tally := r.mustRun(t)
		require.EqualValues(t, 1, tally.DeadLetters)
		require.EqualValues(t, 6, tally.Rows)
		r.requireIDs(t, "a", "b", "c", "d", "e")
		letters := r.published("dead", true)
		require.Equal(t, []string{"large"}, ids(letters))
		require.Len(t, letters[0].Value, 900)
		reason, _ := letters[0].FindHeader(outbox.HeaderDead)
		require.Regexp(t, `a record of \d+ bytes is over the 1000 of topic outbox.event.order`, string(reason))
		require.Equal(t, []int64{4}, r.plans[len(r.plans)-1].Dead)
	})
	t.Run("without its payload, where that does not fit either", func(t *testing.T) {
		r := newRig()
		large(r)
		r.rules.DeadLetters = "dead"
		r.kafka.Create("dead", 1, 900)
		r.mustRun(t)
		letter := r.published("dead", true)[0]
		require.Empty(t, letter.Value)
		require.NotNil(t, letter.Value, "a tombstone would delete")
		size, _ := letter.FindHeader(outbox.HeaderDeadBytes)
		require.Equal(t, "900", string(size))
	})
	t.Run("may be helped by switching the dead letters on", func(t *testing.T) {
		r := newRig()
		large(r)
		_, err := r.run(t)
		requireRefusal(t, err, outbox.ReasonHalted)
		r.rules.DeadLetters = "dead"
		r.kafka.Create("dead", 1, 2000)
		r.mustRun(t)
		r.requireIDs(t, "a", "b", "c", "d", "e")
	})
}

// What the broker would refuse for its own content is judged before Begin.
func TestO12ARecordThatItsTopicDoesNotTake(t *testing.T) {
	now := time.Now()
	key, at := "k", func(d time.Duration) int64 { return now.Add(d).UnixMilli() }
	for name, c := range map[string]struct {
		bad    outbox.Row
		limit  func(*outbox.Topic)
		reason string
	}{
		"too late": {
			outbox.Row{AggregateID: &key, Timestamp: at(2 * time.Hour)}, func(t *outbox.Topic) { t.Latest = at(time.Hour) },
			"message.timestamp.after.max.ms",
		},
		"microseconds": {
			outbox.Row{AggregateID: &key, Timestamp: now.UnixMicro()}, func(t *outbox.Topic) { t.Latest = at(time.Hour) },
			"message.timestamp.after.max.ms",
		},
		"too old": {
			outbox.Row{AggregateID: &key, Timestamp: at(-48 * time.Hour)}, func(t *outbox.Topic) { t.Earliest = at(-24 * time.Hour) },
			"message.timestamp.before.max.ms",
		},
		"without a key": {
			outbox.Row{Timestamp: at(0)}, func(t *outbox.Topic) { t.Compacted = true },
			"cleanup.policy",
		},
	} {
		free := func(t *outbox.Topic) { t.Earliest, t.Latest, t.Compacted = 0, 0, false }
		filled := func() *rig {
			r := newRig()
			r.rules.Rows = 2
			r.kafka.Limit(simTopic, c.limit)
			c.bad.ID, c.bad.Payload = "bad", []byte("x")
			for _, row := range []outbox.Row{
				{ID: "a", AggregateID: &key, Timestamp: at(0), Payload: []byte("x")}, {ID: "b", AggregateID: &key, Payload: []byte("x")},
				c.bad, {ID: "c", AggregateID: &key, Timestamp: at(time.Second), Payload: []byte("x")},
			} {
				r.insert(row)
			}
			return r
		}
		t.Run(name+" halts the shard", func(t *testing.T) {
			r := filled()
			for range 2 {
				tally, err := r.run(t)
				requireRefusal(t, err, outbox.ReasonHalted, "row bad (seq 3", simTopic, c.reason)
				require.Zero(t, tally.Reopened)
				require.GreaterOrEqual(t, tally.Lag, time.Duration(0), "also of a row from the future")
				r.requireIDs(t, "a", "b")
				require.Len(t, r.published(simTopic, false), 2, "it was never sent")
			}
			r.kafka.Limit(simTopic, free) // a person's remedy, in the middle of the window
			r.mustRun(t)
			r.requireIDs(t, "a", "b", "bad", "c")
			require.Len(t, r.plans, 2)
		})
		t.Run(name+" becomes a dead letter", func(t *testing.T) {
			r := filled()
			r.rules.DeadLetters = "dead"
			r.kafka.Create("dead", 1, 2000)
			r.kafka.Limit("dead", func(t *outbox.Topic) { c.limit(t); t.Compacted = false })
			r.fail("end", memory.Refused)
			require.EqualValues(t, 1, r.mustRun(t).Reopened)
			r.requireIDs(t, "a", "b", "c")
			letters := r.published("dead", true)
			require.Equal(t, []string{"bad"}, ids(letters))
			reason, _ := letters[0].FindHeader(outbox.HeaderDead)
			require.Contains(t, string(reason), c.reason)
			if c.bad.AggregateID != nil { // the letter's topic would not take it either
				require.Zero(t, letters[0].Timestamp)
				was, _ := letters[0].FindHeader(outbox.HeaderDeadTimestamp)
				require.Equal(t, fmt.Sprint(c.bad.Timestamp), string(was))
			}
		})
		t.Run(name+" is decided once", func(t *testing.T) {
			r := filled() // not to take it
			r.rules.Rows, r.rules.DeadLetters = 10, "dead"
			r.kafka.Create("dead", 1, 2000)
			r.abort(t)
			r.kafka.Limit(simTopic, free)
			r.mustRun(t)
			r.requireIDs(t, "a", "b", "c")

			r = filled() // to take it
			r.rules.Rows, r.rules.DeadLetters = 10, "dead"
			r.kafka.Create("dead", 1, 2000)
			r.kafka.Limit(simTopic, free)
			r.abort(t)
			r.kafka.Limit(simTopic, c.limit)
			tally, err := r.run(t) // the broker has the last word
			requireRefusal(t, err, outbox.ReasonHalted, simTopic+"-0")
			require.Zero(t, tally.Reopened, "it does not go round")
			require.Empty(t, r.published("dead", false))
			r.kafka.Limit(simTopic, free)
			r.mustRun(t)
			r.requireIDs(t, "a", "b", "bad", "c")
		})
	}
}

// abort initialises the cursor and has the first transaction aborted at its end.
func (r *rig) abort(t *testing.T) {
	t.Helper()
	_, err := r.poller(t, r.rules).Initialise(t.Context(), outbox.FromBeginning)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rules := r.rules
	rules.Wait = func(context.Context, time.Duration) { cancel() }
	r.fail("end", memory.Refused)
	_, err = r.poller(t, rules).Run(ctx, time.Now().Add(time.Hour))
	require.ErrorIs(t, err, memory.ErrFault)
}

// A row that an attempt took for a dead letter is one in the next, too.
func TestADeadLetterStaysOne(t *testing.T) {
	r := newRig()
	r.rules.DeadLetters = "dead"
	r.kafka.Create("dead", 1, 2000)
	r.insert(outbox.Row{ID: "null"})
	r.abort(t)
	r.route.Tombstones = true
	r.mustRun(t)
	require.Empty(t, r.published(simTopic, false))
	require.Equal(t, []string{"null"}, ids(r.published("dead", true)))
}

// A dead letter that its topic does not take halts, and the topic can be mended.
func TestADeadLetterMayHalt(t *testing.T) {
	r := newRig()
	r.rules.Rows, r.rules.DeadLetters = 1, "dead"
	r.kafka.Create("dead", 1, 2000)
	r.kafka.Limit("dead", func(t *outbox.Topic) { t.Compacted = true })
	r.rows("a")
	r.insert(outbox.Row{ID: "null"})
	_, err := r.run(t)
	requireRefusal(t, err, outbox.ReasonHalted, "the payload is NULL", "dead", "cleanup.policy")
	r.kafka.Limit("dead", func(t *outbox.Topic) { t.Compacted = false })
	r.mustRun(t)
	require.Equal(t, []string{"null"}, ids(r.published("dead", true)))
}

// A limit that was raised counts, although the window is open.
func TestO12RoomIsMade(t *testing.T) {
	r := newRig()
	r.rules.Rows = 2
	r.rows("a", "b")
	r.insert(outbox.Row{ID: "large", Payload: make([]byte, 900)})
	r.rows("c")
	_, err := r.run(t)
	requireRefusal(t, err, outbox.ReasonHalted, "max.message.bytes")
	r.kafka.Create(simTopic, 2, 2000)
	r.mustRun(t)
	r.requireIDs(t, "a", "b", "large", "c")
	require.EqualValues(t, 1, r.plans[len(r.plans)-1].Topics[simTopic].Partitions, "more partitions count in the next one only")
}

// A plan and a cursor are records of the cursor topic: a transaction ends before
// they are too large for it.
func TestPlansAreBounded(t *testing.T) {
	const rows = 30_000
	r := newRig()
	r.rules.Rows, r.rules.DeadLetters = 100_000, "dead"
	r.kafka.Create("dead", 1, 1<<30)
	r.db.RestartSequence(math.MaxInt64 / 2)
	tx := r.db.Begin()
	for i := range rows {
		tx.Insert(outbox.Row{ID: fmt.Sprint(i), AggregateType: "order"}) // NULL, and no tombstones
	}
	tx.Commit()
	require.EqualValues(t, rows, r.mustRun(t).DeadLetters)
	require.Len(t, r.published("dead", true), rows)
	largest := 0
	for _, cursor := range r.cursors {
		text, err := json.Marshal(cursor)
		require.NoError(t, err)
		largest = max(largest, len(text))
	}
	for _, plan := range r.plans {
		text, err := json.Marshal(plan)
		require.NoError(t, err)
		largest = max(largest, len(text))
	}
	require.Less(t, largest, 512<<10, "half of what a topic takes")
}

func TestO13PayloadsStayAsTheyAre(t *testing.T) {
	for _, payload := range []string{`[]`, `{"a":null,"b":[]}`, `{"n":1.10, "x":[[1,"a",null],{}]}`, "", " "} {
		r := newRig()
		r.insert(outbox.Row{ID: "a", Payload: []byte(payload)})
		r.mustRun(t)
		require.Equal(t, payload, string(r.published(simTopic, true)[0].Value))
		require.NotNil(t, r.published(simTopic, true)[0].Value)
	}
	r := newRig()
	r.rows("a")
	r.insert(outbox.Row{ID: "null"})
	_, err := r.run(t)
	requireRefusal(t, err, outbox.ReasonHalted, "the payload is NULL, and tombstones are not switched on; remedy: switch them on (ONCEHOUSE_TOMBSTONES=true), or give the row a payload, or delete it")
	r.requireIDs(t, "a")
	r.route.Tombstones = true
	require.EqualValues(t, 1, r.mustRun(t).Tombstones)
	require.Nil(t, r.published(simTopic, true)[1].Value)
}

func TestO14AnIllegalTopicIsFoundBeforeBegin(t *testing.T) {
	r := newRig()
	r.insert(outbox.Row{ID: "a", AggregateType: "sales order", Payload: []byte("x")})
	began := false
	r.log.Effects = func(_ context.Context, name string) memory.Fault {
		began = began || name == "produce" || name == "plan"
		return memory.Fine
	}
	_, err := r.run(t)
	requireRefusal(t, err, outbox.ReasonHalted, "the name holds ' '")
	require.False(t, began)
}

func TestO18AnIdleOutboxWritesItsCursor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.rows("a")
		r.mustRun(t)
		tx := r.db.Begin() // something else happens in the database
		tx.Rollback()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		before := len(r.cursors)
		tally, err := r.poller(t, r.rules).Run(ctx, time.Now().Add(10*time.Minute))
		require.NoError(t, err)
		require.Zero(t, tally.Transactions)
		require.Len(t, r.cursors, before+1, "and not again while nothing happens")
		require.Equal(t, r.db.Snapshot().Text, r.cursors[before].Done)
		require.Equal(t, r.cursors[before-1].Window, r.cursors[before].Window)
	})
}

func TestO19ALostAnswerIsReadFromTheLog(t *testing.T) {
	for _, fault := range []memory.Fault{memory.Refused, memory.Lost} {
		for _, effect := range []string{"init", "read", "plan", "produce", "cursor", "end"} {
			r := newRig()
			r.rows("a", "b")
			r.mustRun(t)
			r.rows("c", "d")
			r.fail(effect, fault)
			tally := r.mustRun(t)
			require.EqualValues(t, 1, tally.Reopened, effect)
			r.requireIDs(t, "a", "b", "c", "d")
		}
	}
}

// What a plan says of the topics holds until its window is finished.
func TestO34ThePlansRoutingHolds(t *testing.T) {
	abort := func(t *testing.T) *rig {
		t.Helper()
		r := newRig()
		r.kafka.Create(simTopic, 2, 1000)
		r.mustRun(t)
		for i := range 20 {
			key := fmt.Sprint(i)
			r.insert(outbox.Row{ID: key, AggregateID: &key, Payload: []byte("x")})
		}
		r.fail("end", memory.Refused)
		rules := r.rules
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		rules.Wait = func(context.Context, time.Duration) { cancel() }
		_, err := r.poller(t, rules).Run(ctx, time.Now().Add(time.Hour))
		require.ErrorIs(t, err, memory.ErrFault)
		return r
	}
	t.Run("partitions added", func(t *testing.T) {
		r := abort(t)
		r.kafka.Create(simTopic, 7, 1000)
		r.mustRun(t)
		count := 0
		for p := range int32(7) {
			records, _ := r.kafka.Read(simTopic, p, 0, true)
			require.True(t, p < 2 || len(records) == 0)
			count += len(records)
		}
		require.Equal(t, 20, count)
		for i := range 50 {
			key := fmt.Sprint(i)
			r.insert(outbox.Row{ID: "new" + key, AggregateID: &key, Payload: []byte("x")})
		}
		r.mustRun(t)
		records, _ := r.kafka.Read(simTopic, 6, 0, true)
		require.NotEmpty(t, records, "the next window has them all")
	})
	t.Run("another template", func(t *testing.T) {
		r := abort(t)
		right := r.route
		r.route.Topic = "other.${routedByValue}"
		_, err := r.run(t)
		requireRefusal(t, err, outbox.ReasonRouting)
		r.route = right
		r.mustRun(t)
	})
	t.Run("a lower limit", func(t *testing.T) {
		r := abort(t)
		r.kafka.Create(simTopic, 2, 10)
		r.mustRun(t) // the plan's limit decides what fits, and the broker may refuse
		records, _ := r.kafka.Read(simTopic, 0, 0, true)
		require.NotEmpty(t, records)
	})
}

func TestO35AResetCursorDropsNothing(t *testing.T) {
	r := newRig()
	r.rows("a", "b")
	r.mustRun(t)
	cursor, err := r.poller(t, r.rules).Reset(t.Context(), outbox.FromBeginning)
	require.NoError(t, err)
	require.NotEqual(t, r.cursors[0].Incarnation, cursor.Incarnation)
	r.rows("c")
	r.mustRun(t)
	sink := r.sink(t)
	deliver(t, sink, r.published(simTopic, false))
	require.Equal(t, []string{"a", "b", "a", "b", "c"}, kept(sink), "published again, as was asked for")
}

func (r *rig) sink(t *testing.T) *outboxtest.Sink {
	t.Helper()
	sink, err := outboxtest.NewSink(func(kafka.TopicPartition) []kafka.Record { return r.published(simTopic, false) })
	require.NoError(t, err)
	return sink
}

func deliver(t *testing.T, sink *outboxtest.Sink, records []kafka.Record) {
	t.Helper()
	require.NoError(t, sink.Deliver(t.Context(), kafka.TopicPartition{Topic: simTopic}, records))
}

func kept(sink *outboxtest.Sink) []string {
	var ids []string
	for _, k := range sink.Kept() {
		ids = append(ids, k.ID)
	}
	return ids
}

// abortOnce publishes rows whose first attempt was aborted after it was seen.
func (r *rig) abortOnce(t *testing.T, ids ...string) {
	t.Helper()
	r.mustRun(t)
	r.rows(ids...)
	r.fail("end", memory.Refused)
	require.EqualValues(t, 1, r.mustRun(t).Reopened)
}

// Our headers on records that somebody moved say nothing of the partition that
// they are in now, and positions that go back are a copy's.
func TestO36CopiesAreKept(t *testing.T) {
	r := newRig()
	r.abortOnce(t, "a", "b")
	r.abortOnce(t, "c")
	original := r.published(simTopic, false)
	require.Equal(t, []string{"a", "b", "a", "b", "c", "c"}, ids(original))

	elsewhere := kafka.TopicPartition{Topic: simTopic, Partition: 1}
	sink := r.sink(t)
	require.NoError(t, sink.Deliver(t.Context(), elsewhere, original))
	require.Equal(t, ids(original), kept(sink), "of another partition: nothing is dropped")

	sink = r.sink(t)
	deliver(t, sink, original)
	require.Equal(t, []string{"a", "b", "c"}, kept(sink))
	again := slices.Clone(original[2:4]) // a and b, redriven behind c
	for i := range again {
		again[i].Offset += 100
	}
	deliver(t, sink, again)
	require.Equal(t, []string{"a", "b", "c", "a", "b"}, kept(sink))
	require.EqualValues(t, 2, sink.Foreign)
}

func TestO37ANewGenerationReadsTheTopicAgain(t *testing.T) {
	r := newRig()
	r.abortOnce(t, "a", "b")
	sink := r.sink(t)
	deliver(t, sink, r.published(simTopic, false))
	require.NoError(t, sink.Bump(t.Context(), kafka.TopicPartition{Topic: simTopic}))
	deliver(t, sink, r.published(simTopic, false))
	require.Equal(t, []string{"a", "b", "a", "b"}, kept(sink))
	require.EqualValues(t, 4, sink.Dropped)
}

// A reset that keeps the position goes on inside an open window.
func TestResetKeepsThePosition(t *testing.T) {
	r := newRig()
	r.rules.Rows = 2
	r.rows("a", "b", "c")
	r.insert(outbox.Row{ID: "large", Payload: make([]byte, 900)})
	r.rows("d")
	_, err := r.run(t)
	requireRefusal(t, err, outbox.ReasonHalted)
	r.route.Placement = "" // which the open window would refuse
	_, err = r.run(t)
	requireRefusal(t, err, outbox.ReasonRouting)
	r.db.Identify(func(i *outbox.Identity) { i.Timeline++ })
	_, err = r.poller(t, r.rules).Reset(t.Context(), outbox.FromCursor)
	require.NoError(t, err)
	r.db.Delete(4)
	r.mustRun(t)
	r.requireIDs(t, "a", "b", "c", "d")

	r.db.Identify(func(i *outbox.Identity) { i.SystemID++ })
	_, err = r.poller(t, r.rules).Reset(t.Context(), outbox.FromCursor)
	require.ErrorContains(t, err, "another database cluster")
}

func TestO38APlanThatWasCleanedAwayIsRefused(t *testing.T) {
	r := newRig()
	r.rows("a")
	r.mustRun(t)
	r.rows("b")
	r.fail("produce", memory.Lost)
	rules := r.rules
	ctx, cancel := context.WithCancel(t.Context())
	rules.Wait = func(context.Context, time.Duration) { cancel() }
	_, err := r.poller(t, rules).Run(ctx, time.Now().Add(time.Hour))
	require.ErrorIs(t, err, memory.ErrFault)
	r.kafka.Clean("orders", outbox.Shard{Of: 1})
	_, err = r.run(t)
	requireRefusal(t, err, outbox.ReasonPlanLost)
	r.requireIDs(t, "a")
}

func TestO39AnAdoptedPlanWithoutRowsIsClosed(t *testing.T) {
	r := newRig()
	r.rows("a")
	r.mustRun(t)
	r.rows("b")
	r.fail("produce", memory.Refused)
	rules := r.rules
	ctx, cancel := context.WithCancel(t.Context())
	rules.Wait = func(context.Context, time.Duration) { cancel() }
	_, err := r.poller(t, rules).Run(ctx, time.Now().Add(time.Hour))
	require.ErrorIs(t, err, memory.ErrFault)
	r.db.Delete(2)
	r.mustRun(t)
	last := r.cursors[len(r.cursors)-1]
	require.EqualValues(t, 2, last.Window)
	require.Nil(t, last.Open)
	r.rows("c")
	r.mustRun(t)
	r.requireIDs(t, "a", "c")
	position, _ := r.published(simTopic, true)[1].FindHeader(delivery.HeaderPosition)
	require.Equal(t, "3.3", string(position))
}

// A run that is over begins nothing, and closes what it could not end.
func TestRunKeepsItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.rules.Rows, r.rules.Reserve = 1, 4*time.Second
		for i := range 100 {
			r.rows(fmt.Sprint(i))
		}
		begun := time.Now()
		ends := map[string]time.Duration{}
		r.log.Effects = func(_ context.Context, name string) memory.Fault {
			if name == "end" {
				time.Sleep(time.Second)
			}
			ends[name] = time.Since(begun)
			return memory.Fine
		}
		tally, err := r.poller(t, r.rules).Run(t.Context(), begun.Add(30*time.Second))
		require.NoError(t, err)
		require.Less(t, tally.Rows, int64(30))
		require.Positive(t, tally.Rows)
		require.LessOrEqual(t, ends["plan"], 26*time.Second, "no transaction begins in the reserve")
		require.Zero(t, ends["close"], "and none is open")
		require.Positive(t, tally.Lag)

		r.log.Effects = func(ctx context.Context, name string) memory.Fault {
			if name == "end" {
				<-ctx.Done()
			}
			ends[name] = time.Since(begun)
			return memory.Fine
		}
		begun = time.Now()
		_, err = r.poller(t, r.rules).Run(t.Context(), begun.Add(30*time.Second))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 28*time.Second, ends["close"], "half of the reserve is for leaving none open")
		r.log.Effects = nil
		r.mustRun(t)
		require.Len(t, r.published(simTopic, true), 100)
	})
}

func TestTally(t *testing.T) {
	r := newRig()
	var commits []outbox.Commit
	r.rules.Rows, r.rules.Observe = 2, func(c outbox.Commit) { commits = append(commits, c) }
	at := time.Now().Add(-time.Minute).UnixMilli()
	for i := range 5 {
		r.insert(outbox.Row{ID: fmt.Sprint(i), Payload: []byte("x"), Timestamp: at})
	}
	tally := r.mustRun(t)
	require.EqualValues(t, 5, tally.Rows)
	require.EqualValues(t, 3, tally.Transactions)
	require.Zero(t, tally.Lag)
	require.Zero(t, tally.SilentSeqs)
	require.Len(t, commits, 3)
	require.Equal(t, []int{2, 2, 1}, []int{commits[0].Rows, commits[1].Rows, commits[2].Rows})
	require.GreaterOrEqual(t, commits[0].Lag, time.Minute)

	ctx, cancel := context.WithCancel(t.Context())
	rules := r.rules
	rules.Wait = func(context.Context, time.Duration) {
		tx := r.db.Begin() // inserts and deletes its row
		seq := tx.Insert(outbox.Row{ID: "invisible"})
		tx.Rollback()
		if seq == 8 {
			cancel()
		}
	}
	tally, err := r.poller(t, rules).Run(ctx, time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.EqualValues(t, 2, tally.SilentSeqs)
}

func TestShardsMustBeThoseOfTheCursor(t *testing.T) {
	r := newRig()
	r.rows("a")
	r.mustRun(t)
	r.table.Shard.Of, r.log.Shard.Of = 2, 2
	r.table.Shard.By = "aggregateid"
	_, err := r.run(t)
	requireRefusal(t, err, outbox.ReasonShards)
	_, err = r.poller(t, r.rules).Reset(t.Context(), outbox.FromCursor)
	require.ErrorContains(t, err, "the cursor is of shard 0 of 1", "its position is not this shard's")

	router, err := outbox.NewRouter(r.route)
	require.NoError(t, err)
	poller := func(s outbox.Shard) (*outbox.Poller, error) {
		return outbox.NewPoller(s, r.db.Table(s), r.kafka.Log("orders", s), router, r.rules)
	}
	two := outbox.Shard{Of: 2, By: "aggregateid"}
	requireRefusal(t, outbox.Reshard(t.Context(), two, poller, time.Now().Add(-time.Second)), outbox.ReasonMoveTime)
	require.NoError(t, outbox.Reshard(t.Context(), two, poller, time.Now().Add(time.Minute)))
	require.NoError(t, outbox.Reshard(t.Context(), two, poller, time.Now().Add(time.Minute)), "it is done already")
	r.mustRun(t)
	r.table.Shard, r.log.Shard = outbox.Shard{Of: 1}, outbox.Shard{Of: 1}
	_, err = r.run(t)
	requireRefusal(t, err, outbox.ReasonShards)
	r.requireIDs(t, "a")
}

// What the shards are divided by decides whose cursor speaks of a row: by another
// column, rows would move past one cursor, and behind another.
func TestShardsMustBeDividedAsTheCursorIs(t *testing.T) {
	r := newRig()
	router := newRouter(t, r.route)
	rules := r.rules
	poller := func(s outbox.Shard) (*outbox.Poller, error) {
		return outbox.NewPoller(s, r.db.Table(s), r.kafka.Log("orders", s), router, rules)
	}
	run := func(by string) (failed error) {
		for index := range 2 {
			ctx, cancel := context.WithCancel(t.Context())
			rules.Wait = func(context.Context, time.Duration) { cancel() }
			p, err := poller(outbox.Shard{Index: index, Of: 2, By: by})
			require.NoError(t, err)
			_, err = p.Run(ctx, time.Now().Add(time.Hour))
			failed = errors.Join(failed, err)
			cancel()
		}
		return failed
	}
	var want []string
	insert := func() {
		for range 20 {
			id := fmt.Sprint(len(want))
			r.insert(outbox.Row{ID: id, AggregateID: &id, Payload: []byte("x")})
			want = append(want, id)
		}
	}
	insert()
	require.NoError(t, run("aggregateid"))
	insert()
	requireRefusal(t, run("customer"), outbox.ReasonShardKey, `"aggregateid"`, `"customer"`, "move the outbox")
	p, err := poller(outbox.Shard{Of: 2, By: "customer"})
	require.NoError(t, err)
	_, err = p.Reset(t.Context(), outbox.FromCursor)
	require.ErrorContains(t, err, "divided by")
	r.db.Identify(func(i *outbox.Identity) { i.KeyType = "U" })
	requireRefusal(t, run("aggregateid"), outbox.ReasonShardKey, "type")
	r.db.Identify(func(i *outbox.Identity) { i.KeyType = "" })

	require.NoError(t, outbox.Reshard(t.Context(), outbox.Shard{Of: 2, By: "customer"}, poller, time.Now().Add(time.Minute)))
	require.ElementsMatch(t, want, ids(r.published(simTopic, true)), "each shard is closed as it was divided")
	insert()
	requireRefusal(t, run("aggregateid"), outbox.ReasonShardKey)
	require.NoError(t, run("customer"))
	require.ElementsMatch(t, want, ids(r.published(simTopic, true)))

	one := newRig() // has all rows, whatever they are divided by
	one.rows("a")
	one.mustRun(t)
	one.table.Shard.By = "customer"
	one.rows("b")
	one.mustRun(t)
	one.requireIDs(t, "a", "b")
}

func TestNewPoller(t *testing.T) {
	router := newRouter(t, outbox.Routing{})
	for _, c := range []struct {
		shard outbox.Shard
		rules outbox.Rules
		err   string
	}{
		{outbox.Shard{}, outbox.Rules{}, "shard 0 of 0"},
		{outbox.Shard{Index: 1, Of: 1}, outbox.Rules{}, "shard 1 of 1"},
		{outbox.Shard{Index: 1, Of: 2}, outbox.Rules{}, "shard 1 of 2: by which column"},
		{outbox.Shard{Of: 1}, outbox.Rules{Rows: -1}, "-1 rows"},
		{outbox.Shard{Of: 1}, outbox.Rules{Poll: -1}, "must not be negative"},
		{outbox.Shard{Of: 1}, outbox.Rules{Initialise: outbox.FromCursor}, `initialise from "cursor"`},
		{outbox.Shard{Of: 1}, outbox.Rules{DeadLetters: "a b"}, `dead-letter topic "a b"`},
	} {
		_, err := outbox.NewPoller(c.shard, nil, nil, router, c.rules)
		require.ErrorContains(t, err, c.err)
	}
}

// Rows and bytes bound a transaction, and no partition gets more than one batch.
func TestTransactionsAreBounded(t *testing.T) {
	r := newRig()
	r.rules.Rows, r.rules.Bytes = 50, 1500
	r.kafka.Create(simTopic, 3, 1000)
	for i := range 200 {
		key := fmt.Sprint(i)
		r.insert(outbox.Row{ID: key, AggregateID: &key, Payload: make([]byte, i)})
	}
	largest := 0
	r.rules.Observe = func(c outbox.Commit) { largest = max(largest, c.Bytes) }
	tally := r.mustRun(t)
	require.EqualValues(t, 200, tally.Rows)
	require.LessOrEqual(t, largest, 1500)
	require.Greater(t, largest, 1000)
	var all []string
	for p := range int32(3) {
		records, _ := r.kafka.Read(simTopic, p, 0, true)
		all = append(all, ids(records)...)
		require.True(t, slices.IsSortedFunc(ids(records), func(a, b string) int { return len(a) - len(b) }))
	}
	require.Len(t, all, 200)
	require.Less(t, tally.Bytes, int64(math.MaxInt32))
}
