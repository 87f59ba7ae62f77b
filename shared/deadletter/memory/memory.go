// Package memory is a delivery.Letters inside the process, for tests.
package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

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
	held    []*held // in the order they came
	sent    int
	taken   int // receipts handed out
	control func([]delivery.Letter) Fault
}

type held struct {
	id          string
	body        []byte
	receipt     string
	hiddenUntil time.Time
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
	for _, body := range bodies {
		l.sent++
		l.held = append(l.held, &held{id: strconv.Itoa(l.sent), body: body})
	}
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
	for _, h := range l.held {
		e, err := deadletter.Parse(h.body)
		if err != nil {
			panic("a letter does not read back: " + err.Error())
		}
		all = append(all, e)
	}
	return all
}

// Put adds a message as it is.
func (l *Letters) Put(body []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent++
	l.held = append(l.held, &held{id: strconv.Itoa(l.sent), body: body})
}

// Receive takes up to 10 messages that nobody else sees for the given time.
func (l *Letters) Receive(_ context.Context, hidden time.Duration) ([]deadletter.Message, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var messages []deadletter.Message
	now := time.Now()
	for _, h := range l.held {
		if len(messages) == 10 || h.hiddenUntil.After(now) {
			continue
		}
		l.taken++
		h.receipt, h.hiddenUntil = h.id+"#"+strconv.Itoa(l.taken), now.Add(hidden)
		messages = append(messages, deadletter.Message{ID: h.id, Body: slices.Clone(h.body), Receipt: h.receipt})
	}
	return messages, nil
}

// Delete removes a message; an old receipt does, too, and one that is gone is no
// error.
func (l *Letters) Delete(_ context.Context, m deadletter.Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, _, _ := strings.Cut(m.Receipt, "#")
	l.held = slices.DeleteFunc(l.held, func(h *held) bool { return h.id == id })
	return nil
}

// Return lets others see a message again at once.
func (l *Letters) Return(_ context.Context, m deadletter.Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.held {
		if h.receipt == m.Receipt {
			h.hiddenUntil = time.Time{}
			return nil
		}
	}
	return fmt.Errorf("return dead letter %s: %q is no receipt of it", m.ID, m.Receipt)
}
