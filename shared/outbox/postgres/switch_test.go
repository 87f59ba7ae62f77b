package postgres_test

import (
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	local "oncehouse/infra/local/postgres"
	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/postgres"
)

// road is an address that leads to a server, and later to another one, as that of
// a cluster's writer does.
type road struct {
	listener net.Listener
	mu       sync.Mutex
	target   string
	conns    []net.Conn
	frozen   map[net.Conn]bool
}

func newRoad(t *testing.T, to *local.Server) *road {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &road{listener: listener, target: hostOf(t, to), frozen: map[net.Conn]bool{}}
	t.Cleanup(func() {
		_ = listener.Close() // ends serve
		r.lead("")
	})
	go r.serve()
	return r
}

func hostOf(t *testing.T, server *local.Server) string {
	t.Helper()
	u, err := url.Parse(server.URL())
	require.NoError(t, err)
	return u.Host
}

func (r *road) url() string {
	return "postgres://postgres@" + r.listener.Addr().String() + "/postgres?sslmode=disable"
}

func (r *road) serve() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.mu.Lock()
		server, err := net.Dial("tcp", r.target)
		if err != nil {
			_ = client.Close() // as a server that is not there
		} else {
			r.conns = append(r.conns, client, server)
			go r.carry(server, client)
			go r.carry(client, server)
		}
		r.mu.Unlock()
	}
}

func (r *road) carry(to, from net.Conn) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		r.mu.Lock()
		frozen := r.frozen[from]
		r.mu.Unlock()
		if err == nil && !frozen {
			_, err = to.Write(buffer[:n])
		}
		if err != nil {
			_ = to.Close() // as from was
			return
		}
	}
}

// lead cuts every connection; new ones lead to host.
func (r *road) lead(host string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = host
	for _, conn := range r.conns {
		_ = conn.Close() // it may be closed
	}
}

// freeze has what is sent on the present connections go nowhere.
func (r *road) freeze() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range r.conns {
		r.frozen[conn] = true
	}
}

// A cluster fails over between a snapshot and its rows: the promoted server may
// lack some of them, and must not be asked for the window.
func TestServerSwitchedBetweenSnapshotAndRows(t *testing.T) {
	primary := start(t, local.Options{})
	d := migrated(t, primary)
	insert(t, d.Conn, "a")
	standby, err := primary.Standby(t.Context(), local.Options{Settings: settings()})
	require.NoError(t, err)
	t.Cleanup(standby.Close)

	road := newRoad(t, primary)
	table := openTable(t, road.url(), postgres.Config{Schema: d.schema})
	s := snapshot(t, table)
	require.Len(t, seqs(t, table, "", s.Text), 1)
	exec(t, (&database{t: t, server: standby, schema: d.schema}).connect(), "SELECT pg_promote()")
	road.lead(hostOf(t, standby))

	var failures []error
	for range 2 {
		for _, err := range table.Rows(t.Context(), outbox.Window{To: s.Text}, 0) {
			failures = append(failures, err)
		}
	}
	require.Len(t, failures, 2, "no row")
	require.ErrorContains(t, failures[1], "timeline 2 answers")
	require.Error(t, table.Flushed(t.Context(), s))
	require.Equal(t, s.Timeline+1, snapshot(t, table).Timeline)
}

// The server's host has gone without a word while the function was frozen.
func TestDeadConnectionIsGivenUp(t *testing.T) {
	d := migrated(t, shared)
	road := newRoad(t, shared)
	table := openTable(t, road.url(), postgres.Config{Schema: d.schema})
	table.AnswerWithin(200 * time.Millisecond)
	first := snapshot(t, table)
	road.freeze()
	insert(t, d.Conn, "a")
	second := snapshot(t, table)
	require.Equal(t, first.Identity, second.Identity)
	require.Len(t, seqs(t, table, first.Text, second.Text), 1)
}
