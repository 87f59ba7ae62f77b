package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncehouse/infra/local/clickstream"
	"oncehouse/infra/local/demo"
	"oncehouse/infra/local/demo/chain"
	"oncehouse/infra/local/process"
	"oncehouse/infra/local/repository"
	"oncehouse/infra/local/torture"
	"oncehouse/shared/delivery"
)

// patience is for a machine that builds and tests other packages at the time.
const patience = 3 * time.Minute

// program is the command line, built once.
var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "oncehouse-local-")
	if err == nil {
		program = filepath.Join(dir, "oncehouse-local")
		args := append([]string{"build", "-o", program}, buildFlags...)
		var out []byte
		if out, err = exec.Command("go", append(args, ".")...).CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(status)
}

// started is a run of the program.
type started struct {
	cmd    *exec.Cmd
	stdout process.Output
	stderr process.Output
	done   chan struct{}
	err    error
}

// start starts the program in the repository, and kills it with the test.
func start(t *testing.T, env []string, args ...string) *started {
	t.Helper()
	root, err := repository.Root()
	require.NoError(t, err)
	p := &started{cmd: exec.Command(program, args...), done: make(chan struct{})}
	p.cmd.Dir, p.cmd.Env = root, append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	require.NoError(t, p.cmd.Start())
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

// says waits until the program has printed what the pattern matches, and
// returns its first group.
func (p *started) says(t *testing.T, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	var found []string
	require.Eventually(t, func() bool {
		found = re.FindStringSubmatch(p.stdout.String())
		select {
		case <-p.done:
			return true
		default:
			return found != nil
		}
	}, patience, 20*time.Millisecond)
	require.NotNil(t, found, "%s\n%s", p.stdout.String(), p.stderr.String())
	return found[len(found)-1]
}

// exit waits for the end and returns the exit status.
func (p *started) exit(t *testing.T) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(2 * patience):
		require.Fail(t, "the program does not end", "%s\n%s", p.stdout.String(), p.stderr.String())
	}
	return p.cmd.ProcessState.ExitCode()
}

// descendants are the processes that the program started, and those that they
// did.
func descendants(t *testing.T, of int) []int {
	t.Helper()
	parents := map[int]int{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it ended meanwhile
		}
		require.NoError(t, err)
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		require.NoError(t, err)
		parents[pid], err = strconv.Atoi(fields[1])
		require.NoError(t, err)
	}
	var found []int
	for todo := []int{of}; len(todo) > 0; todo = todo[1:] {
		for pid, parent := range parents {
			if parent == todo[0] {
				found, todo = append(found, pid), append(todo, pid)
			}
		}
	}
	return found
}

// requireGone: every one of the processes has ended.
func requireGone(t *testing.T, pids []int) {
	t.Helper()
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(pids, func(pid int) bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return err == nil && !bytes.Contains(stat, []byte(") Z "))
		})
	}, 20*time.Second, 10*time.Millisecond, "processes were left behind")
}

// A run of the demo with few records is exact under exactly-once, though
// functions and the engine were killed.
func TestDemo(t *testing.T) {
	p := start(t, nil, "demo", "--records", "20000", "--events", "0", "--dir", t.TempDir())
	require.Zero(t, p.exit(t), "%s\n%s", p.stdout.String(), p.stderr.String())
	proofs := proofsIn(t, p.stdout.String())
	require.Len(t, proofs, 3)
	for i, guarantee := range []delivery.Guarantee{delivery.ExactlyOnce, delivery.AtLeastOnce, delivery.AtMostOnce} {
		proof := proofs[i]
		require.Equal(t, guarantee, proof.Guarantee)
		require.Positive(t, proof.Stored)
		require.Positive(t, proof.DeadLetters)
		require.Positive(t, proof.Tombstones)
		require.Positive(t, proof.Kills)
		require.Positive(t, proof.Recuts)
		require.Zero(t, proof.WrongValues)
		require.Equal(t, proof.Produced, proof.Stored+proof.DeadLetters+proof.Tombstones+proof.Lost)
	}
	require.Equal(t, int64(16_000), proofs[0].Produced)
	require.True(t, proofs[0].Exact(), "exactly-once: %+v", proofs[0])
	require.Zero(t, proofs[1].Lost, "at-least-once loses nothing")
	require.Zero(t, proofs[2].Duplicated, "at-most-once doubles nothing")
}

