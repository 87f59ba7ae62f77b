package settings_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/settings"
)

func TestBytes(t *testing.T) {
	for text, want := range map[string]settings.Bytes{"0": 0, "1": 1, "1KiB": 1024, "1 kB": 1000, "64MiB": 64 << 20, "3GB": 3e9} {
		var b settings.Bytes
		require.NoError(t, b.UnmarshalText([]byte(text)), text)
		require.Equal(t, want, b, text)
		var again settings.Bytes
		require.NoError(t, again.UnmarshalText([]byte(b.String())))
		require.Equal(t, b, again)
	}
	for _, text := range []string{"", "-1", "1.5MiB", "MiB", "64mb", "9999999999999GiB"} {
		var b settings.Bytes
		require.Error(t, b.UnmarshalText([]byte(text)), text)
	}
}
