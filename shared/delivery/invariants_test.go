package delivery_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "oncehouse/shared/delivery"
	"oncehouse/shared/delivery/world"
	"oncehouse/shared/kafka"
	"oncehouse/shared/offsets"
)

// The invariants of ARCHITECTURE.md, one small story for each. TestScenarios and
// TestSimulation hold all of them against everything else.

// play runs one invocation and looks at the world after each of its steps. how
// says how a kind of step goes; look returns false to kill the invocation.
func play(w *world.World, v *world.Invocation, how map[Op]string, look func(did Op) bool) *Outcome {
	for v.Step.Op != OpDone {
		did := v.Step.Op
		w.Next(v, how[did])
		if !look(did) {
			return nil
		}
	}
	return &v.Step.Outcome
}

func stored(w *world.World) offsets.Set {
	var s offsets.Set
	for o := range int64(100) {
		for range w.Table.Rows[o] {
			s = s.Append(o) // panics on a second copy
		}
	}
	return s
}

func through(Op) bool { return true }

func killedAfter(op Op) func(Op) bool { return func(did Op) bool { return did != op } }

func TestI1NoRecordIsStoredTwice(t *testing.T) {
	w := world.New()
	require.Nil(t, play(w, w.Start(offsets.Between(10, 19), "A", nil), nil, killedAfter(OpInsert)))
	w.Advance(time.Minute)
	for _, again := range []offsets.Set{offsets.Between(10, 14), offsets.Between(10, 24), offsets.Between(9, 24)} {
		out := play(w, w.Start(again, "B"+again.String(), nil), nil, through)
		require.NoError(t, out.Err)
	}
	require.Equal(t, "9-24", stored(w).String())
}

func TestI2NoSuccessForAnUnsettledRecord(t *testing.T) {
	for _, how := range []string{world.Refused, world.Dropped, world.Lost, world.Late, world.Half, world.Hole} {
		w := world.New()
		v := w.Start(offsets.Between(0, 9), "A", nil)
		out := play(w, v, map[Op]string{OpInsert: how}, func(Op) bool {
			for o := range w.Entry.Next {
				require.Positive(t, w.Table.Rows[o], "%s: next passed offset %d", how, o)
			}
			return true
		})
		require.True(t, out.Err != nil || stored(w).Len() == 10, how)
		require.True(t, out.Err == nil || out.Settled == 0, how)
	}
}

func TestI3NextNeverGoesBack(t *testing.T) {
	w := world.New()
	next := int64(0)
	for _, of := range []offsets.Set{offsets.Between(10, 19), offsets.Between(0, 4), offsets.Between(12, 14), offsets.Between(5, 30)} {
		out := play(w, w.Start(of, "A"+of.String(), nil), nil, func(Op) bool {
			require.GreaterOrEqual(t, w.Entry.Next, next)
			next = w.Entry.Next
			return true
		})
		require.NoError(t, out.Err)
	}
	require.EqualValues(t, 31, next)
}

func TestI4AnIntentOnlyLeavesSettledWhole(t *testing.T) {
	w := world.New()
	require.Nil(t, play(w, w.Start(offsets.Between(10, 19), "A", nil), map[Op]string{OpInsert: world.Half}, killedAfter(OpInsert)))
	w.Advance(time.Minute)
	out := play(w, w.Start(offsets.Between(15, 29), "B", nil), nil, func(Op) bool {
		switch w.Entry.Next {
		case 0:
			require.NotNil(t, w.Entry.Intent)
			require.Equal(t, "10-19", w.Entry.Intent.Offsets.String(), "the open one, and no other beside it")
		case 20:
			require.Equal(t, "10-19", stored(w).Intersect(offsets.Between(0, 19)).String())
		}
		return true
	})
	require.NoError(t, out.Err)
	require.Equal(t, "10-29", stored(w).String())
}

