package kafkalog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncehouse/shared/outbox"
)

// The reasons of this package's refusals.
const (
	ReasonCursorTopic   = "CursorTopicWrong"
	ReasonCursorForeign = "CursorTopicForeign"
	ReasonLimitLowered  = "LimitLowered"
)

// described is a topic as it was a moment ago.
type described struct {
	outbox.Topic
	at time.Time
}

// Topics implements outbox.Log.
func (l *Log) Topics(ctx context.Context, names []string) (map[string]outbox.Topic, error) {
	if l.client == nil {
		return nil, errors.New("the log is not open")
	}
	found := map[string]outbox.Topic{}
	var ask []string
	for _, name := range names {
		if name == l.config.CursorTopic { // the shard could never be opened again
			return nil, &outbox.Refusal{
				Reason: ReasonCursorForeign, Problems: []string{"a row would go to the cursor topic " + name},
				Remedy: "change the topic template or the dead-letter topic, or delete the row with that aggregate type",
			}
		}
		if d, ok := l.topics[name]; ok && time.Since(d.at) < topicsFor {
			found[name] = d.Topic
		} else {
			ask = append(ask, name)
		}
	}
	if len(ask) == 0 {
		return found, nil
	}
	admin := kadm.NewClient(l.client)
	topics, err := admin.ListTopics(ctx, ask...)
	if err != nil {
		return nil, l.explain(fmt.Errorf("list topics: %w", err), time.Time{})
	}
	for name, detail := range topics {
		switch {
		case errors.Is(detail.Err, kerr.UnknownTopicOrPartition):
			continue
		case detail.Err != nil:
			return nil, l.explain(fmt.Errorf("describe topic %s: %w", name, detail.Err), time.Time{})
		}
		settings, err := settingsOf(ctx, admin, name)
		if err != nil {
			return nil, l.explain(err, time.Time{})
		}
		now := time.Now()
		t, err := topicOf(len(detail.Partitions), settings, now)
		if err != nil {
			return nil, fmt.Errorf("read the settings of topic %s: %w", name, err)
		}
		found[name], l.topics[name] = t, described{t, now}
	}
	return found, nil
}

// topicOf is a topic by its settings.
func topicOf(partitions int, settings map[string]string, now time.Time) (outbox.Topic, error) {
	limit, err := strconv.ParseInt(settings["max.message.bytes"], 10, 32)
	if err != nil {
		return outbox.Topic{}, fmt.Errorf("max.message.bytes is %q: %w", settings["max.message.bytes"], err)
	}
	t := outbox.Topic{
		Partitions: int32(partitions), MaxMessageBytes: int32(limit),
		Compacted: strings.Contains(settings["cleanup.policy"], "compact"),
	}
	if settings["message.timestamp.type"] == "LogAppendTime" {
		return t, nil // the broker stamps them itself
	}
	if before := timestampLimit(settings, "message.timestamp.before.max.ms"); before < math.MaxInt64 {
		t.Earliest = max(0, now.UnixMilli()-before+margin(before))
	}
	if after := timestampLimit(settings, "message.timestamp.after.max.ms"); after < math.MaxInt64 {
		// A row was there before it was read: what is just ahead are clocks that differ.
		t.Latest = now.UnixMilli() + max(after-margin(after), time.Minute.Milliseconds())
	}
	return t, nil
}

// timestampLimit is how far a timestamp may be from the broker's clock, in
// milliseconds; math.MaxInt64 is anywhere. Where it is not set,
// message.timestamp.difference.max.ms is in force, for both sides: the only one before
// Kafka 3.6, and gone with 4 (KIP-937).
func timestampLimit(settings map[string]string, name string) int64 {
	for _, name := range []string{name, "message.timestamp.difference.max.ms"} {
		if limit, err := strconv.ParseInt(settings[name], 10, 64); err == nil && limit < math.MaxInt64 {
			return limit
		}
	}
	return math.MaxInt64
}

// margin is how far within a limit a timestamp has to be: clocks differ, and a row
// may be sent some time after its topic was described.
func margin(limit int64) int64 { return min(limit/10, time.Hour.Milliseconds()) }

