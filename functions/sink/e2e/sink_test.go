package e2e

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/engine/faults"
	"oncehouse/infra/local/queue"
	"oncehouse/shared/kafka"
	"oncehouse/shared/kafkaevent"
	"oncehouse/shared/metrics"
	"oncehouse/shared/metrics/metricstest"
	"oncehouse/shared/offsets"
)

// TestSink starts the servers once for all that is below.
func TestSink(t *testing.T) {
	s := start(t)
	t.Run("Events", s.testEvents)
	t.Run("RefusedEvents", s.testRefusedEvents)
	t.Run("RefusesToStart", s.testRefusesToStart)
	t.Run("Outages", s.testOutages)
	t.Run("Sigterm", s.testSigterm)
	t.Run("Guarantees", s.testGuarantees)
	t.Run("Operator", s.testOperator)
	t.Run("Kills", s.testKills)
	t.Run("Redrive", s.testRedrive)
	t.Run("Zombies", s.testZombies)
	t.Run("SchemaChanges", s.testSchemaChanges)
	t.Run("OddRecords", s.testOddRecords)
	t.Run("CutEvents", s.testCutEvents)
	t.Run("LargeEvents", s.testLargeEvents)
}

// row is one line of the table in events/README.md.
type row struct {
	file               string
	stored             int
	passedOver, letter map[string][]int64
}

var (
	lineOf   = regexp.MustCompile(`(?m)^\| \[([a-z-]+\.json)\]\([^)]*\) \|[^|]*\|[^|]*\| ([^|]*) \|$`)
	storedOf = regexp.MustCompile(`(\d+) stored`)
	listOf   = regexp.MustCompile(`(\d+) (passed over|dead-lettered) \(([^)]*)\)`)
	laneOf   = regexp.MustCompile("`([^`]+)`: ([0-9,-]+)")
)

// readme reads the right results from events/README.md.
func readme(t *testing.T) []row {
	t.Helper()
	text, err := os.ReadFile("../../../events/README.md")
	require.NoError(t, err)
	var rows []row
	for _, m := range lineOf.FindAllStringSubmatch(string(text), -1) {
		r := row{file: m[1], passedOver: map[string][]int64{}, letter: map[string][]int64{}}
		r.stored, err = strconv.Atoi(storedOf.FindStringSubmatch(m[2])[1])
		require.NoError(t, err)
		for _, list := range listOf.FindAllStringSubmatch(m[2], -1) {
			into := r.passedOver
			if list[2] == "dead-lettered" {
				into = r.letter
			}
			for _, l := range laneOf.FindAllStringSubmatch(list[3], -1) {
				set, err := offsets.Parse(l[2])
				require.NoError(t, err)
				into[l[1]] = slices.Collect(set.All())
			}
		}
		rows = append(rows, r)
	}
	return rows
}

// Every file of events/ is delivered with the right rows, letters and
// tombstones, and delivering it again changes nothing, wherever the process
// believes to be.
func (s *stack) testEvents(t *testing.T) {
	t.Parallel()
	rows := readme(t)
	files, err := filepath.Glob("../../../events/*.json")
	require.NoError(t, err)
	require.Len(t, rows, len(files), "events/README.md has a line for every file")
	clicks := s.pipeline(t, "events", options{env: map[string]string{"TZ": "Asia/Kathmandu"}})
	dashes := s.pipeline(t, "dashes", options{topic: "clicks-eu-1", env: map[string]string{"TZ": "America/St_Johns"}})
	gaps := s.pipeline(t, "gaps", options{}) // what lies in a batch's gap is settled with it
	for _, r := range rows {
		t.Run(r.file, func(t *testing.T) {
			p := clicks
			switch r.file {
			case "dashes.json":
				p = dashes
			case "gaps.json":
				p = gaps
			}
			payload, err := os.ReadFile(filepath.Join("../../../events", r.file))
			require.NoError(t, err)
			before := p.count()
			p.deliver(payload)
			require.Equal(t, before+r.stored, p.count())
			p.checkRows(t, payload, r)
			require.Equal(t, r.letter, p.dead())
			p.deliver(payload)
			require.Equal(t, before+r.stored, p.count(), "again")
			require.Empty(t, p.dead(), "again")
		})
	}
	started := clicks.entries("sink started")
	require.NotEmpty(t, started)
	require.Equal(t, version, started[0]["version"])
	require.Equal(t, "abc123", started[0]["commit"])
	clicks.checkMetrics(t)
}

