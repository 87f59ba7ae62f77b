package handler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"oncehouse/shared/outbox"
)

// Actions that an operator asks for by invoking the function:
//
//	aws lambda invoke --function-name outbox-poller --cli-binary-format raw-in-base64-out \
//	  --payload '{"oncehouse": {"action": "inspect", "shard": 0}}' /dev/stdout
const (
	// actionInspect shows where the shard stands, and disturbs no poller.
	actionInspect = "inspect"
	// actionInitialise writes the first cursor of a shard.
	actionInitialise = "initialise"
	// actionReset writes a new cursor, whatever there is.
	actionReset = "reset"
)

// operation is what an operator asks for. Shards is for several at once.
type operation struct {
	Action string        `json:"action"`
	Shard  *int          `json:"shard"`
	Shards []int         `json:"shards"`
	From   outbox.Origin `json:"from"`
}

// check says what is wrong with it.
func (o operation) check() error {
	allowed := map[string][]outbox.Origin{
		actionInspect:    {""},
		actionInitialise: {outbox.FromBeginning, outbox.FromNow},
		actionReset:      {outbox.FromBeginning, outbox.FromNow, outbox.FromCursor},
	}
	origins, known := allowed[o.Action]
	problem := fmt.Sprintf("action %q: %s, %s or %s expected", o.Action, actionInspect, actionInitialise, actionReset)
	if known {
		for _, origin := range origins {
			if o.From == origin {
				return nil
			}
		}
		problem = fmt.Sprintf("%s from %q: one of %q expected", o.Action, o.From, origins)
	}
	return &outbox.Refusal{
		Reason: ReasonOperation, Problems: []string{problem},
		Remedy: `ask like this: {"oncehouse": {"action": "initialise", "shard": 0, "from": "beginning"}}`,
	}
}

// shardState is one shard of an answer.
type shardState struct {
	Shard  int            `json:"shard"`
	Cursor *outbox.Cursor `json:"cursor"`
	// LastSeq is where the sequence stands now, beside the cursor's last_seq.
	LastSeq int64 `json:"sequence,omitempty"`
}

// operate does what the operator asks for, shard by shard. A shard that fails
// ends it; those before it are done, and the error says so.
func (h *Handler) operate(ctx context.Context, o operation, shards []int, until time.Time) ([]byte, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	answer := struct {
		Action string       `json:"action"`
		Shards []shardState `json:"shards"`
	}{Action: o.Action}
	for _, index := range shards {
		state, err := h.operateOne(ctx, o, h.config.Shard(index), until)
		if err != nil {
			return nil, fmt.Errorf("%s shard %d (%d of %d done before it): %w", o.Action, index, len(answer.Shards), len(shards), err)
		}
		answer.Shards = append(answer.Shards, state)
		if o.Action != actionInspect {
			h.out.Log.WarnContext(ctx, "cursor changed by an operator", slog.String("action", o.Action), slog.String("from", string(o.From)),
				slog.Int("shard", index), slog.String("incarnation", state.Cursor.Incarnation))
		}
	}
	return json.Marshal(answer)
}

func (h *Handler) operateOne(ctx context.Context, o operation, shard outbox.Shard, until time.Time) (shardState, error) {
	state := shardState{Shard: shard.Index}
	ports, err := h.connect(ctx, shard)
	if err != nil {
		return state, err
	}
	defer ports.Close()
	rules := h.config.Rules()
	log := &watchedLog{Log: ports.Log}
	switch o.Action {
	case actionInspect:
		return h.inspect(ctx, ports, state)
	case actionInitialise:
		rules.Initialise = o.From
		if soon := time.Now().Add(rules.Reserve + time.Second); soon.Before(until) {
			until = soon
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		log.onCommit = cancel // the first cursor is all that is wanted
	}
	poller, err := outbox.NewPoller(shard, ports.Table, log, h.config.Router(), rules)
	if err != nil {
		return state, err
	}
	if o.Action == actionReset {
		ctx, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		cursor, err := poller.Reset(ctx, o.From)
		state.Cursor = &cursor
		return state, err
	}
	if _, err = poller.Run(ctx, until); err != nil {
		return state, err
	}
	if state.Cursor = log.committed(); state.Cursor == nil {
		return state, errors.New("another poller of the shard is at work: disable the schedule, and ask again")
	}
	return state, nil
}

func (h *Handler) inspect(ctx context.Context, ports Ports, state shardState) (shardState, error) {
	cursor, err := ports.Cursor(ctx)
	if err != nil {
		return state, fmt.Errorf("look at the cursor: %w", err)
	}
	now, err := ports.Table.Snapshot(ctx)
	if err != nil {
		return state, fmt.Errorf("look at the table: %w", err)
	}
	state.Cursor, state.LastSeq = cursor, now.LastSeq
	return state, nil
}
