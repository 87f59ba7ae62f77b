package outbox

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"oncehouse/shared/delivery"
)

// HeaderID is the header that holds a row's id, as text.
const HeaderID = "id"

// HeaderDead says why a record is in the dead-letter topic.
const HeaderDead = "oncehouse-dead-letter"

// HeaderDeadBytes is how large a payload was that does not fit into the
// dead-letter topic either.
const HeaderDeadBytes = "oncehouse-dead-letter-bytes"

// HeaderDeadTimestamp is a row's timestamp, in milliseconds, where the dead-letter
// topic does not take it either.
const HeaderDeadTimestamp = "oncehouse-dead-letter-timestamp"

// DefaultTopic is Debezium's.
const DefaultTopic = "outbox.event.${routedByValue}"

const (
	routedByValue = "${routedByValue}"
	maxTopicName  = 249
	// routingVersion changes when the same configuration would route otherwise.
	routingVersion = "1"
)

// Routing is how a row becomes a record: the settings of Debezium's Outbox Event
// Router that make sense without Kafka Connect
// (https://debezium.io/documentation/reference/stable/transformations/outbox-event-router.html).
type Routing struct {
	// Topic is route.topic.replacement; "" is DefaultTopic. The aggregate type
	// keeps its case.
	Topic string
	// Placement is table.fields.additional.placement:
	// column:header[:alias],... In place of header, Debezium also knows envelope
	// and partition, which would touch the payload and the order.
	Placement string
	// TypeColumn is the name by which Placement means Row.Type; "" is "type".
	TypeColumn string
	// Columns are the columns that a record is made of: read from others, the same
	// row would be another record, in another partition perhaps.
	Columns []string
	// Tombstones is route.tombstone.on.empty.payload: a NULL payload becomes a
	// tombstone. Without, such a row cannot be published. It is no part of the
	// hash: a row that waits for it was never published otherwise. Nor is the column
	// of timestamps, for the same reason.
	Tombstones bool
}

// Router turns rows into records. It is safe for concurrent use.
type Router struct {
	routing Routing
	headers []placement
	columns []string
	hash    string
}

// placement is a column that goes into a header.
type placement struct {
	column, header string
	extra          int // index into Row.Extra; -1 is Row.Type
}

// NewRouter returns a router. Its error lists everything that is wrong.
func NewRouter(r Routing) (*Router, error) {
	if r.Topic == "" {
		r.Topic = DefaultTopic
	}
	if r.TypeColumn == "" {
		r.TypeColumn = "type"
	}
	router := &Router{routing: r}
	var problems []error
	if err := legalTopic(strings.ReplaceAll(r.Topic, routedByValue, "x")); err != nil {
		problems = append(problems, fmt.Errorf("topic template %q: %w", r.Topic, err))
	}
	for field := range strings.SplitSeq(r.Placement, ",") {
		if field = strings.TrimSpace(field); field == "" {
			continue
		}
		if err := router.place(field); err != nil {
			problems = append(problems, fmt.Errorf("placement %q: %w", field, err))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	router.hash = router.computeHash()
	return router, nil
}

func (r *Router) place(field string) error {
	parts := strings.Split(field, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[len(parts)-1] == "" {
		return errors.New("it is not column:header or column:header:alias")
	}
	if parts[1] != "header" {
		return fmt.Errorf("%s is not supported, header is", parts[1])
	}
	p := placement{column: parts[0], header: parts[len(parts)-1], extra: -1}
	if len(parts) == 2 {
		p.header = parts[0]
	}
	taken := p.header == HeaderID || strings.HasPrefix(p.header, "oncehouse-") ||
		slices.ContainsFunc(r.headers, func(o placement) bool { return o.header == p.header })
	if taken {
		return fmt.Errorf("the header %s is taken", p.header)
	}
	if p.column != r.routing.TypeColumn {
		p.extra = len(r.columns)
		r.columns = append(r.columns, p.column)
	}
	r.headers = append(r.headers, p)
	return nil
}

// Columns are the columns that Row.Extra must hold, in this order.
func (r *Router) Columns() []string { return slices.Clone(r.columns) }

// Hash changes with everything that decides a row's topic, partition, key, value
// or headers.
func (r *Router) Hash() string { return r.hash }

func (r *Router) computeHash() string {
	var headers []string
	for _, p := range r.headers {
		headers = append(headers, p.column, p.header)
	}
	text, err := json.Marshal([][]string{{routingVersion, r.routing.Topic}, r.routing.Columns, headers}) // one text for one list
	if err != nil {
		panic(err) // strings always marshal
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// Topic is the topic of an aggregate type. An illegal name is an error.
func (r *Router) Topic(aggregateType string) (string, error) {
	name := strings.ReplaceAll(r.routing.Topic, routedByValue, aggregateType)
	if err := legalTopic(name); err != nil {
		return "", fmt.Errorf("aggregate type %q: topic %q: %w", aggregateType, name, err)
	}
	return name, nil
}

// legalTopic holds a name against Kafka's own rule
// (org.apache.kafka.common.internals.Topic).
func legalTopic(name string) error {
	if name == "" || name == "." || name == ".." || len(name) > maxTopicName {
		return fmt.Errorf("a name has 1 to %d characters and is not just dots", maxTopicName)
	}
	for _, c := range name {
		if c != '.' && c != '_' && c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return fmt.Errorf("the name holds %q: letters, digits, dot, underscore and dash are allowed", c)
		}
	}
	return nil
}

// source is the name of a sequence of positions.
func (c *Cursor) source(topic string, partition int32) string {
	return fmt.Sprintf("%s/%d-of-%d/%s/%d", c.Incarnation, c.Shard, c.Shards, topic, partition)
}

// appendHeaders adds a record's headers: id, the placed columns, and the row's
// place in the outbox.
func (r *Router) appendHeaders(dst []Header, a *arena, row *Row, source []byte, window int64) []Header {
	dst = append(dst, Header{HeaderID, a.text(row.ID)})
	for _, p := range r.headers {
		switch {
		case p.extra < 0:
			dst = append(dst, Header{p.header, a.text(row.Type)})
		case row.Extra[p.extra] == nil:
			dst = append(dst, Header{p.header, nil})
		default:
			dst = append(dst, Header{p.header, a.text(*row.Extra[p.extra])})
		}
	}
	return append(dst,
		Header{delivery.HeaderSource, source},
		Header{delivery.HeaderPosition, a.position(window, row.Seq)})
}
