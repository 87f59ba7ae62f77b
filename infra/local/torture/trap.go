package torture

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

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

// clientOf is the child of this process that sent a request over loopback: the
// one to whom the socket belongs. Error: there is none, it may have died.
//
// proc(5): /proc/net/tcp, /proc/<pid>/stat, /proc/<pid>/fd. The shorter
// /proc/<pid>/task/<tid>/children leaves some out while others start and end.
func clientOf(r *http.Request) (pid int, err error) {
	inode, err := inodeOf(r.RemoteAddr)
	if err != nil {
		return 0, err
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, fmt.Errorf("list the processes: %w", err)
	}
	parent := strconv.Itoa(os.Getpid())
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // state, parent, ...
		if pid := filepath.Base(filepath.Dir(stat)); len(fields) > 1 && fields[1] == parent && holds(pid, inode) {
			return strconv.Atoi(pid)
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
