// Package handler is the sink's Lambda handler: it takes an event of a Kafka
// event source mapping, has every partition of it delivered, and answers what
// became of them.
//
//	h, err := handler.New(cfg, handler.Ports{Ledger: l, Table: t, Source: s, Letters: q}, handler.Output{Log: logger, Metrics: os.Stdout})
//	lambda.StartWithOptions(h)
//
// One invocation is: decode the event and, at the same time, look at the table;
// deliver the lanes side by side; write one log line per lane and one line of
// metrics; answer. An answer without an error says that every record of it is
// settled (I2). So there are just two ways to get one: all lanes came back
// without an error, or the failed ones are named in the answer, where the
// mapping has been told to read it (REPORT_BATCH_ITEM_FAILURES).
//
// An event like {"oncehouse": {"action": "inspect", "partition": 3}} is an
// operator's (operator.go).
package handler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-lambda-go/lambdacontext"

	"oncehouse/functions/sink/config"
	"oncehouse/functions/sink/redrive"
	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	"oncehouse/shared/kafkaevent"
)

// Table is the target with the one question that only an operator asks.
type Table interface {
	delivery.Target
	// Highest is the highest offset of the lane in the table, -1 for none.
	Highest(ctx context.Context, lane delivery.Lane) (int64, error)
}

// Ports are what the handler works through. Ledger and Source may be nil, as in
// delivery.Ports.
type Ports struct {
	Ledger  delivery.Ledger
	Table   Table
	Source  delivery.Source
	Letters delivery.Letters
	// Queue is where the letters go, to take them out again; nil cannot.
	Queue redrive.Queue
}

// Output is where the handler writes.
type Output struct {
	Log *slog.Logger
	// Metrics takes EMF lines, each in one Write.
	Metrics io.Writer
}

// Handler is a lambda.Handler. It does one invocation at a time.
type Handler struct {
	config *config.Config
	ports  Ports
	engine *delivery.Engine
	out    Output

	mu      sync.Mutex // the decoder's memory is the event's
	decoder kafkaevent.Decoder
	warm    bool
	line    []byte
}

// New returns a handler; it does no I/O.
func New(cfg *config.Config, ports Ports, out Output) (*Handler, error) {
	engine, err := delivery.NewEngine(cfg.Rules(), delivery.Ports{
		Ledger: ports.Ledger, Target: ports.Table, Source: ports.Source, Letters: ports.Letters,
	})
	if err != nil {
		return nil, err
	}
	return &Handler{config: cfg, ports: ports, engine: engine, out: out}, nil
}

// invocation is one event on its way.
type invocation struct {
	requestID string
	cold      bool
	stop      time.Time // deliveries are over by then
	decode    time.Duration
	preflight time.Duration // at the same time
	results   []result
	refused   bool // the event, whole
}

// result is what became of one lane.
type result struct {
	lane    delivery.Lane
	records []kafka.Record
	report  delivery.Report
	panic   string // where, if it panicked
}

// Invoke implements lambda.Handler.
func (h *Handler) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	inv := &invocation{cold: !h.warm}
	h.warm = true
	if lc, ok := lambdacontext.FromContext(ctx); ok {
		inv.requestID = lc.AwsRequestID
	}
	if o, ok := parseOperation(payload); ok {
		answer, err := h.operate(ctx, o)
		return answer, asLambdaError(err)
	}
	answer, err := h.serve(ctx, inv, payload)
	h.report(ctx, inv, time.Now())
	return answer, asLambdaError(err)
}

// serve delivers the event and makes the answer.
func (h *Handler) serve(ctx context.Context, inv *invocation, payload []byte) ([]byte, error) {
	if err := h.setStop(ctx, inv); err != nil {
		inv.refused = true
		return nil, err
	}
	ctx, cancel := context.WithDeadline(ctx, inv.stop)
	defer cancel()
	look := h.look(ctx)
	begun := time.Now()
	lanes, err := h.decode(payload)
	inv.decode = time.Since(begun)
	if err != nil {
		inv.refused = true
		cancel()
		<-look
		return nil, err
	}
	inv.results = lanes
	if len(lanes) == 0 {
		cancel()
		<-look
		return noFailures, nil
	}
	sight := <-look
	inv.preflight = sight.took
	if sight.err != nil {
		for i := range lanes {
			lanes[i].report.Err = sight.err
			lanes[i].report.Tally.Records = int64(len(lanes[i].records))
		}
		return nil, sight.err
	}
	h.deliver(ctx, sight.traits, inv)
	return h.answer(inv.results)
}

// setStop takes the margin off the deadline. A deadline further away than the
// function's timeout as configured says that the setting is wrong, and with it
// every rule that is made from it.
func (h *Handler) setStop(ctx context.Context, inv *invocation) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		return &delivery.Error{Kind: delivery.Fatal, Reason: ReasonConfiguration, Message: "the invocation has no deadline: this is not Lambda"}
	}
	inv.stop = deadline.Add(-h.config.DeadlineMargin)
	if left := time.Until(deadline); left > h.config.FunctionTimeout+h.config.ClockMargin {
		return &delivery.Error{
			Kind: delivery.Fatal, Reason: ReasonConfiguration,
			Message: fmt.Sprintf("the invocation may last another %s, and ONCEHOUSE_FUNCTION_TIMEOUT is %s", left.Round(time.Second), h.config.FunctionTimeout),
			Remedy:  "set ONCEHOUSE_FUNCTION_TIMEOUT to the function's timeout",
		}
	}
	return nil
}

