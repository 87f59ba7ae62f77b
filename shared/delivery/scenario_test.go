package delivery_test

import (
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"oncehouse/shared/delivery/world"
)

// TestScenarios plays testdata/scenarios: each file is a story told in the
// commands of world.Script, with what must come of each. A bug report becomes a
// file. After every step the invariants hold.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		s := world.Script{World: world.New()}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out, err := s.Command(d.Cmd, arguments(d))
			require.NoError(t, err, "%s: %s", d.Pos, d.Cmd)
			require.NoError(t, s.World.Check(), "%s: %s", d.Pos, d.Cmd)
			return out
		})
	})
}

func arguments(d *datadriven.TestData) []world.Arg {
	args := make([]world.Arg, len(d.CmdArgs))
	for i, a := range d.CmdArgs {
		args[i] = world.Arg{Key: a.Key, Vals: a.Vals}
	}
	return args
}
