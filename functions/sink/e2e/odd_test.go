package e2e

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/kafka"
)

// oddities are values that must not hurt their neighbours, and whether they
// make a row.
func oddities(good []byte) map[string]struct {
	value []byte
	row   bool
} {
	type odd = struct {
		value []byte
		row   bool
	}
	inside := func(more string) []byte { return append(append(bytes.Clone(good[:len(good)-1]), more...), '}') }
	return map[string]odd{
		"two objects":      {[]byte(`{"a":1}{"a":2}`), false},
		"two good ones":    {append(bytes.Clone(good), good...), false},
		"trailing":         {append(bytes.Clone(good), " x"...), false},
		"array":            {[]byte(`[1]`), false},
		"text":             {[]byte(`"text"`), false},
		"empty":            {[]byte{}, false},
		"cut":              {[]byte(`{"a":"unterminated`), false},
		"byte-order mark":  {append([]byte("\xef\xbb\xbf"), good...), false},
		"invalid UTF-8":    {inside(`,"x":"` + "\xff" + `"`), false},
		"nested arrays":    {inside(`,"x":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)), false},
		"cut nested":       {inside(`,"x":` + strings.Repeat("[", 10_000)), false},
		"long number":      {inside(`,"x":` + strings.Repeat("9", 5_000)), true},
		"long key":         {inside(`,"` + strings.Repeat("k", 1<<20) + `":1`), true},
		"same key twice":   {inside(`,"user_id":1`), false},
		"provenance names": {inside(`,"_offset":77,"_topic":"x","_partition":9,"_timestamp":"x","_key":{}`), true},
		"white space":      {append(append([]byte(" \t\r\n"), good...), " \n"...), true},
	}
}

func (s *stack) testOddRecords(t *testing.T) {
	t.Parallel()
	p := s.pipeline(t, "odd", options{memoryMB: 512})
	b := batch(0, 0, 199)
	want, letters, at := through(0, 199), []int64{}, int64(1)
	for name, odd := range oddities(b.Records[0].Value) {
		b.Records[at].Value = odd.value
		if !odd.row {
			want, letters = remove(want, at), append(letters, at)
		}
		t.Logf("%d: %s", at, name)
		at += 3
	}
	b.Records[at].Value, want = nil, remove(want, at) // a tombstone
	b.Records[at+1].Key = nil
	b.Records[at+2].Key = []byte{}
	b.Records[at+3].Timestamp, b.Records[at+4].Timestamp = 0, -1
	var every []kafka.Header
	for i := range 256 {
		every = append(every, kafka.Header{Key: []byte("twice"), Value: []byte{byte(i)}})
	}
	b.Records[at+5].Headers = every
	payload := event(b)
	for _, as := range [][]byte{payload, payload} {
		p.deliver(as)
		var got []int64
		require.NoError(t, p.conn.QueryRow(t.Context(), "SELECT arraySort(groupArray(_offset)) FROM clicks WHERE _topic = 'clicks' AND _partition = 0").Scan(&got))
		require.Equal(t, want, got)
	}
	require.Equal(t, map[string][]int64{"clicks-0": letters}, p.dead())
}

func remove(list []int64, o int64) []int64 {
	var out []int64
	for _, x := range list {
		if x != o {
			out = append(out, x)
		}
	}
	return out
}

// An event that was cut short anywhere is refused whole.
func (s *stack) testCutEvents(t *testing.T) {
	t.Parallel()
	p := s.pipeline(t, "cut", options{})
	payload := event(batch(0, 0, 19), batch(1, 0, 19))
	for n := 0; n < len(payload); n += 211 {
		require.Equal(t, "Event", p.fail(payload[:n]).ErrorType, "%d bytes", n)
	}
	for _, bad := range []string{
		strings.Replace(string(payload), `"value":"`, `"value":"!`, 1), // not base64
		strings.Replace(string(payload), `"offset":3,`, `"offset":2,`, 1),
		strings.Replace(string(payload), `"offset":3,`, `"offset":-3,`, 1),
		strings.Replace(string(payload), `"offset":3,`, `"offset":9223372036854775807,`, 1),
	} {
		require.NotEqual(t, string(payload), bad)
		result := p.fail([]byte(bad))
		t.Log(result.ErrorType, result.ErrorMessage)
	}
	p.deliver([]byte(strings.ReplaceAll(string(payload), `"offset":`, `"never":{"heard":["of",1]},"offset":`)))
	require.Equal(t, 40, p.count())
}

// The largest event and the largest record that Lambda delivers, a batch that is
// nearly all poison, and one with a gap behind each record.
func (s *stack) testLargeEvents(t *testing.T) {
	t.Parallel()
	p := s.pipeline(t, "huge", options{memoryMB: 512, settings: []string{"POISON_SHARE=1"}})
	b := batch(0, 0, 0)
	value := b.Records[0].Value
	b.Records[0].Value = append(append(bytes.Clone(value[:len(value)-1]), `,"x":"`+strings.Repeat("y", 4_300_000)+`"`...), '}')
	p.deliver(event(b))
	require.Equal(t, 1, p.count())

	poison := kafka.Batch{TopicPartition: kafka.TopicPartition{Topic: "clicks", Partition: 1}}
	for o := range int64(10_001) {
		poison.Records = append(poison.Records, kafka.Record{Offset: o, Timestamp: o, Value: []byte(`{"user_id":` + fmt.Sprint(o) + `}`)})
	}
	poison.Records[5000].Value = value
	began := time.Now()
	p.deliver(event(poison))
	t.Log("10,000 letters took", time.Since(began))
	require.Equal(t, 2, p.count())
	require.Equal(t, map[string][]int64{"clicks-1": remove(through(0, 10_000), 5000)}, p.dead())

	gaps := kafka.Batch{TopicPartition: kafka.TopicPartition{Topic: "clicks", Partition: 2}}
	for o := range int64(5_000) {
		gaps.Records = append(gaps.Records, kafka.Record{Offset: 1<<50 + 2*o, Timestamp: o, Value: value})
	}
	p.deliver(event(gaps))
	require.Equal(t, 5_002, p.count())
	p.deliver(event(gaps))
	require.Equal(t, 5_002, p.count())
}
