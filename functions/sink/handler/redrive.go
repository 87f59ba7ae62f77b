package handler

import (
	"context"
	"log/slog"
	"time"

	"oncehouse/functions/sink/redrive"
	"oncehouse/shared/delivery"
)

// redrive sends letters through the engine again, until the invocation's time is
// nearly over.
func (h *Handler) redrive(ctx context.Context, o operation) ([]byte, error) {
	refuse := func(problem string) ([]byte, error) {
		return nil, &delivery.Error{Kind: delivery.Fatal, Reason: ReasonOperation, Message: problem,
			Remedy: `ask like this: {"oncehouse": {"action": "redrive", "max": 100, "reason": "out_of_range", "dry_run": true}}; all three are optional`}
	}
	switch {
	case o.Partition != nil || len(o.Partitions) > 0 || o.Cluster != "":
		return refuse("redrive takes letters as the queue gives them, not by partition or cluster")
	case o.Max < 0:
		return refuse("max is negative")
	case h.ports.Queue == nil:
		return refuse("the pipeline's letters cannot be read back")
	}
	inv := &invocation{}
	if err := h.setStop(ctx, inv); err != nil {
		return nil, err
	}
	r, err := redrive.New(redrive.Options{
		Pipeline: h.config.Pipeline, Rules: h.config.Rules(), Queue: h.ports.Queue, Parallel: h.config.Lanes, Log: h.out.Log,
		Ports: delivery.Ports{Ledger: h.ports.Ledger, Target: h.ports.Table, Source: h.ports.Source, Letters: h.ports.Letters},
	})
	if err != nil {
		return refuse(err.Error())
	}
	traits, err := h.engine.Preflight(ctx)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	answer, err := r.Run(ctx, traits, redrive.Request{Max: o.Max, Reason: o.Reason, DryRun: o.DryRun}, inv.stop)
	h.out.Log.InfoContext(ctx, "letters redriven", slog.Int("redriven", answer.Redriven), slog.Int("stored", answer.Stored),
		slog.Any("kept", answer.Kept), slog.Bool("more", answer.More), slog.Bool("dry_run", o.DryRun), slog.Float64("run_ms", ms(time.Since(begun))))
	if err != nil {
		return nil, &delivery.Error{Kind: delivery.Retryable, Reason: delivery.ReasonLetters, Err: err, Message: "redrive letters",
			Remedy: "ask again: what was redriven is settled; allow sqs:ReceiveMessage, sqs:DeleteMessage and sqs:ChangeMessageVisibility on the queue"}
	}
	return marshal(answer)
}
