// Package deadletter is the form in which a record that could not be stored
// leaves a pipeline: one JSON document that says where the record came from, why
// it was refused, and what it was, byte for byte.
//
//	e := deadletter.New(letter, deadletter.MaxBody) // leaves out what does not fit
//	body, err := e.Marshal()
//	e, err = deadletter.Parse(body)                 // exactly that again, or an error
//
// Key, value and headers are base64, because they are bytes; Kafka's null is
// null and an empty value is "". What is too large for a message is left out and
// named, with its size and hash: the record is still in Kafka at the letter's
// coordinates, and the hash proves that it is the same one.
//
// shared/deadletter/queue sends envelopes to SQS, shared/deadletter/memory keeps
// letters for tests; both pass shared/deadletter/deadlettertest.
package deadletter

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
)

// Version is the version of the envelope that this package writes and reads.
const Version = 1

// MaxBody is the size up to which an envelope keeps its record: SQS takes
// messages of 256 KiB, attributes included, whose room is left here. (SQS takes
// 1 MiB since August 2025, but a queue made before keeps its own maximum.)
const MaxBody = 255 << 10

// maxMessage bounds the message, so that an envelope without its record fits.
const maxMessage = 4 << 10

// Omission says what an envelope leaves out.
type Omission string

// What an envelope leaves out: nothing, the value, or key, value and headers.
const (
	OmitNothing Omission = ""
	OmitValue   Omission = "value"
	OmitRecord  Omission = "record"
)

// Envelope is a letter on its way.
type Envelope struct {
	delivery.Letter
	// Omitted names what Record lacks, OmittedSize its bytes and OmittedHash
	// its SHA-256 in hexadecimal: of the value, or of what contentHash says.
	Omitted     Omission
	OmittedSize int64
	OmittedHash string
}

// ID is the identity of a letter: the same record in the same generation has
// the same one, however often it is sent (I7).
func ID(l delivery.Letter) string {
	return fmt.Sprintf("%s/%d/%d", l.Lane.Key(), l.Generation, l.Record.Offset)
}

// New returns the envelope of a letter, with the value, and if need be key and
// headers too, left out of a body of more than maxBody bytes. Texts are made
// UTF-8 and the message is bounded.
func New(l delivery.Letter, maxBody int) Envelope {
	l.Message = strings.ToValidUTF8(l.Message, "\uFFFD")
	if len(l.Message) > maxMessage {
		end := maxMessage
		for !utf8.RuneStart(l.Message[end]) {
			end--
		}
		l.Message = l.Message[:end] + "…"
	}
	l.FirstSeen = l.FirstSeen.Round(0).UTC()
	e := Envelope{Letter: l}
	if contentSize(l.Record) == 0 || e.fits(maxBody) {
		return e
	}
	full := l.Record
	if len(full.Value) > 0 {
		e.Omitted, e.OmittedSize, e.OmittedHash = OmitValue, int64(len(full.Value)), hexSum(full.Value)
		e.Record.Value = nil
		if e.fits(maxBody) {
			return e
		}
	}
	e.Omitted, e.OmittedSize, e.OmittedHash = OmitRecord, contentSize(full), contentHash(full)
	e.Record.Key, e.Record.Value, e.Record.Headers = nil, nil, nil
	return e
}

// Complete reports whether r is the record that e left something out of: what
// redrive asks about a record that it fetched again.
func (e Envelope) Complete(r kafka.Record) bool {
	switch e.Omitted {
	case OmitValue:
		return r.Offset == e.Record.Offset && r.Value != nil && int64(len(r.Value)) == e.OmittedSize && hexSum(r.Value) == e.OmittedHash
	case OmitRecord:
		return r.Offset == e.Record.Offset && contentSize(r) == e.OmittedSize && contentHash(r) == e.OmittedHash
	default:
		return r.Offset == e.Record.Offset && contentHash(r) == contentHash(e.Record)
	}
}

// contentHash is the SHA-256, in hexadecimal, of key, value and headers, each
// with its length before it as 8 bytes, little endian; of null that is all ones.
func contentHash(r kafka.Record) string {
	h := sha256.New()
	part := func(b []byte) {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(b)))
		if b == nil {
			n = [8]byte{255, 255, 255, 255, 255, 255, 255, 255}
		}
		h.Write(n[:])
		h.Write(b)
	}
	part(r.Key)
	part(r.Value)
	for _, header := range r.Headers {
		part(header.Key)
		part(append([]byte{}, header.Value...)) // a header's null is its empty
	}
	return hex.EncodeToString(h.Sum(nil))
}

