package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of the times in /proc/<pid>/stat: USER_HZ, which the kernel
// keeps at 100 whatever its own clock is.
const tick = 10 * time.Millisecond

// processorTimeOf is what the function's process has used; 0 where the system
// has no /proc. The process is the child of this one that is told the name.
func processorTimeOf(name string) time.Duration {
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return 0
	}
	for _, path := range environments {
		environment, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(environment, []byte("AWS_LAMBDA_FUNCTION_NAME="+name+"\x00")) {
			continue // another user's, or ended since
		}
		stat, err := os.ReadFile(filepath.Join(filepath.Dir(path), "stat"))
		if err != nil {
			continue
		}
		if parent, used, ok := parseStat(string(stat)); ok && parent == os.Getpid() {
			return used
		}
	}
	return 0
}

// parseStat reads the parent and the time in user and kernel mode: fields 4, 14
// and 15 of proc(5). The program's name before them may hold anything.
func parseStat(stat string) (parent int, used time.Duration, ok bool) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, 0, false
	}
	parent, err := strconv.Atoi(fields[1])
	user, userErr := strconv.Atoi(fields[11])
	system, systemErr := strconv.Atoi(fields[12])
	return parent, time.Duration(user+system) * tick, err == nil && userErr == nil && systemErr == nil
}
