package postgres

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// unprivileged is whom the server runs as: nil for this user, nobody where this
// user is root, as whom PostgreSQL refuses to run.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL refuses to run as root: find the user nobody: %w", err)
	}
	uid, err := strconv.ParseUint(nobody.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("read the id of the user nobody: %w", err)
	}
	gid, err := strconv.ParseUint(nobody.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("read the group of the user nobody: %w", err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// barrier is the first directory on the way to path that others than its owner
// may not enter; "" if there is none.
func barrier(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("locate %s: %w", path, err)
	}
	closed := ""
	for {
		info, err := os.Stat(path)
		if err != nil {
			return "", fmt.Errorf("look at %s: %w", path, err)
		}
		if info.IsDir() && info.Mode().Perm()&0o001 == 0 {
			closed = path
		}
		if path == filepath.Dir(path) {
			return closed, nil
		}
		path = filepath.Dir(path)
	}
}
