// Package logtest is the conformance suite of outbox.Log. Every adapter runs it,
// so that they differ in where they keep a record and in nothing else.
package logtest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/kafka"
	"oncehouse/shared/outbox"
)

// Partitions is how many the topic of a World has at first.
const Partitions = 3

// World is a broker with one topic, and nothing in it.
type World interface {
	// Topic is the topic's name.
	Topic() string
	// Log returns one more log of the shard 0 of 1 of an outbox.
	Log(t *testing.T) outbox.Log
	// Records reads all of a partition of the topic: everything, or what is committed.
	Records(t *testing.T, partition int32, committed bool) []kafka.Record
	// Grow gives the topic one more partition.
	Grow(t *testing.T)
	// Restrict makes the topic take records with a key only, stamped from a day ago to
	// an hour ahead. A broker that does not keep such rules is made to refuse the next
	// two requests of partition 0, by the timestamp and by the record.
	Restrict(t *testing.T)
	// Break makes the next commit of any log fail: before anything is committed,
	// or after all of it is, with the answer lost.
	Break(t *testing.T, after bool)
	// Truncate makes everything in the cursor partition go away.
	Truncate(t *testing.T)
}

// Run checks the logs of the worlds that start returns. It calls start once per
// subtest.
func Run(t *testing.T, start func(t *testing.T) World) {
	t.Helper()
	cases := []struct {
		name string
		run  func(*testing.T, World)
	}{
		{"a shard never written stands nowhere (O10)", empty},
		{"rows and cursor are committed together", together},
		{"records come back byte by byte (O13)", bytes},
		{"a cursor alone is committed, and read behind others (O18)", cursorAlone},
		{"a failed commit leaves the old cursor and the plan (O9)", failedCommit},
		{"a commit whose answer was lost is read as committed (O19)", lostAnswer},
		{"the one that opens last fences the others (O3)", fencing},
		{"a fenced log that opens again fences in turn (O21)", takeBack},
		{"the records of an aborted attempt can be seen", abortedSeen},
		{"topics are described, missing ones are not (O11)", topics},
		{"topics are described with what they do not take (O12)", restricted},
		{"a record that its topic does not take halts the shard (O12)", refused},
		{"a partition added is seen by the next to open (O34)", grown},
		{"a used partition without a cursor is expired (O10)", expired},
		{"closing twice, and before opening, is nothing", closing},
		{"a log that is not open commits nothing", notOpen},
		{"a call that is cancelled is no success", cancelled},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(t, start(t)) })
	}
}

func open(t *testing.T, l outbox.Log) outbox.Standing {
	t.Helper()
	standing, err := l.Open(t.Context())
	require.NoError(t, err)
	return standing
}

// opened returns a log that stands at cursor 1.
func opened(t *testing.T, w World) outbox.Log {
	t.Helper()
	l := w.Log(t)
	t.Cleanup(func() { require.NoError(t, l.Close(context.Background())) })
	open(t, l)
	require.NoError(t, l.Commit(t.Context(), outbox.Transaction{Cursor: CursorAt(1)}))
	return l
}

// CursorAt is a cursor that has finished a window.
func CursorAt(window int64) outbox.Cursor {
	return outbox.Cursor{
		Version: 1, Incarnation: "i", Shards: 1, Window: window, Done: fmt.Sprintf("%d:%d:", window, window),
		Identity: outbox.Identity{SystemID: 1 << 63, Timeline: 1, TableOID: 7}, LastID: "é\"", LastSeq: 1<<53 + 1,
	}
}

// PlanOf is a plan of a window.
func PlanOf(topic string, window int64) *outbox.Plan {
	return &outbox.Plan{
		Version: 1, Incarnation: "i", Number: window,
		Window: outbox.Window{From: fmt.Sprintf("%d:%d:", window-1, window-1), To: fmt.Sprintf("%d:%d:3,4", window, window)},
		Topics: map[string]outbox.Topic{topic: {Partitions: Partitions, MaxMessageBytes: 1 << 20}},
		Dead:   []int64{7}, DeadTopic: "dead", Routing: "r",
		Identity: outbox.Identity{SystemID: 1 << 63, Timeline: 1, TableOID: 7},
	}
}

// RecordsOf are n records, round robin over the partitions.
func RecordsOf(topic string, window int64, n int) []outbox.Record {
	records := make([]outbox.Record, n)
	for i := range records {
		records[i] = outbox.Record{
			Topic: topic, Partition: int32(i % Partitions), Key: []byte(fmt.Sprint(i)), Value: fmt.Appendf(nil, "%d.%d", window, i),
			Headers: []outbox.Header{{Key: "id", Value: []byte(fmt.Sprint(i))}},
		}
	}
	return records
}