func proofsIn(t *testing.T, text string) []demo.Proof {
	t.Helper()
	var proofs []demo.Proof
	for line := range strings.Lines(text) {
		document, ok := strings.CutPrefix(line, "PROOF ")
		if !ok {
			require.Empty(t, proofs, "the proofs are the last lines")
			continue
		}
		var proof demo.Proof
		require.NoError(t, json.Unmarshal([]byte(document), &proof))
		proofs = append(proofs, proof)
	}
	return proofs
}

// The chain from PostgreSQL is exact and in order, through every kill, and the
// sink that sees aborted records has some to suppress.
func TestDemoOfTheChain(t *testing.T) {
	p := start(t, nil, "demo", "--records", "0", "--events", "1500", "--rate", "200", "--dir", t.TempDir())
	require.Zero(t, p.exit(t), "%s\n%s", p.stdout.String(), p.stderr.String())
	lines := strings.Split(strings.TrimSpace(p.stdout.String()), "\n")
	document, ok := strings.CutPrefix(lines[len(lines)-1], "PROOF ")
	require.True(t, ok, "the last line is the proof")
	var proof chain.Proof
	require.NoError(t, json.Unmarshal([]byte(document), &proof))
	require.True(t, proof.Holds(), document)
	require.Equal(t, "postgres-to-clickhouse", proof.Chain)
	require.GreaterOrEqual(t, proof.Committed, int64(1500))
	require.Greater(t, proof.Kills, int64(5))
	require.Regexp(t, `(?m)^uncommitted .* [1-9][0-9]*$`, p.stdout.String(), "aborted records, suppressed")
	require.Regexp(t, `(?m)^committed only .* 0$`, p.stdout.String())
}

// Ctrl-C, SIGTERM and even kill -9 end everything that was started.
func TestNothingIsLeftBehind(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			p := start(t, nil, "demo", "--records", "2000000", "--dir", t.TempDir())
			p.says(t, `stored +[1-9]`) // in mid-run: functions are at work
			children := descendants(t, p.cmd.Process.Pid)
			require.GreaterOrEqual(t, len(children), 3, "engine, dynalite and functions")
			require.NoError(t, p.cmd.Process.Signal(signal))
			status := p.exit(t)
			if signal != syscall.SIGKILL {
				require.Equal(t, 130, status)
				require.Equal(t, "oncehouse-local: interrupted, everything is stopped\n", p.stderr.String())
			}
			requireGone(t, children)
		})
	}
}

const pipelineYAML = `
pipelines:
  - topic: clicks
    partitions: 3
    settings: {SEND_WINDOW: 1s}
`

// up with a pipeline from YAML: a table by HTTP, records by a Kafka client, and
// the rows by a query; after a restart the data are still there.
func TestUp(t *testing.T) {
	dir := t.TempDir()
	yaml := filepath.Join(dir, "pipelines.yaml")
	require.NoError(t, os.WriteFile(yaml, []byte(pipelineYAML), 0o600))
	args := []string{"up", "--dir", filepath.Join(dir, "data"), "--kafka-port", "0", "--clickhouse-port", "0", "--pipelines", yaml}
	p := start(t, nil, args...)
	clickhouse := p.says(t, `(?m)^ClickHouse +(\S+)$`)
	kafka := p.says(t, `(?m)^Kafka +(\S+)$`)
	lambda := p.says(t, `(?m)^functions +(\S+)$`)
	p.says(t, `Ctrl-C stops everything`)

	ddl, err := os.ReadFile("../../events/clicks.sql")
	require.NoError(t, err)
	post(t, clickhouse, string(ddl))
	produce(t, kafka, "clicks", 1000)
	requireAnswer(t, clickhouse, "SELECT count(), uniqExact(_partition, _offset), max(_partition) FROM clicks", "1000\t1000\t2\n")

	event, err := os.ReadFile("../../events/self-managed.json") // offsets that no producer reached
	require.NoError(t, err)
	require.JSONEq(t, `{"batchItemFailures":[]}`, post(t, lambda+"/2015-03-31/functions/clicks/invocations", string(event)))
	requireAnswer(t, clickhouse, "SELECT count() FROM clicks", "1003\n")

	second := start(t, nil, args...)
	require.Equal(t, 1, second.exit(t))
	require.Contains(t, second.stderr.String(), "is in use by another local stack: stop that one, or choose another --dir")

	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, 130, p.exit(t), p.stderr.String())
	p = start(t, nil, args...)
	clickhouse = p.says(t, `(?m)^ClickHouse +(\S+)$`)
	kafka = p.says(t, `(?m)^Kafka +(\S+)$`)
	produce(t, kafka, "clicks", 10)
	requireAnswer(t, clickhouse, "SELECT count(), uniqExact(_partition, _offset) FROM clicks", "1013\t1013\n")
}

