package process

import (
	"errors"
	"fmt"
	"syscall"
)

// childAttr gives the child its own process group, so that it is signalled
// whole, and has the kernel end it when this process dies, however it dies.
func childAttr(cred *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: cred}
}

// waitStopped waits until a stopped child stands still. It reaps nothing, which
// is left to Start's goroutine; a child that has ended is an error.
//
// https://man7.org/linux/man-pages/man2/waitid.2.html
func waitStopped(pid int) error {
	const idIsPid = 1 // P_PID
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, idIsPid, uintptr(pid), 0, syscall.WSTOPPED|syscall.WNOWAIT, 0, 0)
		switch {
		case errno == 0:
			return nil
		case !errors.Is(errno, syscall.EINTR):
			return fmt.Errorf("wait until process %d stands still: %w", pid, errno)
		}
	}
}