func values(records []kafka.Record) []string {
	var out []string
	for _, r := range records {
		out = append(out, string(r.Value))
	}
	return out
}

func empty(t *testing.T, w World) {
	l := w.Log(t)
	require.Equal(t, outbox.Standing{}, open(t, l))
	require.NoError(t, l.Close(t.Context()))
	require.Equal(t, outbox.Standing{}, open(t, l), "a look leaves nothing behind")
	require.NoError(t, l.Close(t.Context()))
}

func together(t *testing.T, w World) {
	l := opened(t, w)
	require.NoError(t, l.Commit(t.Context(), outbox.Transaction{Plan: PlanOf(w.Topic(), 2), Records: RecordsOf(w.Topic(), 2, 100), Cursor: CursorAt(2)}))
	require.NoError(t, l.Commit(t.Context(), outbox.Transaction{Records: RecordsOf(w.Topic(), 3, 10), Cursor: CursorAt(3)}))
	for p := range int32(Partitions) {
		var want []string
		for _, batch := range [][]outbox.Record{RecordsOf(w.Topic(), 2, 100), RecordsOf(w.Topic(), 3, 10)} {
			for _, r := range batch {
				if r.Partition == p {
					want = append(want, string(r.Value))
				}
			}
		}
		require.Equal(t, want, values(w.Records(t, p, true)))
	}
	cursor := CursorAt(3)
	require.Equal(t, outbox.Standing{Cursor: &cursor}, open(t, l))
}

func bytes(t *testing.T, w World) {
	l := opened(t, w)
	sent := []outbox.Record{
		{Topic: w.Topic(), Key: nil, Value: nil, Timestamp: 1774748700123, Headers: []outbox.Header{}},
		{Topic: w.Topic(), Key: []byte{}, Value: []byte{}, Timestamp: 1, Headers: []outbox.Header{}},
		{Topic: w.Topic(), Key: []byte{0, 255}, Value: []byte(`{"a": null, "b":[], "c":[1,"x",[null]]}`), Timestamp: 1774748700123, Headers: []outbox.Header{
			{Key: "id", Value: []byte{0x80}}, {Key: "id", Value: nil}, {Key: "x", Value: []byte{}},
		}},
		{Topic: w.Topic(), Key: []byte("k"), Value: make([]byte, 900_000), Timestamp: 1774748700124, Headers: []outbox.Header{}},
	}
	require.NoError(t, l.Commit(t.Context(), outbox.Transaction{Records: slices.Clone(sent), Cursor: CursorAt(2)}))
	got := w.Records(t, 0, true)
	require.Len(t, got, len(sent))
	for i, r := range got {
		require.Equal(t, sent[i].Key, r.Key, "null stays apart from empty")
		require.Equal(t, sent[i].Value, r.Value, "null stays apart from empty")
		require.Equal(t, sent[i].Timestamp, r.Timestamp)
		require.Len(t, r.Headers, len(sent[i].Headers))
		for j, h := range r.Headers {
			require.Equal(t, sent[i].Headers[j].Key, string(h.Key))
			require.Equal(t, string(sent[i].Headers[j].Value), string(h.Value))
		}
	}
}

func cursorAlone(t *testing.T, w World) {
	l := opened(t, w)
	for window := int64(2); window <= 150; window++ {
		require.NoError(t, l.Commit(t.Context(), outbox.Transaction{Cursor: CursorAt(window)}))
	}
	cursor := CursorAt(150)
	cursor.Open, cursor.Seq = PlanOf(w.Topic(), 150), 9
	require.NoError(t, l.Commit(t.Context(), outbox.Transaction{Plan: PlanOf(w.Topic(), 150), Cursor: cursor}))
	require.Equal(t, outbox.Standing{Cursor: &cursor}, open(t, l))
}

