package chain

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/orders"
)

// pair is an event as PostgreSQL has it, and its row as ClickHouse has it.
func pair(t *testing.T, order, version int64) (orders.Event, *storedRow) {
	t.Helper()
	id := uuid.NewSHA1(uuid.Nil, []byte{byte(order), byte(version)})
	note := "with \"quotes\""
	e := orders.Event{
		EventID: id, OrderID: order, Version: version, Status: "paid", Amount: json.Number("12.50"),
		Items: []string{"tea", "急須"}, Note: &note, PlacedAt: time.UnixMicro(1_700_000_000_123_456).UTC(),
	}
	return e, &storedRow{
		EventID: id, OrderID: order, Version: version, Status: "paid", Amount: "12.5", // as the engine prints it
		Items: []string{"tea", "急須"}, Note: &note, PlacedUS: 1_700_000_000_123_456, Key: orders.Key(order),
	}
}

func world(t *testing.T) (*truth, []*storedRow) {
	t.Helper()
	truth := newTruth()
	var rows []*storedRow
	for version := int64(1); version <= 3; version++ {
		for order := int64(1); order <= 2; order++ {
			e, row := pair(t, order, version)
			require.NoError(t, truth.add(e.EventID, orders.Key(order), &e))
			rows = append(rows, row)
		}
	}
	return truth, rows
}

func compare(t *truth, rows []*storedRow) *comparison {
	c := t.comparison()
	for _, r := range rows {
		c.row(r)
	}
	c.finish()
	return c
}

func TestEverythingIsThere(t *testing.T) {
	truth, rows := world(t)
	c := compare(truth, rows)
	require.Equal(t, []int64{6, 0, 0, 0}, []int64{c.stored, c.lost, c.doubled, c.moved}, c.problems)
}

// Each fault is seen, and as what it is.
func TestFaultsAreSeen(t *testing.T) {
	type figures struct{ stored, lost, doubled, moved int64 }
	for name, c := range map[string]struct {
		spoil func(rows []*storedRow) []*storedRow
		want  figures
		says  string
	}{
		"lost":      {func(r []*storedRow) []*storedRow { return r[1:] }, figures{5, 1, 0, 0}, "is not stored"},
		"twice":     {func(r []*storedRow) []*storedRow { return append(r, r[2]) }, figures{6, 0, 1, 0}, "is stored twice"},
		"swapped":   {func(r []*storedRow) []*storedRow { r[0], r[2] = r[2], r[0]; return r }, figures{6, 0, 0, 1}, "is stored behind event 2"},
		"amount":    {func(r []*storedRow) []*storedRow { r[0].Amount = "12.51"; return r }, figures{5, 1, 0, 0}, "other values"},
		"note":      {func(r []*storedRow) []*storedRow { r[0].Note = nil; return r }, figures{5, 1, 0, 0}, "other values"},
		"items":     {func(r []*storedRow) []*storedRow { r[0].Items = nil; return r }, figures{5, 1, 0, 0}, "other values"},
		"time":      {func(r []*storedRow) []*storedRow { r[0].PlacedUS++; return r }, figures{5, 1, 0, 0}, "other values"},
		"key":       {func(r []*storedRow) []*storedRow { r[0].Key = "order-7"; return r }, figures{5, 1, 0, 0}, "other values"},
		"rolled":    {func(r []*storedRow) []*storedRow { _, x := pair(t, 1, 9); return append(r, x) }, figures{6, 0, 1, 0}, "was never committed"},
		"no amount": {func(r []*storedRow) []*storedRow { r[0].Amount = ""; return r }, figures{5, 1, 0, 0}, "other values"},
	} {
		t.Run(name, func(t *testing.T) {
			truth, rows := world(t)
			got := compare(truth, c.spoil(rows))
			require.Equal(t, c.want, figures{got.stored, got.lost, got.doubled, got.moved})
			require.Contains(t, strings.Join(got.problems, "\n"), c.says)
		})
	}
}

// An outbox that does not count 1, 2, 3 for each order could prove nothing.
func TestTheTruthIsHeldToTheServicesPromise(t *testing.T) {
	truth, _ := world(t)
	e, _ := pair(t, 1, 5)
	require.ErrorContains(t, truth.add(e.EventID, "order-1", &e), "version 5 of order-1, and the 4th of it")
	e, _ = pair(t, 1, 4)
	require.Error(t, truth.add(uuid.New(), "order-1", &e), "the row's id is the event's")
}

func TestProofIsOneLine(t *testing.T) {
	p := Proof{Chain: "postgres-to-clickhouse", Committed: 7, Published: 7, Stored: 7, Kills: 3}
	require.Equal(t, `PROOF {"chain":"postgres-to-clickhouse","committed":7,"published":7,"stored":7,"lost":0,"duplicated":0,"misordered":0,"kills":3}`, p.String())
	require.True(t, p.Holds())
	for _, spoil := range []func(*Proof){
		func(p *Proof) { p.Lost = 1 }, func(p *Proof) { p.Duplicated = 1 }, func(p *Proof) { p.Misordered = 1 },
		func(p *Proof) { p.Published = 8 }, func(p *Proof) { p.Stored = 6 }, func(p *Proof) { *p = Proof{} },
	} {
		bad := p
		spoil(&bad)
		require.False(t, bad.Holds(), bad)
	}
}
