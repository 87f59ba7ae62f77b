package e2e

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/clickstream"
	"oncehouse/infra/local/dynamodb"
	"oncehouse/infra/local/engine/faults"
	"oncehouse/infra/local/lambdahost"
	"oncehouse/infra/local/queue"
	"oncehouse/shared/kafka"
)

var (
	stormSeed  = flag.Uint64("storm.seed", 1, "TestStorm: the faults and the cuts")
	stormSteps = flag.Int("storm.steps", 20, "TestStorm: deliveries with faults before the air clears")
)

// gale makes the records of TestStorm: poison and tombstones among them, and
// the end of a month, so that a chunk has parts in two table partitions.
var gale = clickstream.Generator{Seed: 11, Size: 320, PoisonEvery: 23, TombstoneEvery: 31}

const (
	galeLanes   = 3
	galeRecords = 420
	galeFirst   = 583_600 // 183 and more records before the month ends
)

// TestStorm delivers three lanes to one function while everything around it
// fails, mostly two things at a time: functions and servers are killed (-9),
// processes frozen and thawed later, answers lost, connections cut, columns
// added, and each delivery is cut anew. In the end every record is stored
// exactly once with its values, or dead-lettered once.
func TestStorm(t *testing.T) {
	s := startWith(t, dynamodb.Options{Table: ledgerTable, Data: t.TempDir()})
	route := make([]kafka.Batch, galeLanes)
	for lane := range route {
		route[lane] = galeBatch(int32(lane), 0, galeRecords-1, false)
	}
	st := &storm{
		t: t, stack: s, rng: rand.New(rand.NewPCG(*stormSeed, 3)), frozen: make(chan int, 16),
		pipeline: s.pipeline(t, "storm", options{memoryMB: 256, concurrency: 8, settings: append(short("2s"),
			"KAFKA_BROKERS="+strings.Join(s.startKafka(t, route...), ","), "MAX_ATTEMPTS=50",
		)}),
	}
	for range *stormSteps {
		st.step()
	}
	st.clear()
	st.check()
}

type storm struct {
	*pipeline
	t       *testing.T
	stack   *stack
	rng     *rand.Rand
	cursor  [galeLanes]int64 // everything below it was answered with success
	frozen  chan int
	stopped []int // processes that wait for SIGCONT
	columns int
	repairs []func() // of what a fault has broken, before the next step
}

// galeBatch are the records first..last of a lane; with gaps, as many as a
// filter leaves of them.
func galeBatch(lane int32, first, last int64, gaps bool) kafka.Batch {
	b := gale.Batch(kafka.TopicPartition{Topic: "clicks", Partition: lane}, first, galeIndex(lane, first), int(last-first+1))
	if gaps {
		b.Records = slices.DeleteFunc(b.Records, func(r kafka.Record) bool { return !galeComes(lane, r.Offset) })
	}
	return b
}

func galeIndex(lane int32, offset int64) int64 { return galeFirst - int64(lane)*60 + offset }

func galeComes(lane int32, offset int64) bool { return (offset*7+int64(lane))%11 != 0 }

// step delivers some of the lanes once, under faults.
func (st *storm) step() {
	var what []string
	for range 1 + st.rng.IntN(2) {
		what = append(what, st.fault())
	}
	st.t.Logf("%v %s", st.cursor, strings.Join(what, ", "))
	st.deliver(1 + st.rng.IntN(40))
	for _, repair := range st.repairs {
		repair()
	}
	st.repairs = nil
	if len(st.stopped) > 0 && st.rng.IntN(3) == 0 {
		st.thaw()
	}
}

// deliver invokes once with a batch of each of some lanes, cut anew, and moves
// the cursors on success. A frozen invocation is left behind.
func (st *storm) deliver(most int) (result lambdahost.Result, ended bool) {
	var batches []kafka.Batch
	ends := map[int32]int64{}
	for lane := range int32(galeLanes) {
		from := max(0, st.cursor[lane]-int64(st.rng.IntN(12)))
		last := min(galeRecords-1, st.cursor[lane]+int64(st.rng.IntN(most)))
		if b := galeBatch(lane, from, last, true); len(b.Records) > 0 && st.rng.IntN(4) > 0 {
			batches, ends[lane] = append(batches, b), last+1
		}
	}
	if len(batches) == 0 {
		return result, false
	}
	done := make(chan lambdahost.Result, 1)
	go func() {
		defer close(done)
		if result, err := st.Invoke(st.t.Context(), event(batches...)); err == nil {
			done <- result
		}
	}()
	select {
	case pid := <-st.frozen:
		st.stopped = append(st.stopped, pid)
		return result, false
	case result, ended = <-done:
	}
	if ended && result.FunctionError == "" {
		for lane, end := range ends {
			st.cursor[lane] = max(st.cursor[lane], end)
		}
	}
	return result, ended
}

func (st *storm) thaw() {
	for _, pid := range st.stopped {
		st.Thaw(pid)
	}
	st.stopped = nil
}

func (st *storm) freeze() {
	if pid, ok := st.Freeze(); ok {
		st.frozen <- pid
	}
}

// soon does something while a delivery is under way, and undoes it after.
func (st *storm) soon(do, undo func()) {
	done := make(chan struct{})
	timer := time.AfterFunc(time.Duration(st.rng.IntN(150))*time.Millisecond, func() { defer close(done); do() })
	st.repairs = append(st.repairs, func() {
		if !timer.Stop() {
			<-done
		}
		undo()
	})
}

