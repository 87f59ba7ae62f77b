package handler

import (
	"bytes"
	"encoding/json"
	"fmt"

	"oncehouse/shared/outbox"
)

// event is what the function was invoked with.
type event struct {
	shards    []int
	operation *operation // nil: to poll
}

// wire is an event as JSON.
type wire struct {
	Shard     *int       `json:"shard"`
	Shards    []int      `json:"shards"`
	Operation *operation `json:"oncehouse"`
}

// ruleEvent marks the event of an EventBridge rule that is given no input of its
// own: it has a dozen members and says nothing.
// https://docs.aws.amazon.com/lambda/latest/dg/services-cloudwatchevents.html
const ruleEvent = `"detail-type"`

// parseEvent reads an event. What is not known is refused: a misspelt shard would
// have another one polled.
func parseEvent(payload []byte, shards int) (event, error) {
	var w wire
	if trimmed := bytes.TrimSpace(payload); len(trimmed) > 0 && !bytes.Contains(trimmed, []byte(ruleEvent)) {
		decoder := json.NewDecoder(bytes.NewReader(trimmed))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&w); err != nil {
			return event{}, refuseEvent(fmt.Sprintf("the event cannot be read (%v)", err))
		}
		if decoder.More() {
			return event{}, refuseEvent("the event is more than one JSON value")
		}
	}
	e := event{shards: w.Shards, operation: w.Operation}
	if o := w.Operation; o != nil {
		e.shards = append(e.shards, o.Shards...)
		if o.Shard != nil {
			e.shards = append(e.shards, *o.Shard)
		}
	}
	if w.Shard != nil {
		e.shards = append(e.shards, *w.Shard)
	}
	if len(e.shards) == 0 {
		e.shards = []int{0}
	}
	seen := map[int]bool{}
	for _, index := range e.shards {
		if index < 0 || index >= shards || seen[index] {
			return event{}, refuseEvent(fmt.Sprintf("shard %d: each once, from 0, below ONCEHOUSE_SHARDS (%d) expected", index, shards))
		}
		seen[index] = true
	}
	return e, nil
}

func refuseEvent(problem string) error {
	return &outbox.Refusal{Reason: ReasonEvent, Problems: []string{problem}, Remedy: `invoke it with {"shard": 0}, or {"shards": [0, 1]}`}
}
