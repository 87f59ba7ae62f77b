package torture

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// backlog is how many records wait at most: enough for every lane to have
	// work, few enough to be settled soon when the schedule is over.
	backlog = 4000
	// portion is how many are produced at a time.
	portion = 500
	// look is how often the subject is asked how far it is, sampling how often
	// that is kept.
	look     = 100 * time.Millisecond
	sampling = 500 * time.Millisecond
	// patience is how long a step waits for something to be settled, and
	// stalled how long a run may stand still: much longer than any recovery.
	patience = 10 * time.Second
	stalled  = 90 * time.Second
)

// trial is one subject under its schedule.
type trial struct {
	Options
	name    string
	subject Subject
	steps   []Step

	begun   time.Time
	now     atomic.Pointer[Progress]
	samples []Sample
	events  []Event
	kills   int64
	faults  int64
	// cutShort: the time was over before the schedule.
	cutShort bool
}

func (t *trial) run(ctx context.Context) (Result, error) {
	planned := 0
	for _, s := range t.steps {
		if s.Moment.Victim() != "" && !t.subject.Spares(s.Moment) {
			planned++
		}
	}
	t.begun = time.Now()
	t.now.Store(&Progress{})
	if err := t.torture(ctx); err != nil {
		return Result{}, err
	}
	took := time.Since(t.begun)
	if p, err := t.subject.Progress(ctx); err == nil {
		t.samples = append(t.samples, Sample{took, p})
	}
	t.say("%s: all is settled in %.0f s; every row is being compared with what was produced", t.name, took.Seconds())
	outcome, err := t.subject.Finish(ctx)
	if err != nil {
		return Result{}, err
	}
	for _, problem := range outcome.Problems {
		t.say("  e.g. %s", problem)
	}
	return Result{
		Subject: t.name, Outcome: outcome, Kills: t.kills, Faults: t.faults, Planned: int64(planned),
		CutShort: t.cutShort, Took: took, Events: t.events, Samples: t.samples,
	}, nil
}

// torture feeds the subject while it performs the schedule, and waits until
// everything is settled.
func (t *trial) torture(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	feeding, stopFeeding := context.WithCancel(ctx)
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer cancel()
	defer stopFeeding()
	failed := make(chan error, 1)
	helpers.Go(func() { t.watch(ctx) })
	fed := make(chan struct{})
	helpers.Go(func() {
		defer close(fed)
		if err := t.feed(feeding); err != nil {
			failed <- err
			cancel()
		}
	})
	err := t.perform(ctx)
	stopFeeding()
	<-fed // everything it sent is acknowledged
	if err == nil {
		err = t.drain(ctx)
	}
	select {
	case fault := <-failed:
		return fault
	default:
		return err
	}
}

// feed keeps the backlog full until ctx ends. A portion is never given up half
// way: what was sent without an acknowledgement would be in the topic and in no
// count.
func (t *trial) feed(ctx context.Context) error {
	for ctx.Err() == nil {
		if p := t.now.Load(); p.Produced-p.Settled > backlog-portion {
			wait(ctx, look/4)
			continue
		}
		if err := t.subject.Feed(context.WithoutCancel(ctx), portion); err != nil {
			return err
		}
		p := *t.now.Load()
		p.Produced += portion
		t.now.Store(&p)
	}
	return nil
}

// watch asks the subject how far it is, until ctx ends.
func (t *trial) watch(ctx context.Context) {
	var kept, told time.Time
	for wait(ctx, look) {
		p, err := t.subject.Progress(ctx)
		if err != nil {
			continue // what is asked was just killed
		}
		t.now.Store(&p)
		if time.Since(kept) >= sampling {
			kept = time.Now()
			t.samples = append(t.samples, Sample{time.Since(t.begun), p})
		}
		if time.Since(told) >= 10*time.Second {
			told = time.Now()
			t.say("%-19s %5.0f s  produced %8d  settled %8d  rows %8d", t.name, time.Since(t.begun).Seconds(), p.Produced, p.Settled, p.Rows)
		}
	}
}

// perform performs the schedule.
func (t *trial) perform(ctx context.Context) error {
	var limit <-chan time.Time
	if t.Limit > 0 {
		timer := time.NewTimer(t.Limit)
		defer timer.Stop()
		limit = timer.C
	}
	settled := int64(0)
	for _, step := range t.steps {
		if t.subject.Spares(step.Moment) {
			continue
		}
		if !wait(ctx, step.Pause) {
			return ctx.Err()
		}
		select {
		case <-limit:
			t.cutShort = true
			t.say("%s: the time is over after %d kills", t.name, t.kills)
			return nil
		default:
		}
		settled = t.awaitProgress(ctx, settled)
		killed, err := t.subject.Strike(ctx, step)
		if err != nil {
			return fmt.Errorf("%s: %w", step.Moment, err)
		}
		t.note(step, killed, settled)
	}
	return nil
}

// note keeps what a step did. What cannot be written into the log changes no result.
func (t *trial) note(step Step, killed int, settled int64) {
	t.kills += int64(killed)
	if step.Moment.Victim() == "" {
		t.faults++
	}
	at := time.Since(t.begun)
	t.events = append(t.events, Event{at, step.Moment, killed})
	_, _ = fmt.Fprintf(t.Log, "%s %-18s %8.3f s  %-30s killed %d, %d settled\n",
		time.Now().UTC().Format(time.RFC3339Nano), t.name, at.Seconds(), step.Moment, killed, settled)
}

// awaitProgress waits until more is settled than before, for some time.
func (t *trial) awaitProgress(ctx context.Context, before int64) int64 {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for t.now.Load().Settled <= before && wait(ctx, look/4) {
	}
	return t.now.Load().Settled
}

// drain waits until everything is settled, or until nothing moves any more: what
// is not settled then counts as lost.
func (t *trial) drain(ctx context.Context) error {
	last, since := int64(-1), time.Now()
	for {
		p, err := t.subject.Progress(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && p.Settled == p.Produced:
			return nil
		case err == nil && p.Settled != last:
			last, since = p.Settled, time.Now()
		case time.Since(since) > stalled:
			t.say("%s: nothing moved for %s: %d of %d records are settled; the reason is in the logs of %s", t.name, stalled, last, p.Produced, t.Dir)
			return nil
		}
		wait(ctx, look)
	}
}