func contentSize(r kafka.Record) int64 {
	n := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return int64(n)
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func (e Envelope) fits(maxBody int) bool {
	if contentSize(e.Record) > int64(maxBody) {
		return false // and need not be encoded to see it
	}
	body, err := e.Marshal()
	return err == nil && len(body) <= maxBody
}

// document is the JSON form of an Envelope.
type document struct {
	Version       int       `json:"version"`
	ID            string    `json:"id"`
	Pipeline      string    `json:"pipeline"`
	Cluster       string    `json:"cluster"`
	Topic         string    `json:"topic"`
	Partition     int32     `json:"partition"`
	Offset        int64     `json:"offset"`
	Generation    int64     `json:"generation"`
	Timestamp     int64     `json:"timestamp"`
	Reason        string    `json:"reason"`
	Message       string    `json:"message"`
	Token         string    `json:"token"`
	FirstSeen     time.Time `json:"first_seen"`
	Key           []byte    `json:"key"`
	Value         []byte    `json:"value"`
	Headers       []header  `json:"headers"`
	KeySchema     *schema   `json:"key_schema,omitempty"`
	ValueSchema   *schema   `json:"value_schema,omitempty"`
	ValueOmitted  bool      `json:"value_omitted,omitempty"`
	RecordOmitted bool      `json:"record_omitted,omitempty"`
	OmittedSize   int64     `json:"omitted_size,omitempty"`
	OmittedSHA256 string    `json:"omitted_sha256,omitempty"`
}

type header struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
}

type schema struct {
	DataFormat string `json:"data_format"`
	SchemaID   string `json:"schema_id"`
}

// Marshal returns the envelope as one line of JSON in ASCII: SQS takes no
// control characters and neither U+FFFE nor U+FFFF, and refuses the message.
// Error: a text is not UTF-8, or the time has no RFC 3339 text.
func (e Envelope) Marshal() ([]byte, error) {
	l := e.Letter
	for name, text := range map[string]string{
		"pipeline": l.Lane.Pipeline, "cluster": l.Lane.Cluster, "topic": l.Lane.Topic,
		"reason": l.Code, "message": l.Message, "token": l.Token,
	} {
		if !utf8.ValidString(text) {
			return nil, fmt.Errorf("encode letter %q: %s is not UTF-8", ID(l), name)
		}
	}
	d := document{
		Version: Version, ID: ID(l), Pipeline: l.Lane.Pipeline, Cluster: l.Lane.Cluster, Topic: l.Lane.Topic,
		Partition: l.Lane.Partition, Offset: l.Record.Offset, Generation: l.Generation, Timestamp: l.Record.Timestamp,
		Reason: l.Code, Message: l.Message, Token: l.Token, FirstSeen: l.FirstSeen.UTC(),
		Key: l.Record.Key, Value: l.Record.Value, Headers: []header{},
		KeySchema: schemaOf(l.Record.KeySchema), ValueSchema: schemaOf(l.Record.ValueSchema),
		ValueOmitted: e.Omitted == OmitValue, RecordOmitted: e.Omitted == OmitRecord,
		OmittedSize: e.OmittedSize, OmittedSHA256: e.OmittedHash,
	}
	for _, h := range l.Record.Headers {
		d.Headers = append(d.Headers, header{Key: append([]byte{}, h.Key...), Value: append([]byte{}, h.Value...)})
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(d); err != nil {
		return nil, fmt.Errorf("encode letter %q: %w", ID(l), err)
	}
	return ascii(bytes.TrimSuffix(b.Bytes(), []byte("\n"))), nil
}

// Parse reads an envelope. White space, the order of keys and the spelling of
// escapes are free, since tools change them; anything else that Marshal would
// not have written (a key missing, unknown, twice or null) is an error.
func Parse(body []byte) (Envelope, error) {
	if !utf8.Valid(body) {
		return Envelope{}, errors.New("parse letter: not UTF-8")
	}
	var d document
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return Envelope{}, fmt.Errorf("parse letter: %w", err)
	}
	if d.Version != Version {
		return Envelope{}, fmt.Errorf("parse letter %q: version %d, this program knows %d", d.ID, d.Version, Version)
	}
	e := d.envelope()
	if id := ID(e.Letter); d.ID != id {
		return Envelope{}, fmt.Errorf("parse letter %q: its coordinates make %q", d.ID, id)
	}
	if err := e.checkOmission(d); err != nil {
		return Envelope{}, fmt.Errorf("parse letter %q: %w", d.ID, err)
	}
	// encoding/json is lenient; written again, the letter shows what was lost.
	again, err := e.Marshal()
	if err != nil {
		return Envelope{}, err
	}
	same, err := sameJSON(body, again)
	if err != nil {
		return Envelope{}, fmt.Errorf("parse letter %q: %w", d.ID, err)
	}
	if !same {
		return Envelope{}, fmt.Errorf("parse letter %q: a key is missing, repeated, misspelt or null", d.ID)
	}
	return e, nil
}

