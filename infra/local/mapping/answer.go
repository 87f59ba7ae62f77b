package mapping

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sort"
)

// failures reads the function's answer under ReportBatchItemFailures: for each
// part of the event how many of its records, from its first, succeeded. An
// error means that the whole event failed.
//
// https://docs.aws.amazon.com/lambda/latest/dg/kafka-retry-configurations.html
func failures(ev *event, answer []byte) ([]int, error) {
	succeeded := make([]int, len(ev.parts))
	index := make(map[string]int, len(ev.parts))
	for i, q := range ev.parts {
		succeeded[i] = len(q.items)
		index[q.p.tp.String()] = i
	}
	if len(bytes.TrimSpace(answer)) == 0 {
		return succeeded, nil
	}
	var body struct {
		BatchItemFailures []struct {
			ItemIdentifier *struct {
				Partition string `json:"partition"`
				Offset    *int64 `json:"offset"`
			} `json:"itemIdentifier"`
		} `json:"batchItemFailures"`
	}
	if err := json.Unmarshal(answer, &body); err != nil {
		return nil, fmt.Errorf("read the batch item failures: %w", err)
	}
	for _, f := range body.BatchItemFailures {
		id := f.ItemIdentifier
		if id == nil || id.Offset == nil {
			return nil, fmt.Errorf("a batch item failure names no record: %s", answer)
		}
		i, ok := index[id.Partition]
		if !ok {
			return nil, fmt.Errorf("a batch item failure names the partition %q, which is not in the event", id.Partition)
		}
		items := ev.parts[i].items
		at := sort.Search(len(items), func(k int) bool { return items[k].Offset >= *id.Offset })
		if at == len(items) || items[at].Offset != *id.Offset {
			return nil, fmt.Errorf("a batch item failure names offset %d of %s, which is not in the event", *id.Offset, id.Partition)
		}
		succeeded[i] = min(succeeded[i], at)
	}
	return succeeded, nil
}
