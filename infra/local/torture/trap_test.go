package torture

import (
	"flag"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/engine/faults"
)

func TestTrapSpringsOnce(t *testing.T) {
	insert := httptest.NewRequest(http.MethodPost, "/?query=INSERT", nil)
	strikes := 0
	trap := newTrap(func(r *http.Request) int {
		require.Same(t, insert, r)
		strikes++
		return 1
	})
	match := trap.seize(faults.Inserts)
	require.False(t, match(insert, "SELECT 1"))
	require.True(t, match(insert, "INSERT INTO t"))
	require.False(t, match(insert, "INSERT INTO t"), "the next one passes")
	require.Equal(t, 1, trap.await(t.Context()))
	trap.spring()
	require.Equal(t, 1, strikes)
}

// A trap whose moment does not come springs where things stand, and nothing
// that comes later is taken.
func TestTrapSpringsWhenNobodyComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trap := newTrap(func(r *http.Request) int {
			require.Nil(t, r)
			return 1
		})
		match := trap.see(faults.Inserts)
		begun := time.Now()
		require.Equal(t, 1, trap.await(t.Context()))
		require.Equal(t, ambush, time.Since(begun))
		require.False(t, match(httptest.NewRequest(http.MethodPost, "/", nil), "INSERT INTO t"))
	})
}

var child = flag.String("child", "", "TestClientOf: be the child that asks this URL")

// The process that is killed is the one that sent the request, not a neighbour.
func TestClientOf(t *testing.T) {
	if *child != "" {
		res, err := http.Get(*child)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		return
	}
	var found atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		pid, err := clientOf(r)
		if err != nil {
			t.Error(err)
		}
		found.Store(int64(pid))
	}))
	defer server.Close()
	program, err := os.Executable()
	require.NoError(t, err)
	for range 2 {
		cmd := exec.Command(program, "-test.run=^TestClientOf$", "-child="+server.URL)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Equal(t, int64(cmd.Process.Pid), found.Load())
	}

	// This process itself is no child of its own.
	conn, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://"))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	_, err = clientOf(&http.Request{RemoteAddr: conn.LocalAddr().String()})
	require.ErrorContains(t, err, "no child holds")
}

// A block is seen when its part is in place, not while it is written.
func TestNewestBlock(t *testing.T) {
	dir := t.TempDir()
	newest := func() int {
		n, err := newestBlock(dir)
		require.NoError(t, err)
		return n
	}
	require.Zero(t, newest())
	for _, name := range []string{"detached", "format_version.txt", "tmp_insert_202506_9_9_0", "202506_1_1_0", "202507_2_2_0"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	require.Equal(t, 2, newest())
	require.NoError(t, os.Mkdir(filepath.Join(dir, "202506_1_3_1"), 0o700))
	require.Equal(t, 3, newest())
	_, err := newestBlock(filepath.Join(dir, "nowhere"))
	require.Error(t, err)
}
