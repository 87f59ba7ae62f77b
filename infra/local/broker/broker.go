// Package broker gives tests, the demo and the local stack a Kafka broker, and
// does not let them care which one:
//
//	b, err := broker.Embedded(broker.EmbeddedConfig{})                // in process, ready at once
//	b, err := broker.Apache(ctx, broker.ApacheConfig{Cache: ".cache"}) // the real thing, from Maven
//	b, err := broker.Dial(ctx, "localhost:9092")                      // somebody else's
//	if err != nil {
//		return err
//	}
//	defer b.Close()
//	err = broker.CreateTopics(ctx, b, broker.Topic{Name: "clicks", Partitions: 6})
//	client, err := kgo.NewClient(kgo.SeedBrokers(b.Addrs()...))
//
// Embedded is franz-go's kfake: a broker's protocol in this process. It needs
// nothing, serves any Kafka client on loopback and takes injected faults
// (EmbeddedBroker.Cluster). It does not keep Apache Kafka's rules everywhere:
// in transactions, stale producer epochs and CONCURRENT_TRANSACTIONS differ.
//
// Apache runs Apache Kafka 4 (ApacheVersion) as one KRaft node in a Java
// process: broker and controller, plaintext on loopback. Its jars come from
// Maven Central by mvn, once, into the cache directory (45 MB, half a minute);
// after that only java (17 or newer) is needed. The process can be stopped,
// killed and restarted on the same data and the same address.
//
// Dial checks that a broker answers, and closes nothing: it is not ours.
package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Broker is a running Kafka cluster.
type Broker interface {
	// Addrs are the bootstrap addresses, host:port.
	Addrs() []string
	// Close ends what was started for it; a dialled broker is left alone.
	Close()
}

// Topic is a topic to be created.
type Topic struct {
	Name       string
	Partitions int32
	// Config are topic settings such as retention.ms; nil for the defaults.
	Config map[string]string
}

// CreateTopics creates topics with one replica. A topic that is there already
// is no error if it has as many partitions; it is left as it is. Errors name
// every topic that could not be had.
func CreateTopics(ctx context.Context, b Broker, topics ...Topic) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Addrs()...))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", strings.Join(b.Addrs(), ","), err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	var problems []error
	for _, topic := range topics {
		if err := createTopic(ctx, admin, topic); err != nil {
			problems = append(problems, fmt.Errorf("create topic %s: %w", topic.Name, err))
		}
	}
	return errors.Join(problems...)
}

// DeleteTopics gives a broker its room back after a run. One that does not want
// to, or not soon, is not a fault of the run; it happens although ctx is over.
func DeleteTopics(ctx context.Context, b Broker, names ...string) {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Addrs()...))
	if err != nil {
		return
	}
	defer client.Close()
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, _ = kadm.NewClient(client).DeleteTopics(within, names...)
}

func createTopic(ctx context.Context, admin *kadm.Client, topic Topic) error {
	config := make(map[string]*string, len(topic.Config))
	for name, value := range topic.Config {
		config[name] = kadm.StringPtr(value)
	}
	_, err := admin.CreateTopic(ctx, topic.Partitions, 1, config, topic.Name)
	if !errors.Is(err, kerr.TopicAlreadyExists) {
		return err
	}
	details, err := admin.ListTopics(ctx, topic.Name)
	if err != nil {
		return fmt.Errorf("look at the existing one: %w", err)
	}
	if have := len(details[topic.Name].Partitions); have != int(topic.Partitions) {
		return fmt.Errorf("it exists with %d partitions, %d are wanted", have, topic.Partitions)
	}
	return nil
}

// ping is nil when a broker answers and every topic it has can be used.
func ping(ctx context.Context, addrs ...string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(addrs...))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", strings.Join(addrs, ","), err)
	}
	defer client.Close()
	metadata, err := kadm.NewClient(client).Metadata(ctx)
	if err != nil {
		return fmt.Errorf("ask %s for its topics: %w", strings.Join(addrs, ","), err)
	}
	for _, topic := range metadata.Topics {
		for _, p := range topic.Partitions {
			if p.Leader < 0 {
				return fmt.Errorf("partition %s-%d has no leader", p.Topic, p.Partition)
			}
		}
	}
	return nil
}
