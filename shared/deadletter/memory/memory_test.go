package memory_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/deadletter"
	"oncehouse/shared/deadletter/deadlettertest"
	"oncehouse/shared/deadletter/memory"
	"oncehouse/shared/delivery"
)

func TestConformance(t *testing.T) {
	deadlettertest.Run(t, func(*testing.T) deadlettertest.Subject {
		l := &memory.Letters{}
		return deadlettertest.Subject{Letters: l, Held: func(*testing.T) []deadletter.Envelope { return l.Held() }}
	})
}

func TestQueueConformance(t *testing.T) {
	deadlettertest.RunQueue(t, func(*testing.T) deadlettertest.Queue { return &memory.Letters{} })
}

func TestInjectedFaults(t *testing.T) {
	two := []delivery.Letter{deadlettertest.Letter(1), deadlettertest.Letter(2)}
	for fault, held := range map[memory.Fault]int{memory.FailBefore: 0, memory.FailHalf: 1, memory.LoseAnswer: 2} {
		l := &memory.Letters{}
		l.Control(func(sent []delivery.Letter) memory.Fault { require.Equal(t, two, sent); return fault })
		err := l.Send(t.Context(), two)
		require.ErrorIs(t, err, memory.ErrInjected)
		require.Equal(t, delivery.Retryable, delivery.KindOf(err))
		require.Len(t, l.Held(), held)
		l.Control(nil)
		require.NoError(t, l.Send(t.Context(), two))
		require.Len(t, l.Held(), held+2)
	}
}
