package torture

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"oncehouse/infra/local/broker"
	"oncehouse/infra/local/engine/faults"
)

// ambush is how long a trap waits for its moment. After that it springs where it is.
const ambush = 3 * time.Second

// trap strikes once: when its moment comes, or when nobody waits any longer.
type trap struct {
	// strike is handed the request of the moment; nil when it did not come.
	strike func(r *http.Request) int

	mu     sync.Mutex
	seen   *http.Request
	sprung bool
	killed int
	done   chan struct{}
}

func newTrap(strike func(r *http.Request) int) *trap {
	return &trap{strike: strike, done: make(chan struct{})}
}

// see remembers the request that matches, for spring.
func (t *trap) see(match faults.Match) faults.Match {
	return func(r *http.Request, query string) bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.sprung || t.seen != nil || !match(r, query) {
			return false
		}
		t.seen = r
		return true
	}
}

// seize springs at the request that matches, before anybody has it.
func (t *trap) seize(match faults.Match) faults.Match {
	see := t.see(match)
	return func(r *http.Request, query string) bool {
		if !see(r, query) {
			return false
		}
		t.spring()
		return true
	}
}

// spring strikes, the first time it is called.
func (t *trap) spring() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sprung {
		return
	}
	t.sprung = true
	t.killed = t.strike(t.seen)
	close(t.done)
}

// await returns how many it killed, once it has sprung.
func (t *trap) await(ctx context.Context) int {
	timer := time.NewTimer(ambush)
	defer timer.Stop()
	select {
	case <-t.done:
	case <-timer.C:
	case <-ctx.Done():
	}
	t.spring()
	return t.killed
}

// closed is a release that holds nothing back.
func closed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// ledgerWrites matches the writes of a ledger in DynamoDB.
func ledgerWrites(r *http.Request, _ string) bool {
	return strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".PutItem")
}

// atCommit has the trap spring when the group's next commit arrives at the
// broker, which then never does it. Only the embedded broker can be asked; with
// another one the trap springs at once.
func atCommit(b broker.Broker, group string, t *trap) {
	embedded, ok := b.(*broker.EmbeddedBroker)
	if !ok {
		t.spring()
		return
	}
	cluster := embedded.Cluster()
	cluster.ControlKey(int16(kmsg.OffsetCommit), func(r kmsg.Request) (kmsg.Response, error, bool) {
		commit, ok := r.(*kmsg.OffsetCommitRequest)
		select {
		case <-t.done: // it sprang elsewhere
			cluster.DropControl()
			return nil, nil, false
		default:
		}
		if !ok || commit.Group != group {
			return nil, nil, false
		}
		t.spring()
		return nil, errors.New("cut by a trap"), true
	})
}

// clientOf is the child of this process that sent a request over loopback: the
// one to whom the socket belongs. Error: there is none, it may have died.
//
// proc(5): /proc/net/tcp, /proc/<pid>/task/<tid>/children, /proc/<pid>/fd.
func clientOf(r *http.Request) (pid int, err error) {
	inode, err := inodeOf(r.RemoteAddr)
	if err != nil {
		return 0, err
	}
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return 0, fmt.Errorf("list the children: %w", err)
	}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for _, child := range strings.Fields(string(text)) {
			if holds(child, inode) {
				return strconv.Atoi(child)
			}
		}
	}
	return 0, fmt.Errorf("no child holds the socket of %s", r.RemoteAddr)
}

// holds reports whether the process has the socket open.
func holds(pid, inode string) bool {
	dir := "/proc/" + pid + "/fd"
	files, err := os.ReadDir(dir)
	if err != nil {
		return false // it has ended
	}
	for _, file := range files {
		if target, err := os.Readlink(filepath.Join(dir, file.Name())); err == nil && target == "socket:["+inode+"]" {
			return true
		}
	}
	return false
}

// inodeOf is the inode of the socket that is bound to a loopback address.
func inodeOf(address string) (string, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("read the client's address: %w", err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return "", fmt.Errorf("read the client's port: %w", err)
	}
	file, err := os.Open("/proc/net/tcp")
	if err != nil {
		return "", fmt.Errorf("list the sockets: %w", err)
	}
	defer func() { _ = file.Close() }()
	local := fmt.Sprintf("0100007F:%04X", number)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 9 && fields[1] == local {
			return fields[9], nil
		}
	}
	return "", fmt.Errorf("no socket is bound to %s", address)
}
