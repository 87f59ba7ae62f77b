package dynamodb_test

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/dynamodb"
	"oncehouse/shared/delivery"
	"oncehouse/shared/kafka"
	"oncehouse/shared/ledger/dynamo"
)

const table = "ledger"

func TestEntriesSurviveKill(t *testing.T) {
	server, err := dynamodb.Start(t.Context(), dynamodb.Options{Table: table, Data: filepath.Join(t.TempDir(), "data")})
	require.NoError(t, err)
	t.Cleanup(func() { server.Stop() })
	l := dynamo.New(server.Config(), table)
	endpoint := server.Endpoint()
	for round := range int64(3) {
		want := entryAt(round + 1)
		require.NoError(t, l.Write(t.Context(), lane(1), want))
		server.Kill()
		require.NoError(t, server.Restart(t.Context()))
		require.Equal(t, endpoint, server.Endpoint())
		got, err := l.Load(t.Context(), lane(1))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestInMemoryServerIsEmptyAfterRestart(t *testing.T) {
	server, err := dynamodb.Start(t.Context(), dynamodb.Options{Table: table})
	require.NoError(t, err)
	t.Cleanup(func() { server.Stop() })
	l := dynamo.New(server.Config(), table)
	require.NoError(t, l.Write(t.Context(), lane(1), entryAt(1)))
	server.Stop()
	<-server.Dead()
	require.NoError(t, server.Restart(t.Context()))
	got, err := l.Load(t.Context(), lane(1))
	require.NoError(t, err)
	require.Zero(t, got)
}

// A client that is killed in the middle of a request must not take the server
// with it: that is what a killed function does.
func TestClientKilledInTheMiddleOfARequest(t *testing.T) {
	server, err := dynamodb.Start(t.Context(), dynamodb.Options{Table: "ledger"})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	for range 3 {
		c, err := net.Dial("tcp", strings.TrimPrefix(server.Endpoint(), "http://"))
		require.NoError(t, err)
		_, err = io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nX-Amz-Target: DynamoDB_20120810.PutItem\r\nContent-Length: 1000\r\n\r\n{")
		require.NoError(t, err)
		require.NoError(t, c.(*net.TCPConn).SetLinger(0)) // a reset, as of a killed process
		require.NoError(t, c.Close())
		// Answered on the same event loop, behind the reset.
		loads(t, server)
	}
	select {
	case <-server.Dead():
		t.Fatal("the server ended")
	default:
	}
}

func TestWhatIsMissingIsNamed(t *testing.T) {
	_, err := dynamodb.Start(t.Context(), dynamodb.Options{Root: t.TempDir()})
	require.EqualError(t, err, "start dynalite: the npm package is not installed: run make setup")
	t.Setenv("PATH", t.TempDir())
	_, err = dynamodb.Start(t.Context(), dynamodb.Options{})
	require.EqualError(t, err, "start dynalite: Node.js is not installed: install version 20 or later")
}

// BenchmarkWrite is the time of one conditional write and of one read.
func BenchmarkWrite(b *testing.B) {
	for _, data := range []string{"memory", "disk"} {
		options := dynamodb.Options{Table: table}
		if data == "disk" {
			options.Data = filepath.Join(b.TempDir(), "data")
		}
		server, err := dynamodb.Start(b.Context(), options)
		require.NoError(b, err)
		b.Cleanup(func() { server.Stop() })
		l := dynamo.New(server.Config(), table)
		n := int32(0)
		b.Run(fmt.Sprintf("write/%s", data), func(b *testing.B) {
			n++
			version := int64(0)
			for b.Loop() {
				version++
				require.NoError(b, l.Write(b.Context(), lane(n), entryAt(version)))
			}
		})
		b.Run(fmt.Sprintf("load/%s", data), func(b *testing.B) {
			for b.Loop() {
				_, err := l.Load(b.Context(), lane(1))
				require.NoError(b, err)
			}
		})
	}
}

func lane(partition int32) delivery.Lane {
	return delivery.Lane{Pipeline: "clicks", Cluster: "main", TopicPartition: kafka.TopicPartition{Topic: "clicks", Partition: partition}}
}

func entryAt(version int64) delivery.Entry {
	return delivery.Entry{Generation: 1, Guarantee: delivery.ExactlyOnce, Next: version * 10, Version: version, Writer: "w"}
}

// loads reads an entry through the server.
func loads(t *testing.T, server *dynamodb.Server) {
	t.Helper()
	_, err := dynamo.New(server.Config(), "ledger").Load(t.Context(), lane(0))
	require.NoError(t, err)
}