func failedCommit(t *testing.T, w World) {
	l, old := opened(t, w), CursorAt(1)
	for range 100 { // more than a first look behind the cursor
		w.Break(t, false)
		require.Error(t, l.Commit(t.Context(), outbox.Transaction{Plan: PlanOf(w.Topic(), 2), Records: RecordsOf(w.Topic(), 2, 3), Cursor: CursorAt(2)}))
		require.Equal(t, outbox.Standing{Cursor: &old, Plan: PlanOf(w.Topic(), 2)}, open(t, l))
	}
	w.Break(t, false)
	extended := PlanOf(w.Topic(), 2)
	extended.Dead = []int64{7, 8}
	require.Error(t, l.Commit(t.Context(), outbox.Transaction{Plan: extended, Records: RecordsOf(w.Topic(), 2, 3), Cursor: CursorAt(2)}))
	require.Equal(t, outbox.Standing{Cursor: &old, Plan: extended}, open(t, l), "the last plan counts")
	w.Break(t, false)
	require.Error(t, l.Commit(t.Context(), outbox.Transaction{Records: RecordsOf(w.Topic(), 2, 3), Cursor: CursorAt(2)}))
	require.Equal(t, outbox.Standing{Cursor: &old, Plan: extended}, open(t, l), "a plan stays until a cursor is committed")
	require.NoError(t, l.Commit(t.Context(), outbox.Transaction{Records: RecordsOf(w.Topic(), 2, 3), Cursor: CursorAt(2)}))
	finished := CursorAt(2)
	require.Equal(t, outbox.Standing{Cursor: &finished}, open(t, l))
	require.Equal(t, []string{"2.0"}, values(w.Records(t, 0, true)))
}

func lostAnswer(t *testing.T, w World) {
	l := opened(t, w)
	w.Break(t, true)
	require.Error(t, l.Commit(t.Context(), outbox.Transaction{Plan: PlanOf(w.Topic(), 2), Records: RecordsOf(w.Topic(), 2, 3), Cursor: CursorAt(2)}))
	cursor := CursorAt(2)
	require.Equal(t, outbox.Standing{Cursor: &cursor}, open(t, l))
	require.Equal(t, []string{"2.0"}, values(w.Records(t, 0, true)))
}

func fencing(t *testing.T, w World) {
	old := opened(t, w)
	young := w.Log(t)
	cursor := CursorAt(1)
	require.Equal(t, outbox.Standing{Cursor: &cursor}, open(t, young))
	err := old.Commit(t.Context(), outbox.Transaction{Plan: PlanOf(w.Topic(), 2), Records: RecordsOf(w.Topic(), 2, 3), Cursor: CursorAt(2)})
	require.ErrorIs(t, err, outbox.ErrFenced)
	require.NoError(t, young.Commit(t.Context(), outbox.Transaction{Plan: PlanOf(w.Topic(), 2), Records: RecordsOf(w.Topic(), 2, 3), Cursor: CursorAt(2)}))
	require.Equal(t, []string{"2.0"}, values(w.Records(t, 0, true)))
	require.Equal(t, []string{"2.0"}, values(w.Records(t, 0, false)), "the fenced one wrote nothing")
	require.NoError(t, young.Close(t.Context()))
}

func takeBack(t *testing.T, w World) {
	a := opened(t, w)
	b := w.Log(t)
	open(t, b)
	require.ErrorIs(t, a.Commit(t.Context(), outbox.Transaction{Cursor: CursorAt(2)}), outbox.ErrFenced)
	open(t, a)
	require.ErrorIs(t, b.Commit(t.Context(), outbox.Transaction{Cursor: CursorAt(2)}), outbox.ErrFenced)
	require.NoError(t, a.Commit(t.Context(), outbox.Transaction{Cursor: CursorAt(2)}))
	_ = b.Close(t.Context()) // may fence a: it is told to leave nothing open
}

func abortedSeen(t *testing.T, w World) {
	l := opened(t, w)
	w.Break(t, false)
	require.Error(t, l.Commit(t.Context(), outbox.Transaction{Plan: PlanOf(w.Topic(), 2), Records: RecordsOf(w.Topic(), 2, 3), Cursor: CursorAt(2)}))
	open(t, l)
	require.NoError(t, l.Commit(t.Context(), outbox.Transaction{Records: RecordsOf(w.Topic(), 2, 6), Cursor: CursorAt(2)}))
	require.Equal(t, []string{"2.0", "2.3"}, values(w.Records(t, 0, true)))
	require.Equal(t, []string{"2.0", "2.0", "2.3"}, values(w.Records(t, 0, false)))
}

func topics(t *testing.T, w World) {
	l := opened(t, w)
	found, err := l.Topics(t.Context(), []string{w.Topic(), "no-such-topic"})
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.EqualValues(t, Partitions, found[w.Topic()].Partitions)
	require.Greater(t, found[w.Topic()].MaxMessageBytes, int32(900_000))
	none, err := l.Topics(t.Context(), []string{"no-such-topic"})
	require.NoError(t, err)
	require.Empty(t, none)
}

