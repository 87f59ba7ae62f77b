package delivery

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/kafka"
	"oncehouse/shared/offsets"
)

// slowPorts is a ledger and a table of one lane that take their time, and do
// nothing for a caller that is out of it.
type slowPorts struct {
	write, insert time.Duration
	entry         Entry
	stored        offsets.Set
}

func lasts(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *slowPorts) Load(ctx context.Context, _ Lane) (Entry, error) {
	return p.entry, ctx.Err()
}

func (p *slowPorts) Write(ctx context.Context, _ Lane, e Entry) error {
	if err := lasts(ctx, p.write); err != nil {
		return err
	}
	p.entry = e
	return nil
}

func (p *slowPorts) Preflight(context.Context) (Traits, error) {
	return Traits{Provenance: true, RowsStay: true}, nil
}

func (p *slowPorts) Encode(_ Lane, records []kafka.Record, _ Limit) (*Chunk, error) {
	return &Chunk{Consumed: 1, Rows: 1, Payload: records[0].Offset}, nil
}

func (p *slowPorts) Insert(ctx context.Context, in Insert) error {
	if err := lasts(ctx, p.insert); err != nil {
		return err
	}
	p.stored = p.stored.Append(in.Chunk.Payload.(int64))
	return nil
}

func (p *slowPorts) Probe(_ context.Context, _ Lane, of offsets.Set) (offsets.Set, error) {
	return p.stored.Intersect(of), nil
}

// What is sent has time to be committed, even if its insert takes all of its
// own: an invocation that ends sooner leaves an intent behind, and the next one
// waits for it.
func TestTheLastInsertIsCommitted(t *testing.T) {
	const write = 500 * time.Millisecond
	rules := DefaultRules()
	for _, over := range []time.Duration{0, time.Second, rules.ClockMargin - write - 1, rules.ClockMargin, rules.ClockMargin + time.Second} {
		t.Run(over.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &slowPorts{write: write, insert: rules.InsertTimeout}
				engine, err := NewEngine(rules, Ports{Ledger: p, Target: p})
				require.NoError(t, err)
				traits, err := engine.Preflight(t.Context())
				require.NoError(t, err)
				batch := []kafka.Record{{Offset: 0, Value: []byte("a")}, {Offset: 1, Value: []byte("b")}, {Offset: 2, Value: []byte("c")}}
				// The first chunk takes two writes and an insert; the second is
				// announced, and has over left when its insert has taken its time.
				stop := time.Now().Add(3*write + 2*rules.InsertTimeout + over)
				ctx, cancel := context.WithDeadline(t.Context(), stop)
				defer cancel()
				report := engine.Deliver(ctx, traits, Lane{Pipeline: "p"}, batch, stop)
				var e *Error
				require.ErrorAs(t, report.Err, &e)
				require.Equal(t, ReasonOutOfTime, e.Reason)
				require.Nil(t, p.entry.Intent)
				require.Equal(t, p.stored.Len(), p.entry.Next, "what is stored is committed")
				want := 1
				if over >= rules.ClockMargin {
					want = 2
				}
				require.Equal(t, want, report.Settled)
			})
		})
	}
}
