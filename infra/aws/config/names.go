package config

import (
	"fmt"
	"strings"
)

// Prefix is what every name of the installation begins with.
func (c *Config) Prefix() string { return "oncehouse-" + c.Environment.Name }

// LedgerTable is the name of the ledger's table. It is fixed, and not made up by
// CloudFormation, so that a second ledger cannot come into being by accident: an
// empty one would make every lane forget what it has stored.
func (c *Config) LedgerTable() string { return c.Prefix() + "-ledger" }

// AlarmTopic is the name of the SNS topic of the alarms.
func (c *Config) AlarmTopic() string { return c.Prefix() + "-alarms" }

// FunctionName is the pipeline's function, and its stack's name, too.
func (c *Config) FunctionName(p Pipeline) string { return c.Prefix() + "-" + p.Name }

// LettersQueue is the name of the queue of the pipeline's dead letters.
func (c *Config) LettersQueue(p Pipeline) string { return c.FunctionName(p) + "-letters" }

// LogGroup is the name of a function's log group.
func LogGroup(function string) string { return "/aws/lambda/" + function }

// InCluster is the ARN of a topic, group or transactional id of the cluster:
// arn:...:cluster/<name>/<uuid> has those of the same path.
// https://docs.aws.amazon.com/msk/latest/developerguide/kafka-actions.html
func (c *Config) InCluster(kind, name string) string {
	return strings.Replace(c.Cluster.ARN, ":cluster/", ":"+kind+"/", 1) + "/" + name
}

// ConsumerGroup is the Kafka consumer group of the pipeline's mapping.
func (c *Config) ConsumerGroup(p Pipeline) string {
	return fmt.Sprintf("%s-v%d", c.FunctionName(p), p.GroupVersion)
}
