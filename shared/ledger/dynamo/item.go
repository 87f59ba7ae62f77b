package dynamo

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"oncehouse/shared/delivery"
	"oncehouse/shared/ledger"
	"oncehouse/shared/offsets"
)

// The attributes of an item. Numbers are numbers and sets of offsets their text
// ("10-19,25"), so that the console shows what a person looks for; what has
// structure is one JSON document per attribute. An attribute whose value is the
// zero value is left out, except those that every entry has.
const (
	attrLane       = "lane"   // partition key: Lane.Key
	attrSchema     = "schema" // of this list: schemaVersion
	attrVersion    = "version"
	attrWriter     = "writer"
	attrGeneration = "generation"
	attrGuarantee  = "guarantee"
	attrNext       = "next"
	attrFloor      = "floor"
	attrGhosts     = "ghosts"
	attrSkipped    = "skipped"
	attrDeadline   = "deadline"   // RFC 3339, UTC
	attrHeldUntil  = "held_until" // RFC 3339, UTC
	attrTopicID    = "topic_id"
	attrServer     = "server_uuid"
	attrIntent     = "intent"     // JSON, see intentDoc; gzip of it when long
	attrSamples    = "samples"    // JSON: [{"offset","hash"}]
	attrPositions  = "positions"  // JSON: {source: {"window","seq"}}
	attrRecreation = "recreation" // JSON: {"topic_id","since"}
)

const (
	// schemaVersion rises when the meaning of an attribute changes or one is
	// added: an older program must not work on what it does not understand.
	schemaVersion = 1
	// maxKey and maxItem are DynamoDB's limits for a partition key and an item,
	// attribute names included.
	maxKey  = 2048
	maxItem = 400 << 10
	// longIntent is the size from which an intent is stored compressed: nobody
	// reads thousands of offsets, and every kilobyte of a write is paid for.
	longIntent = 16 << 10
	// maxUnpacked bounds what a compressed intent may unpack to.
	maxUnpacked = 64 << 20
)

// encode returns the item of an entry. A chunk of 10,000 records with a gap
// after each and thousands of refusals fits, if need be with shorter refusal
// messages: the full ones are in the function's memory and reach the dead
// letters, unless the function dies first.
func encode(lane delivery.Lane, e delivery.Entry) (map[string]types.AttributeValue, error) {
	if n := len(lane.Key()); n > maxKey {
		return nil, fmt.Errorf("the lane's name has %d bytes, DynamoDB takes %d: give the cluster a shorter name", n, maxKey)
	}
	var item map[string]types.AttributeValue
	for _, limit := range []int{maxItem, 256, 64, 0} {
		var err error
		if item, err = encodeCut(lane, e, limit); err != nil {
			return nil, err
		}
		if size(item) <= maxItem {
			return item, nil
		}
	}
	return nil, fmt.Errorf("the entry has %d bytes, DynamoDB takes %d: lower the pipeline's chunk rows", size(item), maxItem)
}

func encodeCut(lane delivery.Lane, e delivery.Entry, maxMessage int) (map[string]types.AttributeValue, error) {
	item := map[string]types.AttributeValue{
		attrLane: text(lane.Key()), attrSchema: number(schemaVersion),
		attrVersion: number(e.Version), attrWriter: text(e.Writer),
		attrGeneration: number(e.Generation), attrGuarantee: text(string(e.Guarantee)), attrNext: number(e.Next),
	}
	for name, n := range map[string]int64{attrFloor: e.Floor, attrGhosts: e.Ghosts} {
		if n != 0 {
			item[name] = number(n)
		}
	}
	for name, s := range map[string]string{attrSkipped: e.Skipped.String(), attrTopicID: e.TopicID, attrServer: e.ServerUUID} {
		if s != "" {
			item[name] = text(s)
		}
	}
	for name, at := range map[string]time.Time{attrDeadline: e.Deadline, attrHeldUntil: e.HeldUntil} {
		if !at.IsZero() {
			item[name] = text(at.UTC().Format(time.RFC3339Nano))
		}
	}
	docs := map[string]any{}
	if len(e.Samples) > 0 {
		docs[attrSamples] = e.Samples
	}
	if len(e.Positions) > 0 {
		docs[attrPositions] = e.Positions
	}
	if e.Recreation != nil {
		docs[attrRecreation] = delivery.Recreation{TopicID: e.Recreation.TopicID, Since: e.Recreation.Since.UTC()}
	}
	if e.Intent != nil {
		docs[attrIntent] = newIntentDoc(e.Intent, maxMessage)
	}
	for name, doc := range docs {
		body, err := marshal(doc)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", name, err)
		}
		item[name] = text(string(body))
		if name == attrIntent && len(body) > longIntent {
			item[name] = &types.AttributeValueMemberB{Value: pack(body)}
		}
	}
	return item, nil
}

