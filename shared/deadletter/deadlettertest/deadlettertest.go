// Package deadlettertest is the conformance suite of delivery.Letters.
package deadlettertest

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/deadletter"
	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
)

// Subject is an adapter and a look at what it holds.
type Subject struct {
	delivery.Letters
	// Held returns the envelopes that are durable, in any order, a letter sent
	// twice possibly twice.
	Held func(t *testing.T) []deadletter.Envelope
}

// Run checks the adapters that open returns, each of them empty.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	t.Helper()
	t.Run("no letters", func(t *testing.T) {
		s := open(t)
		require.NoError(t, s.Send(t.Context(), nil))
		require.Empty(t, s.Held(t))
	})
	for _, n := range []int{1, 10, 11, 137} {
		t.Run("every letter is durable when Send returns (I7)", func(t *testing.T) {
			s := open(t)
			want := letters(n)
			require.NoError(t, s.Send(t.Context(), want))
			require.Equal(t, byID(want), held(t, s))
		})
	}
	t.Run("sending twice is harmless (I7)", func(t *testing.T) {
		s := open(t)
		want := letters(12)
		require.NoError(t, s.Send(t.Context(), want))
		require.NoError(t, s.Send(t.Context(), want[3:]))
		require.Equal(t, byID(want), held(t, s))
	})
	t.Run("null is not empty, bytes stay bytes", func(t *testing.T) {
		s := open(t)
		want := letters(4)
		want[0].Record.Key, want[0].Record.Value = nil, nil
		want[1].Record.Key, want[1].Record.Value = []byte{}, []byte{}
		want[2].Record.Value = []byte("\x00\xff\xfe\"</\u2028>\uffff")
		want[3].Record.Value, want[3].Message = bytes.Repeat([]byte{0xff}, 180<<10), "\x01\uffff"
		require.NoError(t, s.Send(t.Context(), want))
		require.Equal(t, byID(want), held(t, s))
	})
	t.Run("letters that are large together", func(t *testing.T) {
		s := open(t)
		want := letters(9)
		for i := range want {
			want[i].Record.Value = bytes.Repeat([]byte{byte(i)}, 20_000*(i+1))
		}
		require.NoError(t, s.Send(t.Context(), want))
		require.Len(t, held(t, s), len(want))
	})
	t.Run("a cancelled call fails", func(t *testing.T) {
		s := open(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, s.Send(ctx, letters(3)), context.Canceled)
	})
	t.Run("the caller's memory is its own afterwards", func(t *testing.T) {
		s := open(t)
		sent := letters(2)
		require.NoError(t, s.Send(t.Context(), sent))
		clear(sent[0].Record.Value)
		clear(sent)
		require.Equal(t, byID(letters(2)), held(t, s))
	})
}

// Letter is a letter with every field set, of the record at offset.
func Letter(offset int64) delivery.Letter {
	return delivery.Letter{
		Lane:       delivery.Lane{Pipeline: "clicks", Cluster: "main", TopicPartition: kafka.TopicPartition{Topic: "web.clicks-1", Partition: 3}},
		Generation: 2,
		Record: kafka.Record{
			Offset: offset, Timestamp: 1774748700123, Key: []byte("user-7"), Value: []byte(`{"user_id":"seven","amount":1e99}` + "\n\xff"),
			Headers: []kafka.Header{{Key: []byte("trace"), Value: []byte{0x80, 0x00}}, {Key: []byte("trace"), Value: []byte{}}},
		},
		Code: "out_of_range", Message: `column amount: 1e99 is above 99999.99 “é”`,
		Token:     "oncehouse:clicks:main:web.clicks-1:3:2:40-49:0123456789abcdef:1",
		FirstSeen: time.Date(2026, 3, 29, 1, 45, 0, 500_000_000, time.UTC),
	}
}

func letters(n int) []delivery.Letter {
	all := make([]delivery.Letter, n)
	for i := range all {
		all[i] = Letter(int64(i))
	}
	return all
}

func byID(letters []delivery.Letter) map[string]deadletter.Envelope {
	m := map[string]deadletter.Envelope{}
	for _, l := range letters {
		m[deadletter.ID(l)] = deadletter.New(l, deadletter.MaxBody)
	}
	return m
}

func held(t *testing.T, s Subject) map[string]deadletter.Envelope {
	t.Helper()
	m := map[string]deadletter.Envelope{}
	for _, e := range s.Held(t) {
		if first, twice := m[deadletter.ID(e.Letter)]; twice {
			require.Equal(t, first, e, "a letter sent twice is the same letter")
		}
		m[deadletter.ID(e.Letter)] = e
	}
	return m
}