func post(t *testing.T, url, body string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	answer, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode, string(answer))
	return string(answer)
}

// up with an outbox: a row committed in PostgreSQL is a row in ClickHouse. So it is
// the next time in the same directory, also where the data of PostgreSQL are not kept
// and the broker's cursor is of a database that is gone.
func TestUpWithAnOutbox(t *testing.T) {
	dir := t.TempDir()
	for _, run := range []struct{ number, orders string }{{"7", "7\tplaced\t12.5\torder-7\n"}, {"8", "7\tplaced\t12.5\torder-7\n8\tplaced\t12.5\torder-8\n"}} {
		p := start(t, nil, "up", "--outbox", "--dir", dir, "--kafka-port", "0", "--clickhouse-port", "0", "--postgres-port", "0")
		clickhouse := p.says(t, `(?m)^ClickHouse +(\S+)$`)
		database := p.says(t, `(?m)^PostgreSQL +(\S+)$`)
		p.says(t, `Ctrl-C stops everything`)
		ddl, err := os.ReadFile("../../events/orders.sql")
		require.NoError(t, err)
		post(t, clickhouse, strings.Replace(string(ddl), "CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1))
		insert := regexp.MustCompile(`-c "(INSERT .*)"\n`).FindStringSubmatch(p.stdout.String())
		require.NotNil(t, insert, "it says how to insert an event")
		event := strings.NewReplacer(`\"`, `"`, "order-7", "order-"+run.number, `order_id\":7`, `order_id":`+run.number).Replace(insert[1])
		conn, err := pgx.Connect(t.Context(), database)
		require.NoError(t, err)
		_, err = conn.Exec(t.Context(), event)
		require.NoError(t, errors.Join(err, conn.Close(t.Context())))
		requireAnswer(t, clickhouse, "SELECT order_id, status, amount, _key FROM orders ORDER BY order_id", run.orders)
		if run.number == "8" {
			service := start(t, nil, "orders", "--database="+database, "--events=5")
			require.Zero(t, service.exit(t), service.stderr.String())
			require.Regexp(t, `^\d+ events are committed\n$`, service.stdout.String())
		}
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
		require.Equal(t, 130, p.exit(t), p.stderr.String())
	}
}

// What up says creates a table of any name, and stores a letter that fits after the
// table was mended.
func TestUpRedrives(t *testing.T) {
	p := start(t, nil, "up", "--topic=clicks", "--table=all clicks.v2", "--dir", t.TempDir(), "--kafka-port", "0", "--clickhouse-port", "0")
	clickhouse := p.says(t, `(?m)^ClickHouse +(\S+)$`)
	letters := p.says(t, `(?m)^dead letters +(\S+)$`)
	redrive := p.says(t, `store them +curl -sS '(\S+)' -d '\{"oncehouse":\{"action":"redrive"\}\}'`)
	p.says(t, `Ctrl-C stops everything`)
	require.Contains(t, p.stdout.String(), "--data-binary 'SELECT * FROM `all clicks.v2` LIMIT 10")
	sed := exec.Command("sh", "-c", p.says(t, `create a table +(sed .+) \| curl `))
	sed.Dir = p.cmd.Dir
	ddl, err := sed.Output()
	require.NoError(t, err)
	post(t, clickhouse, string(ddl))
	values, err := os.ReadFile("../../events/clicks.jsonl")
	require.NoError(t, err)
	client, err := kgo.NewClient(kgo.SeedBrokers(p.says(t, `(?m)^Kafka +(\S+)$`)), kgo.DefaultProduceTopic("clicks"))
	require.NoError(t, err)
	defer client.Close()
	for line := range bytes.Lines(values) {
		client.Produce(t.Context(), &kgo.Record{Value: bytes.TrimSpace(line)}, nil)
	}
	require.NoError(t, client.Flush(t.Context()))
	requireAnswer(t, clickhouse, "SELECT count() FROM `all clicks.v2`", "20\n")
	require.Eventually(t, func() bool {
		return strings.Contains(peek(t, letters), "out_of_range")
	}, patience, 20*time.Millisecond)
	require.Contains(t, post(t, redrive, `{"oncehouse":{"action":"redrive"}}`), `"kept":{"out_of_range":1}`)
	post(t, clickhouse, "ALTER TABLE `all clicks.v2` MODIFY COLUMN duration_ms UInt64")
	require.Contains(t, post(t, redrive, `{"oncehouse":{"action":"redrive"}}`), `"redriven":1,"stored":1`)
	requireAnswer(t, clickhouse, "SELECT count() FROM `all clicks.v2`", "21\n")
	require.NotContains(t, peek(t, letters), "out_of_range")
}

// peek is a receive that hides nothing.
func peek(t *testing.T, queue string) string {
	t.Helper()
	body := fmt.Sprintf(`{"QueueUrl":%q,"VisibilityTimeout":0}`, queue)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, queue, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("X-Amz-Target", "AmazonSQS.ReceiveMessage")
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	answer, err := io.ReadAll(res.Body)
	require.NoError(t, errors.Join(err, res.Body.Close()))
	require.Equal(t, http.StatusOK, res.StatusCode, string(answer))
	return string(answer)
}

// requireAnswer asks until the engine answers as expected.
func requireAnswer(t *testing.T, clickhouse, query, want string) {
	t.Helper()
	got := ""
	for deadline := time.Now().Add(patience); got != want; {
		require.True(t, time.Now().Before(deadline), "%s answers %q, %q expected", query, got, want)
		got = post(t, clickhouse, query)
	}
}

func produce(t *testing.T, kafka, topic string, n int64) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(kafka), kgo.DefaultProduceTopic(topic))
	require.NoError(t, err)
	defer client.Close()
	g := clickstream.Generator{Seed: 7}
	for i := range n {
		r := g.Record(i)
		client.Produce(t.Context(), &kgo.Record{Key: r.Key, Value: r.Value, Timestamp: time.UnixMilli(r.Timestamp)}, nil)
	}
	require.NoError(t, client.Flush(t.Context()))
}

