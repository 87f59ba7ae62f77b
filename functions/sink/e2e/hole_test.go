//go:build strace

package e2e

import (
	"bufio"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/dynamodb"
)

// D27: the server is killed after it logged an insert's token and before it
// renamed the part into place. It then answers OK to the same token and holds 0
// rows, for good. With replay token, which the pipeline has to ask for by name,
// the rows are lost (so this test has met the hole); as it comes, the sink looks
// into the table and stores them.
func TestTokenHole(t *testing.T) {
	_, err := exec.LookPath("strace")
	require.NoError(t, err, "this test kills the server inside a system call: install strace")
	for replay, want := range map[string][]int64{"token": append(through(0, 9), through(20, 24)...), "auto": through(0, 24)} {
		t.Run(replay, func(t *testing.T) {
			s := startWith(t, dynamodb.Options{Table: ledgerTable})
			p := s.pipeline(t, "hole", options{
				ddl:      s.ddl + "\nSETTINGS non_replicated_deduplication_window = 1000",
				settings: append(short("5s"), "REPLAY="+replay),
			})
			p.deliver(event(batch(2, 0, 9)))
			killAtRename(t, s.engine.Pid())
			p.fail(event(batch(2, 10, 19)))
			<-s.engine.Dead()
			s.engine.Restart(t)
			p.redeliver(event(batch(2, 10, 19)))
			p.redeliver(event(batch(2, 10, 24)))
			require.Equal(t, want, p.offsets())
		})
	}
}

// killAtRename has a process killed in its next rename(2), which does not happen.
func killAtRename(t *testing.T, pid int) {
	t.Helper()
	cmd := exec.Command("strace", "-f", "-p", strconv.Itoa(pid), "-e", "trace=rename",
		"-e", "inject=rename:signal=SIGKILL:error=EINTR:when=1")
	output, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() }) // it ends with the process
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "attached") {
			go func() {
				for lines.Scan() { // strace must not wait for a reader
					continue
				}
			}()
			return
		}
	}
	require.Fail(t, "strace did not attach to the engine: "+lines.Text())
}