// checkRows compares each stored row with the record it comes from.
func (p *pipeline) checkRows(t *testing.T, payload []byte, r row) {
	t.Helper()
	event, err := new(kafkaevent.Decoder).Decode(payload)
	require.NoError(t, err)
	for _, b := range event.Batches {
		gone := slices.Concat(r.passedOver[b.String()], r.letter[b.String()])
		for i := range b.Records {
			record := &b.Records[i]
			got := p.row(t, b.TopicPartition, record.Offset)
			if slices.Contains(gone, record.Offset) {
				require.Empty(t, got, "offset %d", record.Offset)
				continue
			}
			require.Len(t, got, 1, "offset %d", record.Offset)
			var want, have map[string]any
			require.NoError(t, json.Unmarshal(record.Value, &want))
			require.NoError(t, json.Unmarshal([]byte(got[0]), &have))
			at, err := time.Parse(time.RFC3339Nano, want["ts"].(string))
			require.NoError(t, err)
			want["ts"] = at.UTC().Format("2006-01-02 15:04:05.000")
			for name := range want {
				require.Equal(t, want[name], have[name], "offset %d, %s", record.Offset, name)
			}
			stamp := max(record.Timestamp, 0)
			require.InDelta(t, float64(stamp), have["stamp"], 0, "offset %d", record.Offset)
			if record.Key == nil {
				require.Nil(t, have["_key"])
			} else {
				require.Equal(t, string(record.Key), have["_key"])
			}
		}
	}
}

func (p *pipeline) row(t *testing.T, tp kafka.TopicPartition, offset int64) []string {
	t.Helper()
	var rows []string
	query := `SELECT groupArray(formatRowNoNewline('JSONEachRow', event_id, user_id, session, url, referrer, ts, duration_ms, price, tags, props, _key, toUnixTimestamp64Milli(_timestamp) AS stamp))
FROM clicks WHERE _topic = ? AND _partition = ? AND _offset = ?
SETTINGS output_format_json_quote_64bit_integers = 0, output_format_json_quote_decimals = 0`
	require.NoError(t, p.conn.QueryRow(t.Context(), query, tp.Topic, tp.Partition, offset).Scan(&rows))
	return rows
}

// checkMetrics reads every EMF line that the processes have written.
func (p *pipeline) checkMetrics(t *testing.T) {
	t.Helper()
	lines, stored := 0, 0.0
	for line := range strings.Lines(p.log.String()) {
		if strings.HasPrefix(line, `{"_aws"`) {
			values := metricstest.Check(t, []byte(line))
			stored += values[metrics.RowsStored][0]
			lines++
		}
	}
	require.Positive(t, lines)
	require.InDelta(t, float64(p.count()), math.Round(stored), 0)
}

func (s *stack) testRefusedEvents(t *testing.T) {
	t.Parallel()
	p := s.pipeline(t, "refused", options{})
	files, err := filepath.Glob("../../../events/refused/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		payload, err := os.ReadFile(file)
		require.NoError(t, err)
		result := p.fail(payload)
		require.Equal(t, "Event", result.ErrorType, file)
	}
	other := batch(0, 1, 2)
	other.Topic = "orders"
	require.Contains(t, p.fail(event(other)).ErrorMessage, `the event is of topic "orders"`)
	require.Zero(t, p.count())
	require.Empty(t, p.dead())
}

