package outbox

import (
	"fmt"
	"strconv"
	"strings"
)

// bounds are the ends of a pg_snapshot: every transaction below xmin has ended,
// none from xmax on has.
type bounds struct{ xmin, xmax uint64 }

// parseBounds reads xmin:xmax:xip,... ; the text of the beginning is "".
func parseBounds(text string) (bounds, error) {
	if text == "" {
		return bounds{}, nil
	}
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return bounds{}, fmt.Errorf("snapshot %q is not xmin:xmax:xip", text)
	}
	xmin, err := strconv.ParseUint(parts[0], 10, 64)
	if err != nil {
		return bounds{}, fmt.Errorf("snapshot %q: %w", text, err)
	}
	xmax, err := strconv.ParseUint(parts[1], 10, 64)
	if err != nil {
		return bounds{}, fmt.Errorf("snapshot %q: %w", text, err)
	}
	return bounds{xmin, xmax}, nil
}

// notAhead is nil if the snapshot of that text can have been taken before now.
func notAhead(text, now string) error {
	old, err := parseBounds(text)
	if err != nil {
		return err
	}
	b, err := parseBounds(now)
	if err != nil {
		return err
	}
	if old.xmin > b.xmin || old.xmax > b.xmax {
		return fmt.Errorf("snapshot %s was taken after the database's present %s", text, now)
	}
	return nil
}