func restricted(t *testing.T, w World) {
	l := opened(t, w)
	found, err := l.Topics(t.Context(), []string{w.Topic()})
	require.NoError(t, err)
	free := found[w.Topic()]
	require.False(t, free.Compacted)
	require.Zero(t, free.Earliest)
	w.Restrict(t)
	open(t, l)
	found, err = l.Topics(t.Context(), []string{w.Topic()})
	require.NoError(t, err)
	topic, now := found[w.Topic()], time.Now()
	require.True(t, topic.Compacted)
	for bound, want := range map[int64]time.Duration{topic.Earliest: -24 * time.Hour, topic.Latest: time.Hour} {
		margin := (want - time.UnixMilli(bound).Sub(now)).Abs()
		require.LessOrEqual(t, margin, max(want.Abs()/10, time.Minute)+10*time.Second, "within a tenth")
		require.Less(t, time.UnixMilli(bound).Sub(now).Abs(), want.Abs()+time.Second, "and not outside")
	}
	require.Equal(t, free.MaxMessageBytes, topic.MaxMessageBytes)
}

func refused(t *testing.T, w World) {
	l := opened(t, w)
	w.Restrict(t)
	good := outbox.Record{Topic: w.Topic(), Key: []byte("k"), Value: []byte("good"), Timestamp: time.Now().UnixMilli()}
	late, keyless := good, good
	late.Timestamp = time.Now().Add(2 * time.Hour).UnixMilli()
	keyless.Key = nil
	for _, bad := range []outbox.Record{late, keyless} {
		err := l.Commit(t.Context(), outbox.Transaction{Plan: PlanOf(w.Topic(), 2), Records: []outbox.Record{good, bad}, Cursor: CursorAt(2)})
		var refusal *outbox.Refusal
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, outbox.ReasonHalted, refusal.Reason)
		require.Contains(t, refusal.Problems[0], w.Topic()+"-0")
		require.NotEmpty(t, refusal.Remedy)
		cursor := CursorAt(1)
		require.Equal(t, outbox.Standing{Cursor: &cursor, Plan: PlanOf(w.Topic(), 2)}, open(t, l))
	}
	require.NoError(t, l.Commit(t.Context(), outbox.Transaction{Records: []outbox.Record{good}, Cursor: CursorAt(2)}))
	require.Equal(t, []string{"good"}, values(w.Records(t, 0, true)))
}

func grown(t *testing.T, w World) {
	l := opened(t, w)
	_, err := l.Topics(t.Context(), []string{w.Topic()})
	require.NoError(t, err)
	require.NoError(t, l.Commit(t.Context(), outbox.Transaction{Records: RecordsOf(w.Topic(), 2, 3), Cursor: CursorAt(2)}))
	w.Grow(t)
	open(t, l)
	found, err := l.Topics(t.Context(), []string{w.Topic()})
	require.NoError(t, err)
	require.EqualValues(t, Partitions+1, found[w.Topic()].Partitions)
	require.NoError(t, l.Commit(t.Context(), outbox.Transaction{
		Records: []outbox.Record{{Topic: w.Topic(), Partition: Partitions, Value: []byte("new")}}, Cursor: CursorAt(3),
	}))
	require.Equal(t, []string{"new"}, values(w.Records(t, Partitions, true)))
}

func expired(t *testing.T, w World) {
	l := opened(t, w)
	w.Truncate(t)
	standing := open(t, l)
	require.Nil(t, standing.Cursor)
	require.True(t, standing.Expired)
}

func closing(t *testing.T, w World) {
	l := w.Log(t)
	require.NoError(t, l.Close(t.Context()))
	open(t, l)
	w.Break(t, false)
	require.Error(t, l.Commit(t.Context(), outbox.Transaction{Records: RecordsOf(w.Topic(), 1, 3), Cursor: CursorAt(1)}))
	require.NoError(t, l.Close(t.Context()))
	require.NoError(t, l.Close(t.Context()))
	require.Empty(t, w.Records(t, 0, true), "and nothing holds back who reads committed records")
}

func notOpen(t *testing.T, w World) {
	l := w.Log(t)
	require.Error(t, l.Commit(t.Context(), outbox.Transaction{Cursor: CursorAt(1)}))
	require.NoError(t, l.Close(t.Context()))
	require.Equal(t, outbox.Standing{}, open(t, l))
	require.NoError(t, l.Close(t.Context()))
}

func cancelled(t *testing.T, w World) {
	l := opened(t, w)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	begun := time.Now()
	require.Error(t, l.Commit(ctx, outbox.Transaction{Records: RecordsOf(w.Topic(), 2, 3), Cursor: CursorAt(2)}))
	require.Less(t, time.Since(begun), 10*time.Second)
	cursor := CursorAt(1)
	require.Equal(t, outbox.Standing{Cursor: &cursor}, open(t, l))
}
