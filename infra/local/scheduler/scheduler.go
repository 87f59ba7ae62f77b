// Package scheduler invokes a function as EventBridge Scheduler does: with one
// fixed event for each schedule, at a rate.
//
//	s := scheduler.Start(scheduler.Config{
//		Function: fn,
//		Events:   [][]byte{[]byte(`{"shard":0}`)},
//	})
//	defer s.Stop()
//
// The real one invokes asynchronously and does not look at what became of it;
// Lambda tries an event that failed, or that found all environments busy, again
// for a while. Here such an event is dropped: the next one comes in a minute and
// does the same. With Fast an event comes again as soon as the invocation before
// it has ended, which is what a function that works until its deadline gets from
// a schedule, without the pauses.
//
// https://docs.aws.amazon.com/scheduler/latest/UserGuide/schedule-types.html
package scheduler

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"oncehouse/infra/local/lambdahost"
)

// Function is what is invoked.
type Function interface {
	Invoke(ctx context.Context, payload []byte) (lambdahost.Result, error)
}

// Config describes schedules of one function. Zero fields take the defaults
// named here.
type Config struct {
	// Function is invoked. Required.
	Function Function
	// Events are the payloads, each on a schedule of its own. Required.
	Events [][]byte
	// Rate is the time from one invocation to the next; default a minute. The
	// first is at once.
	Rate time.Duration
	// Fast invokes again as soon as the function returned, whatever the rate.
	// After a failure it waits for Pause.
	Fast bool
	// Pause of Fast after a failure; default 200 ms.
	Pause time.Duration
	// OnInvocation is called after each invocation, from several goroutines, and
	// must not block. nil: not called.
	OnInvocation func(Invocation)
}

// Invocation is one invocation that ended.
type Invocation struct {
	Event  []byte
	Result lambdahost.Result
	// Err is set when the function did not run.
	Err error
}

// Failed reports whether the function did not run or did not succeed.
func (i Invocation) Failed() bool { return i.Err != nil || i.Result.FunctionError != "" }

// Scheduler is at work until it is stopped.
type Scheduler struct {
	config Config
	cancel context.CancelFunc
	all    sync.WaitGroup
}

// Start begins all schedules.
func Start(config Config) *Scheduler {
	config.Rate = cmp.Or(config.Rate, time.Minute)
	config.Pause = cmp.Or(config.Pause, 200*time.Millisecond)
	ctx, cancel := context.WithCancel(context.Background())
	s := &Scheduler{config: config, cancel: cancel}
	for _, event := range config.Events {
		if config.Fast {
			s.all.Go(func() { s.repeat(ctx, event) })
		} else {
			s.all.Go(func() { s.tick(ctx, event) })
		}
	}
	return s
}

// Stop ends the schedules and waits for no invocation: one under way is the
// function's own, as at Lambda.
func (s *Scheduler) Stop() {
	s.cancel()
	s.all.Wait()
}

// tick invokes at the rate, also while an invocation is under way.
func (s *Scheduler) tick(ctx context.Context, event []byte) {
	ticker := time.NewTicker(s.config.Rate)
	defer ticker.Stop()
	for {
		s.all.Go(func() { s.invoke(ctx, event) })
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// repeat invokes one after the other.
func (s *Scheduler) repeat(ctx context.Context, event []byte) {
	for ctx.Err() == nil {
		if !s.invoke(ctx, event).Failed() {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(s.config.Pause):
		}
	}
}

func (s *Scheduler) invoke(ctx context.Context, event []byte) Invocation {
	i := Invocation{Event: event}
	i.Result, i.Err = s.config.Function.Invoke(ctx, event)
	if s.config.OnInvocation != nil && !errors.Is(i.Err, context.Canceled) {
		s.config.OnInvocation(i)
	}
	return i
}
