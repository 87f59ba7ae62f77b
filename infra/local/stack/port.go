package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
)

// loopback is the address of a port; 0 is a free one.
func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// portIsFree says in time, and in one line, that a port is taken.
func portIsFree(ctx context.Context, what, flag string, port int) error {
	if port == 0 {
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", loopback(port))
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("port %d, meant for %s, is taken: stop what uses it, or choose another one with %s (0 is any)", port, what, flag)
	}
	if err != nil {
		return fmt.Errorf("listen on port %d for %s: %w", port, what, err)
	}
	return listener.Close()
}

// nearlyFull is what parts fail with, each in its own words.
const nearlyFull = 32 << 20

// Explain is err, with the full disk that is behind it where the disk is full:
// the broker and the engine have other words for that, or none.
func (s *Stack) Explain(err error) error {
	free, statErr := freeBytes(s.options.Dir)
	if statErr != nil {
		return err
	}
	return explain(err, s.options.Dir, free)
}

func explain(err error, dir string, free uint64) error {
	if err == nil || free >= nearlyFull || errors.Is(err, syscall.ENOSPC) { // the last says so itself
		return err
	}
	return fmt.Errorf("the disk is full: %s has %d MB free: free some space or choose another --dir (%w)", dir, free>>20, err)
}

// freeBytes is how much the file system of dir still takes.
func freeBytes(dir string) (uint64, error) {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(dir, &stat); err != nil {
		return 0, fmt.Errorf("look at the disk of %s: %w", dir, err)
	}
	return stat.Bavail * uint64(stat.Bsize), nil
}
