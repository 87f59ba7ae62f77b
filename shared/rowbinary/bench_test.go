package rowbinary_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/kafka"
	"oncehouse/shared/rowbinary"
)

// clickColumns is a table of click events: what a record of each size fills.
func clickColumns() []rowbinary.Column {
	return []rowbinary.Column{
		{Name: "event_id", Type: "UUID"},
		{Name: "event_time", Type: "DateTime64(3, 'UTC')"},
		{Name: "user_id", Type: "UInt64"},
		{Name: "session", Type: "String"},
		{Name: "type", Type: "LowCardinality(String)"},
		{Name: "url", Type: "String"},
		{Name: "amount", Type: "Decimal(18, 2)"},
		{Name: "duration_ms", Type: "UInt32"},
		{Name: "mobile", Type: "Bool"},
		{Name: "country", Type: "FixedString(2)"},
		{Name: "referrer", Type: "Nullable(String)"},
		{Name: "user_agent", Type: "String", DefaultKind: "DEFAULT"},
		{Name: "tags", Type: "Array(String)", DefaultKind: "DEFAULT"},
		{Name: "properties", Type: "Map(String, String)", DefaultKind: "DEFAULT"},
		{Name: "geo", Type: "Tuple(lat Float64, lon Float64)", DefaultKind: "DEFAULT"},
		{Name: "_topic", Type: "LowCardinality(String)"},
		{Name: "_partition", Type: "Int32"},
		{Name: "_offset", Type: "Int64"},
	}
}

const smallEvent = `{"event_id":"61f0c404-5cb3-11e7-907b-a6006ad3%04[1]x","event_time":"2025-06-21T04:00:00.%03[2]dZ","user_id":90071992547%05[3]d,"session":"s-4f1c2a9be3d0","type":"page_view","url":"https://shop.example.com/products/%[4]d?ref=home","amount":%[5]d.95,"duration_ms":%[6]d,"mobile":true,"country":"DE","referrer":null}`

const largeEvent = `{"event_id":"61f0c404-5cb3-11e7-907b-a6006ad3%04[1]x","event_time":"2025-06-21T04:00:00.%03[2]dZ","user_id":90071992547%05[3]d,"session":"s-4f1c2a9be3d0","type":"page_view","url":"https://shop.example.com/products/%[4]d?ref=home&utm_source=newsletter&utm_medium=email&utm_campaign=midsummer-2025&utm_content=hero-banner-left&utm_term=garden+furniture","amount":%[5]d.95,"duration_ms":%[6]d,"mobile":true,"country":"DE","referrer":"https://search.example.org/find?q=garden+chairs+made+of+teak&hl=en&source=web&start=10","user_agent":"Mozilla/5.0 (Linux; Android 14; Pixel 8) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.6478.71 Mobile Safari/537.36","tags":["spring","garden","furniture","teak","outdoor","sale","free-shipping","new-customer"],"properties":{"campaign":"midsummer-2025","variant":"B","ab_test":"checkout-redesign-14","currency":"EUR","payment":"card","coupon":"SUMMER25","warehouse":"hamburg-2","basket":"%[1]x-%[2]d-%[3]d","note":"Bitte klingeln, der Hund beißt nicht; Lieferung ab 17 Uhr in den Hinterhof stellen","description":"A long product description that a shop keeps with its events, so that a later reader of the stream does not have to join it to anything: chair, teak, weatherproof, stackable, two armrests, cushions sold separately, assembled in Portugal, five years of guarantee on the frame, one on the fabric. Delivered flat in one parcel of nine kilograms, on a working day of your choice, with a message an hour ahead; taken back within thirty days, unused and in its box, at no cost to you."},"geo":{"lat":53.5510846,"lon":9.9936819}}`

func events(template string) []kafka.Record {
	records := make([]kafka.Record, 1000)
	for i := range records {
		records[i].Offset = int64(i)
		records[i].Value = fmt.Appendf(nil, template, i, i, i, i*7, i%500, i*13)
	}
	return records
}

func benchmarkAppend(b *testing.B, template string) {
	records := events(template)
	encoder, err := rowbinary.Compile(clickColumns(), rowbinary.Options{Provenance: rowbinary.StandardProvenance()})
	require.NoError(b, err)
	writer := encoder.NewWriter()
	var dst []byte
	bytesIn := 0
	for i := range records {
		bytesIn += len(records[i].Value)
		var refusal *rowbinary.Refusal
		dst, _, refusal = writer.Append(dst, "clicks", 3, &records[i])
		require.Nil(b, refusal)
	}
	b.SetBytes(int64(bytesIn / len(records)))
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if i == len(records) {
			i, dst = 0, dst[:0]
		}
		dst, _, _ = writer.Append(dst, "clicks", 3, &records[i])
		i++
	}
}

func BenchmarkAppend300(b *testing.B)  { benchmarkAppend(b, smallEvent) }
func BenchmarkAppend1600(b *testing.B) { benchmarkAppend(b, largeEvent) }

// The same events with the keys in another order than the columns.
func BenchmarkAppend300Shuffled(b *testing.B)  { benchmarkAppend(b, shuffled(b, smallEvent)) }
func BenchmarkAppend1600Shuffled(b *testing.B) { benchmarkAppend(b, shuffled(b, largeEvent)) }

// BenchmarkValid is the floor that encoding/json sets for only checking the text.
func BenchmarkValid(b *testing.B) {
	records := events(largeEvent)
	b.SetBytes(int64(len(records[0].Value)))
	for b.Loop() {
		if !json.Valid(records[0].Value) {
			b.Fatal("the event is not JSON")
		}
	}
}

// shuffled moves the first three keys of a template to its end.
func shuffled(b *testing.B, template string) string {
	const keys = 3
	rest := []byte(template)
	at := 1
	for range keys {
		at += bytes.IndexByte(rest[at:], ',') + 1
	}
	require.Greater(b, at, keys)
	return "{" + template[at:len(template)-1] + "," + template[1:at-1] + "}"
}
