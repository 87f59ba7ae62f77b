package handler

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/lambda/messages"
	"github.com/stretchr/testify/require"

	"oncehouse/shared/outbox"
)

func (w *world) operateFor(payload string) shardState {
	w.t.Helper()
	answer, err := w.invoke(payload, time.Minute)
	require.NoError(w.t, err)
	var parsed struct {
		Shards []shardState `json:"shards"`
	}
	require.NoError(w.t, json.Unmarshal([]byte(answer), &parsed))
	require.Len(w.t, parsed.Shards, 1)
	return parsed.Shards[0]
}

func TestInitialise(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.insert(3, "order")
		begun := time.Now()
		state := w.operateFor(`{"oncehouse":{"action":"initialise","shard":0,"from":"now"}}`)
		require.NotEmpty(t, state.Cursor.Incarnation)
		require.Less(t, time.Since(begun), time.Second, "it does not poll on")
		_, err := w.invoke(`{"oncehouse":{"action":"initialise","shard":0,"from":"beginning"}}`, time.Minute)
		require.Equal(t, outbox.ReasonInitialised, reasonFor(err), "what has a cursor keeps it")
		w.insert(2, "order")
		_, err = w.invoke(``, time.Minute)
		require.NoError(t, err)
		require.Equal(t, 2, w.published(), "those from before are passed over")
		require.Len(t, w.lines("cursor changed by an operator"), 1)
	})
}

func TestInspectAndReset(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		state := w.operateFor(`{"oncehouse":{"action":"inspect"}}`)
		require.Nil(t, state.Cursor)
		w.initialise(0)
		w.insert(3, "order")
		_, err := w.invoke(``, time.Minute)
		require.NoError(t, err)
		state = w.operateFor(`{"oncehouse":{"action":"inspect","shard":0}}`)
		require.Equal(t, int64(3), state.Cursor.LastSeq)
		require.Equal(t, int64(3), state.LastSeq)

		reset := w.operateFor(`{"oncehouse":{"action":"reset","from":"beginning"}}`)
		require.NotEqual(t, state.Cursor.Incarnation, reset.Cursor.Incarnation)
		_, err = w.invoke(``, time.Minute)
		require.NoError(t, err)
		require.Equal(t, 6, w.published(), "a person wanted them again")
	})
}

func TestReshard(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.initialise(0)
		w.insert(20, "order")
		cfg := *w.config
		cfg.Shards = 2 // as the function is deployed anew
		w.Handler = New(&cfg, w.open, w.out)
		_, err := w.invoke(`{"shards":[0,1]}`, time.Minute)
		require.Equal(t, outbox.ReasonShards, reasonFor(err))
		answer, err := w.invoke(`{"oncehouse":{"action":"reshard"}}`, time.Minute)
		require.NoError(t, err)
		var parsed struct {
			Shards []shardState `json:"shards"`
		}
		require.NoError(t, json.Unmarshal([]byte(answer), &parsed))
		require.Len(t, parsed.Shards, 2)
		w.insert(20, "order")
		_, err = w.invoke(`{"shards":[0,1]}`, time.Minute)
		require.NoError(t, err)
		require.Equal(t, 40, w.published())

		cfg.AggregateIDColumn = "customer" // as many shards, divided by another column
		_, err = w.invoke(`{"shards":[0,1]}`, time.Minute)
		require.Equal(t, outbox.ReasonShardKey, reasonFor(err))
		_, err = w.invoke(`{"oncehouse":{"action":"reshard"}}`, time.Minute)
		require.NoError(t, err)
		w.insert(20, "order")
		_, err = w.invoke(`{"shards":[0,1]}`, time.Minute)
		require.NoError(t, err)
		require.Equal(t, 60, w.published())
	})
}

func TestOperationsAreRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for payload, want := range map[string]string{
			`{"oncehouse":{"action":"rest"}}`:                       `action "rest": inspect, initialise, reset or reshard expected`,
			`{"oncehouse":{"action":"initialise"}}`:                 `initialise from "": one of ["beginning" "now"] expected`,
			`{"oncehouse":{"action":"reset","from":"yesterday"}}`:   `reset from "yesterday"`,
			`{"oncehouse":{"action":"inspect","from":"now"}}`:       `inspect from "now"`,
			`{"oncehouse":{"action":"initialise","from":"cursor"}}`: "one of",
		} {
			_, err := w.invoke(payload, time.Minute)
			var e messages.InvokeResponse_Error
			require.ErrorAs(t, err, &e)
			require.Contains(t, e.Message, want)
			require.Equal(t, ReasonOperation, e.Type)
		}
		_, err := w.invoke(`{"oncehouse":{"action":"reset","from":"cursor"}}`, time.Minute)
		require.ErrorContains(t, err, "reset shard 0 (0 of 1 done before it): there is no cursor")
		require.Equal(t, ReasonFailed, reasonFor(err))
	})
}

func TestInitialiseOfALostCursorIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.initialise(0)
		w.kafka.Expire("orders", outbox.Shard{Index: 0, Of: 1})
		_, err := w.invoke(`{"oncehouse":{"action":"initialise","from":"beginning"}}`, time.Minute)
		require.Equal(t, outbox.ReasonCursorLost, reasonFor(err))
	})
}
