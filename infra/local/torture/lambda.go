package torture

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"oncehouse/infra/local/engine/faults"
	"oncehouse/infra/local/lambdahost"
	"oncehouse/infra/local/process"
	"oncehouse/infra/local/stack"
	"oncehouse/shared/delivery"
)

const (
	// invocations is how many events are at work at a time. A kill ends one of
	// them: with as many the others have the time to recover.
	invocations = 6
	// batch is the most records of one event.
	batch = 200
)

// lambda is a function behind an event source mapping: ours under one of its
// guarantees, or the naive one.
type lambda struct {
	*stream
	lab      *lab
	hasState bool // in a ledger

	function *lambdahost.Function
	inserts  *faults.Proxy // between the function and the engine
	writes   *faults.Proxy // between the function and its ledger
	answers  *faults.Proxy // between the mapping and Lambda's API
	poller   Poller
	mapping  *process.Process
	log      io.Writer
}

// ours is the sink under a guarantee.
func ours(guarantee delivery.Guarantee) func(context.Context, *lab) (Subject, error) {
	return func(ctx context.Context, l *lab) (Subject, error) {
		s, err := openClicks(ctx, l, string(guarantee), true)
		if err != nil {
			return nil, err
		}
		return startLambda(ctx, &lambda{stream: s, lab: l, hasState: guarantee != delivery.AtLeastOnce}, sink(guarantee), "")
	}
}

// sink is the sink's configuration.
func sink(guarantee delivery.Guarantee) stack.Pipeline {
	return stack.Pipeline{Guarantee: guarantee, Settings: map[string]string{
		// Short times make recovery quick: after a kill a lane is undecided for
		// send window + insert time-out + clock margin.
		"INSERT_TIMEOUT": "2s", "SEND_WINDOW": "1s", "CLOCK_MARGIN": "100ms", "DEADLINE_MARGIN": "200ms",
		// A lane that is hit again and again goes on by itself.
		"MAX_ATTEMPTS": "100",
	}}
}

// openNaive is the function of naive/: a plain table that deduplicates by
// token, and a token made from the bounds of the batch.
func openNaive(ctx context.Context, l *lab) (Subject, error) {
	bootstrap, err := buildNaive(ctx, l.Root)
	if err != nil {
		return nil, err
	}
	s, err := openClicks(ctx, l, Naive, false)
	if err != nil {
		return nil, err
	}
	return startLambda(ctx, &lambda{stream: s, lab: l}, stack.Pipeline{Bootstrap: bootstrap},
		"\nSETTINGS non_replicated_deduplication_window = 10000")
}

func buildNaive(ctx context.Context, root string) (string, error) {
	bootstrap := filepath.Join(root, ".build", "naive", "bootstrap")
	cmd := exec.CommandContext(ctx, "go", "build", "-tags", "lambda.norpc", "-trimpath", "-buildvcs=false", "-ldflags=-s -w",
		"-o", bootstrap, "./infra/local/torture/naive")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0", "GOOS=", "GOARCH=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the naive function: %w: %s", err, out)
	}
	return bootstrap, nil
}

// startLambda makes the table of clicks and starts function and mapping.
func startLambda(ctx context.Context, l *lambda, p stack.Pipeline, tableSettings string) (Subject, error) {
	if err := l.start(ctx, p, "clicks", tableSettings); err != nil {
		l.Stop()
		return nil, err
	}
	return l, nil
}

func (l *lambda) start(ctx context.Context, p stack.Pipeline, kind, tableSettings string) error {
	if err := l.createTable(ctx, l.lab.Root, kind, tableSettings); err != nil {
		return err
	}
	s := l.lab.stack
	var err error
	if l.inserts, err = faults.New(ctx, s.Engine.Addr()); err != nil {
		return err
	}
	if l.writes, err = faults.New(ctx, strings.TrimPrefix(s.DynamoDB.Endpoint(), "http://")); err != nil {
		return err
	}
	if l.answers, err = faults.New(ctx, strings.TrimPrefix(s.LambdaURL(), "http://")); err != nil {
		return err
	}
	p.Name, p.Topic, p.Table, p.Partitions = l.name, l.topic, l.table, partitions
	// Twice as many: when the mapping is killed its invocations go on beside
	// those of the next one.
	p.Concurrency, p.Timeout = 2*invocations, 10*time.Second
	if p.Settings == nil {
		p.Settings = map[string]string{}
	}
	p.Settings["CLICKHOUSE_URL"] = "http://" + l.inserts.Addr()
	p.Env = map[string]string{"AWS_ENDPOINT_URL_DYNAMODB": "http://" + l.writes.Addr()}
	if l.function, l.log, err = s.Function(p); err != nil {
		return err
	}
	l.poller = Poller{
		Brokers: s.Broker.Addrs(), Topic: l.topic, Group: l.group, Instance: "mapping",
		Function: "http://" + l.answers.Addr() + "/2015-03-31/functions/" + l.name + "/invocations",
		Batch:    batch, Pollers: invocations, Seed: l.lab.Seed,
	}
	l.mapping, err = l.poller.start(l.lab.Program, l.log)
	return err
}

// Spares reports whether it is the ledger's, and there is none.
func (l *lambda) Spares(m Moment) bool {
	return !l.hasState && (m == LedgerAnswerLost || m == LedgerRefused)
}

// Strike performs a step.
func (l *lambda) Strike(ctx context.Context, step Step) (int, error) {
	switch step.Moment.Victim() {
	case Function:
		return l.strikeFunction(ctx, step)
	case Mapping:
		return l.strikeMapping(ctx, step)
	case Engine:
		return l.strikeEngine(ctx, step)
	}
	return 0, l.strikeConnection(ctx, step)
}