// sight is what a look at the table brought.
type sight struct {
	traits delivery.Traits
	err    error
	took   time.Duration
}

// look begins the preflight. The channel gets one sight, also after a panic.
func (h *Handler) look(ctx context.Context) <-chan sight {
	done := make(chan sight, 1)
	go func() {
		var s sight
		begun := time.Now()
		defer func() {
			s.took = time.Since(begun)
			if v := recover(); v != nil {
				s.err = panicked(v)
			}
			done <- s
		}()
		s.traits, s.err = h.engine.Preflight(ctx)
	}()
	return done
}

// decode reads the event and says which lanes it is for.
func (h *Handler) decode(payload []byte) ([]result, error) {
	event, err := h.decoder.Decode(payload)
	if err != nil {
		return nil, &delivery.Error{
			Kind: delivery.Fatal, Reason: ReasonEvent, Err: err,
			Remedy: "this function takes events of a Kafka event source mapping, and operator's actions",
		}
	}
	if len(event.Batches) == 0 {
		return nil, nil
	}
	cluster, err := h.cluster(event)
	if err != nil {
		return nil, err
	}
	lanes := make([]result, len(event.Batches))
	for i, batch := range event.Batches {
		if batch.Topic != h.config.Topic {
			return nil, &delivery.Error{
				Kind: delivery.Fatal, Reason: ReasonEvent,
				Message: fmt.Sprintf("the event is of topic %q, and pipeline %s reads %q", batch.Topic, h.config.Pipeline, h.config.Topic),
				Remedy:  "give each topic a function and a table of its own; check the topic of the event source mapping",
			}
		}
		lanes[i] = result{lane: delivery.Lane{Pipeline: h.config.Pipeline, Cluster: cluster, TopicPartition: batch.TopicPartition}, records: batch.Records}
	}
	return lanes, nil
}

// cluster tells clusters apart: by the setting, or else by what an MSK cluster's
// ARN ends in, arn:aws:kafka:<region>:<account>:cluster/<name>/<uuid>. The uuid
// alone would do; the name is for people.
func (h *Handler) cluster(event *kafkaevent.Event) (string, error) {
	if h.config.Cluster != "" {
		return h.config.Cluster, nil
	}
	if _, resource, ok := strings.Cut(event.SourceARN, ":cluster/"); ok && strings.Count(resource, "/") == 1 && !strings.ContainsAny(resource, ": ") {
		return resource, nil
	}
	return "", &delivery.Error{
		Kind: delivery.Fatal, Reason: ReasonConfiguration,
		Message: fmt.Sprintf("the event (%s) does not name an MSK cluster, and ONCEHOUSE_CLUSTER is not set", event.Source),
		Remedy:  "set ONCEHOUSE_CLUSTER to a name for the Kafka cluster, and never change it",
	}
}

// deliver delivers the lanes, some at a time, and returns when all are over.
func (h *Handler) deliver(ctx context.Context, traits delivery.Traits, inv *invocation) {
	var lanes sync.WaitGroup
	slots := make(chan struct{}, h.config.Lanes)
	for i := range inv.results {
		slots <- struct{}{}
		lanes.Go(func() {
			defer func() { <-slots }()
			h.deliverOne(ctx, traits, inv.stop, &inv.results[i])
		})
	}
	lanes.Wait()
}

func (h *Handler) deliverOne(ctx context.Context, traits delivery.Traits, stop time.Time, r *result) {
	defer func() {
		if v := recover(); v != nil {
			r.panic = string(debug.Stack())
			r.report = delivery.Report{Outcome: delivery.Outcome{Err: panicked(v), Tally: delivery.Tally{Records: int64(len(r.records))}}}
		}
	}()
	r.report = h.engine.Deliver(ctx, traits, r.lane, r.records, stop)
}

// panicked: what was going on is not known, so neither is what was applied.
func panicked(v any) error {
	return &delivery.Error{Kind: delivery.InDoubt, Reason: ReasonPanic, Message: fmt.Sprint(v), Remedy: "this is a fault of oncehouse: please report it with the log line's stack"}
}

// Reasons that the handler itself gives.
const (
	ReasonConfiguration delivery.Reason = "Configuration"
	ReasonEvent         delivery.Reason = "Event"
	ReasonPanic         delivery.Reason = "Panic"
	ReasonOperation     delivery.Reason = "Operation"
)

// asError is the *delivery.Error in err, or one around it.
func asError(err error) *delivery.Error {
	var e *delivery.Error
	if errors.As(err, &e) {
		return e
	}
	return &delivery.Error{Kind: delivery.KindOf(err), Reason: delivery.ReasonInDoubt, Err: err}
}
