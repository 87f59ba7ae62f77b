package rowbinary

import "time"

// Column is one row of system.columns.
type Column struct {
	Name string
	Type string
	// DefaultKind is "", DEFAULT, MATERIALIZED, ALIAS or EPHEMERAL.
	DefaultKind string
}

// Options say how records become rows. The zero Options are valid: JSON, unknown
// keys ignored, absent and null values refused where the column has no answer to
// them, tombstones skipped, no provenance columns.
type Options struct {
	Format  Format
	Unknown Unknown
	// Overflow names the column that takes the unknown fields under
	// UnknownCollect: a JSON or String column takes them as one object, a
	// Map(String, String) takes the JSON text of each.
	Overflow string
	Missing  Missing
	// NullAsDefault takes null for a column that is not Nullable as if the key
	// were absent and the column had a default. It does not reach into arrays.
	NullAsDefault bool
	// CaseInsensitive matches keys to columns and Tuple members whatever their
	// case; two columns that differ only in case are then refused.
	CaseInsensitive bool
	Epoch           Epoch
	// TruncateFraction drops fraction digits that a DateTime or DateTime64
	// column does not hold, instead of refusing the value.
	TruncateFraction bool
	// RawColumns are the String columns that take the JSON text of any value,
	// byte for byte.
	RawColumns []string
	Tombstones Tombstones
	// Delete says what a tombstone's row is like under TombstonesDelete.
	Delete     Delete
	Provenance Provenance
	// Raw names the columns of FormatRaw.
	Raw RawMapping
	// Timezone is the server's (SELECT timezone()), for DateTime and DateTime64
	// columns whose type names none. nil means UTC.
	Timezone *time.Location
}

// Format is how a record's value becomes columns.
type Format string

// FormatJSON ("" is the same) matches the keys of a JSON object to columns.
// FormatRaw stores key, value, headers and timestamp as they are.
const (
	FormatJSON Format = "json"
	FormatRaw  Format = "raw"
)

// Unknown is what happens to a field that no column takes. It is counted in each
// case.
type Unknown string

// UnknownIgnore ("" is the same) leaves the field out, UnknownRefuse refuses the
// record, UnknownCollect keeps it in the Overflow column.
const (
	UnknownIgnore  Unknown = "ignore"
	UnknownRefuse  Unknown = "refuse"
	UnknownCollect Unknown = "collect"
)

// Missing is what happens when a key is absent and its column has neither a
// default nor NULL.
type Missing string

// MissingRefuse ("" is the same) refuses the record, MissingZero stores the
// type's default.
const (
	MissingRefuse Missing = "refuse"
	MissingZero   Missing = "zero"
)

// Epoch is the unit of numbers in DateTime and DateTime64 columns.
type Epoch string

// EpochColumn ("" is the same) means seconds for DateTime and ticks of the
// column's precision for DateTime64.
const (
	EpochColumn  Epoch = "column"
	EpochSeconds Epoch = "s"
	EpochMillis  Epoch = "ms"
	EpochMicros  Epoch = "us"
	EpochNanos   Epoch = "ns"
)

// Tombstones is what happens to a record without a value.
type Tombstones string

// TombstonesSkip ("" is the same) stores nothing, TombstonesLetter refuses the
// record, TombstonesDelete stores a row that marks the key as deleted.
const (
	TombstonesSkip   Tombstones = "skip"
	TombstonesLetter Tombstones = "letter"
	TombstonesDelete Tombstones = "delete"
)

// Provenance names the columns that say where a row comes from. "" leaves one
// out; a name that the table does not have is left out too. No key of a record
// ever reaches these columns.
type Provenance struct {
	Topic, Partition, Offset, Timestamp, Key, Headers string
}

// StandardProvenance is _topic, _partition, _offset, _timestamp, _key, _headers.
func StandardProvenance() Provenance {
	return Provenance{
		Topic: "_topic", Partition: "_partition", Offset: "_offset",
		Timestamp: "_timestamp", Key: "_key", Headers: "_headers",
	}
}

// RawMapping names the columns of FormatRaw; "" leaves one out. At least one of
// Key and Value is needed.
type RawMapping struct {
	Key, Value, Headers, Timestamp string
}

// Delete describes the row that a tombstone becomes: the key columns from the
// record's key, the marker column 1, provenance, and every other column its
// default. Rows of records with a value have the marker 0.
type Delete struct {
	// Marker is the UInt8 or Bool column that says that a row is deleted.
	Marker     string
	KeyColumns []string
	KeyFormat  KeyFormat
}

// KeyFormat is how a record's key becomes the key columns.
type KeyFormat string

// KeyText ("" is the same) is the text of the one key column. KeyJSON is a JSON
// object with the key columns.
const (
	KeyText KeyFormat = "text"
	KeyJSON KeyFormat = "json"
)