// settingsOf are the settings of one topic, defaults included.
func settingsOf(ctx context.Context, admin *kadm.Client, topic string) (map[string]string, error) {
	configs, err := admin.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("read the settings of topic %s: %w", topic, err)
	}
	settings := map[string]string{}
	for _, c := range configs {
		if c.Err != nil {
			return nil, fmt.Errorf("read the settings of topic %s: %w", topic, c.Err)
		}
		for _, s := range c.Configs {
			settings[s.Key] = s.MaybeValue()
		}
	}
	return settings, nil
}

// checkTopic refuses a cursor topic that would forget, and creates one if told to.
// Its client is one of its own: a client remembers for a while that a topic is
// missing.
func (l *Log) checkTopic(ctx context.Context) error {
	client, err := kgo.NewClient(l.config.plain()...)
	if err != nil {
		return fmt.Errorf("connect to Kafka: %w", err)
	}
	defer client.Close()
	admin, topic := kadm.NewClient(client), l.config.CursorTopic
	topics, err := admin.ListTopics(ctx, topic)
	if err != nil {
		return fmt.Errorf("list topics: %w", err)
	}
	detail := topics[topic]
	switch {
	case errors.Is(detail.Err, kerr.UnknownTopicOrPartition) && l.config.Create:
		return l.createTopic(ctx, client)
	case errors.Is(detail.Err, kerr.UnknownTopicOrPartition):
		return &outbox.Refusal{
			Reason: ReasonCursorTopic, Problems: []string{fmt.Sprintf("cursor topic %s does not exist", topic)},
			Remedy: l.create(),
		}
	case detail.Err != nil:
		return fmt.Errorf("describe cursor topic %s: %w", topic, detail.Err)
	}
	settings, err := settingsOf(ctx, admin, topic)
	if err != nil {
		return err
	}
	if problems := l.topicProblems(len(detail.Partitions), settings); problems != nil {
		return &outbox.Refusal{Reason: ReasonCursorTopic, Problems: problems, Remedy: l.create()}
	}
	return nil
}

func (l *Log) topicProblems(partitions int, settings map[string]string) []string {
	var problems []string
	topic := l.config.CursorTopic
	if partitions < l.config.Shard.Of {
		problems = append(problems, fmt.Sprintf("cursor topic %s has %d partitions for %d shards", topic, partitions, l.config.Shard.Of))
	}
	if policy := settings["cleanup.policy"]; policy != "compact" {
		problems = append(problems, fmt.Sprintf("cursor topic %s has cleanup.policy=%s: it would forget the cursor", topic, policy))
	}
	if limit, err := strconv.Atoi(settings["max.message.bytes"]); err != nil || limit < largestPlan {
		problems = append(problems, fmt.Sprintf("cursor topic %s has max.message.bytes=%s: plans of up to %d would not fit", topic, settings["max.message.bytes"], largestPlan))
	}
	lag, err := strconv.ParseInt(settings["min.compaction.lag.ms"], 10, 64)
	if l.config.MinCompactionLag > 0 && (err != nil || lag < l.config.MinCompactionLag.Milliseconds()) {
		problems = append(problems, fmt.Sprintf("cursor topic %s has min.compaction.lag.ms=%s: plans could be cleaned away before they are finished", topic, settings["min.compaction.lag.ms"]))
	}
	return problems
}

// topicConfig is what a cursor topic must have.
func (l *Log) topicConfig() map[string]*string {
	config := map[string]*string{"cleanup.policy": kadm.StringPtr("compact")}
	if lag := l.config.MinCompactionLag; lag > 0 {
		config["min.compaction.lag.ms"] = kadm.StringPtr(strconv.FormatInt(lag.Milliseconds(), 10))
	}
	return config
}

// create is the remedy: the topic as it should be.
func (l *Log) create() string {
	var config []string
	for key, value := range l.topicConfig() {
		config = append(config, key+"="+*value)
	}
	slices.Sort(config)
	return fmt.Sprintf("create or alter it: %d partitions, %s; or let the poller create it", l.config.Shard.Of, strings.Join(config, ", "))
}

// createTopic creates the cursor topic and waits until the brokers know of it.
func (l *Log) createTopic(ctx context.Context, client *kgo.Client) error {
	topic := l.config.CursorTopic
	_, err := kadm.NewClient(client).CreateTopic(ctx, int32(l.config.Shard.Of), -1, l.topicConfig(), topic)
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) { // another shard was faster
		return fmt.Errorf("create cursor topic %s: %w", topic, err)
	}
	for {
		_, err := l.locate(ctx, client)
		if err == nil || !kerr.IsRetriable(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for cursor topic %s: %w", topic, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
