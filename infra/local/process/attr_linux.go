package process

import "syscall"

// childAttr gives the child its own process group, so that it is signalled
// whole, and has the kernel end it when this process dies, however it dies.
func childAttr(cred *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: cred}
}
