package handler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"oncehouse/shared/metrics"
	"oncehouse/shared/outbox"
)

// report writes one log line per shard and one line of metrics.
func (h *Handler) report(ctx context.Context, requestID string, cold bool, results []result) {
	for i := range results {
		h.logShard(ctx, requestID, &results[i])
	}
	line := measure(cold, results)
	line.Property("request_id", requestID)
	line.Property("shards", len(results))
	h.line = line.Append(h.line[:0], time.Now(), h.config.Outbox)
	if _, err := h.out.Metrics.Write(h.line); err != nil {
		h.out.Log.ErrorContext(ctx, "metrics lost", slog.String("error", err.Error()))
	}
}

// logShard is the one line of a shard. Its keys are fixed: dashboards and the
// runbook search for them. No value of a row is in it.
func (h *Handler) logShard(ctx context.Context, requestID string, r *result) {
	t := r.tally
	attrs := []slog.Attr{
		slog.String("request_id", requestID), slog.Int("shard", r.shard.Index), slog.Int("shards", r.shard.Of),
		slog.Int64("rows", t.Rows), slog.Int64("bytes", t.Bytes), slog.Int64("transactions", t.Transactions),
		slog.Int64("dead_letters", t.DeadLetters), slog.Int64("tombstones", t.Tombstones), slog.Int64("reopened", t.Reopened),
		slog.Bool("fenced", t.Fenced > 0), slog.Int64("silent_seqs", t.SilentSeqs),
		slog.Int64("removed_rows", r.removed.Rows), slog.Int64("removed_partitions", r.removed.Partitions),
		slog.Float64("lag_ms", ms(t.Lag)), slog.Float64("max_lag_ms", ms(r.commits.maxLag)),
		slog.Float64("max_transaction_ms", ms(r.commits.maxTook)), slog.Float64("duration_ms", ms(r.duration)),
	}
	if c := r.cursor; c != nil {
		attrs = append(attrs, slog.String("incarnation", c.Incarnation), slog.Int64("window", c.Window), slog.Int64("last_seq", c.LastSeq))
	}
	if r.stack != "" {
		attrs = append(attrs, slog.String("stack", r.stack))
	}
	if r.retain != nil {
		attrs = append(attrs, slog.String("retention_error", r.retain.Error()))
	}
	switch {
	case r.err != nil:
		h.out.Log.LogAttrs(ctx, slog.LevelError, "shard failed", append(attrs, errorAttrs(r.err)...)...)
	case r.retain != nil:
		h.out.Log.LogAttrs(ctx, slog.LevelWarn, "shard polled", attrs...)
	default:
		h.out.Log.LogAttrs(ctx, slog.LevelInfo, "shard polled", attrs...)
	}
}

// errorAttrs are the parts of an error, so that each can be searched for.
func errorAttrs(err error) []slog.Attr {
	attrs := []slog.Attr{slog.String("reason", reasonOf(err)), slog.String("error", err.Error())}
	var refusal *outbox.Refusal
	if errors.As(err, &refusal) {
		attrs = append(attrs, slog.String("remedy", refusal.Remedy))
	}
	return attrs
}

// measure counts an invocation. Every sum is there, as 0 too: an alarm can tell
// nothing from no data.
func measure(cold bool, results []result) *metrics.Line {
	line := &metrics.Line{}
	for _, name := range metrics.Outbox() {
		if name.Unit() != metrics.Milliseconds {
			line.Add(name, 0)
		}
	}
	line.Add(metrics.ColdStart, one(cold))
	for i := range results {
		measureShard(line, &results[i])
	}
	return line
}

func measureShard(line *metrics.Line, r *result) {
	t := r.tally
	line.Add(metrics.PublishedRows, t.Rows)
	line.Add(metrics.PublishedBytes, t.Bytes)
	line.Add(metrics.OutboxTransactions, t.Transactions)
	line.Add(metrics.OutboxDeadLetters, t.DeadLetters)
	line.Add(metrics.OutboxTombstones, t.Tombstones)
	line.Add(metrics.OutboxReopened, t.Reopened)
	line.Add(metrics.OutboxFenced, t.Fenced)
	line.Add(metrics.SequenceWithoutRows, t.SilentSeqs)
	line.Add(metrics.RetentionRows, r.removed.Rows)
	line.Add(metrics.RetentionPartitions, r.removed.Partitions)
	if until := r.removed.Until; !until.IsZero() {
		line.Observe(metrics.PartitionsAhead, ms(time.Until(until)))
	}
	if r.err != nil {
		reason := reasonOf(r.err)
		line.Add(metrics.OutboxHalted, one(reason == outbox.ReasonHalted))
		line.Add(metrics.OutboxFailed, one(reason == ReasonFailed))
		line.Add(metrics.OutboxRefused, one(reason != outbox.ReasonHalted && reason != ReasonFailed))
	}
	for _, c := range r.commits.kept {
		line.Observe(metrics.OutboxLag, ms(c.Lag))
		line.Observe(metrics.TransactionTime, ms(c.Took))
	}
	if r.commits.seen > 0 {
		line.Observe(metrics.TransactionTime, ms(r.commits.maxTook))
	}
	line.Observe(metrics.OutboxLag, ms(max(r.commits.maxLag, t.Lag)))
}

// answerOf is what the invocation came to, for people who invoke it: the
// schedule does not look at it.
func answerOf(results []result) ([]byte, error) {
	type shard struct {
		Shard        int     `json:"shard"`
		Rows         int64   `json:"rows"`
		Transactions int64   `json:"transactions"`
		DeadLetters  int64   `json:"dead_letters"`
		Fenced       bool    `json:"fenced"`
		LagMS        float64 `json:"lag_ms"`
	}
	answer := struct {
		Shards []shard `json:"shards"`
	}{}
	var failed []error
	for _, r := range results {
		if r.err != nil {
			failed = append(failed, fmt.Errorf("shard %d: %w", r.shard.Index, r.err))
		}
		answer.Shards = append(answer.Shards, shard{r.shard.Index, r.tally.Rows, r.tally.Transactions, r.tally.DeadLetters, r.tally.Fenced > 0, ms(r.tally.Lag)})
	}
	if len(failed) > 0 {
		return nil, fmt.Errorf("%d of %d shards failed: %w", len(failed), len(results), errors.Join(failed...))
	}
	return json.Marshal(answer)
}

// ms is a duration in milliseconds, to the microsecond.
func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func one(is bool) int64 {
	if is {
		return 1
	}
	return 0
}
