package broker

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	_ Broker = (*EmbeddedBroker)(nil)
	_ Broker = (*ApacheBroker)(nil)
)

// produce appends values to clicks, one by one.
func produce(t *testing.T, b Broker, values ...string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Addrs()...), kgo.DefaultProduceTopic("clicks"))
	require.NoError(t, err)
	defer client.Close()
	for _, v := range values {
		require.NoError(t, client.ProduceSync(t.Context(), kgo.StringRecord(v)).FirstErr())
	}
}

// consume reads clicks from its start until n values came.
func consume(t *testing.T, b Broker, n int) []string {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Addrs()...), kgo.ConsumeTopics("clicks"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var values []string
	for len(values) < n {
		fetches := client.PollFetches(ctx)
		require.NoError(t, ctx.Err(), "%d of %d records came", len(values), n)
		fetches.EachRecord(func(r *kgo.Record) { values = append(values, string(r.Value)) })
	}
	return values
}

// conform is what every broker must do.
func conform(t *testing.T, b Broker) {
	t.Helper()
	topic := Topic{Name: "clicks", Partitions: 1, Config: map[string]string{"retention.ms": "3600000"}}
	require.NoError(t, CreateTopics(t.Context(), b, topic, Topic{Name: "a-b-1", Partitions: 3}))
	require.NoError(t, CreateTopics(t.Context(), b, topic), "it is there already")
	err := CreateTopics(t.Context(), b, Topic{Name: "clicks", Partitions: 2}, Topic{Name: "a-b-1", Partitions: 2})
	require.ErrorContains(t, err, "create topic clicks: it exists with 1 partitions, 2 are wanted")
	require.ErrorContains(t, err, "create topic a-b-1: it exists with 3 partitions")
	produce(t, b, "a", "b")
	require.Equal(t, []string{"a", "b"}, consume(t, b, 2))

	same, err := Dial(t.Context(), b.Addrs()...)
	require.NoError(t, err)
	same.Close()
	produce(t, same, "c")
	require.Equal(t, []string{"a", "b", "c"}, consume(t, b, 3))
}

func TestEmbedded(t *testing.T) {
	b, err := Embedded(EmbeddedConfig{Topics: []Topic{{Name: "seeded", Partitions: 4}}})
	require.NoError(t, err)
	defer b.Close()
	require.NoError(t, CreateTopics(t.Context(), b, Topic{Name: "seeded", Partitions: 4}))
	conform(t, b)
}

func TestEmbeddedKeepsItsDirectory(t *testing.T) {
	dir := t.TempDir()
	b, err := Embedded(EmbeddedConfig{Dir: dir})
	require.NoError(t, err)
	conform(t, b)
	b.Close()
	b, err = Embedded(EmbeddedConfig{Dir: dir})
	require.NoError(t, err)
	defer b.Close()
	require.Equal(t, []string{"a", "b", "c"}, consume(t, b, 3))
}

func TestEmbeddedPortTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	_, err = Embedded(EmbeddedConfig{Port: l.Addr().(*net.TCPAddr).Port})
	require.ErrorContains(t, err, "address already in use")
}

func TestDialNobody(t *testing.T) {
	_, err := Dial(t.Context())
	require.ErrorContains(t, err, "no address given")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = Dial(ctx, addr)
	require.ErrorContains(t, err, "no Kafka broker answers at "+addr)
}

func TestMissingTools(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	_, err := Apache(t.Context(), ApacheConfig{Cache: t.TempDir()})
	require.EqualError(t, err, "Apache Kafka needs java and it is missing: install Java 17 or newer (for example apt install openjdk-17-jre-headless), or use the embedded broker")

	require.NoError(t, os.WriteFile(filepath.Join(bin, "java"), []byte("#!/bin/sh\n"), 0o755))
	_, err = Apache(t.Context(), ApacheConfig{Cache: t.TempDir()})
	require.EqualError(t, err, "Apache Kafka needs mvn for its first set-up and it is missing: install Maven (for example apt install maven), or use the embedded broker")
}

// A set-up that broke off leaves nothing that the next one takes for whole.
func TestSetupThatFailsLeavesNothing(t *testing.T) {
	bin, cache := t.TempDir(), t.TempDir()
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	mvn := filepath.Join(bin, "mvn")
	script := "#!/bin/sh\nfor a; do case $a in -DoutputDirectory=*) d=${a#*=}; mkdir -p $d; echo jar >$d/kafka.jar;; esac; done\n"
	require.NoError(t, os.WriteFile(mvn, []byte(script+"echo no route; exit 1\n"), 0o755))
	_, err := Setup(t.Context(), cache, nil)
	require.ErrorContains(t, err, "no route")
	left, err := os.ReadDir(cache)
	require.NoError(t, err)
	require.Empty(t, left)

	require.NoError(t, os.WriteFile(mvn, []byte(script), 0o755))
	jars, err := Setup(t.Context(), cache, nil)
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(jars, "kafka.jar"))
	require.NoError(t, os.Remove(mvn))
	again, err := Setup(t.Context(), cache, nil)
	require.NoError(t, err, "no mvn is needed any more")
	require.Equal(t, jars, again)
}

func ExampleEmbedded() {
	b, err := Embedded(EmbeddedConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()
	err = CreateTopics(context.Background(), b, Topic{Name: "clicks", Partitions: 6})
	fmt.Println(len(b.Addrs()), err)
	// Output: 1 <nil>
}
