package lambdahost

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// residentPeakMB is the highest resident memory of a process so far, in MB
// rounded up: VmHWM of /proc/<pid>/status. 0 where there is no such file.
func residentPeakMB(pid int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, found := bytes.Cut(status, []byte("VmHWM:"))
	fields := bytes.Fields(rest)
	if !found || len(fields) == 0 {
		return 0
	}
	kilobytes, err := strconv.Atoi(string(fields[0]))
	if err != nil {
		return 0
	}
	return (kilobytes + 1023) / 1024
}
