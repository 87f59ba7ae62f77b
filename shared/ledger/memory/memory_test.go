package memory_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	"oncehouse/shared/ledger/ledgertest"
	"oncehouse/shared/ledger/memory"
)

func TestConformance(t *testing.T) {
	ledgertest.Run(t, func(*testing.T) delivery.Ledger { return memory.New() })
}

func TestFaultConformance(t *testing.T) {
	ledgertest.RunFaults(t, func(*testing.T) ledgertest.Faulty {
		l := memory.New()
		next := func(f memory.Fault) func() {
			return func() {
				l.Control(func(c memory.Call) memory.Fault {
					if c.Op != memory.Write {
						return memory.Pass
					}
					l.Control(nil)
					return f
				})
			}
		}
		return ledgertest.Faulty{Ledger: l, FailBefore: next(memory.FailBefore), LoseAnswer: next(memory.LoseAnswer)}
	})
}

func TestControlSeesEveryCallAndLetsAnotherWriterIn(t *testing.T) {
	l := memory.New()
	lane := delivery.Lane{Pipeline: "p", Cluster: "c", TopicPartition: kafka.TopicPartition{Topic: "t", Partition: 1}}
	mine := delivery.Entry{Generation: 1, Guarantee: delivery.ExactlyOnce, Version: 1, Writer: "mine"}
	theirs := mine
	theirs.Writer = "theirs"
	var calls []memory.Call
	l.Control(func(c memory.Call) memory.Fault {
		calls = append(calls, c)
		if len(calls) == 1 {
			require.NoError(t, l.Write(t.Context(), lane, theirs))
		}
		return memory.Pass
	})

	require.ErrorIs(t, l.Write(t.Context(), lane, mine), delivery.ErrConflict)
	got, err := l.Load(t.Context(), lane)
	require.NoError(t, err)
	require.Equal(t, theirs, got)
	require.Equal(t, []memory.Call{
		{Op: memory.Write, Lane: lane, Entry: mine, Seq: 1},
		{Op: memory.Write, Lane: lane, Entry: theirs, Seq: 2},
		{Op: memory.Load, Lane: lane, Seq: 3},
	}, calls)
}

func TestInjectedFaults(t *testing.T) {
	lane := delivery.Lane{Pipeline: "p", Cluster: "c", TopicPartition: kafka.TopicPartition{Topic: "t"}}
	entry := delivery.Entry{Generation: 1, Guarantee: delivery.ExactlyOnce, Version: 1, Writer: "w"}
	tests := []struct {
		fault  memory.Fault
		write  error
		landed bool
		load   error
	}{
		{memory.Pass, nil, true, nil},
		{memory.FailBefore, memory.ErrInjected, false, memory.ErrInjected},
		{memory.LoseAnswer, memory.ErrInjected, true, memory.ErrInjected},
		{memory.Conflict, delivery.ErrConflict, false, nil},
	}
	for _, tt := range tests {
		l := memory.New()
		l.Control(func(memory.Call) memory.Fault { return tt.fault })
		require.ErrorIs(t, l.Write(t.Context(), lane, entry), tt.write)
		_, err := l.Load(t.Context(), lane)
		require.ErrorIs(t, err, tt.load)
		l.Control(nil)
		got, err := l.Load(t.Context(), lane)
		require.NoError(t, err)
		require.Equal(t, tt.landed, got.Version == 1)
	}
}

func TestSeed(t *testing.T) {
	l := memory.New()
	lane := delivery.Lane{Pipeline: "p", Cluster: "c", TopicPartition: kafka.TopicPartition{Topic: "t"}}
	want := ledgertest.Full()
	want.Version = 41
	l.Seed(lane, want)
	got, err := l.Load(t.Context(), lane)
	require.NoError(t, err)
	require.Equal(t, want, got)
	want.Version++
	require.NoError(t, l.Write(t.Context(), lane, want))
}
