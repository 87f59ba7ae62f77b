// Package memory is a delivery.Letters inside the process, for tests.
package memory

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"oncehouse/shared/deadletter"
	"oncehouse/shared/delivery"
)

// ErrInjected is the error of a Send that Control made fail.
var ErrInjected = errors.New("injected dead-letter fault")

// Fault is what happens to one Send.
type Fault int

// Pass lets a Send through, FailBefore fails it with nothing stored, FailHalf
// with the first half stored, LoseAnswer with all of it stored.
const (
	Pass Fault = iota
	FailBefore
	FailHalf
	LoseAnswer
)

// Letters holds letters as the envelopes they would travel in. Its methods are
// safe for concurrent use. Its zero value is empty and ready.
type Letters struct {
	mu      sync.Mutex
	bodies  [][]byte
	control func([]delivery.Letter) Fault
}

var _ delivery.Letters = (*Letters)(nil)

// Control has fn decide on every further Send; nil lets all of them pass.
func (l *Letters) Control(fn func([]delivery.Letter) Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.control = fn
}

// Send implements delivery.Letters.
func (l *Letters) Send(ctx context.Context, letters []delivery.Letter) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("send dead letters: %w", err)
	}
	bodies := make([][]byte, 0, len(letters))
	for _, letter := range letters {
		body, err := deadletter.New(letter, deadletter.MaxBody).Marshal()
		if err != nil {
			return err
		}
		bodies = append(bodies, body)
	}
	l.mu.Lock()
	control := l.control
	l.mu.Unlock()
	fault := Pass
	if control != nil {
		fault = control(letters)
	}
	switch fault {
	case FailBefore:
		bodies = nil
	case FailHalf:
		bodies = bodies[:len(bodies)/2]
	case Pass, LoseAnswer:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bodies = append(l.bodies, bodies...)
	if fault != Pass {
		return &delivery.Error{Kind: delivery.Retryable, Reason: delivery.ReasonLetters, Message: "send dead letters", Err: ErrInjected}
	}
	return nil
}

// Held returns the letters in the order they came, one sent twice twice.
func (l *Letters) Held() []deadletter.Envelope {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []deadletter.Envelope
	for _, body := range l.bodies {
		e, err := deadletter.Parse(body)
		if err != nil {
			panic("a letter does not read back: " + err.Error())
		}
		all = append(all, e)
	}
	return all
}