func TestI5ATokenIsNeverUsedForAnotherRecordSet(t *testing.T) {
	w := world.New()
	require.Nil(t, play(w, w.Start(offsets.Between(10, 19), "A", nil), map[Op]string{OpInsert: world.Odd}, killedAfter(OpInsert)))
	w.Advance(time.Minute)
	require.NoError(t, play(w, w.Start(offsets.Between(10, 24), "B", nil), nil, through).Err)
	var sets []string
	for _, set := range w.Sent() {
		sets = append(sets, set)
	}
	require.ElementsMatch(t, []string{"10-19", "11,13,15,17,19", "20-24"}, sets, "one token each")
}

func TestI6NobodyWritesOnAVersionNotRead(t *testing.T) {
	w := world.New()
	late := w.Start(offsets.Between(0, 9), "A", nil)
	play(w, late, nil, killedAfter(OpEncode)) // it stands before its first write
	require.Equal(t, OpWrite, late.Step.Op)
	require.NoError(t, play(w, w.Start(offsets.Between(0, 4), "B", nil), nil, through).Err)

	stands := w.Entry
	w.Next(late, world.Fine)
	require.Equal(t, stands, w.Entry, "the condition of a write on an old version fails")
	require.Equal(t, OpLoad, late.Step.Op, "and the entry is read anew")
	out := play(w, late, nil, through)
	require.NoError(t, out.Err)
	require.EqualValues(t, 1, out.Tally.Conflicts)
	require.Equal(t, "0-9", stored(w).String())
}

func TestI7ALetterIsDurableBeforeNextPassesIt(t *testing.T) {
	w := world.New()
	w.Poison = offsets.Of(3)
	first := w.Start(offsets.Between(0, 9), "A", nil)
	look := func(Op) bool {
		require.True(t, w.Entry.Next <= 3 || w.Letters[3] != "", "next is %d", w.Entry.Next)
		return true
	}
	require.Error(t, play(w, first, map[Op]string{OpLetters: world.Dropped}, look).Err)
	require.EqualValues(t, 0, w.Entry.Next)
	w.Advance(time.Minute)

	var sent []Letter
	again := w.Start(offsets.Between(0, 9), "B", nil)
	for again.Step.Op != OpDone {
		if again.Step.Op == OpLetters {
			sent = again.Step.Letters
		}
		w.Next(again, world.Fine)
		look(OpLetters)
	}
	require.NoError(t, again.Step.Outcome.Err)
	require.Len(t, sent, 1)
	require.Equal(t, w.Lane(), sent[0].Lane)
	require.EqualValues(t, 1, sent[0].Generation)
	require.EqualValues(t, 3, sent[0].Record.Offset)
}

func TestI8RowsBecomeVisibleInOrder(t *testing.T) {
	for _, g := range []Guarantee{ExactlyOnce, AtMostOnce, AtLeastOnce} {
		w := world.New()
		w.Rules.Guarantee, w.Rules.ChunkLimit.Rows = g, 3
		seen := int64(0)
		out := play(w, w.Start(offsets.Between(0, 9), "A", nil), nil, func(Op) bool {
			stored := stored(w)
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
	w := world.New()
	w.Route = false
	require.Nil(t, play(w, w.Start(offsets.Between(10, 19), "A", nil), map[Op]string{OpInsert: world.Dropped}, killedAfter(OpInsert)))
	w.Advance(time.Minute)
	stands := w.Entry.Intent
	for _, of := range []offsets.Set{offsets.Between(20, 29), offsets.Between(15, 24)} {
		var e *Error
		require.ErrorAs(t, play(w, w.Start(of, "B"+of.String(), nil), nil, through).Err, &e)
		require.Equal(t, InDoubt, e.Kind)
		require.Equal(t, ReasonInDoubt, e.Reason)
		require.NotEmpty(t, e.Remedy)
		require.Empty(t, w.Table.Rows)
		require.Equal(t, stands, w.Entry.Intent)
		w.Advance(time.Minute)
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
					token := l.Token(1, 0, 9, 7, 1)
					require.NotContains(t, keys, l.Key())
					require.NotContains(t, tokens, token)
					keys[l.Key()], tokens[token] = l, l
				}
			}
		}
	}
}
