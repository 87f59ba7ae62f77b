package torture

import (
	"flag"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncehouse/infra/local/broker"
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

// A commit that a trap waits for is seen before the broker has done it, and
// only that of the group.
func TestTrapAtCommit(t *testing.T) {
	b, err := broker.Embedded(broker.EmbeddedConfig{Topics: []broker.Topic{{Name: "clicks", Partitions: 1}}})
	require.NoError(t, err)
	defer b.Close()
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Addrs()...), kgo.RequestRetries(0))
	require.NoError(t, err)
	defer client.Close()
	admin := kadm.NewClient(client)
	commit := func(group string, at int64) error {
		var offsets kadm.Offsets
		offsets.AddOffset("clicks", 0, at, -1)
		return admin.CommitAllOffsets(t.Context(), group, offsets)
	}
	committed := func(group string) int64 {
		offsets, err := admin.FetchOffsets(t.Context(), group)
		require.NoError(t, err)
		at, _ := offsets.Lookup("clicks", 0)
		return at.At
	}
	require.NoError(t, commit("ours", 3))

	var at int64
	trap := newTrap(func(*http.Request) int { return 1 })
	atCommit(b, "ours", trap)
	require.NoError(t, commit("theirs", 7))
	require.Error(t, commit("ours", 9))
	require.Equal(t, 1, trap.await(t.Context()))
	at = committed("ours")
	require.Equal(t, int64(3), at, "the broker has not done it")
	require.NoError(t, commit("ours", 9), "a trap strikes once")

	late := newTrap(func(*http.Request) int { return 1 })
	atCommit(b, "ours", late)
	late.spring()
	require.NoError(t, commit("ours", 10), "one that sprang elsewhere is gone")
}
