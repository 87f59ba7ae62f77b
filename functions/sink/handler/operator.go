package handler

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	"oncehouse/shared/offsets"
)

// Actions that an operator asks for by invoking the function:
//
//	aws lambda invoke --function-name sink --cli-binary-format raw-in-base64-out \
//	  --payload '{"oncehouse": {"action": "inspect", "partition": 3}}' /dev/stdout
const (
	// actionInspect shows the ledger's entry.
	actionInspect = "inspect"
	// actionRebase makes exactly-once possible again for a lane that
	// at-least-once has written to.
	actionRebase = "rebase"
	// actionNewGeneration reads the lane again from its start, under new tokens.
	actionNewGeneration = "new-generation"
	// actionRedrive sends dead letters through the engine again: {"action":
	// "redrive", "max": 1000, "reason": "out_of_range", "dry_run": true}.
	actionRedrive = "redrive"
)

const actions = actionInspect + ", " + actionRebase + ", " + actionNewGeneration + " or " + actionRedrive

// operation is what an operator asks for.
type operation struct {
	Action     string  `json:"action"`
	Partition  *int32  `json:"partition"`
	Partitions []int32 `json:"partitions"`
	// Cluster is the lane's, where no setting names it: <name>/<uuid> of an MSK
	// cluster, as the log lines' tokens show it.
	Cluster string `json:"cluster"`
	// Which letters to redrive.
	Max    int    `json:"max"`
	Reason string `json:"reason"`
	DryRun bool   `json:"dry_run"`
	bad    error
}

// parseOperation says whether the payload is an operator's: an object whose only
// key is "oncehouse". A Kafka event never begins like that, so it is not parsed.
func parseOperation(payload []byte) (operation, bool) {
	head := bytes.TrimLeft(payload, " \t\r\n")
	head, object := bytes.CutPrefix(head, []byte("{"))
	if !object || !bytes.HasPrefix(bytes.TrimLeft(head, " \t\r\n"), []byte(`"oncehouse"`)) {
		return operation{}, false
	}
	var event struct {
		Oncehouse operation `json:"oncehouse"`
	}
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&event)
	if err == nil && decoder.More() {
		err = errors.New("more than one JSON value")
	}
	event.Oncehouse.bad = err
	return event.Oncehouse, true
}

// laneState is one lane of an answer.
type laneState struct {
	Lane  string         `json:"lane"`
	Entry delivery.Entry `json:"entry"`
}

// operate does what the operator asks for, lane by lane. A lane that fails ends
// it; those before it are done, and the error says so.
func (h *Handler) operate(ctx context.Context, o operation) ([]byte, error) {
	if o.bad == nil && o.Action == actionRedrive {
		return h.redrive(ctx, o)
	}
	lanes, err := h.operationLanes(o)
	if err != nil {
		return nil, err
	}
	var traits delivery.Traits
	if o.Action != actionInspect {
		if traits, err = h.engine.Preflight(ctx); err != nil { // makes Probe possible
			return nil, err
		}
	}
	answer := struct {
		Action string      `json:"action"`
		Lanes  []laneState `json:"lanes"`
	}{Action: o.Action}
	for _, lane := range lanes {
		entry, err := h.operateOne(ctx, o.Action, lane, traits)
		if err != nil {
			e := *asError(err)
			e.Message = fmt.Sprintf("%s lane %s (%d of %d done before it): %s", o.Action, lane.Key(), len(answer.Lanes), len(lanes), e.Message)
			return nil, &e
		}
		if o.Action != actionInspect {
			h.out.Log.WarnContext(ctx, "ledger entry changed by an operator", slog.String("action", o.Action),
				slog.String("topic", lane.Topic), slog.Int("partition", int(lane.Partition)),
				slog.Int64("generation", entry.Generation), slog.Int64("next", entry.Next))
		}
		answer.Lanes = append(answer.Lanes, laneState{lane.Key(), entry})
	}
	return marshal(answer)
}

