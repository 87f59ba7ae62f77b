package settings

import "log/slog"

// Level is the least level that is logged: debug, info, warn or error.
type Level string

// Level implements slog.Leveler.
func (l Level) Level() slog.Level {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l)); err != nil {
		return slog.LevelInfo // one that Read did not see
	}
	return level
}
