package chain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncehouse/infra/local/engine"
	"oncehouse/infra/local/orders"
)

// committedRows calls see for every row of the outbox, in the order of seq.
func committedRows(ctx context.Context, url string, see func(id uuid.UUID, aggregate string, e *orders.Event)) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, "SELECT id::text, aggregateid, payload::text FROM outbox ORDER BY seq")
	if err != nil {
		return fmt.Errorf("read the outbox: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, aggregate, payload string
		if err := rows.Scan(&id, &aggregate, &payload); err != nil {
			return fmt.Errorf("read the outbox: %w", err)
		}
		parsed, err := uuid.Parse(id)
		var e orders.Event
		if err == nil {
			err = json.Unmarshal([]byte(payload), &e)
		}
		if err != nil {
			return fmt.Errorf("read row %s of the outbox: %w", id, err)
		}
		see(parsed, aggregate, &e)
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read the outbox: %w", err)
	}
	return nil
}

// publishedRecords calls see with the id of every committed record of the topic.
func publishedRecords(ctx context.Context, brokers []string, topic string, see func(id string)) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.KeepControlRecords())
	if err != nil {
		return fmt.Errorf("connect to Kafka: %w", err)
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
	if err != nil {
		return fmt.Errorf("ask for the end of %s: %w", topic, err)
	}
	left := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return fmt.Errorf("read %s: %w", topic, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset >= left[r.Partition]-1 { // the last is a marker, which is kept
				delete(left, r.Partition)
			}
			if !r.Attrs.IsControl() {
				see(headerOf(r, "id"))
			}
		})
	}
	return nil
}

func headerOf(r *kgo.Record, key string) string {
	for _, h := range r.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

// storedRow is one row of a table, as the engine writes it.
type storedRow struct {
	EventID   uuid.UUID `json:"event_id"`
	OrderID   int64     `json:"order_id"`
	Version   int64     `json:"version"`
	Status    string    `json:"status"`
	Amount    string    `json:"amount"`
	Items     []string  `json:"items"`
	Note      *string   `json:"note"`
	PlacedUS  int64     `json:"placed_us"`
	Partition int32     `json:"_partition"`
	Offset    int64     `json:"_offset"`
	Key       string    `json:"_key"`
}

// event is the row as the service would have written it.
func (r *storedRow) event() orders.Event {
	return orders.Event{
		EventID: r.EventID, OrderID: r.OrderID, Version: r.Version, Status: r.Status, Amount: json.Number(r.Amount),
		Items: r.Items, Note: r.Note, PlacedAt: time.UnixMicro(r.PlacedUS),
	}
}

// storedRows calls see for every row of a table, by partition and offset.
func storedRows(ctx context.Context, url, table string, see func(*storedRow)) error {
	body, err := engine.Query(ctx, url, "SELECT event_id, order_id, version, status, toString(amount) AS amount, items, note, "+
		"toUnixTimestamp64Micro(placed_at) AS placed_us, _partition, _offset, _key FROM "+table+
		" ORDER BY _partition, _offset FORMAT JSONEachRow SETTINGS output_format_json_quote_64bit_integers = 0")
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	decoder := json.NewDecoder(body)
	for {
		var row storedRow
		err := decoder.Decode(&row)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the rows of %s: %w", table, err)
		}
		see(&row)
	}
}
