package oracle

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/clickstream"
	"oncehouse/shared/deadletter"
	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
)

// produced is a topic of two partitions: odd and even records.
func produced() *Truth {
	t := &Truth{
		Generator: clickstream.Generator{Seed: 3, Size: 300, PoisonEvery: 10, TombstoneEvery: 10},
		Topic:     "clicks", Pipeline: "p", Index: make([][]int64, 2),
	}
	for i := range int64(200) {
		t.Index[i%2] = append(t.Index[i%2], i)
	}
	return t
}

// result is a table and a queue as an exact run leaves them, to be spoiled.
type result struct {
	rows    []storedRow
	letters []deadletter.Envelope
}

type storedRow struct {
	topic     string
	partition int32
	offset    int64
	record    record
}

func exact(t *Truth) *result {
	res := &result{}
	for p, index := range t.Index {
		for offset, i := range index {
			switch kind := t.Generator.Kind(i); {
			case kind == clickstream.Good:
				res.rows = append(res.rows, storedRow{t.Topic, int32(p), int64(offset), record{t.Generator.Click(i), t.Generator.Timestamp(i), t.Generator.Key(nil, i)}})
			case kind.Poison():
				res.letters = append(res.letters, envelopeOf(t, int32(p), int64(offset), i))
			}
		}
	}
	return res
}

func envelopeOf(t *Truth, partition int32, offset, i int64) deadletter.Envelope {
	r := t.Generator.Record(i)
	r.Offset = offset
	lane := delivery.Lane{Pipeline: t.Pipeline, Cluster: "local", TopicPartition: kafka.TopicPartition{Topic: t.Topic, Partition: partition}}
	return deadletter.New(delivery.Letter{
		Lane: lane, Generation: 1, Record: r, Code: "not-json", Message: "m", Token: "t", FirstSeen: time.UnixMilli(1),
	}, deadletter.MaxBody)
}

// stream is the rows as the engine sends them.
func (res *result) stream() *bytes.Buffer {
	var b []byte
	for _, row := range res.rows {
		b = appendText(b, row.topic)
		b = binary.LittleEndian.AppendUint32(b, uint32(row.partition))
		b = appendInt64(b, row.offset)
		for _, c := range columns() {
			b = c.want(b, &row.record)
		}
	}
	return bytes.NewBuffer(b)
}

func check(t *testing.T, topic *Truth, res *result) (Count, []string) {
	t.Helper()
	c := NewChecker(topic)
	require.NoError(t, c.Rows(res.stream()))
	for _, e := range res.letters {
		body, err := e.Marshal()
		require.NoError(t, err)
		c.Letter(body)
	}
	return c.Finish(), c.Problems
}

func TestExactRun(t *testing.T) {
	topic := produced()
	res := exact(topic)
	proof, problems := check(t, topic, res)
	require.Empty(t, problems)
	require.True(t, proof.Exact())
	require.Equal(t, int64(200), proof.Produced)
	require.Equal(t, int64(len(res.rows)), proof.Stored)
	require.Equal(t, int64(len(res.letters)), proof.DeadLetters)
	require.Equal(t, proof.Produced, proof.Stored+proof.DeadLetters+proof.Tombstones)
	require.Positive(t, proof.DeadLetters)
	require.Positive(t, proof.Tombstones)

	res.letters = append(res.letters, res.letters[0]) // a queue may hold one twice, under its one id
	proof, _ = check(t, topic, res)
	require.True(t, proof.Exact())
}

