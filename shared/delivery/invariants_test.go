package delivery

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/kafka"
	"oncehouse/shared/offsets"
)

// The invariants of ARCHITECTURE.md, one small story for each. TestScenarios and
// TestSimulation hold all of them against everything else.

// play runs one invocation and looks at the world after each of its steps. how
// says how a kind of step goes; look returns false to kill the invocation.
func (w *world) play(v *invocation, how map[Op]string, look func(did Op) bool) *Outcome {
	for v.step.Op != OpDone {
		did := v.step.Op
		w.step(v, how[did])
		if !look(did) {
			return nil
		}
	}
	return &v.step.Outcome
}

func (w *world) stored() offsets.Set {
	var s offsets.Set
	for o := range int64(100) {
		for range w.rows[o] {
			s = s.Append(o) // panics on a second copy
		}
	}
	return s
}

func through(Op) bool { return true }

func killedAfter(op Op) func(Op) bool { return func(did Op) bool { return did != op } }

func TestI1NoRecordIsStoredTwice(t *testing.T) {
	w := newWorld()
	require.Nil(t, w.play(w.start(offsets.Between(10, 19), "A", nil), nil, killedAfter(OpInsert)))
	w.advance(time.Minute)
	for _, again := range []offsets.Set{offsets.Between(10, 14), offsets.Between(10, 24), offsets.Between(9, 24)} {
		out := w.play(w.start(again, "B"+again.String(), nil), nil, through)
		require.NoError(t, out.Err)
	}
	require.Equal(t, "9-24", w.stored().String())
}

func TestI2NoSuccessForAnUnsettledRecord(t *testing.T) {
	for _, how := range []string{refused, dropped, lost, flying, half, hole} {
		w := newWorld()
		v := w.start(offsets.Between(0, 9), "A", nil)
		out := w.play(v, map[Op]string{OpInsert: how}, func(Op) bool {
			for o := range w.entry.Next {
				require.Positive(t, w.rows[o], "%s: next passed offset %d", how, o)
			}
			return true
		})
		require.True(t, out.Err != nil || w.stored().Len() == 10, how)
		require.True(t, out.Err == nil || out.Settled == 0, how)
	}
}

func TestI3NextNeverGoesBack(t *testing.T) {
	w := newWorld()
	next := int64(0)
	for _, of := range []offsets.Set{offsets.Between(10, 19), offsets.Between(0, 4), offsets.Between(12, 14), offsets.Between(5, 30)} {
		out := w.play(w.start(of, "A"+of.String(), nil), nil, func(Op) bool {
			require.GreaterOrEqual(t, w.entry.Next, next)
			next = w.entry.Next
			return true
		})
		require.NoError(t, out.Err)
	}
	require.EqualValues(t, 31, next)
}

func TestI4AnIntentOnlyLeavesSettledWhole(t *testing.T) {
	w := newWorld()
	require.Nil(t, w.play(w.start(offsets.Between(10, 19), "A", nil), map[Op]string{OpInsert: half}, killedAfter(OpInsert)))
	w.advance(time.Minute)
	out := w.play(w.start(offsets.Between(15, 29), "B", nil), nil, func(Op) bool {
		switch w.entry.Next {
		case 0:
			require.NotNil(t, w.entry.Intent)
			require.Equal(t, "10-19", w.entry.Intent.Offsets.String(), "the open one, and no other beside it")
		case 20:
			require.Equal(t, "10-19", w.stored().Intersect(offsets.Between(0, 19)).String())
		}
		return true
	})
	require.NoError(t, out.Err)
	require.Equal(t, "10-29", w.stored().String())
}

func TestI5ATokenIsNeverUsedForAnotherRecordSet(t *testing.T) {
	w := newWorld()
	require.Nil(t, w.play(w.start(offsets.Between(10, 19), "A", nil), map[Op]string{OpInsert: odd}, killedAfter(OpInsert)))
	w.advance(time.Minute)
	require.NoError(t, w.play(w.start(offsets.Between(10, 24), "B", nil), nil, through).Err)
	var sets []string
	for _, set := range w.sent {
		sets = append(sets, set)
	}
	require.ElementsMatch(t, []string{"10-19", "11,13,15,17,19", "20-24"}, sets, "one token each")
}

