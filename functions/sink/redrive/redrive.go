// Package redrive sends dead letters back through the engine that they fell out
// of, exactly once: after the table was mended, or the settings.
//
//	r, err := redrive.New(redrive.Options{Pipeline: "clicks", Rules: rules, Ports: ports, Queue: letters, Parallel: 4})
//	answer, err := r.Run(ctx, traits, redrive.Request{Max: 1000}, stop)
//
// Every letter has a lane of its own in the ledger, named after the record:
// letters are redriven in any order, some of them, more than once, and an offset
// below the lane's next would count as settled. So what happens to a letter is
// what happens to a batch of one record: announced, inserted under a token,
// committed; exactly once, whatever the pipeline promises its records. Only then
// its message is deleted. A run that is killed leaves the message, and the next
// one finds in the ledger how far it came. A row that something else has stored
// meanwhile, an operator or the record's own lane, is looked for before the first
// attempt, where the table has the columns for it.
//
// No new generation of a lane begins while its letters are on their way (hold.go).
//
// A letter that does not fit yet stays in the queue, and nothing is written of
// it. If the table changes between that look and the insert, the record becomes
// a letter again, one of the redriven lane: it can be redriven in its turn.
package redrive

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"oncehouse/shared/deadletter"
	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	"oncehouse/shared/offsets"
)

// Queue is where the letters are. Adapter: shared/deadletter/queue.
type Queue interface {
	// Receive takes some messages that nobody sees again for the given time.
	// None means that there are none at the moment.
	Receive(ctx context.Context, hidden time.Duration) ([]deadletter.Message, error)
	// Delete removes a message that was received.
	Delete(ctx context.Context, m deadletter.Message) error
	// Return lets others see a message again at once.
	Return(ctx context.Context, m deadletter.Message) error
}

// Options of a Redriver.
type Options struct {
	Pipeline string
	Rules    delivery.Rules
	// Ports are the pipeline's. Source may be nil: then a letter whose value was
	// too large for a message stays.
	Ports delivery.Ports
	Queue Queue
	// Parallel is how many letters are on their way at a time.
	Parallel int
	Log      *slog.Logger
}

// Redriver redrives the letters of one pipeline. It remembers the ledger's entry
// of every letter it settles: make one for each occasion.
type Redriver struct {
	Options
	engine    *delivery.Engine
	guarantee delivery.Guarantee // of the pipeline
}

// New returns a Redriver. It needs a ledger, whatever the guarantee: without one
// a letter would be stored by every run that is killed.
func New(o Options) (*Redriver, error) {
	if o.Ports.Ledger == nil {
		return nil, fmt.Errorf("redriving needs a ledger: set ONCEHOUSE_LEDGER_TABLE")
	}
	ports := o.Ports
	ports.Source = nil // a letter is all there is of its record
	guarantee := o.Rules.Guarantee
	if guarantee != delivery.ExactlyOnce {
		// A letter that is given up or doubled is not settled. The table was not
		// asked to remember tokens, so nothing rests on them.
		o.Rules.Guarantee, o.Rules.Replay = delivery.ExactlyOnce, delivery.ReplayProbe
	}
	engine, err := delivery.NewEngine(o.Rules, ports)
	if err != nil {
		return nil, err
	}
	return &Redriver{o, engine, guarantee}, nil
}

// Request says which letters.
type Request struct {
	// Max bounds how many letters are looked at; 0 does not.
	Max int
	// Reason takes letters of this reason code only; "" takes all.
	Reason string
	// DryRun says what would happen and changes nothing.
	DryRun bool
}

// Answer is what became of the letters.
type Answer struct {
	// Redriven letters are settled, and their messages gone: Stored of them as
	// rows, the others were settled by an earlier run or need no row.
	Redriven int `json:"redriven"`
	Stored   int `json:"stored"`
	// Kept letters are in the queue as before, by why: the reason code of a
	// record that does not fit (yet), or one of the Kept constants.
	Kept map[string]int `json:"kept"`
	// Examples has one letter and its message for each reason in Kept.
	Examples map[string]string `json:"examples,omitempty"`
	// More says that the time or Max ended the run, not the queue.
	More bool `json:"more"`
}

// Why a letter that would fit is kept.
const (
	KeptForeign    = "ForeignLetter" // not this pipeline's, or no letter at all
	KeptSuperseded = "Superseded"    // of an earlier generation: its record was read again since
	KeptGhosts     = "Ghosts"        // rows of an earlier generation would hide it
	KeptOmitted    = "RecordGone"    // it was too large for a message, and Kafka no longer has it
	KeptOther      = "OtherReason"   // the request is for letters of another reason
	KeptFailed     = "Failed"        // it could not be delivered; the log says why
	KeptFits       = "WouldFit"      // a dry run
)

