package outbox

import (
	"fmt"
	"time"
)

// takes says why the topic would not take a record; nil if it would.
func (t Topic) takes(r *Record) error {
	if size := batchOverhead + r.size(); size > int(t.MaxMessageBytes) {
		return fmt.Errorf("a record of %d bytes is over the %d of topic %s (max.message.bytes)", size, t.MaxMessageBytes, r.Topic)
	}
	if t.Compacted && r.Key == nil {
		return fmt.Errorf("the aggregate id is NULL, and topic %s takes no record without a key (cleanup.policy=compact)", r.Topic)
	}
	return t.takesTime(r)
}

// takesTime judges the timestamp. A record without one gets its sender's now.
func (t Topic) takesTime(r *Record) error {
	switch at := r.Timestamp; {
	case at > 0 && at < t.Earliest:
		return fmt.Errorf("the timestamp %d (%s) is before %s, the earliest that topic %s takes (message.timestamp.before.max.ms)", at, moment(at), moment(t.Earliest), r.Topic)
	case at > 0 && at > t.Latest && t.Latest > 0:
		return fmt.Errorf("the timestamp %d (%s) is after %s, the latest that topic %s takes (message.timestamp.after.max.ms)", at, moment(at), moment(t.Latest), r.Topic)
	}
	return nil
}

func moment(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }

// or is a topic that takes what either takes. The partitions are t's.
func (t Topic) or(other Topic) Topic {
	t.MaxMessageBytes = max(t.MaxMessageBytes, other.MaxMessageBytes)
	t.Compacted = t.Compacted && other.Compacted
	t.Earliest = min(t.Earliest, other.Earliest)
	if t.Latest == 0 || other.Latest == 0 {
		t.Latest = 0
	} else {
		t.Latest = max(t.Latest, other.Latest)
	}
	return t
}