func TestI6NobodyWritesOnAVersionNotRead(t *testing.T) {
	w := newWorld()
	late := w.start(offsets.Between(0, 9), "A", nil)
	w.play(late, nil, killedAfter(OpEncode)) // it stands before its first write
	require.Equal(t, OpWrite, late.step.Op)
	require.NoError(t, w.play(w.start(offsets.Between(0, 4), "B", nil), nil, through).Err)

	stands := w.entry
	w.step(late, fine)
	require.Equal(t, stands, w.entry, "the condition of a write on an old version fails")
	require.Equal(t, OpLoad, late.step.Op, "and the entry is read anew")
	out := w.play(late, nil, through)
	require.NoError(t, out.Err)
	require.EqualValues(t, 1, out.Tally.Conflicts)
	require.Equal(t, "0-9", w.stored().String())
}

func TestI7ALetterIsDurableBeforeNextPassesIt(t *testing.T) {
	w := newWorld()
	w.poison = offsets.Of(3)
	first := w.start(offsets.Between(0, 9), "A", nil)
	look := func(Op) bool {
		require.True(t, w.entry.Next <= 3 || w.letters[3] != "", "next is %d", w.entry.Next)
		return true
	}
	require.Error(t, w.play(first, map[Op]string{OpLetters: dropped}, look).Err)
	require.EqualValues(t, 0, w.entry.Next)
	w.advance(time.Minute)

	var sent []Letter
	again := w.start(offsets.Between(0, 9), "B", nil)
	for again.step.Op != OpDone {
		if again.step.Op == OpLetters {
			sent = again.step.Letters
		}
		w.step(again, fine)
		look(OpLetters)
	}
	require.NoError(t, again.step.Outcome.Err)
	require.Len(t, sent, 1)
	require.Equal(t, w.lane(), sent[0].Lane)
	require.EqualValues(t, 1, sent[0].Generation)
	require.EqualValues(t, 3, sent[0].Record.Offset)
}

func TestI8RowsBecomeVisibleInOrder(t *testing.T) {
	for _, g := range []Guarantee{ExactlyOnce, AtMostOnce, AtLeastOnce} {
		w := newWorld()
		w.rules.Guarantee, w.rules.ChunkLimit.Rows = g, 3
		seen := int64(0)
		out := w.play(w.start(offsets.Between(0, 9), "A", nil), nil, func(Op) bool {
			stored := w.stored()
			require.True(t, stored.Equal(offsets.Between(0, stored.Len()-1)), "%s: %s", g, stored)
			require.GreaterOrEqual(t, stored.Len(), seen)
			seen = stored.Len()
			return true
		})
		require.NoError(t, out.Err)
		require.EqualValues(t, 10, seen)
	}
}

func TestI9WhatCannotBeDecidedBlocks(t *testing.T) {
	w := newWorld()
	w.route = false
	require.Nil(t, w.play(w.start(offsets.Between(10, 19), "A", nil), map[Op]string{OpInsert: dropped}, killedAfter(OpInsert)))
	w.advance(time.Minute)
	stands := w.entry.Intent
	for _, of := range []offsets.Set{offsets.Between(20, 29), offsets.Between(15, 24)} {
		var e *Error
		require.ErrorAs(t, w.play(w.start(of, "B"+of.String(), nil), nil, through).Err, &e)
		require.Equal(t, InDoubt, e.Kind)
		require.Equal(t, ReasonInDoubt, e.Reason)
		require.NotEmpty(t, e.Remedy)
		require.Empty(t, w.rows)
		require.Equal(t, stands, w.entry.Intent)
		w.advance(time.Minute)
	}
}

// Lanes share nothing (D22): neither key nor token of two lanes are the same,
// and of names with the separators in them no two make one.
func TestLanesAreApart(t *testing.T) {
	keys, tokens := map[string]Lane{}, map[string]Lane{}
	for _, pipeline := range []string{"a", "a-1", "a.b"} {
		for _, cluster := range []string{"c", "c/d", "d"} {
			for _, topic := range []string{"t", "t-1", "d-t"} {
				for partition := range int32(12) {
					l := Lane{Pipeline: pipeline, Cluster: cluster, TopicPartition: kafka.TopicPartition{Topic: topic, Partition: partition}}
					token := l.token(1, 0, 9, 7, 1)
					require.NotContains(t, keys, l.Key())
					require.NotContains(t, tokens, token)
					keys[l.Key()], tokens[token] = l, l
				}
			}
		}
	}
}
