//go:build !linux

package process

import "syscall"

// childAttr gives the child its own process group, so that it is signalled
// whole. Only Linux can also tie a child's life to its parent's.
func childAttr(cred *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: cred}
}

// waitStopped does not wait: only Linux tells of a stop without reaping.
func waitStopped(int) error { return nil }