func (d document) envelope() Envelope {
	e := Envelope{OmittedSize: d.OmittedSize, OmittedHash: d.OmittedSHA256}
	switch {
	case d.ValueOmitted:
		e.Omitted = OmitValue
	case d.RecordOmitted:
		e.Omitted = OmitRecord
	}
	e.Letter = delivery.Letter{
		Lane: delivery.Lane{
			Pipeline: d.Pipeline, Cluster: d.Cluster,
			TopicPartition: kafka.TopicPartition{Topic: d.Topic, Partition: d.Partition},
		},
		Generation: d.Generation, Code: d.Reason, Message: d.Message, Token: d.Token, FirstSeen: d.FirstSeen.UTC(),
		Record: kafka.Record{
			Offset: d.Offset, Timestamp: d.Timestamp, Key: d.Key, Value: d.Value,
			KeySchema: d.KeySchema.kafka(), ValueSchema: d.ValueSchema.kafka(),
		},
	}
	for _, h := range d.Headers {
		e.Record.Headers = append(e.Record.Headers, kafka.Header{Key: h.Key, Value: h.Value})
	}
	return e
}

// checkOmission wants what is said to be left out to be so, and nothing else.
func (e Envelope) checkOmission(d document) error {
	r := e.Record
	switch {
	case d.ValueOmitted && d.RecordOmitted:
		return errors.New("both value_omitted and record_omitted")
	case e.Omitted == OmitNothing && (d.OmittedSize != 0 || d.OmittedSHA256 != ""):
		return errors.New("nothing is omitted, but its size or hash is given")
	case e.Omitted != OmitNothing && (d.OmittedSize <= 0 || len(d.OmittedSHA256) != 2*sha256.Size):
		return errors.New("omitted_size or omitted_sha256 is missing")
	case e.Omitted != OmitNothing && r.Value != nil, e.Omitted == OmitRecord && (r.Key != nil || r.Headers != nil):
		return errors.New("what is omitted is there")
	}
	return nil
}

func schemaOf(s *kafka.Schema) *schema {
	if s == nil {
		return nil
	}
	return &schema{DataFormat: s.DataFormat, SchemaID: s.ID}
}

func (s *schema) kafka() *kafka.Schema {
	if s == nil {
		return nil
	}
	return &kafka.Schema{DataFormat: s.DataFormat, ID: s.SchemaID}
}

// ascii writes every rune above 0x7e of a JSON text as an escape.
func ascii(body []byte) []byte {
	out := make([]byte, 0, len(body))
	for len(body) > 0 {
		if body[0] < 0x7f {
			out = append(out, body[0])
			body = body[1:]
			continue
		}
		r, n := utf8.DecodeRune(body)
		body = body[n:]
		if r > 0xffff {
			r -= 0x10000
			out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
			continue
		}
		out = fmt.Appendf(out, `\u%04x`, r)
	}
	return out
}

// sameJSON reports whether a and b are the same value, and neither has a key
// twice or anything behind the value.
func sameJSON(a, b []byte) (bool, error) {
	x, n, err := tree(a)
	if err != nil {
		return false, err
	}
	y, m, err := tree(b)
	return err == nil && n == m && reflect.DeepEqual(x, y), err
}

// tree returns the value of a JSON text and how many tokens it has: a repeated
// key changes only the second.
func tree(text []byte) (value any, tokens int, err error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	for {
		_, err = dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, 0, err
		}
		tokens++
	}
	dec = json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	return value, tokens, dec.Decode(&value)
}
