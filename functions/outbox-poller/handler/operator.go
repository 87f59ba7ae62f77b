package handler

import (
	"context"
	"encoding/json"
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
	// actionReshard moves the outbox to the shards that the function is configured
	// with: as many, divided by that column.
	actionReshard = "reshard"
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
		actionReshard:    {""},
	}
	origins, known := allowed[o.Action]
	problem := fmt.Sprintf("action %q: %s, %s, %s or %s expected", o.Action, actionInspect, actionInitialise, actionReset, actionReshard)
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
	if o.Action == actionReshard {
		shards = nil
		for index := range h.config.Shards {
			shards = append(shards, index)
		}
		if err := h.reshard(ctx, until); err != nil {
			return nil, err
		}
		o.Action = actionInspect // and show what came of it
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
	ports, err := h.connect(shard)
	if err != nil {
		return state, err
	}
	defer ports.Close()
	if o.Action == actionInspect {
		return h.inspect(ctx, ports, state)
	}
	poller, err := outbox.NewPoller(shard, ports.Table, ports.Log, h.config.Router(), h.config.Rules())
	if err != nil {
		return state, err
	}
	write := poller.Initialise
	if o.Action == actionReset {
		write = poller.Reset
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	cursor, err := write(ctx, o.From)
	state.Cursor = &cursor
	return state, err
}

// reshard moves the outbox. The old pollers must be stopped before it: disable
// their schedules.
func (h *Handler) reshard(ctx context.Context, until time.Time) error {
	var opened []Ports
	defer func() {
		for _, ports := range opened {
			ports.Close()
		}
	}()
	err := outbox.Reshard(ctx, h.config.Shard(0), func(shard outbox.Shard) (*outbox.Poller, error) {
		ports, err := h.connect(shard)
		if err != nil {
			return nil, err
		}
		opened = append(opened, ports)
		return outbox.NewPoller(shard, ports.Table, ports.Log, h.config.Router(), h.config.Rules())
	}, until)
	if err != nil {
		return fmt.Errorf("move the outbox to %d shards: %w", h.config.Shards, err)
	}
	h.out.Log.WarnContext(ctx, "outbox moved to other shards by an operator", slog.Int("shards", h.config.Shards))
	return nil
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