// Every sample event goes through the real function by one command.
func TestInvokeEverySample(t *testing.T) {
	files, err := filepath.Glob("../../events/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for i, file := range files {
		files[i] = strings.TrimPrefix(file, "../../") // from the root, as make does
	}
	p := start(t, nil, append([]string{"invoke", "--dir", t.TempDir()}, files...)...)
	require.Zero(t, p.exit(t), "%s\n%s", p.stdout.String(), p.stderr.String())
	for _, file := range files {
		require.Contains(t, p.stdout.String(), file+"\n  answer   {\"batchItemFailures\":[]}")
	}
	require.Contains(t, p.stdout.String(), "rows     7 of 7 records", "msk.json")
	require.Regexp(t, `future-fields\.json\n.*\n  rows     2 of 2 records`, p.stdout.String())
	require.Contains(t, p.stdout.String(), "letters  12", "poison.json")
}

func TestInvokeRefused(t *testing.T) {
	files, err := filepath.Glob("../../events/refused/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for i, file := range files {
		files[i] = strings.TrimPrefix(file, "../../") // from the root, as make does
	}
	p := start(t, nil, append([]string{"invoke", "--dir", t.TempDir()}, files...)...)
	require.Equal(t, 1, p.exit(t))
	require.Equal(t, len(files), strings.Count(p.stdout.String(), "errorMessage"), p.stdout.String())
	require.NotContains(t, p.stdout.String(), "  rows ", "an event that is refused whole has no records to look for")
	require.Equal(t, fmt.Sprintf("oncehouse-local: %d of %[1]d events failed\n", len(files)), p.stderr.String())
}