// size is DynamoDB's size of an item, numbers rounded up.
func size(item map[string]types.AttributeValue) int {
	n := 0
	for name, v := range item {
		n += len(name)
		switch v := v.(type) {
		case *types.AttributeValueMemberS:
			n += len(v.Value)
		case *types.AttributeValueMemberN:
			n += len(v.Value) + 1
		case *types.AttributeValueMemberB:
			n += len(v.Value)
		}
	}
	return n
}

// intentDoc is the JSON form of delivery.Intent.
type intentDoc struct {
	Attempt   int                          `json:"attempt"`
	Token     string                       `json:"token"`
	Created   time.Time                    `json:"created"`
	From      int64                        `json:"from"`
	Through   int64                        `json:"through"`
	Offsets   offsets.Set                  `json:"offsets"`
	Count     int64                        `json:"count"`
	Hash      delivery.Hash                `json:"hash"`
	Send      sendDoc                      `json:"send"`
	Settled   offsets.Set                  `json:"settled,omitempty"`
	Letters   []delivery.Refusal           `json:"letters,omitempty"`
	Positions map[string]delivery.Position `json:"positions,omitempty"`
	Last      *delivery.Sample             `json:"last,omitempty"`
}

type sendDoc struct {
	Offsets offsets.Set   `json:"offsets"`
	Count   int64         `json:"count"`
	Hash    delivery.Hash `json:"hash"`
}

func newIntentDoc(in *delivery.Intent, maxMessage int) intentDoc {
	var letters []delivery.Refusal
	for _, l := range in.Letters {
		l.Message = cut(ledger.Clean(l.Message), maxMessage)
		letters = append(letters, l)
	}
	return intentDoc{
		Attempt: in.Attempt, Token: in.Token, Created: in.Created.UTC(), From: in.From, Through: in.Through,
		Offsets: in.Offsets, Count: in.Count, Hash: in.Hash,
		Send:    sendDoc{Offsets: in.Send.Offsets, Count: in.Send.Count, Hash: in.Send.Hash},
		Settled: in.Settled, Letters: letters, Positions: in.Positions, Last: in.Last,
	}
}

func (d intentDoc) intent() *delivery.Intent {
	return &delivery.Intent{
		Attempt: d.Attempt, Token: d.Token, Created: d.Created, From: d.From, Through: d.Through,
		Offsets: d.Offsets, Count: d.Count, Hash: d.Hash,
		Send:    delivery.Send{Offsets: d.Send.Offsets, Count: d.Send.Count, Hash: d.Send.Hash},
		Settled: d.Settled, Letters: d.Letters, Positions: d.Positions, Last: d.Last,
	}
}

// cut shortens message to at most limit bytes without splitting a rune.
func cut(message string, limit int) string {
	if len(message) <= limit {
		return message
	}
	for limit > 0 && !utf8.RuneStart(message[limit]) {
		limit--
	}
	return message[:limit]
}

// decode reads an item, and only one that encode would have written.
func decode(lane delivery.Lane, item map[string]types.AttributeValue) (delivery.Entry, error) {
	r := reader{item: item}
	// The schema first: with another one, no other complaint means anything.
	if found := r.number(attrSchema); r.err == nil && found != schemaVersion {
		return delivery.Entry{}, fmt.Errorf("attribute %s: is %d, this program knows %d", attrSchema, found, schemaVersion)
	}
	if key := r.text(attrLane); r.err == nil && key != lane.Key() {
		return delivery.Entry{}, fmt.Errorf("attribute %s: is %q", attrLane, key)
	}
	e := delivery.Entry{
		Version: r.number(attrVersion), Writer: r.text(attrWriter),
		Generation: r.number(attrGeneration), Guarantee: delivery.Guarantee(r.text(attrGuarantee)), Next: r.number(attrNext),
		Floor: r.optionalNumber(attrFloor), Ghosts: r.optionalNumber(attrGhosts), TopicID: r.optionalText(attrTopicID), ServerUUID: r.optionalText(attrServer),
	}
	r.parse(attrSkipped, func(s string) (err error) { e.Skipped, err = offsets.Parse(s); return err })
	r.parse(attrDeadline, func(s string) (err error) { e.Deadline, err = parseTime(s); return err })
	r.parse(attrHeldUntil, func(s string) (err error) { e.HeldUntil, err = parseTime(s); return err })
	r.parse(attrSamples, func(s string) error { return unmarshal(s, &e.Samples) })
	r.parse(attrPositions, func(s string) error { return unmarshal(s, &e.Positions) })
	r.parse(attrRecreation, func(s string) error {
		e.Recreation = &delivery.Recreation{}
		return unmarshal(s, e.Recreation)
	})
	r.parse(attrIntent, func(s string) error {
		var doc intentDoc
		err := unmarshal(s, &doc)
		e.Intent = doc.intent()
		return err
	})
	if err := r.done(); err != nil {
		return delivery.Entry{}, err
	}
	return e, ledger.Check(lane, e)
}

