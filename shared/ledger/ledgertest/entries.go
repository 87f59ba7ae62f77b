package ledgertest

import (
	"time"

	"pgregory.net/rapid"

	"oncehouse/shared/delivery"
	"oncehouse/shared/offsets"
)

// Entries draws entries of every shape that a ledger has to keep: any subset of
// the fields, extreme numbers, any text. Version and Writer are of a first write.
func Entries() *rapid.Generator[delivery.Entry] {
	return rapid.Custom(func(t *rapid.T) delivery.Entry {
		e := delivery.Entry{
			Generation: rapid.Int64Min(1).Draw(t, "generation"),
			Guarantee:  rapid.SampledFrom([]delivery.Guarantee{delivery.AtMostOnce, delivery.AtLeastOnce, delivery.ExactlyOnce}).Draw(t, "guarantee"),
			Next:       rapid.Int64Min(0).Draw(t, "next"),
			Skipped:    sets().Draw(t, "skipped"),
			Floor:      rapid.Int64Min(0).Draw(t, "floor"),
			Ghosts:     rapid.Int64Min(0).Draw(t, "ghosts"),
			Deadline:   times().Draw(t, "deadline"),
			HeldUntil:  times().Draw(t, "held until"),
			Samples:    some(rapid.SliceOfN(samples(), 0, 32).Draw(t, "samples")),
			Positions:  positions().Draw(t, "positions"),
			TopicID:    rapid.StringN(0, 40, -1).Draw(t, "topic id"),
			ServerUUID: rapid.StringN(0, 40, -1).Draw(t, "server uuid"),
			Version:    1,
			Writer:     rapid.StringN(1, 40, -1).Draw(t, "writer"),
		}
		if rapid.Bool().Draw(t, "has an intent") {
			in := intents().Draw(t, "intent")
			e.Intent = &in
		}
		if rapid.Bool().Draw(t, "is being recreated") {
			e.Recreation = &delivery.Recreation{TopicID: rapid.String().Draw(t, "new topic id"), Since: times().Draw(t, "since")}
		}
		return e
	})
}

// Full is an entry with every field set, at version 1.
func Full() delivery.Entry {
	return delivery.Entry{
		Generation: 2, Guarantee: delivery.ExactlyOnce, Next: 100,
		Skipped: offsets.Set{{First: 3, Last: 9}, {First: 40, Last: 40}}, Floor: 2, Ghosts: 70,
		Intent: &delivery.Intent{
			Offsets: offsets.Set{{First: 100, Last: 119}, {First: 125, Last: 125}}, Count: 21, Hash: 0x0123456789abcdef,
			From: 100, Through: 130, Settled: offsets.Of(40),
			Letters:   []delivery.Refusal{{Offset: 120, Code: "not_json", Column: "amount", Message: `value: "<&> é` + "\u2028" + `"`}},
			Send:      delivery.Send{Offsets: offsets.Between(110, 119), Count: 10, Hash: 0xfedcba9876543210},
			Positions: map[string]delivery.Position{"orders-db/public.outbox": {Window: 7, Seq: 70, Seen: offsets.Of(64, 65, 70)}},
			Last:      &delivery.Sample{Offset: 125, Hash: 5},
			Attempt:   2, Token: "oncehouse:clicks:main:clicks:3:2:110-119:fedcba9876543210:2",
			Created: time.Date(2026, 3, 29, 1, 30, 0, 123456789, time.UTC),
		},
		Deadline:   time.Date(2026, 3, 29, 1, 31, 0, 1, time.UTC),
		HeldUntil:  time.Date(2026, 3, 29, 1, 45, 0, 2, time.UTC),
		Samples:    []delivery.Sample{{Offset: 98, Hash: 0}, {Offset: 99, Hash: 1<<64 - 1}},
		Positions:  map[string]delivery.Position{"orders-db/public.outbox": {Window: 6, Seq: 66, Seen: offsets.Of(66)}},
		TopicID:    "2Xv9rFfcQ8yzGxU1b0wK5A",
		ServerUUID: "6d1b0b3e-0d43-4d4f-b2f3-0c9a3d2f9f5e",
		Recreation: &delivery.Recreation{TopicID: "other", Since: time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC)},
		Version:    1, Writer: "5b0c5c1e",
	}
}