// What is wrong with a run is seen, counted where it belongs, and told.
func TestEveryFaultIsSeen(t *testing.T) {
	type counts struct{ lost, duplicated, wrong int64 }
	for name, c := range map[string]struct {
		spoil func(*Truth, *result)
		want  counts
		says  string
	}{
		"row twice":             {func(_ *Truth, r *result) { r.rows = append(r.rows, r.rows[7]) }, counts{duplicated: 1}, "is stored 2 times"},
		"row missing":           {func(_ *Truth, r *result) { r.rows = r.rows[1:] }, counts{lost: 1}, "neither in the table nor in the dead letters"},
		"row of another record": {func(_ *Truth, r *result) { r.rows[3].record = r.rows[4].record }, counts{wrong: 1}, "event_id is"},
		"row of no record":      {func(_ *Truth, r *result) { r.rows = append(r.rows, storedRow{topic: "clicks", offset: 100}) }, counts{wrong: 1}, "was never produced"},
		"row of another topic":  {func(_ *Truth, r *result) { r.rows[0].topic = "orders" }, counts{wrong: 1, lost: 1}, "orders-0"},
		"row of a poison record": {func(topic *Truth, r *result) {
			e := r.letters[0]
			r.rows = append(r.rows, storedRow{"clicks", e.Lane.Partition, e.Record.Offset, record{click: topic.Generator.Click(0)}})
		}, counts{wrong: 1}, "is stored and is"},
		"letter missing":       {func(_ *Truth, r *result) { r.letters = r.letters[1:] }, counts{lost: 1}, "neither in the table nor in the dead letters"},
		"letter under two ids": {func(_ *Truth, r *result) { e := r.letters[0]; e.Generation = 2; r.letters = append(r.letters, e) }, counts{duplicated: 1}, "two dead letters"},
		"letter of a good one": {func(topic *Truth, r *result) {
			r.letters = append(r.letters, envelopeOf(topic, r.rows[0].partition, r.rows[0].offset, topic.Index[r.rows[0].partition][r.rows[0].offset]))
		}, counts{wrong: 1}, "of a record that fits"},
		"letter with other content":  {func(_ *Truth, r *result) { r.letters[0].Record.Key = []byte("other") }, counts{wrong: 1}, "does not hold what was produced"},
		"letter of another pipeline": {func(_ *Truth, r *result) { r.letters[0].Lane.Pipeline = "q" }, counts{wrong: 1}, "is of pipeline q"},
	} {
		t.Run(name, func(t *testing.T) {
			topic := produced()
			res := exact(topic)
			c.spoil(topic, res)
			proof, problems := check(t, topic, res)
			require.Equal(t, c.want, counts{proof.Lost, proof.Duplicated, proof.WrongValues}, problems)
			require.False(t, proof.Exact())
			require.Contains(t, strings.Join(problems, "\n"), c.says)
		})
	}
}

// A wrong value in any column is seen.
func TestEveryColumnIsCompared(t *testing.T) {
	for name, spoil := range map[string]func(*record){
		"event_id":    func(r *record) { r.click.EventID[15] ^= 1 },
		"user_id":     func(r *record) { r.click.UserID++ },
		"session":     func(r *record) { r.click.Session += " " },
		"url":         func(r *record) { r.click.URL = "/other" },
		"referrer":    func(r *record) { r.click.Referrer += "x" },
		"ts":          func(r *record) { r.click.Time = r.click.Time.Add(time.Millisecond) },
		"duration_ms": func(r *record) { r.click.DurationMS-- },
		"price":       func(r *record) { r.click.PriceCents++ },
		"tags":        func(r *record) { r.click.Tags = append([]string{"x"}, r.click.Tags...) },
		"props":       func(r *record) { r.click.Props = r.click.Props[1:] },
		"_timestamp":  func(r *record) { r.timestamp++ },
		"_key":        func(r *record) { r.key = nil },
	} {
		t.Run(name, func(t *testing.T) {
			topic := produced()
			res := exact(topic)
			spoil(&res.rows[5].record)
			proof, problems := check(t, topic, res)
			require.Equal(t, int64(1), proof.WrongValues)
			require.Contains(t, problems[0], ": "+name+" is ")
		})
	}
	require.Len(t, columns(), 12)
}

// A torn stream is an error, wherever it ends.
func TestTornRows(t *testing.T) {
	res := exact(produced())
	res.rows = res.rows[:1]
	whole := res.stream().Bytes()
	for n := 1; n < len(whole); n++ {
		require.Error(t, readRows(bytes.NewReader(whole[:n]), func(string, int32, int64, [][]byte) { t.Fatal("a torn row was taken") }), n)
	}
	seen := 0
	require.NoError(t, readRows(bytes.NewReader(whole), func(string, int32, int64, [][]byte) { seen++ }))
	require.Equal(t, 1, seen)
}
