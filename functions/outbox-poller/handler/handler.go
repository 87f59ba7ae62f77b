// Package handler is the outbox poller's Lambda handler: invoked on a schedule,
// it publishes the rows of its shards until shortly before its deadline.
//
//	h := handler.New(cfg, connect, handler.Output{Log: logger, Metrics: os.Stdout})
//	lambda.StartWithOptions(h, lambda.WithEnableSIGTERM(h.Stop))
//
// One invocation is: connect, poll the shards side by side, remove what is
// published where that is asked for, close; then one log line per shard and one
// line of metrics. At its return no transaction is open and no connection is
// kept: a function that was frozen would wake up with dead ones.
//
// A shard that another poller took over is no failure: exactly one of them works.
// The event says which shards ({"shard": 0}, or none for shard 0); one like
// {"oncehouse": {"action": "inspect"}} is an operator's (operator.go).
package handler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/aws/aws-lambda-go/lambda/messages"
	"github.com/aws/aws-lambda-go/lambdacontext"

	"oncehouse/functions/outbox-poller/config"
	"oncehouse/shared/outbox"
)

// Ports are what one shard is polled through, for one invocation.
type Ports struct {
	Table outbox.Table
	Log   outbox.Log
	// Cursor reads the committed cursor and fences nobody; nil if there is none.
	Cursor func(ctx context.Context) (*outbox.Cursor, error)
	// Retain removes some of what is published, by the shard's committed cursor.
	// nil removes nothing.
	Retain func(ctx context.Context, own outbox.Cursor) (Removed, error)
	// Close frees the connections. Log is closed before.
	Close func()
}

// Removed is what one step of retention removed.
type Removed struct {
	Rows, Partitions int64
	More             bool // there is more to remove
	// Until is the end of the last partition; zero of a plain table.
	Until time.Time
}

// Connect opens the ports of a shard. It makes clients and does no I/O.
type Connect func(shard outbox.Shard) (Ports, error)

// Output is where the handler writes.
type Output struct {
	Log *slog.Logger
	// Metrics takes EMF lines, each in one Write.
	Metrics io.Writer
}

// Handler is a lambda.Handler. It does one invocation at a time.
type Handler struct {
	config  *config.Config
	connect Connect
	out     Output

	mu   sync.Mutex // held by the invocation
	warm bool
	line []byte
	stop context.Context // the process ends
	end  context.CancelFunc
}

// New returns a handler; it does no I/O.
func New(cfg *config.Config, connect Connect, out Output) *Handler {
	h := &Handler{config: cfg, connect: connect, out: out}
	h.stop, h.end = context.WithCancel(context.Background())
	return h
}

// Stop ends the invocation under way, if there is one, and waits until no
// transaction is open. It is for SIGTERM: nothing is invoked after it.
func (h *Handler) Stop() {
	h.end()
	h.mu.Lock()
	defer h.mu.Unlock()
}

// Reasons that the handler itself gives. The others are the outbox's own.
const (
	ReasonConfiguration = "Configuration"
	ReasonEvent         = "Event"
	ReasonOperation     = "Operation"
	ReasonPanic         = "Panic"
	// ReasonFailed is every failure that the next run may not have.
	ReasonFailed = "OutboxFailed"
)

// result is what became of one shard.
type result struct {
	shard    outbox.Shard
	tally    outbox.Tally
	removed  Removed
	commits  sample // of lags and times
	cursor   *outbox.Cursor
	duration time.Duration
	err      error
	retain   error  // of retention: it fails no run
	stack    string // where, if it panicked
}

// Invoke implements lambda.Handler.
func (h *Handler) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(h.stop, cancel)()
	cold := !h.warm
	h.warm = true
	e, err := parseEvent(payload, h.config.Shards)
	if err != nil {
		return nil, asLambdaError(err)
	}
	until, err := h.until(ctx)
	if err != nil {
		return nil, asLambdaError(err)
	}
	if e.operation != nil {
		answer, err := h.operate(ctx, *e.operation, e.shards, until)
		return answer, asLambdaError(err)
	}
	results := make([]result, len(e.shards))
	var shards sync.WaitGroup
	for i, index := range e.shards {
		shards.Go(func() { results[i] = h.poll(ctx, h.config.Shard(index), until) })
	}
	shards.Wait()
	requestID := ""
	if lc, ok := lambdacontext.FromContext(ctx); ok {
		requestID = lc.AwsRequestID
	}
	h.report(context.WithoutCancel(ctx), requestID, cold, results)
	answer, err := answerOf(results)
	return answer, asLambdaError(err)
}

// until is when a run has to be over.
func (h *Handler) until(ctx context.Context) (time.Time, error) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return deadline, &outbox.Refusal{Reason: ReasonConfiguration, Problems: []string{"the invocation has no deadline: this is not Lambda"}, Remedy: "run it as a Lambda function"}
	}
	until := deadline.Add(-h.config.DeadlineMargin)
	if left := time.Until(until); left <= h.config.Reserve {
		return until, &outbox.Refusal{
			Reason: ReasonConfiguration,
			Problems: []string{fmt.Sprintf("the invocation has %s left, ONCEHOUSE_DEADLINE_MARGIN aside, and ONCEHOUSE_RESERVE is %s: nothing could be published",
				left.Round(time.Millisecond), h.config.Reserve)},
			Remedy: "give the function a longer timeout; a minute and more is meant",
		}
	}
	return until, nil
}

// poll is one run of one shard.
func (h *Handler) poll(ctx context.Context, shard outbox.Shard, until time.Time) (r result) {
	begun := time.Now()
	r.shard = shard
	defer func() {
		if v := recover(); v != nil { // what was going on is not known, and the process ends
			r.stack, r.err = string(debug.Stack()), panicked(v)
		}
		r.duration = time.Since(begun)
	}()
	ports, err := h.connect(shard)
	if err != nil {
		r.err = err
		return r
	}
	defer ports.Close()
	rules := h.config.Rules()
	rules.Observe = r.commits.add
	log := &watchedLog{Log: ports.Log}
	poller, err := outbox.NewPoller(shard, ports.Table, log, h.config.Router(), rules)
	if err != nil {
		r.err = err
		return r
	}
	stop := h.startRetention(ctx, ports.Retain, log, &r)
	r.tally, r.err = poller.Run(ctx, until)
	stop()
	r.cursor = log.committed()
	return r
}

// panicked: the process is not to live on.
func panicked(v any) error {
	return &outbox.Refusal{Reason: ReasonPanic, Problems: []string{fmt.Sprint(v)}, Remedy: "this is a fault of oncehouse: please report it with the log line's stack"}
}

// reasonOf is the word for an error: a refusal's own, or that it just failed.
func reasonOf(err error) string {
	var refusal *outbox.Refusal
	if errors.As(err, &refusal) {
		return refusal.Reason
	}
	return ReasonFailed
}

// asLambdaError gives an error the type that Lambda shows as errorType: the
// reason, which is a heading of the runbook.
func asLambdaError(err error) error {
	if err == nil {
		return nil
	}
	reason := reasonOf(err)
	return messages.InvokeResponse_Error{Message: err.Error(), Type: reason, ShouldExit: reason == ReasonPanic} // bare: the runtime looks at the type
}