// run is one Run on its way.
type run struct {
	*Redriver
	traits  delivery.Traits
	request Request
	stop    time.Time

	mu     sync.Mutex
	answer Answer
	kept   []deadletter.Message

	holding sync.Mutex       // of what follows
	held    map[string]*hold // as they were when they were held, by the lane's key
}

// Run redrives what the request asks for, until the queue has no more of it or
// stop is near. The error is of the queue; a letter that fails is kept.
func (r *Redriver) Run(ctx context.Context, traits delivery.Traits, request Request, stop time.Time) (Answer, error) {
	x := &run{Redriver: r, traits: traits, request: request, stop: stop, held: map[string]*hold{}}
	x.answer = Answer{Kept: map[string]int{}, Examples: map[string]string{}}
	err := x.drain(ctx)
	x.release(ctx)
	return x.answer, err
}

// release lets others see what was kept, which was hidden until now so that this
// run would not meet it again. What it has no time for comes back by itself.
func (x *run) release(ctx context.Context) {
	ctx, cancel := context.WithDeadline(ctx, x.stop)
	defer cancel()
	if err := x.each(x.kept, func(m deadletter.Message) error { return x.Queue.Return(ctx, m) }); err != nil {
		x.Log.WarnContext(ctx, "letters stay hidden for a while", slog.String("error", err.Error()))
	}
}

// each works on all messages, several at a time, and returns the first error.
func (x *run) each(messages []deadletter.Message, work func(deadletter.Message) error) error {
	var all errgroup.Group
	all.SetLimit(max(x.Parallel, 1))
	for _, m := range messages {
		all.Go(func() error { return work(m) })
	}
	return all.Wait()
}

// drain takes the messages, handful by handful.
func (x *run) drain(ctx context.Context) error {
	for seen := 0; ; {
		if x.over() {
			x.answer.More = true
			return nil
		}
		messages, err := x.Queue.Receive(ctx, time.Until(x.stop)+x.Rules.ClockMargin)
		if err != nil || len(messages) == 0 {
			return err
		}
		if over := seen + len(messages) - x.request.Max; x.request.Max > 0 && over > 0 {
			x.kept = append(x.kept, messages[len(messages)-over:]...)
			messages = messages[:len(messages)-over]
			x.answer.More = true
		}
		seen += len(messages)
		// Two copies of one letter meet in the ledger, like any two deliveries.
		err = x.each(messages, func(m deadletter.Message) error { return x.redrive(ctx, m) })
		if err != nil || x.answer.More {
			return err
		}
	}
}

// over says that nothing can be sent any more that would land before the end.
func (x *run) over() bool { return time.Until(x.stop) < x.Rules.InsertTimeout+x.Rules.ClockMargin }

// redrive settles one letter, or keeps it. The error is of the queue.
func (x *run) redrive(ctx context.Context, m deadletter.Message) error {
	letter, err := deadletter.Parse(m.Body)
	if err != nil {
		x.keep(ctx, m, KeptForeign, m.ID, err.Error())
		return nil
	}
	why, message := x.judge(ctx, &letter)
	if why == "" {
		var stored int64
		if stored, err = x.deliver(ctx, letter); err == nil {
			x.settled(stored)
			return x.Queue.Delete(ctx, m)
		}
		why, message = KeptFailed, err.Error()
	}
	x.keep(ctx, m, why, deadletter.ID(letter.Letter), message)
	return nil
}

func (x *run) settled(stored int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.answer.Redriven++
	x.answer.Stored += int(stored)
}

func (x *run) keep(ctx context.Context, m deadletter.Message, why, id, message string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m.Body = nil // there may be thousands, and only the receipt is needed
	x.kept = append(x.kept, m)
	x.answer.Kept[why]++
	if _, ok := x.answer.Examples[why]; !ok {
		x.answer.Examples[why] = id + ": " + message
	}
	x.Log.DebugContext(ctx, "letter kept", slog.String("id", id), slog.String("reason", why), slog.String("error", message))
}

