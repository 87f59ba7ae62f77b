package postgres

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"oncehouse/shared/outbox"
)

// Config says which table is read, and which part of it. Names are written as
// the catalog has them, without quotes.
type Config struct {
	Schema  string // default "public"
	Table   string // default "outbox"
	Columns Columns
	// Shard is the part of the aggregates to read; the zero value is all of them.
	// They are divided by Columns.AggregateID unless it names another column. See the
	// guide, docs/outbox.md, for the hash.
	Shard outbox.Shard
	// StatementTimeout bounds every statement; default a minute.
	StatementTimeout time.Duration
	// LockTimeout bounds the wait behind an ALTER or DROP of the table; default
	// five seconds.
	LockTimeout time.Duration
}

// Columns are the names of the columns; "" is the default, that of Debezium's
// outbox event router where it has one.
type Columns struct {
	ID            string // default "id": uuid, text or varchar
	AggregateType string // default "aggregatetype": text or varchar
	AggregateID   string // default "aggregateid": text, varchar, uuid, integer or bigint; NULL is no key
	Type          string // default "type": text or varchar
	Payload       string // default "payload": jsonb, json, text, varchar or bytea; NULL is a tombstone
	Seq           string // default "seq": bigint from a sequence
	XID           string // default "xid": xid8 DEFAULT pg_current_xact_id()
	// Timestamp becomes the record's timestamp: timestamptz, timestamp (taken as
	// UTC), or an integer in TimestampUnit. "" is none.
	Timestamp     string
	TimestampUnit Unit
	// Extra are further columns, of any type, as PostgreSQL prints them.
	Extra []string
}

// Unit is the unit of a timestamp that is an integer since 1970.
type Unit string

// The units. The zero value is milliseconds, as Debezium has it.
const (
	Seconds      Unit = "s"
	Milliseconds Unit = "ms"
	Microseconds Unit = "us"
	Nanoseconds  Unit = "ns"
)

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		field *string
		value string
	}{
		{&c.Schema, "public"},
		{&c.Table, "outbox"},
		{&c.Columns.ID, "id"},
		{&c.Columns.AggregateType, "aggregatetype"},
		{&c.Columns.AggregateID, "aggregateid"},
		{&c.Columns.Type, "type"},
		{&c.Columns.Payload, "payload"},
		{&c.Columns.Seq, "seq"},
		{&c.Columns.XID, "xid"},
	} {
		if *d.field == "" {
			*d.field = d.value
		}
	}
	if c.Columns.TimestampUnit == "" {
		c.Columns.TimestampUnit = Milliseconds
	}
	if c.StatementTimeout == 0 {
		c.StatementTimeout = time.Minute
	}
	if c.LockTimeout == 0 {
		c.LockTimeout = 5 * time.Second
	}
	return c
}

// validate names every impossible setting at once.
func (c Config) validate() error {
	var problems []error
	if !slices.Contains([]Unit{Seconds, Milliseconds, Microseconds, Nanoseconds}, c.Columns.TimestampUnit) {
		problems = append(problems, fmt.Errorf("timestamp unit %q: one of s, ms, us, ns", c.Columns.TimestampUnit))
	}
	if c.StatementTimeout < time.Millisecond || c.LockTimeout < time.Millisecond {
		problems = append(problems, errors.New("statement and lock time-out: at least a millisecond"))
	}
	if s := c.Shard; s != (outbox.Shard{}) && (s.Of < 1 || s.Index < 0 || s.Index >= s.Of) {
		problems = append(problems, fmt.Errorf("shard %s: an index from 0, below the number of shards", s))
	}
	return errors.Join(problems...)
}

// by is the column that divides the rows; "" of one shard.
func (c Config) by() string {
	if c.Shard.Of <= 1 {
		return ""
	}
	return cmp.Or(c.Shard.By, c.Columns.AggregateID)
}

// name is the table as SQL writes it.
func (c Config) name() string { return pgx.Identifier{c.Schema, c.Table}.Sanitize() }

// quote writes an identifier as SQL does.
func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