// strikeFunction kills the process whose request it is, or, where the moment
// did not come, any.
func (l *lambda) strikeFunction(ctx context.Context, step Step) (int, error) {
	t := newTrap(func(r *http.Request) int {
		if r != nil {
			if pid, err := clientOf(r); err == nil && l.function.Kill(pid) {
				return 1
			}
		}
		return killOne(l.function)
	})
	l.arm(t, step)
	killed := t.await(ctx)
	l.disarm()
	return killed + killWhere(ctx, killed == 0, l.function), ctx.Err()
}

func killOne(fn *lambdahost.Function) int {
	if fn.KillAny() {
		return 1
	}
	return 0
}

// killWhere kills a process of the function as soon as there is one, if none was
// killed yet.
func killWhere(ctx context.Context, none bool, fn *lambdahost.Function) int {
	for end := time.Now().Add(patience); none && time.Now().Before(end); {
		if fn.KillAny() {
			return 1
		}
		if !wait(ctx, look/10) {
			break
		}
	}
	return 0
}

// arm sets the trap at the step's moment; at one without a moment, or that the
// subject does not have, it springs at once.
func (l *lambda) arm(t *trap, step Step) {
	within := faults.HoldBody(1+int64(step.Dice%20_000), t.spring, closed())
	switch m := step.Moment; {
	case m == FunctionBeforeInsert:
		l.inserts.When(t.seize(faults.Inserts), faults.Refuse())
	case m == FunctionDuringInsert || m == EngineDuringInsert:
		l.inserts.When(t.see(faults.Inserts), within)
	case m == FunctionAfterInsert || m == EngineAfterInsert:
		l.inserts.When(t.see(faults.Inserts), faults.HoldAnswer(t.spring, closed()))
	case m == FunctionBeforeLedger && l.hasState:
		l.writes.When(t.seize(ledgerWrites), faults.Refuse())
	case m == FunctionAfterLedger && l.hasState:
		l.writes.When(t.see(ledgerWrites), faults.HoldAnswer(t.spring, closed()))
	case m == MappingBeforeCommit:
		l.answers.When(t.see(faults.Any), faults.HoldAnswer(t.spring, closed()))
	default:
		t.spring()
	}
}

func (l *lambda) disarm() {
	l.inserts.Disarm()
	l.writes.Disarm()
	l.answers.Disarm()
}

// strikeMapping kills the mapping and starts another one, which cuts its
// batches differently. Half of the times a part of what was committed comes
// again.
func (l *lambda) strikeMapping(ctx context.Context, step Step) (int, error) {
	t := newTrap(func(*http.Request) int {
		l.mapping.Kill()
		return 1
	})
	l.arm(t, step)
	killed := t.await(ctx)
	l.disarm()
	back := int64(0)
	if step.Dice%2 == 0 {
		back = 1 + int64(step.Dice>>8%(2*batch))
	}
	if err := l.expel(ctx, l.poller.Instance, int32(step.Dice>>32%partitions), back); err != nil {
		return killed, err
	}
	l.poller.Batch = batch/2 + int(step.Dice>>16%batch)
	l.poller.Seed = step.Dice
	var err error
	l.mapping, err = l.poller.start(l.lab.Program, l.log)
	return killed, err
}

// strikeEngine kills the engine and starts it again on its data.
func (l *lambda) strikeEngine(ctx context.Context, step Step) (int, error) {
	engine := l.lab.stack.Engine
	t := newTrap(func(*http.Request) int {
		engine.Kill()
		return 1
	})
	l.arm(t, step)
	killed := t.await(ctx)
	l.disarm()
	if err := engine.Restart(ctx); err != nil {
		return killed, fmt.Errorf("start the killed engine again: %w", err)
	}
	return killed, nil
}

// strikeConnection breaks a connection, or loses an answer.
func (l *lambda) strikeConnection(ctx context.Context, step Step) error {
	t := newTrap(func(*http.Request) int { return 0 })
	n := int64(step.Dice % 20_000)
	insert := map[Moment]faults.Fault{
		InsertCut: faults.CutBody(n), InsertAnswerLost: faults.DropAnswer(),
		InsertAnswerCut: faults.CutAnswer(0), InsertRefused: faults.Refuse(),
	}
	write := map[Moment]faults.Fault{LedgerAnswerLost: faults.DropAnswer(), LedgerRefused: faults.Refuse()}
	if fault, ok := insert[step.Moment]; ok {
		l.inserts.When(t.seize(faults.Inserts), fault)
	} else {
		l.writes.When(t.seize(ledgerWrites), write[step.Moment])
	}
	t.await(ctx)
	l.disarm()
	return ctx.Err()
}

// Finish ends the mapping, waits for the invocations that it left behind, and
// counts.
func (l *lambda) Finish(ctx context.Context) (Outcome, error) {
	l.mapping.Stop(5 * time.Second)
	within, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := l.function.Shutdown(within); err != nil {
		return Outcome{}, err
	}
	letters, err := l.lab.stack.ReceiveLetters(ctx)
	if err != nil {
		return Outcome{}, err
	}
	return l.count(ctx, letters)
}

// Stop ends everything at once.
func (l *lambda) Stop() {
	if l.mapping != nil {
		l.mapping.Kill()
	}
	if l.function != nil {
		l.function.Close()
	}
	for _, proxy := range []*faults.Proxy{l.inserts, l.writes, l.answers} {
		if proxy != nil {
			_ = proxy.Close() // nobody is left behind it
		}
	}
	l.close()
}