// reader takes attributes from an item and keeps the first error.
type reader struct {
	item map[string]types.AttributeValue
	read int
	err  error
}

func (r *reader) fail(name, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("attribute "+name+": "+format, args...)
	}
}

func (r *reader) take(name string, required bool) types.AttributeValue {
	v, ok := r.item[name]
	if ok {
		r.read++
	} else if required {
		r.fail(name, "is missing")
	}
	return v
}

func (r *reader) text(name string) string { return r.string(name, r.take(name, true)) }

func (r *reader) optionalText(name string) string {
	s := r.string(name, r.take(name, false))
	if _, there := r.item[name]; there && s == "" {
		r.fail(name, "is empty")
	}
	return s
}

// string is the text of v; of a compressed intent, what it unpacks to.
func (r *reader) string(name string, v types.AttributeValue) string {
	switch v := v.(type) {
	case nil:
	case *types.AttributeValueMemberS:
		return v.Value
	case *types.AttributeValueMemberB:
		if name == attrIntent {
			s, err := unpack(v.Value)
			if err != nil {
				r.fail(name, "unpack: %w", err)
			}
			return s
		}
		r.fail(name, "is a binary, not a string")
	default:
		r.fail(name, "is a %T, not a string", v)
	}
	return ""
}

func (r *reader) number(name string) int64 { return r.integer(name, r.take(name, true)) }

func (r *reader) optionalNumber(name string) int64 { return r.integer(name, r.take(name, false)) }

func (r *reader) integer(name string, v types.AttributeValue) int64 {
	if v == nil {
		return 0
	}
	n, ok := v.(*types.AttributeValueMemberN)
	if !ok {
		r.fail(name, "is a %T, not a number", v)
		return 0
	}
	i, err := strconv.ParseInt(n.Value, 10, 64)
	if err != nil {
		r.fail(name, "%w", err)
	}
	return i
}

// parse hands an optional attribute's text to fn.
func (r *reader) parse(name string, fn func(string) error) {
	s := r.optionalText(name)
	if s == "" || r.err != nil {
		return
	}
	if err := fn(s); err != nil {
		r.fail(name, "%w", err)
	}
}

// done fails when the item has attributes that nobody took. (Schema versions
// should make it impossible.)
func (r *reader) done() error {
	if r.err != nil || r.read == len(r.item) {
		return r.err
	}
	for name := range r.item {
		switch name {
		case attrLane, attrSchema, attrVersion, attrWriter, attrGeneration, attrGuarantee, attrNext, attrFloor, attrGhosts,
			attrSkipped, attrDeadline, attrHeldUntil, attrTopicID, attrServer, attrIntent, attrSamples, attrPositions, attrRecreation:
		default:
			return fmt.Errorf("attribute %s: is not known to this program", name)
		}
	}
	return nil
}

func parseTime(s string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err == nil && t.UTC().Format(time.RFC3339Nano) != s {
		err = fmt.Errorf("%q is not RFC 3339 in UTC", s)
	}
	return t.UTC(), err
}

// marshal is JSON without the escapes that only HTML needs.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// unmarshal reads what marshal wrote and nothing else. encoding/json is lenient
// (case, repeated and missing keys, null), so the value is written again and
// compared: whatever was lost or made up shows.
func unmarshal(s string, into any) error {
	dec := json.NewDecoder(bytes.NewReader([]byte(s)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return err
	}
	again, err := marshal(into)
	if err != nil {
		return err
	}
	if string(again) != s {
		return fmt.Errorf("was not written by this program, which would write %s", cut(string(again), 300))
	}
	return nil
}

func pack(body []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(body)
	if err = errors.Join(err, w.Close()); err != nil {
		panic("compress into memory: " + err.Error()) // a bytes.Buffer does not fail
	}
	return b.Bytes()
}

func unpack(packed []byte) (string, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(io.LimitReader(r, maxUnpacked))
	return string(body), err
}
