package config

import (
	"strconv"
	"strings"

	"oncehouse/shared/settings"
)

// setting is one setting of a function that the file names elsewhere. A path that
// begins with a dot is the pipeline's or the outbox's.
type setting struct{ name, path, value string }

// environment is a function's environment.
func environment(derived []setting, further map[string]string) map[string]string {
	environ := map[string]string{}
	for _, s := range derived {
		if s.value != "" {
			environ[settings.Prefix+s.name] = s.value
		}
	}
	for name, value := range further {
		if value != "" { // empty takes one of the defaults' settings back
			environ[settings.Prefix+name] = value
		}
	}
	return environ
}

// derived are the sink's settings that follow from the rest of the file.
func (c *Config) derived(p Pipeline, queueURL string) []setting {
	all := []setting{
		{"PIPELINE", ".name", p.Name},
		{"TOPIC", ".topic", p.Topic},
		{"GUARANTEE", ".guarantee", p.Guarantee},
		{"LEDGER_TABLE", "environment.name", c.LedgerTable()},
		{"DEAD_LETTER_QUEUE_URL", ".name", queueURL},
		{"REPORT_BATCH_ITEM_FAILURES", ".partial_responses", strconv.FormatBool(p.PartialResponses)},
		{"FUNCTION_TIMEOUT", ".timeout", p.Timeout.String()},
		{"CLICKHOUSE_URL", "clickhouse.urls", strings.Join(c.ClickHouse.URLs, ",")},
		{"CLICKHOUSE_DATABASE", "clickhouse.database", c.ClickHouse.Database},
		{"CLICKHOUSE_TABLE", ".table", p.Table},
		{"CLICKHOUSE_USER", "clickhouse.user", c.ClickHouse.User},
		{"CLICKHOUSE_PASSWORD_SECRET", "clickhouse.password_secret", c.ClickHouse.PasswordSecret},
		{"CLICKHOUSE_SERVER_NAME", "clickhouse.server_name", c.ClickHouse.ServerName},
		{"KAFKA_BROKERS", "cluster.brokers", ""},
		{"KAFKA_AUTH", "cluster.auth", ""},
		{"KAFKA_TLS", "cluster.auth", ""},
		{"KAFKA_SECRET", "cluster.secret", ""},
		// In clear they would be in the template, in the console and in the file.
		{"CLICKHOUSE_PASSWORD", "clickhouse.password_secret", ""},
		{"KAFKA_USER", "cluster.secret", ""},
		{"KAFKA_PASSWORD", "cluster.secret", ""},
	}
	if len(c.Cluster.Brokers) == 0 { // then the others have no meaning
		return all
	}
	kafka := map[string]string{
		"KAFKA_BROKERS": strings.Join(c.Cluster.Brokers, ","),
		"KAFKA_AUTH":    c.Cluster.Auth, "KAFKA_TLS": "true", "KAFKA_SECRET": c.Cluster.Secret,
	}
	for i := range all {
		if value, ok := kafka[all[i].name]; ok {
			all[i].value = value
		}
	}
	return all
}

// SinkEnvironment is the environment of the pipeline's function: what
// functions/sink/config parses.
func (c *Config) SinkEnvironment(p Pipeline, queueURL string) map[string]string {
	return environment(c.derived(p, queueURL), p.Settings)
}
