package artifact

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// Stamp tells which sources an executable was made from.
type Stamp struct {
	// Version is the tag of HEAD (v1.2.3), else one made from the commit in Go's
	// own form: v0.0.0-<time>-<12 digits of the commit>.
	Version string
	// Commit is the latest one that changed what functions are made of. One that
	// changes only documentation leaves the executables as they are, and nothing
	// is deployed for it.
	Commit string
}

// sources are what functions are compiled from, in the repository.
var sources = []string{"functions", "shared", "go.mod", "go.sum"}

// dirty ends version and commit when the sources are not those of the commit.
const dirty = "+dirty"

// Unknown is the stamp without a git repository.
var Unknown = Stamp{Version: "dev", Commit: "unknown"}

// StampOf asks git. Outside of a repository it is Unknown.
func StampOf(ctx context.Context, root string) (Stamp, error) {
	if _, err := git(ctx, root, "rev-parse", "--git-dir"); err != nil {
		return Unknown, nil //nolint:nilerr // sources from an archive have no repository, and can be built
	}
	tags, err := git(ctx, root, "tag", "--points-at", "HEAD", "--list", "v[0-9]*", "--sort=-version:refname")
	if err != nil {
		return Stamp{}, err
	}
	latest, err := git(ctx, root, append([]string{"log", "-1", "--format=%H %ct", "--"}, sources...)...)
	if err != nil {
		return Stamp{}, err
	}
	changes, err := git(ctx, root, append([]string{"status", "--porcelain", "--"}, sources...)...)
	if err != nil {
		return Stamp{}, err
	}
	var s Stamp
	var seconds int64
	if _, err := fmt.Sscan(latest, &s.Commit, &seconds); err != nil {
		return Stamp{}, fmt.Errorf("read git's answer %q: %w", latest, err)
	}
	if tags != "" {
		s.Version, _, _ = strings.Cut(tags, "\n")
	} else {
		s.Version = fmt.Sprintf("v0.0.0-%s-%.12s", time.Unix(seconds, 0).UTC().Format("20060102150405"), s.Commit)
	}
	if changes != "" {
		s.Version, s.Commit = s.Version+dirty, s.Commit+dirty
	}
	return s, nil
}

func git(ctx context.Context, root string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
		}
		return "", fmt.Errorf("ask git %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}

// linkFlags drop the symbol table, which a stack trace does not need, and set
// the variables. The linker is silent about a variable that does not exist:
// TestFunctionsTellTheirStamp is not.
func (s Stamp) linkFlags() string {
	flags := "-s -w"
	if s.Version != "" {
		flags += " -X main.version=" + s.Version
	}
	if s.Commit != "" {
		flags += " -X main.commit=" + s.Commit
	}
	return flags
}
