// Package targettest is what every delivery.Target must do: the real adapter and
// the fakes that tests use in its place run the same suite.
//
//	targettest.Run(t, func(t *testing.T) targettest.Fixture {
//		return targettest.Fixture{Target: fake, Stored: fake.Offsets}
//	})
//
// The table behind the target has provenance columns and one column v that
// takes a string; records are the JSON objects of [Record].
package targettest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	"oncehouse/shared/offsets"
)

// Fixture is one target with an empty table.
type Fixture struct {
	Target delivery.Target
	// Stored returns the offsets of the lane's rows in the table, ascending,
	// a row that is there twice twice.
	Stored func(t *testing.T, lane delivery.Lane) []int64
	// Deduplicates: the table has a deduplication window.
	Deduplicates bool
}

// Lane is the lane that the suite writes.
func Lane() delivery.Lane {
	return delivery.Lane{Pipeline: "suite", Cluster: "c", TopicPartition: kafka.TopicPartition{Topic: "clicks-a", Partition: 3}}
}

// Record is a record that fits the table.
func Record(offset int64) kafka.Record {
	return kafka.Record{Offset: offset, Timestamp: 1_700_000_000_000, Value: []byte(`{"v":"x"}`)}
}

// Records are records at the given offsets.
func Records(at ...int64) []kafka.Record {
	out := make([]kafka.Record, len(at))
	for i, offset := range at {
		out[i] = Record(offset)
	}
	return out
}

// NoLimit bounds a chunk by nothing that a test reaches.
func NoLimit() delivery.Limit { return delivery.Limit{Rows: 100_000, Bytes: 64 << 20} }

// Encode encodes records that all fit one chunk.
func Encode(t *testing.T, target delivery.Target, lane delivery.Lane, records []kafka.Record) *delivery.Chunk {
	t.Helper()
	chunk, err := target.Encode(lane, records, NoLimit())
	require.NoError(t, err)
	require.Equal(t, len(records), chunk.Consumed)
	return chunk
}

// Insert is a first attempt to store the chunk of the records.
func Insert(lane delivery.Lane, chunk *delivery.Chunk, records []kafka.Record, token string) delivery.Insert {
	return delivery.Insert{
		Lane: lane, Chunk: chunk, First: records[0].Offset, Last: records[len(records)-1].Offset,
		Token: token, Attempt: 1, NotAfter: time.Now().Add(time.Minute), Timeout: 30 * time.Second,
	}
}

// Run runs the suite; open returns a fresh fixture.
func Run(t *testing.T, open func(t *testing.T) Fixture) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, f Fixture)
	}{
		{"StoresWhatWasEncoded", storesWhatWasEncoded},
		{"SkipsAndRefusesWithoutHurtingNeighbours", skipsAndRefuses},
		{"CutsAtTheLimit", cutsAtTheLimit},
		{"SameTokenOnce", sameTokenOnce},
		{"NoTokenStoresEqualContentTwice", noToken},
		{"ProbesExactly", probesExactly},
		{"ProbesItsOwnLaneOnly", probesOwnLane},
		{"SendsNothingTooLate", sendsNothingTooLate},
		{"RefusesAnEmptyChunk", refusesEmptyChunk},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := open(t)
			_, err := f.Target.Preflight(t.Context())
			require.NoError(t, err)
			c.run(t, f)
		})
	}
}

func (f Fixture) store(t *testing.T, lane delivery.Lane, records []kafka.Record, token string) {
	t.Helper()
	chunk := Encode(t, f.Target, lane, records)
	require.NoError(t, f.Target.Insert(t.Context(), Insert(lane, chunk, records, token)))
	if chunk.Release != nil {
		chunk.Release()
	}
}

func storesWhatWasEncoded(t *testing.T, f Fixture) {
	f.store(t, Lane(), Records(10, 11, 15, 16), "t1") // D23
	require.Equal(t, []int64{10, 11, 15, 16}, f.Stored(t, Lane()))
}

