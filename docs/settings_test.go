package docs

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	outbox "oncehouse/functions/outbox-poller/config"
	sink "oncehouse/functions/sink/config"
	"oncehouse/shared/settings"
)

//go:generate go test . -run TestSettingsAreDocumented -update

var update = flag.Bool("update", false, "write settings.md")

const settingsHead = `# Settings

Made from the functions' config packages by ` + "`go generate ./docs`" + `; change it there.

All settings are variables of the function's environment, read once at its start. An empty one
counts as not set. A setting that is missing, out of range or misspelt keeps the function from
starting, and the message names every one of them.

Endpoints of AWS itself follow the SDK's own variables (AWS_ENDPOINT_URL_DYNAMODB, AWS_ENDPOINT_URL_SQS, ...).
`

// functions are those with settings, in the order of the page.
func functions() []struct {
	heading string
	all     []settings.Setting
} {
	return []struct {
		heading string
		all     []settings.Setting
	}{
		{"The sink", sink.Settings()},
		{"The outbox poller", outbox.Settings()},
	}
}

func TestSettingsAreDocumented(t *testing.T) {
	page := settingsHead
	for _, f := range functions() {
		page += "\n## " + f.heading + "\n" + settings.Tables(f.all)
	}
	if *update {
		require.NoError(t, os.WriteFile("settings.md", []byte(page), 0o600))
	}
	require.Equal(t, page, read(t, "settings.md"), "settings.md is stale: run go generate ./docs")
}

// Every setting says what it is for and what it may be, and its default is one
// of those.
func TestSettingsAreWhole(t *testing.T) {
	for _, f := range functions() {
		seen := map[string]bool{}
		for _, s := range f.all {
			require.False(t, seen[s.Name], s.Name)
			seen[s.Name] = true
			require.NotEmpty(t, s.Doc, s.Name)
			require.NotEmpty(t, s.Section, s.Name)
			require.NotEmpty(t, s.Allowed, s.Name)
			require.NotContains(t, s.Allowed, "from  to", "%s has no bounds", s.Name)
			require.True(t, strings.HasSuffix(s.Doc, "."), s.Name)
		}
	}
}