// scribble changes everything that e points to.
func scribble(e *delivery.Entry) {
	e.Skipped[0].First, e.Samples[0].Offset = 77, 77
	e.Positions["orders-db/public.outbox"] = delivery.Position{}
	e.Recreation.TopicID = "scribbled"
	in := e.Intent
	in.Count, in.Last.Offset = 77, 77
	in.Offsets[0].First, in.Settled[0].First, in.Send.Offsets[0].First = 77, 77, 77
	in.Letters[0].Code = "scribbled"
	in.Positions["orders-db/public.outbox"] = delivery.Position{}
}

func intents() *rapid.Generator[delivery.Intent] {
	return rapid.Custom(func(t *rapid.T) delivery.Intent {
		in := delivery.Intent{
			Offsets: sets().Draw(t, "offsets"), Count: rapid.Int64Min(0).Draw(t, "count"), Hash: hashes().Draw(t, "hash"),
			From: rapid.Int64Min(0).Draw(t, "from"), Through: rapid.Int64Min(0).Draw(t, "through"),
			Settled:   sets().Draw(t, "settled"),
			Letters:   some(rapid.SliceOfN(refusals(), 0, 5).Draw(t, "letters")),
			Send:      delivery.Send{Offsets: sets().Draw(t, "sent"), Count: rapid.Int64Min(0).Draw(t, "sent count"), Hash: hashes().Draw(t, "sent hash")},
			Positions: positions().Draw(t, "intent positions"),
			Attempt:   rapid.IntMin(0).Draw(t, "attempt"), Token: rapid.String().Draw(t, "token"),
			Created: times().Draw(t, "created"),
		}
		if rapid.Bool().Draw(t, "has a last sample") {
			s := samples().Draw(t, "last")
			in.Last = &s
		}
		return in
	})
}

func refusals() *rapid.Generator[delivery.Refusal] {
	return rapid.Custom(func(t *rapid.T) delivery.Refusal {
		return delivery.Refusal{
			Offset: rapid.Int64Min(0).Draw(t, "offset"), Code: rapid.String().Draw(t, "code"), Column: rapid.String().Draw(t, "column"), Message: rapid.String().Draw(t, "message"),
		}
	})
}

func samples() *rapid.Generator[delivery.Sample] {
	return rapid.Custom(func(t *rapid.T) delivery.Sample {
		return delivery.Sample{Offset: rapid.Int64Min(0).Draw(t, "offset"), Hash: hashes().Draw(t, "hash")}
	})
}

func hashes() *rapid.Generator[delivery.Hash] {
	return rapid.Map(rapid.Uint64(), func(n uint64) delivery.Hash { return delivery.Hash(n) })
}

// sets draws sets up to the highest offset there is.
func sets() *rapid.Generator[offsets.Set] {
	return rapid.Custom(func(t *rapid.T) offsets.Set {
		var s offsets.Set
		first := rapid.Int64Min(0).Draw(t, "first")
		for range rapid.IntRange(0, 6).Draw(t, "ranges") {
			last := first + rapid.Int64Range(0, 1000).Draw(t, "length")
			if last < first {
				break // past the highest int64
			}
			s = append(s, offsets.Range{First: first, Last: last})
			first = last + rapid.Int64Range(2, 1000).Draw(t, "gap")
			if first < last {
				break
			}
		}
		return s
	})
}

func positions() *rapid.Generator[map[string]delivery.Position] {
	return rapid.Custom(func(t *rapid.T) map[string]delivery.Position {
		m := map[string]delivery.Position{}
		for _, source := range rapid.SliceOfN(rapid.String(), 0, 5).Draw(t, "sources") {
			m[source] = delivery.Position{Window: rapid.Int64().Draw(t, "window"), Seq: rapid.Int64().Draw(t, "seq"), Seen: sets().Draw(t, "seen")}
		}
		if len(m) == 0 {
			return nil
		}
		return m
	})
}

// times draws the zero time and moments of any nanosecond of the years 1..9999.
func times() *rapid.Generator[time.Time] {
	first, last := time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC).Unix(), time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).Unix()
	return rapid.Custom(func(t *rapid.T) time.Time {
		return time.Unix(rapid.Int64Range(first, last).Draw(t, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanos")).UTC()
	})
}

// some is s, nil when it is empty: a ledger does not tell the two apart.
func some[E any](s []E) []E {
	if len(s) == 0 {
		return nil
	}
	return s
}
