package rowbinary

// Outcome is what became of a record.
type Outcome uint8

const (
	// Stored: one row was appended.
	Stored Outcome = iota + 1
	// Skipped: a tombstone that needs no row.
	Skipped
	// Refused: the record does not fit; the refusal says why.
	Refused
)

// Code is a word that says why a record was refused. The set is fixed: dead
// letters, metrics and runbooks go by it.
type Code string

// The codes.
const (
	CodeEmptyValue    Code = "empty_value"     // the value has no bytes (a tombstone has no value)
	CodeNotJSON       Code = "not_json"        // not RFC 8259
	CodeInvalidUTF8   Code = "invalid_utf8"    // bytes that are not UTF-8, or a lone surrogate
	CodeNotObject     Code = "not_object"      // JSON, but no object
	CodeTrailingData  Code = "trailing_data"   // something behind the object
	CodeTooDeep       Code = "too_deep"        // nested deeper than MaxDepth
	CodeDuplicateKey  Code = "duplicate_key"   // a key, or what it addresses, given twice
	CodeUnknownField  Code = "unknown_field"   // a key that no column takes, under UnknownRefuse
	CodeMissing       Code = "missing"         // no key for a column that needs a value
	CodeNull          Code = "null"            // null for a column that is not Nullable
	CodeWrongType     Code = "wrong_type"      // a kind of value that the column does not take
	CodeOutOfRange    Code = "out_of_range"    // beyond what the type holds
	CodeTooManyDigits Code = "too_many_digits" // more digits than the Decimal has
	CodeFractionLost  Code = "fraction_lost"   // a fraction that the type does not hold
	CodeInvalidText   Code = "invalid_text"    // a string that is no number, UUID or address
	CodeInvalidDate   Code = "invalid_date"    // a date or time that does not exist, or is not written as one
	CodeEnumUnknown   Code = "enum_unknown"    // a name that the Enum does not have
	CodeTooLong       Code = "too_long"        // more bytes than the FixedString has
	CodeLength        Code = "length"          // arrays of a Nested, or a Tuple, of the wrong length
	CodeTombstone     Code = "tombstone"       // no value, under TombstonesLetter
	CodeBadKey        Code = "bad_key"         // a tombstone whose key is not what the key columns need
)

// MaxDepth is how deep arrays and objects may be nested in a field that is not
// taken apart: one that no column takes, or the value of a JSON column. The
// server's own parser ends at about 1,000.
const MaxDepth = 512

// Refusal says why a record is not stored.
type Refusal struct {
	// Column is the column that refused it, "" when it is the record itself.
	Column string
	// Path leads to the value from the record's top: "tags[3].name".
	Path string
	Code Code
	// Message is one line: path, value (cut to 64 bytes) and reason.
	Message string
}