// judge says why a letter is kept, or completes it and says nothing.
func (x *run) judge(ctx context.Context, letter *deadletter.Envelope) (why, message string) {
	origin, ok := originOf(letter.Letter)
	switch {
	case !ok || origin.Lane.Pipeline != x.Pipeline:
		return KeptForeign, fmt.Sprintf("it is of pipeline %q", letter.Lane.Pipeline)
	case x.request.Reason != "" && letter.Code != x.request.Reason:
		return KeptOther, "its reason is " + letter.Code
	}
	entry, err := x.entry(ctx, origin.Lane)
	if err != nil {
		return KeptFailed, err.Error()
	}
	if why, message := outdated(origin, entry); why != "" {
		return why, message
	}
	if letter.Omitted != deadletter.OmitNothing {
		if why, message := x.complete(ctx, letter); why != "" {
			return why, message
		}
	}
	letter.Record.Headers = slices.DeleteFunc(slices.Clone(letter.Record.Headers), isOurs)
	if why, message := x.fit(letter.Letter); why != "" {
		return why, message
	}
	if entry, err = x.hold(ctx, origin.Lane); err != nil {
		return KeptFailed, err.Error()
	}
	return outdated(origin, entry)
}

// outdated says why the entry of its own lane keeps a letter.
func outdated(origin delivery.Letter, entry delivery.Entry) (why, message string) {
	switch {
	// A letter that names no generation is of the first.
	case max(origin.Generation, 1) < entry.Generation:
		return KeptSuperseded, fmt.Sprintf("its lane was read again as generation %d, and with it its record", entry.Generation)
	case origin.Record.Offset < entry.Ghosts:
		return KeptGhosts, fmt.Sprintf("the table holds rows of an earlier generation below offset %d: move them into another table", entry.Ghosts)
	}
	return "", ""
}

// complete fetches what the letter leaves out.
func (x *run) complete(ctx context.Context, letter *deadletter.Envelope) (why, message string) {
	if x.Ports.Source == nil {
		return KeptOmitted, "it was too large for a message, and the function has no route to Kafka (ONCEHOUSE_KAFKA_BROKERS)"
	}
	record, err := fetch(ctx, x.Ports.Source, letter.Lane.TopicPartition, letter.Record.Offset)
	switch {
	case err != nil:
		return KeptFailed, err.Error()
	case record == nil:
		return KeptOmitted, "Kafka no longer has its record"
	case !letter.Complete(*record):
		return KeptOmitted, "Kafka has another record at its offset: the topic was made again"
	}
	letter.Record.Key, letter.Record.Value, letter.Record.Headers = record.Key, record.Value, record.Headers
	return "", ""
}

// fit encodes the record as an insert would, and says what is wrong with it.
func (x *run) fit(letter delivery.Letter) (why, message string) {
	chunk, err := x.Ports.Target.Encode(letter.Lane, []kafka.Record{letter.Record}, x.Rules.ChunkLimit)
	if err != nil {
		return KeptFailed, err.Error()
	}
	if chunk.Release != nil {
		defer chunk.Release()
	}
	switch {
	case len(chunk.Refused) > 0:
		return chunk.Refused[0].Code, chunk.Refused[0].Message
	case x.request.DryRun:
		return KeptFits, "a dry run changes nothing"
	}
	return "", ""
}

// deliver settles the record in the letter's own lane.
func (x *run) deliver(ctx context.Context, letter deadletter.Envelope) (stored int64, err error) {
	if there, err := x.isThere(ctx, letter.Letter); there || err != nil {
		return 0, err
	}
	report := x.engine.Deliver(ctx, x.traits, laneOf(letter.Letter), []kafka.Record{letter.Record}, x.stop)
	level := slog.LevelInfo
	attrs := []slog.Attr{slog.String("id", deadletter.ID(letter.Letter)), slog.String("token", report.Token), slog.Int64("stored", report.Tally.RowsStored)}
	if report.Err != nil {
		level, attrs = slog.LevelError, append(attrs, slog.String("error", report.Err.Error()))
	}
	x.Log.LogAttrs(ctx, level, "letter redriven", attrs...)
	return report.Tally.RowsStored, report.Err
}

// isThere reports whether the table has the row of a letter that no run has begun
// with. Of one that was begun with, the engine knows more.
func (x *run) isThere(ctx context.Context, letter delivery.Letter) (bool, error) {
	if !x.traits.Provenance {
		return false, nil
	}
	entry, err := x.Ports.Ledger.Load(ctx, laneOf(letter))
	if err != nil || entry.Version > 0 {
		return false, err
	}
	there, err := x.Ports.Target.Probe(ctx, letter.Lane, offsets.Of(letter.Record.Offset))
	return there.Contains(letter.Record.Offset), err
}
