package orders

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// AggregateType of the events: the topic's name ends in it.
const AggregateType = "order"

// Event is the payload of an outbox row: an order after a change.
type Event struct {
	EventID  uuid.UUID   `json:"event_id"` // the row's id, too
	OrderID  int64       `json:"order_id"`
	Version  int64       `json:"version"` // of the order: 1, 2, 3
	Status   string      `json:"status"`
	Amount   json.Number `json:"amount"` // two digits behind the point
	Items    []string    `json:"items"`
	Note     *string     `json:"note"`
	PlacedAt time.Time   `json:"placed_at"` // to the microsecond
}

// Key is the aggregate's id.
func Key(order int64) string { return "order-" + strconv.FormatInt(order, 10) }

var (
	statuses = [...]string{"placed", "paid", "packed", "shipped", "delivered", "returned"}
	goods    = [...]string{"tea", "cup", "kettle", "Kanne", "thé vert", "急須", "biscuits \"fine\"", "sugar\\cubes"}
)

// newEvent makes up what becomes of an order.
func newEvent(random *rand.Rand, now time.Time) Event {
	cents := random.Int64N(1_000_000)
	e := Event{
		EventID: newID(random), Status: statuses[random.IntN(len(statuses))],
		Amount:   json.Number(fmt.Sprintf("%d.%02d", cents/100, cents%100)),
		Items:    make([]string, random.IntN(5)),
		PlacedAt: now.UTC().Truncate(time.Microsecond),
	}
	for i := range e.Items {
		e.Items[i] = goods[random.IntN(len(goods))]
	}
	if random.IntN(3) == 0 {
		note := "leave it with " + goods[random.IntN(len(goods))] + "\n"
		e.Note = &note
	}
	return e
}

// newID is a random UUID that the seed decides.
func newID(random *rand.Rand) (id uuid.UUID) {
	for i := range id {
		id[i] = byte(random.Uint32())
	}
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // version 4, RFC 9562
	return id
}
