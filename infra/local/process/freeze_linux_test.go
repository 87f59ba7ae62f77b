package process

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A frozen child does nothing more, from when Freeze returns: not only from when
// the system gets round to stopping it.
func TestFrozenStandsStill(t *testing.T) {
	p, err := Start(Spec{Path: "/bin/sh", Args: []string{"-c", "while :; do :; done"}})
	require.NoError(t, err)
	t.Cleanup(p.Kill)
	for range 100 {
		require.NoError(t, p.Freeze())
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
		require.NoError(t, err)
		state := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])[0]
		require.Equal(t, "T", string(state))
		require.NoError(t, p.Signal(syscall.SIGCONT))
	}
}

func TestFreezeOfADeadChild(t *testing.T) {
	p, err := Start(Spec{Path: "/bin/true"})
	require.NoError(t, err)
	<-p.Dead()
	require.Error(t, p.Freeze())
}
