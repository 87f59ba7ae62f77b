// Package rowbinary turns Kafka records into rows of ClickHouse's
// RowBinaryWithDefaults: exactly the value, or a refusal that says why.
//
//	encoder, err := rowbinary.Compile(columns, rowbinary.Options{
//		Provenance: rowbinary.StandardProvenance(),
//	})
//	if err != nil {
//		return err // every column, type and option that cannot work, at once
//	}
//	writer := encoder.NewWriter() // one per goroutine
//	for i := range records {
//		body, outcome, refusal = writer.Append(body, topic, partition, &records[i])
//	}
//	// INSERT INTO t (encoder.Columns()...) FORMAT RowBinaryWithDefaults
//
// [Compile] reads the columns as system.columns tells them and decides once how
// each is filled: from a key of the record, from the record's coordinates, or
// not at all. An [Encoder] never changes and may be shared. A [Writer] holds the
// memory that one goroutine reuses from row to row; with a warm one a row costs
// no allocation.
//
// A row is written as it is read: every value is encoded behind the row in the
// order of the record's keys, and only when that is not the order of the columns
// are the pieces put in place. The order in which keys came last time is
// remembered, so that the next record's keys are compared and not looked up. A
// refused record leaves the buffer at the length it had: there is no half row.
//
// # What a value must be
//
// Lossless or refused, for every type.
//
//   - Integers: a number without a fraction (1e3 and 100.0 are integers), or a
//     string of digits without leading zeros. Decimal: the same with fractions,
//     never through a float. Float: the nearest value of the column's width.
//   - String: a string, in UTF-8. A column named in Options.RawColumns takes the
//     JSON text of any value instead.
//   - Date, Date32: "2006-01-02". DateTime, DateTime64: that, T or a space, and
//     hh:mm:ss with a fraction and a zone if wanted. Without a zone the text is
//     in the column's zone, else the server's, never the process's. A local time
//     that a change of the clock leaves out is refused, one that it repeats is
//     the earlier of the two. Numbers are as Options.Epoch says.
//   - null: NULL where the type is Nullable, else refused. An absent key: the
//     column's DEFAULT, else NULL, else refused.
//   - Tuple: an object by the members' names, or an array without names. Nested:
//     an array of objects or an object of arrays. "n.a" addresses member a of n.
//   - Bool: true or false. Enum: a name. UUID: 8-4-4-4-12 hexadecimal digits. IPv4,
//     IPv6: an address, an IPv4 one in an IPv6 column as ::ffff:a.b.c.d. Map: an
//     object, each key the text of the key type and no two of one value.
//   - JSON: an object, sent as it is. The column keeps the value of each path: a
//     key with a dot is a path, null is NULL there, an object without members is
//     nothing. Two keys that make one path are refused, or one that another goes
//     through; an integer that no 64-bit integer holds; and what the server reads
//     in the light of other rows: an integer beyond 2^53 in an array, or where the
//     column keeps few types of a path (enoughTypes), and an array of nulls.
//
// The text of a record must be one object of RFC 8259 in UTF-8, whole, in every
// part, ignored ones too: no key twice, no lone surrogate, no byte order mark.
package rowbinary
