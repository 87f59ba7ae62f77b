package handler

import (
	"context"
	"log/slog"
	"time"

	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	"oncehouse/shared/metrics"
)

// report writes one log line per lane and one line of metrics.
func (h *Handler) report(ctx context.Context, inv *invocation, now time.Time) {
	for i := range inv.results {
		h.logLane(ctx, inv, &inv.results[i], now)
	}
	line := h.measure(inv, now)
	h.line = line.Append(h.line[:0], now, h.config.Pipeline)
	if _, err := h.out.Metrics.Write(h.line); err != nil {
		h.out.Log.ErrorContext(ctx, "metrics lost", slog.String("error", err.Error()))
	}
}

// logLane is the one line of a lane. Its keys are fixed: dashboards and the
// runbook search for them. No value of a record is in it. Decoding and the
// preflight are the whole event's, and take place at the same time.
func (h *Handler) logLane(ctx context.Context, inv *invocation, r *result, now time.Time) {
	tally, spent := r.report.Tally, r.report.Spent
	attrs := []slog.Attr{
		slog.String("request_id", inv.requestID),
		slog.String("topic", r.lane.Topic), slog.Int("partition", int(r.lane.Partition)),
		slog.Int64("first_offset", r.records[0].Offset), slog.Int64("last_offset", r.records[len(r.records)-1].Offset),
		slog.Int("records", len(r.records)), slog.Int("settled", r.report.Settled),
		slog.Int64("stored", tally.RowsStored), slog.Int64("suppressed", tally.DuplicatesSuppressed),
		slog.Int64("aborted_suppressed", tally.AbortedDuplicatesSuppressed),
		slog.Int64("dead_letters", tally.DeadLetters), slog.Int64("tombstones", tally.Tombstones),
		slog.Int64("unknown_fields", tally.UnknownFields), slog.Int64("batch_bytes", tally.BytesStored),
		slog.Int64("replays", tally.Replays), slog.Int64("probes", tally.Probes), slog.Int64("conflicts", tally.Conflicts),
		slog.Float64("decode_ms", ms(inv.decode)), slog.Float64("preflight_ms", ms(inv.preflight)),
		slog.Float64("encode_ms", ms(spent.Encode)), slog.Float64("insert_ms", ms(spent.Insert)),
		slog.Float64("ledger_ms", ms(spent.Ledger)), slog.Float64("letters_ms", ms(spent.Letters)),
		slog.Float64("kafka_ms", ms(spent.Kafka)), slog.Float64("probe_ms", ms(spent.Probe)), slog.Float64("wait_ms", ms(spent.Wait)),
	}
	if lag, ok := lag(r.records, now); ok {
		attrs = append(attrs, slog.Float64("lag_ms", ms(lag)))
	}
	if r.report.Token != "" {
		attrs = append(attrs, slog.String("token", r.report.Token))
	}
	if r.report.Loaded {
		attrs = append(attrs, slog.Int64("generation", r.report.Entry.Generation), slog.Int64("next", r.report.Entry.Next))
	}
	if r.panic != "" {
		attrs = append(attrs, slog.String("stack", r.panic))
	}
	if r.report.Lost != nil {
		attrs = append(attrs, slog.Int64("lost", tally.Lost), slog.String("lost_because", r.report.Lost.Error()))
	}
	switch {
	case r.report.Err != nil:
		attrs = append(attrs, errorAttrs(asError(r.report.Err))...)
		h.out.Log.LogAttrs(ctx, slog.LevelError, "lane failed", attrs...)
	case r.report.Lost != nil:
		h.out.Log.LogAttrs(ctx, slog.LevelWarn, "lane settled with loss", attrs...)
	default:
		h.out.Log.LogAttrs(ctx, slog.LevelInfo, "lane settled", attrs...)
	}
}

// errorAttrs are the parts of an error, so that each can be searched for.
func errorAttrs(e *delivery.Error) []slog.Attr {
	bare := *e
	bare.Remedy, bare.Until = "", time.Time{}
	attrs := []slog.Attr{
		slog.String("kind", e.Kind.String()), slog.String("reason", string(e.Reason)), slog.String("error", bare.Error()),
	}
	if !e.Until.IsZero() {
		attrs = append(attrs, slog.Time("until", e.Until.UTC()))
	}
	if e.Remedy != "" {
		attrs = append(attrs, slog.String("remedy", e.Remedy))
	}
	return attrs
}

// measure counts an invocation. Every sum is there, as 0 too: an alarm can tell
// nothing from no data.
func (h *Handler) measure(inv *invocation, now time.Time) *metrics.Line {
	line := &metrics.Line{}
	for _, name := range metrics.All() {
		if name.Unit() != metrics.Milliseconds {
			line.Add(name, 0)
		}
	}
	line.Add(metrics.ColdStart, one(inv.cold))
	line.Add(metrics.EventsRefused, one(inv.refused))
	for i := range inv.results {
		measureLane(line, &inv.results[i], now)
	}
	line.Property("request_id", inv.requestID)
	line.Property("lanes", len(inv.results))
	return line
}

func measureLane(line *metrics.Line, r *result, now time.Time) {
	t := r.report.Tally
	line.Add(metrics.RecordsReceived, t.Records)
	line.Add(metrics.RowsStored, t.RowsStored)
	line.Add(metrics.RowsLost, t.Lost)
	line.Add(metrics.DuplicatesSuppressed, t.DuplicatesSuppressed)
	line.Add(metrics.AbortedDuplicatesSuppressed, t.AbortedDuplicatesSuppressed)
	line.Add(metrics.ForeignPositions, t.ForeignPositions)
	line.Add(metrics.DeadLetters, t.DeadLetters)
	line.Add(metrics.Tombstones, t.Tombstones)
	line.Add(metrics.UnknownFields, t.UnknownFields)
	line.Add(metrics.BatchBytes, t.BytesStored)
	line.Add(metrics.Replays, t.Replays)
	line.Add(metrics.Probes, t.Probes)
	if r.report.Err != nil {
		e := asError(r.report.Err)
		line.Add(metrics.LanesBlocked, 1)
		line.Add(metrics.InDoubt, one(e.Kind == delivery.InDoubt))
		line.Add(metrics.Fenced, one(e.Kind == delivery.Fenced))
		line.Add(metrics.NeedsPerson, one(e.Kind == delivery.Fatal))
		line.Add(metrics.OffsetRegression, one(e.Reason == delivery.ReasonOffsetRegression))
	}
	if spent := r.report.Spent; spent.Insert > 0 {
		line.Observe(metrics.InsertTime, ms(spent.Insert))
	}
	if spent := r.report.Spent; spent.Ledger > 0 {
		line.Observe(metrics.LedgerTime, ms(spent.Ledger))
	}
	if lag, ok := lag(r.records, now); ok {
		line.Observe(metrics.EventLag, ms(lag))
	}
}

// lag is how long the oldest record of a batch has been waiting; not known where
// Kafka has no timestamps.
func lag(records []kafka.Record, now time.Time) (time.Duration, bool) {
	oldest := int64(-1)
	for i := range records {
		if at := records[i].Timestamp; at >= 0 && (oldest < 0 || at < oldest) {
			oldest = at
		}
	}
	return max(now.Sub(time.UnixMilli(oldest)), 0), oldest >= 0
}

// ms is a duration in milliseconds, to the microsecond.
func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func one(is bool) int64 {
	if is {
		return 1
	}
	return 0
}