func (s *stack) testRefusesToStart(t *testing.T) {
	t.Parallel()
	p := s.pipeline(t, "starts-not", options{settings: []string{
		"TOPIC=", "CLICKHOUSE_TABLE=", "GUARANTEE=twice", "INSERT_TIMEOUT=1ms", "CHUNK_ROW=5", "CLICKHOUSE_PASSWORD=" + password,
	}})
	result := p.fail(event(batch(0, 1, 2)))
	require.Equal(t, "Configuration", result.ErrorType)
	for _, want := range []string{
		"ONCEHOUSE_TOPIC is missing", "ONCEHOUSE_CLICKHOUSE_TABLE is missing", `ONCEHOUSE_GUARANTEE is "twice": one of exactly-once, at-least-once, at-most-once`,
		`ONCEHOUSE_INSERT_TIMEOUT is "1ms": a duration such as 1m30s from 1s to 14m`, "did you mean ONCEHOUSE_CHUNK_ROWS?",
	} {
		require.Contains(t, result.ErrorMessage, want)
	}
	require.NotContains(t, p.log.String(), password)
	require.Len(t, p.entries("sink refuses to start"), 1)
}

func (s *stack) testOutages(t *testing.T) {
	t.Parallel()
	withoutOffset := strings.Replace(s.ddl, "    _offset     Int64,\n", "", 1)
	require.NotEqual(t, s.ddl, withoutOffset)
	for _, c := range []struct {
		name     string
		options  options
		contains []string
	}{
		{"unreachable", options{settings: []string{"CLICKHOUSE_URL=http://127.0.0.1:1"}}, []string{"ClickHouse at http://127.0.0.1:1 is unreachable: nothing listens there"}},
		{"wrong-password", options{settings: []string{"CLICKHOUSE_PASSWORD=wrong-one"}}, []string{`refuses user "sink" or its password`}},
		{"no-table", options{ddl: "none"}, []string{"there is no table", "CREATE TABLE"}},
		{"no-column", options{settings: []string{"UNKNOWN_FIELDS=collect", "OVERFLOW_COLUMN=extra"}}, []string{"extra"}},
		{"no-provenance", options{ddl: withoutOffset}, []string{"cannot keep exactly-once", "ADD COLUMN", "_offset"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := s.pipeline(t, c.name, c.options)
			result := p.fail(event(batch(0, 1, 2), batch(1, 1, 2)))
			require.Equal(t, "Target", result.ErrorType)
			for _, want := range c.contains {
				require.Contains(t, result.ErrorMessage, want)
				require.Equal(t, 1, strings.Count(result.ErrorMessage, "Target: "), "one message: %s", result.ErrorMessage)
			}
			require.NotContains(t, p.log.String(), password)
			require.Empty(t, p.dead(), "an outage is not poison")
			require.Len(t, p.entries("lane failed"), 2)
		})
	}
}

func (s *stack) testSigterm(t *testing.T) {
	t.Parallel()
	p := s.pipeline(t, "sigterm", options{})
	p.deliver(event(batch(0, 1, 2)))
	require.NoError(t, p.Shutdown(t.Context()))
	require.Len(t, p.entries("sink ends"), 1)
}

func (s *stack) testGuarantees(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		guarantee string
		settings  []string
		twice     int // rows after delivering 10 twice
	}{
		{"at-least-once", []string{"LEDGER_TABLE="}, 20},
		{"at-most-once", nil, 10},
		{"exactly-once", nil, 10},
	} {
		p := s.pipeline(t, "is-"+c.guarantee, options{settings: append(c.settings, "GUARANTEE="+c.guarantee)})
		p.deliver(event(batch(2, 0, 9)))
		p.deliver(event(batch(2, 0, 9)))
		require.Equal(t, c.twice, p.count(), c.guarantee)
	}
}