// What is missing or taken is said in one line, with what to do.
func TestWhatIsMissing(t *testing.T) {
	taken := listen(t)
	defer func() { require.NoError(t, taken.Close()) }()
	port := taken.Addr().(*net.TCPAddr).Port
	misspelt := filepath.Join(t.TempDir(), "pipelines.yaml")
	require.NoError(t, os.WriteFile(misspelt, []byte("pipelines: [{topic: clicks, guarantee: twice, settings: {SEND_WINDO: 1s}}]"), 0o600))
	none := filepath.Join(t.TempDir(), "none.yaml")
	require.NoError(t, os.WriteFile(none, []byte("pipelines:\n"), 0o600))
	for name, c := range map[string]struct {
		path []string // the tools there are; nil for all
		args []string
		want string
	}{
		"port": {nil, []string{"up", "--kafka-port=0", fmt.Sprintf("--clickhouse-port=%d", port)},
			fmt.Sprintf("port %d, meant for ClickHouse, is taken: stop what uses it, or choose another one with --clickhouse-port (0 is any)", port)},
		"go":    {[]string{}, []string{"demo"}, "go is not installed: install Go 1.26 or later"},
		"node":  {[]string{"go"}, []string{"demo"}, "Node.js is not installed: install version 20 or later"},
		"java":  {[]string{"go"}, []string{"demo", "--kafka=apache"}, "Apache Kafka needs java and it is missing: install Java 17 or newer"},
		"tools": {[]string{}, []string{"setup"}, "go is not installed: install Go 1.26 or later; node is not installed: install Node.js 20 or later; npm is not installed"},
		"broker": {nil, []string{"demo", fmt.Sprintf("--kafka=127.0.0.1:%d", freePort(t))},
			"no Kafka broker answers at 127.0.0.1:"},
		"broker that runs has the port": {nil, []string{"up", "--clickhouse-port=0", fmt.Sprintf("--kafka-port=%d", port), fmt.Sprintf("--kafka=127.0.0.1:%d", freePort(t))},
			"no Kafka broker answers at 127.0.0.1:"},
		"topic":        {nil, []string{"up", "--table=clicks"}, "--topic is missing"},
		"topic's name": {nil, []string{"up", "--topic=a b"}, `ONCEHOUSE_TOPIC is "a b": a Kafka topic of letters`},
		"table's name": {nil, []string{"up", "--topic=clicks", "--table=a'b"}, `its table is "a'b": a name without any of `},
		"no pipeline":  {nil, []string{"up", "--pipelines=" + none}, none + ": there is none in it"},
		"subject":      {nil, []string{"torture", "--subjects=exactly-once,never"}, "there is no subject never: choose among exactly-once, "},
		"settings": {nil, []string{"up", "--kafka-port=0", "--clickhouse-port=0", "--pipelines=" + misspelt},
			"configure pipeline clicks: "},
		"writers": {nil, []string{"orders", "--database=postgres://127.0.0.1/", "--writers=0"}, "--writers is 0, "},
		"file":    {nil, []string{"up", "--pipelines=/nowhere.yaml"}, "/nowhere.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			var env []string
			if c.path != nil {
				env = []string{"PATH=" + pathWith(t, c.path)}
			}
			if !slices.Contains([]string{"setup", "orders"}, c.args[0]) {
				c.args = append(c.args, "--dir="+t.TempDir())
			}
			p := start(t, env, c.args...)
			require.Equal(t, 1, p.exit(t), p.stdout.String())
			require.Contains(t, p.stderr.String(), c.want)
			require.Equal(t, 1, strings.Count(p.stderr.String(), "\n"), p.stderr.String())
		})
	}
}

// A report is not lost because its directory is not there.
func TestReportOfTorture(t *testing.T) {
	c := tortureCommand{Kills: 9, Report: filepath.Join(t.TempDir(), "a", "report.html")}
	require.NoError(t, c.prepare())
	require.Equal(t, 2, c.Controls)
	require.NoError(t, c.write(&torture.Report{}))
	require.FileExists(t, c.Report)
}

// A tool that is there and too old is named like one that is missing.
func TestOldNode(t *testing.T) {
	for version, want := range map[string]string{
		"v18.20.4": "node is v18.20.4: install Node.js 20 or later",
		"v9":       "node is v9: install Node.js 20 or later",
		"oops":     "node is oops: install Node.js 20 or later",
	} {
		dir := pathWith(t, []string{"go", "npm"})
		require.NoError(t, os.WriteFile(filepath.Join(dir, "node"), []byte("#!/bin/sh\necho "+version+"\n"), 0o700))
		p := start(t, []string{"PATH=" + dir}, "setup")
		require.Equal(t, 1, p.exit(t), p.stdout.String())
		require.Equal(t, "oncehouse-local: "+want+"\n", p.stderr.String())
	}
}

// pathWith is a directory with those tools only.
func pathWith(t *testing.T, tools []string) string {
	t.Helper()
	dir := t.TempDir()
	for _, tool := range tools {
		path, err := exec.LookPath(tool)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(dir, tool)))
	}
	return dir
}

// freePort is one that nobody listens on.
func freePort(t *testing.T) int {
	t.Helper()
	l := listen(t)
	require.NoError(t, l.Close())
	return l.Addr().(*net.TCPAddr).Port
}

// A clone without node_modules is told what to do.
func TestNotSetUp(t *testing.T) {
	clone := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(clone, "go.mod"), []byte("module oncehouse\n"), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "demo")
	cmd.Dir = clone
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "run make setup")
	require.Equal(t, 1, strings.Count(string(out), "\n"), string(out))
}

func TestFullDisk(t *testing.T) {
	err := fmt.Errorf("write the engine's configuration: %w", &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC})
	require.Equal(t, "the disk is full: free some space or choose another --dir (write the engine's configuration: write x: no space left on device)", oneLine(err))
	require.Equal(t, "a; b", oneLine(errors.Join(errors.New("a"), errors.New("b"))))
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return l
}
