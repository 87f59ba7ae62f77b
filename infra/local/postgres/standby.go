package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// Standby starts a copy of the server that follows it, until SELECT pg_promote()
// makes it a server of its own. Of options, the installation is the server's.
// It needs PostgreSQL 15 or later.
func (s *Server) Standby(ctx context.Context, options Options) (*Server, error) {
	options.Installation = s.options.Installation
	options.Settings = maps.Clone(options.Settings)
	if options.Settings == nil {
		options.Settings = map[string]string{}
	}
	options.Settings["primary_conninfo"] = "host=127.0.0.1 user=postgres port=" + strconv.Itoa(s.port)
	standby, err := prepare(options)
	if err == nil {
		err = s.copyTo(ctx, standby)
	}
	if err == nil {
		err = standby.boot(ctx)
	}
	if err != nil {
		if standby != nil {
			standby.Close()
		}
		return nil, fmt.Errorf("start a standby: %w", err)
	}
	return standby, nil
}

// copyTo makes a base backup of the running server: its files as they are, and
// the label that says from where its log has to be replayed. pg_basebackup, which
// does the same, is not in the npm package.
func (s *Server) copyTo(ctx context.Context, standby *Server) (err error) {
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		return fmt.Errorf("connect for a backup: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	if _, err = conn.Exec(ctx, "SELECT pg_backup_start('standby', true)"); err != nil {
		return fmt.Errorf("begin a backup: %w", err)
	}
	if err = copyFiles(s.data(), standby.data()); err != nil {
		return err
	}
	var label string
	if err = conn.QueryRow(ctx, "SELECT labelfile FROM pg_backup_stop(false)").Scan(&label); err != nil {
		return fmt.Errorf("end a backup: %w", err)
	}
	for name, text := range map[string]string{"backup_label": label, "standby.signal": ""} {
		if err = os.WriteFile(filepath.Join(standby.data(), name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	if standby.credential == nil {
		return nil
	}
	return filepath.WalkDir(standby.data(), func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chown(path, int(standby.credential.Uid), int(standby.credential.Gid)) //nolint:gosec // the directory was made a moment ago, for this
	})
}

// copyFiles copies a data directory under a server that runs: files may go while
// it looks, and a file that changes is put right by the replay.
func copyFiles(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("copy %s: %w", path, err)
		}
		within, err := filepath.Rel(from, path)
		if err != nil {
			return fmt.Errorf("copy %s: %w", path, err)
		}
		switch {
		case within == "postmaster.pid" || within == "postmaster.opts":
			return nil // they say that the server runs
		case entry.IsDir():
			err = os.MkdirAll(filepath.Join(to, within), 0o700)
		case entry.Type().IsRegular():
			err = copyFile(path, filepath.Join(to, within))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("copy %s: %w", path, err)
		}
		return nil
	})
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}