// fault arms one and names it.
func (st *storm) fault() string {
	closed := closed()
	inserts := []faults.Fault{
		faults.DropAnswer(), faults.CutBody(int64(st.rng.IntN(4000))), faults.Refuse(), faults.CutAnswer(0),
		faults.Exception(252), faults.Exception(241), faults.ExceptionAfter(241), faults.HeaderException(60), faults.Status(502, "no"),
		faults.FramedException(241), faults.HoldAnswer(st.freeze, closed), faults.HoldBody(500, st.freeze, closed),
		faults.HoldBody(500, func() { st.stack.engine.Kill() }, closed), faults.HoldAnswer(func() { st.KillAny() }, closed),
	}
	n := 1 + st.rng.IntN(4)
	switch k := st.rng.IntN(12); k {
	case 0:
		st.KillDuring(time.Duration(st.rng.IntN(200)) * time.Millisecond)
		return "kill the function"
	case 1:
		st.soon(st.stack.engine.Kill, func() { st.stack.engine.Restart(st.t) })
		return "kill the engine"
	case 2:
		st.soon(st.stack.ledger.Kill, func() { require.NoError(st.t, st.stack.ledger.Restart(st.t.Context())) })
		return "kill the ledger"
	case 3, 4, 5:
		f := inserts[st.rng.IntN(len(inserts))]
		st.inserts.Next(f)
		st.repairs = append(st.repairs, func() { st.stack.engine.Restart(st.t) })
		if !strings.HasPrefix(f.String(), "hold") {
			st.repairs = st.repairs[:len(st.repairs)-1]
		}
		return "insert: " + f.String()
	case 6:
		f := []faults.Fault{faults.DropAnswer(), faults.Refuse(), faults.Hold(func() { st.KillAny() }, closed), faults.Hold(st.freeze, closed)}[st.rng.IntN(4)]
		st.inserts.When(faults.Contains("groupArray(first)"), f)
		return "probe: " + f.String()
	case 7:
		st.writes.onWrite(n, func(func()) {})
		return fmt.Sprintf("ledger write %d: not applied, no answer", n)
	case 8:
		st.writes.onWrite(n, func(forward func()) { forward() })
		return fmt.Sprintf("ledger write %d: no answer", n)
	case 9:
		st.writes.beforeAnswer(n, st.freeze)
		return fmt.Sprintf("ledger write %d: freeze", n)
	case 10:
		f := []queue.Fault{{Refuse: "ServiceUnavailable"}, {DropAnswer: true}}[st.rng.IntN(2)]
		act := func() queue.Fault { return f }
		st.onSend.Store(&act)
		return "letters"
	default:
		st.columns++
		name := fmt.Sprintf("extra_%d", st.columns)
		st.soon(func() { _ = st.conn.Exec(st.t.Context(), "ALTER TABLE clicks ADD COLUMN "+name+" UInt8 DEFAULT 7") }, func() {})
		return "add a column"
	}
}

// clear ends the faults and delivers until everything is settled.
func (st *storm) clear() {
	st.thaw()
	st.inserts.Disarm()
	st.writes.onWrite(-1, nil)
	st.onSend.Store(nil)
	var last lambdahost.Result
	require.Eventually(st.t, func() bool {
		st.thaw()
		if result, ended := st.deliver(80); ended {
			last = result
		}
		for _, c := range st.cursor {
			if c < galeRecords {
				return false
			}
		}
		return true
	}, 5*time.Minute, 10*time.Millisecond, "not settled: %v, %s", st.cursor, &lastMessage{&last})
	st.thaw()
}

type lastMessage struct{ r *lambdahost.Result }

func (m *lastMessage) String() string { return m.r.ErrorMessage }

// check compares the table and the letters with what was produced.
func (st *storm) check() {
	letters := map[string][]int64{}
	for lane := range int32(galeLanes) {
		var want []string
		var offsets []int64
		for o := range int64(galeRecords) {
			if !galeComes(lane, o) {
				continue
			}
			switch kind := gale.Kind(galeIndex(lane, o)); {
			case kind == clickstream.Good:
				c := gale.Click(galeIndex(lane, o))
				want = append(want, fmt.Sprintf("%d %s %d %s %s %d", o, c.UUID(), c.UserID, c.URL, c.Price(), c.Time.UnixMilli()))
			case kind.Poison():
				offsets = append(offsets, o)
			}
		}
		if len(offsets) > 0 {
			letters[fmt.Sprintf("clicks-%d", lane)] = offsets
		}
		var got []string
		query := `SELECT groupArray(concat(toString(_offset), ' ', toString(event_id), ' ', toString(user_id), ' ', url, ' ', toDecimalString(price, 2), ' ', toString(toUnixTimestamp64Milli(ts))))
FROM (SELECT * FROM clicks WHERE _topic = 'clicks' AND _partition = ? ORDER BY _offset)`
		require.NoError(st.t, st.conn.QueryRow(st.t.Context(), query, lane).Scan(&got))
		require.Equal(st.t, want, got, "lane %d, seed %d", lane, *stormSeed)
	}
	require.Equal(st.t, letters, st.dead())
}
