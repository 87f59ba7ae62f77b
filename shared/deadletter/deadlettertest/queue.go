package deadlettertest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/deadletter"
	"oncehouse/shared/delivery"
)

// Queue is an adapter that letters can be taken out of again.
type Queue interface {
	delivery.Letters
	Receive(ctx context.Context, hidden time.Duration) ([]deadletter.Message, error)
	Delete(ctx context.Context, m deadletter.Message) error
	Return(ctx context.Context, m deadletter.Message) error
}

// RunQueue checks the queues that open returns, each of them empty.
func RunQueue(t *testing.T, open func(t *testing.T) Queue) {
	t.Helper()
	t.Run("an empty queue gives nothing", func(t *testing.T) {
		got, err := open(t).Receive(t.Context(), time.Minute)
		require.NoError(t, err)
		require.Empty(t, got)
	})
	t.Run("every letter is received, and hidden", func(t *testing.T) {
		q := open(t)
		want := letters(23)
		require.NoError(t, q.Send(t.Context(), want))
		require.Equal(t, byID(want), parse(t, drain(t, q)))
		require.Empty(t, drain(t, q))
	})
	t.Run("a letter that is returned comes again, one that is deleted does not", func(t *testing.T) {
		q := open(t)
		require.NoError(t, q.Send(t.Context(), letters(4)))
		for i, m := range drain(t, q) {
			if i%2 == 0 {
				require.NoError(t, q.Return(t.Context(), m))
			} else {
				require.NoError(t, q.Delete(t.Context(), m))
				require.NoError(t, q.Delete(t.Context(), m), "again")
			}
		}
		require.Len(t, drain(t, q), 2)
	})
	t.Run("an old receipt returns nothing, and still deletes", func(t *testing.T) {
		q := open(t)
		require.NoError(t, q.Send(t.Context(), letters(1)))
		old := drain(t, q)
		require.NoError(t, q.Return(t.Context(), old[0]))
		require.Len(t, drain(t, q), 1)
		require.Error(t, q.Return(t.Context(), old[0]))
		require.Empty(t, drain(t, q))
		require.NoError(t, q.Delete(t.Context(), old[0]))
	})
}

// drain receives until there is nothing.
func drain(t *testing.T, q Queue) []deadletter.Message {
	t.Helper()
	var all []deadletter.Message
	for {
		got, err := q.Receive(t.Context(), time.Hour)
		require.NoError(t, err)
		if len(got) == 0 {
			return all
		}
		all = slices.Concat(all, got)
	}
}

func parse(t *testing.T, messages []deadletter.Message) map[string]deadletter.Envelope {
	t.Helper()
	m := map[string]deadletter.Envelope{}
	for _, message := range messages {
		e, err := deadletter.Parse(message.Body)
		require.NoError(t, err)
		m[deadletter.ID(e.Letter)] = e
	}
	require.Len(t, m, len(messages))
	return m
}
