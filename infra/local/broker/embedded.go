package broker

import (
	"fmt"
	"io"

	"github.com/twmb/franz-go/pkg/kfake"
)

// EmbeddedConfig describes an embedded broker. The zero value is a good one.
type EmbeddedConfig struct {
	// Brokers is how many addresses there are; default 1.
	Brokers int
	// Topics exist from the start.
	Topics []Topic
	// Port is the port of a single broker; default a free one.
	Port int
	// Dir keeps topics, records and group offsets over restarts; "" keeps
	// them in memory.
	Dir string
	// Log takes warnings; nil discards them.
	Log io.Writer
}

// EmbeddedBroker is a broker in this process.
type EmbeddedBroker struct{ cluster *kfake.Cluster }

// Embedded starts a broker in this process. Error: the port is taken or the
// directory cannot be used.
func Embedded(cfg EmbeddedConfig) (*EmbeddedBroker, error) {
	opts := []kfake.Opt{kfake.NumBrokers(max(cfg.Brokers, 1))}
	for _, topic := range cfg.Topics {
		opts = append(opts, kfake.SeedTopics(topic.Partitions, topic.Name))
	}
	if cfg.Port != 0 {
		opts = append(opts, kfake.Ports(cfg.Port))
	}
	if cfg.Dir != "" {
		opts = append(opts, kfake.DataDir(cfg.Dir))
	}
	if cfg.Log != nil {
		opts = append(opts, kfake.WithLogger(kfake.BasicLogger(cfg.Log, kfake.LogLevelWarn)))
	}
	cluster, err := kfake.NewCluster(opts...)
	if err != nil {
		return nil, fmt.Errorf("start the embedded broker: %w", err)
	}
	return &EmbeddedBroker{cluster}, nil
}

// Addrs are its loopback addresses.
func (b *EmbeddedBroker) Addrs() []string { return b.cluster.ListenAddrs() }

// Cluster is the fake itself, for faults: Cluster().ControlKey answers a
// request in the broker's place.
func (b *EmbeddedBroker) Cluster() *kfake.Cluster { return b.cluster }

// Close ends the broker. With a directory it can be started again on it.
func (b *EmbeddedBroker) Close() { b.cluster.Close() }