func (h *Handler) operationLanes(o operation) ([]delivery.Lane, error) {
	partitions := o.Partitions
	if o.Partition != nil {
		partitions = append(partitions, *o.Partition)
	}
	cluster := h.config.Cluster
	if cluster == "" {
		cluster = o.Cluster
	}
	problem := ""
	switch {
	case o.bad != nil:
		problem = fmt.Sprintf("the action cannot be read (%v)", o.bad)
	case o.Action != actionInspect && o.Action != actionRebase && o.Action != actionNewGeneration:
		problem = fmt.Sprintf("action %q: %s expected", o.Action, actions)
	case h.ports.Ledger == nil:
		problem = "the pipeline has no ledger"
	case o.Action == actionRebase && h.config.Rules().Guarantee == delivery.AtLeastOnce:
		problem = "the pipeline is at-least-once, and would outrun the ledger again: switch it to exactly-once first"
	case len(partitions) == 0:
		problem = `"partition" or "partitions" is missing`
	case slices.Min(partitions) < 0:
		problem = fmt.Sprintf("partition %d: 0 or more expected", slices.Min(partitions))
	case cluster == "":
		problem = `"cluster" is missing: <name>/<uuid> of the MSK cluster, as tokens in the log show it`
	case o.Cluster != "" && o.Cluster != cluster:
		problem = fmt.Sprintf("cluster is %q, and ONCEHOUSE_CLUSTER %q", o.Cluster, cluster)
	}
	if problem != "" {
		return nil, &delivery.Error{Kind: delivery.Fatal, Reason: ReasonOperation, Message: problem,
			Remedy: `ask like this: {"oncehouse": {"action": "inspect", "partition": 0}}`}
	}
	lanes := make([]delivery.Lane, len(partitions))
	for i, p := range partitions {
		lanes[i] = delivery.Lane{Pipeline: h.config.Pipeline, Cluster: cluster, TopicPartition: kafka.TopicPartition{Topic: h.config.Topic, Partition: p}}
	}
	return lanes, nil
}

func (h *Handler) operateOne(ctx context.Context, action string, lane delivery.Lane, traits delivery.Traits) (delivery.Entry, error) {
	entry, err := h.ports.Ledger.Load(ctx, lane)
	if err != nil || action == actionInspect {
		return entry, err
	}
	switch {
	case entry.Version > 0:
	case action == actionRebase: // a topic that something else stored before
		entry.Generation = 1
	default:
		return entry, &delivery.Error{Kind: delivery.Fatal, Reason: ReasonOperation, Message: "the ledger has no such lane: check cluster and partition"}
	}
	if action == actionRebase {
		entry, err = h.rebase(ctx, lane, entry)
	} else {
		entry, err = h.newGeneration(ctx, lane, entry, traits)
	}
	if err != nil {
		return entry, err
	}
	entry.Version++
	entry.Writer = rand.Text()
	err = h.ports.Ledger.Write(ctx, lane, entry)
	if errors.Is(err, delivery.ErrConflict) {
		return entry, &delivery.Error{Kind: delivery.Fenced, Reason: delivery.ReasonFenced, Err: err,
			Message: "the lane is at work", Remedy: "disable the event source mapping, and ask again"}
	}
	return entry, err
}

// newGeneration asks the table, where it can be asked, what it still holds of the
// generations before: of a table that was emptied, every row is a new one.
func (h *Handler) newGeneration(ctx context.Context, lane delivery.Lane, entry delivery.Entry, traits delivery.Traits) (delivery.Entry, error) {
	entry, err := entry.Bump(time.Now())
	if err != nil {
		return entry, err
	}
	if entry.Guarantee = h.config.Rules().Guarantee; traits.Provenance {
		highest, err := h.ports.Table.Highest(ctx, lane)
		if err != nil {
			return entry, err
		}
		entry.Ghosts = highest + 1
	}
	return entry, nil
}

// rebase asks the table what it holds: its highest offset, and which of the
// skipped ones are in it after all.
func (h *Handler) rebase(ctx context.Context, lane delivery.Lane, entry delivery.Entry) (delivery.Entry, error) {
	if _, err := entry.Rebase(time.Now(), -1, nil); err != nil { // not before its time
		return entry, err
	}
	highest, err := h.ports.Table.Highest(ctx, lane)
	if err != nil {
		return entry, err
	}
	var stored offsets.Set
	if len(entry.Skipped) > 0 {
		if stored, err = h.ports.Table.Probe(ctx, lane, entry.Skipped); err != nil {
			return entry, err
		}
	}
	return entry.Rebase(time.Now(), highest, stored)
}