// D29: an operator re-bases a lane whose table holds more than the ledger knows.
func (s *stack) testOperator(t *testing.T) {
	t.Parallel()
	p := s.pipeline(t, "operator", options{settings: short("1s")})
	p.redeliver(event(batch(2, 0, 9)))
	require.NoError(t, p.conn.Exec(t.Context(), "INSERT INTO clicks SELECT * REPLACE (15 AS _offset) FROM (SELECT * FROM clicks WHERE _offset = 9)"))
	require.Equal(t, "Operation", p.fail([]byte(`{"oncehouse":{"action":"rebase"}}`)).ErrorType)
	require.Eventually(t, func() bool { // the deadline of the last insert has to be over
		result, err := p.Invoke(t.Context(), []byte(`{"oncehouse":{"action":"rebase","partition":2}}`))
		return err == nil && result.FunctionError == "" && strings.Contains(string(result.Payload), `"next":16`)
	}, time.Minute, 200*time.Millisecond)
	p.redeliver(event(batch(2, 16, 20)))
	require.Equal(t, append(through(0, 9), through(15, 20)...), p.offsets())
}

// moment is a step at which the function is killed.
type moment struct {
	name string
	arm  func(p *pipeline)
}

func killed(p *pipeline) { require.True(p.t, p.KillAny()) }

func hold(p *pipeline, fault func(func(), <-chan struct{}) faults.Fault) {
	release := make(chan struct{})
	p.t.Cleanup(func() { close(release) })
	p.inserts.Next(fault(func() { killed(p) }, release))
}

// moments are before and after each side effect of one chunk.
var moments = []moment{
	{"before-the-intent", func(p *pipeline) { p.writes.onWrite(1, func(func()) { killed(p) }) }},
	{"after-the-intent", func(p *pipeline) { p.writes.onWrite(1, func(forward func()) { forward(); killed(p) }) }},
	{"before-the-insert", func(p *pipeline) { hold(p, faults.Hold) }},
	{"insert-lands-later", func(p *pipeline) {
		// The request is out, its sender dead, and it lands while the next
		// delivery is already on its way.
		release := make(chan struct{})
		p.inserts.Next(faults.Hold(func() { killed(p); close(release) }, release))
	}},
	{"in-the-insert", func(p *pipeline) {
		p.inserts.Next(faults.CutBody(700))
		p.writes.onWrite(2, func(func()) { killed(p) }) // what follows the broken insert
	}},
	{"after-the-insert", func(p *pipeline) { hold(p, faults.HoldAnswer) }},
	{"before-the-letters", func(p *pipeline) {
		act := func() queue.Fault { killed(p); return queue.Fault{Refuse: "ServiceUnavailable"} }
		p.onSend.Store(&act)
	}},
	{"after-the-letters", func(p *pipeline) {
		act := func() queue.Fault { killed(p); return queue.Fault{DropAnswer: true} }
		p.onSend.Store(&act)
	}},
	{"before-the-commit", func(p *pipeline) { p.writes.onWrite(2, func(func()) { killed(p) }) }},
	{"after-the-commit", func(p *pipeline) { p.writes.onWrite(2, func(forward func()) { forward(); killed(p) }) }},
}

// kill -9 at each step, then other boundaries: every row exactly once, the one
// letter once, whether the intent is finished by looking or under its token.
func (s *stack) testKills(t *testing.T) {
	t.Parallel()
	route := "KAFKA_BROKERS=" + strings.Join(s.startKafka(t, batch(2, 0, 26, 13)), ",")
	window := s.ddl + "\nSETTINGS non_replicated_deduplication_window = 1000"
	for mode, o := range map[string]options{
		"probe": {settings: append(short("1s"), route)},
		"token": {ddl: window, settings: append(short("1s"), route, "REPLAY=token")},
	} {
		for _, m := range moments {
			t.Run(mode+"/"+m.name, func(t *testing.T) {
				t.Parallel()
				p := s.pipeline(t, mode+"-"+m.name, o)
				p.redeliver(event(batch(2, 0, 9)))
				m.arm(p)
				p.failAs("Runtime.ExitError", event(batch(2, 10, 19, 13)))
				for _, again := range [][2]int64{{10, 14}, {12, 24}, {8, 26}} { // cut anew
					p.redeliver(event(batch(2, again[0], again[1], 13)))
				}
				require.Equal(t, through(0, 26, 13), p.offsets())
				require.Equal(t, map[string][]int64{"clicks-2": {13}}, p.dead())
			})
		}
	}
}