func skipsAndRefuses(t *testing.T, f Fixture) {
	records := Records(1, 2, 3, 4)
	records[1].Value = nil
	records[2].Value = []byte(`{"v":`)
	chunk := Encode(t, f.Target, Lane(), records)
	require.Equal(t, 2, chunk.Rows)
	require.Equal(t, []int{1}, chunk.Skipped)
	require.Len(t, chunk.Refused, 1)
	require.Equal(t, int64(3), chunk.Refused[0].Offset)
	require.NotEmpty(t, chunk.Refused[0].Code)
	require.NoError(t, f.Target.Insert(t.Context(), Insert(Lane(), chunk, records, "t1")))
	require.Equal(t, []int64{1, 4}, f.Stored(t, Lane()))
}

func cutsAtTheLimit(t *testing.T, f Fixture) {
	chunk, err := f.Target.Encode(Lane(), Records(1, 2, 3, 4, 5), delivery.Limit{Rows: 2, Bytes: 1 << 20})
	require.NoError(t, err)
	require.Equal(t, 2, chunk.Consumed)
	require.Equal(t, 2, chunk.Rows)
	chunk, err = f.Target.Encode(Lane(), Records(1, 2, 3, 4, 5), delivery.Limit{Rows: 100, Bytes: 1})
	require.NoError(t, err)
	require.Equal(t, 1, chunk.Consumed, "bytes are checked after each row")
}

func sameTokenOnce(t *testing.T, f Fixture) {
	for range 2 {
		f.store(t, Lane(), Records(1, 2), "same")
	}
	f.store(t, Lane(), Records(3), "other")
	want := []int64{1, 1, 2, 2, 3}
	if f.Deduplicates {
		want = []int64{1, 2, 3}
	}
	require.Equal(t, want, f.Stored(t, Lane()))
}

func noToken(t *testing.T, f Fixture) { // D28
	for range 2 {
		f.store(t, Lane(), Records(1, 2), "")
	}
	require.Equal(t, []int64{1, 1, 2, 2}, f.Stored(t, Lane()))
}

func probesExactly(t *testing.T, f Fixture) {
	there := offsets.Between(10, 19).Union(offsets.Of(25)).Union(offsets.Between(30, 39))
	f.store(t, Lane(), Records(collect(there)...), "t1")
	for _, c := range []struct{ ask, want string }{
		{"10-19", "10-19"},
		{"0-5", ""},
		{"8-12,24-26,39-50", "10-12,25,39"},
		{"15", "15"},
		{"20-24", ""},
		{"0-1000000000", "10-19,25,30-39"},
	} {
		ask, err := offsets.Parse(c.ask)
		require.NoError(t, err)
		got, err := f.Target.Probe(t.Context(), Lane(), ask)
		require.NoError(t, err)
		require.Equal(t, c.want, got.String(), "probe %s", c.ask)
	}
}

func probesOwnLane(t *testing.T, f Fixture) {
	otherTopic, otherPartition := Lane(), Lane()
	otherTopic.Topic = "clicks-b"
	otherPartition.Partition = 33
	f.store(t, otherTopic, Records(1), "t1")
	f.store(t, otherPartition, Records(2), "t2")
	f.store(t, Lane(), Records(3), "t3")
	got, err := f.Target.Probe(t.Context(), Lane(), offsets.Between(0, 9))
	require.NoError(t, err)
	require.Equal(t, "3", got.String())
}

func sendsNothingTooLate(t *testing.T, f Fixture) {
	records := Records(1)
	in := Insert(Lane(), Encode(t, f.Target, Lane(), records), records, "t1")
	in.NotAfter = time.Now().Add(-time.Millisecond)
	var failed *delivery.Error
	require.ErrorAs(t, f.Target.Insert(t.Context(), in), &failed)
	require.Equal(t, delivery.Retryable, failed.Kind)
	require.Equal(t, delivery.ReasonOutOfTime, failed.Reason)
	require.Empty(t, f.Stored(t, Lane()))
}

func refusesEmptyChunk(t *testing.T, f Fixture) { // D14: the caller settles it without an insert
	records := Records(1)
	records[0].Value = nil
	chunk := Encode(t, f.Target, Lane(), records)
	require.Zero(t, chunk.Rows)
	err := f.Target.Insert(t.Context(), Insert(Lane(), chunk, records, "t1"))
	require.Equal(t, delivery.Fatal, delivery.KindOf(err))
	require.ErrorContains(t, err, "empty")
}

func collect(s offsets.Set) []int64 {
	var out []int64
	for o := range s.All() {
		out = append(out, o)
	}
	return out
}
