package config

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	poller "oncehouse/functions/outbox-poller/config"
)

// Outbox is one PostgreSQL table whose rows are published to the cluster, by one
// function.
type Outbox struct {
	// Name is the function's and that of its metrics, and part of its transactional
	// ids: no other outbox of the cluster may have it, and it never changes.
	// Pipelines and outboxes share no name.
	Name     string   `yaml:"name"`
	Database Database `yaml:"database"`
	// Shards is into how many parts the aggregates are divided, each with a poller of
	// its own.
	Shards int `yaml:"shards"`
	// Topic is the template of the topics, outbox.event.${routedByValue} by default.
	Topic string `yaml:"topic"`
	// CursorTopic is oncehouse.outbox.<name> by default, and of this outbox alone. The
	// function makes it, unless CreateCursorTopic is false.
	CursorTopic       string `yaml:"cursor_topic"`
	CreateCursorTopic bool   `yaml:"create_cursor_topic"`
	// DeadLetterTopic takes rows that cannot be published; without it they halt
	// their shard.
	DeadLetterTopic string `yaml:"dead_letter_topic"`
	// Paused disables the schedules, for an operator's action.
	Paused bool `yaml:"paused"`
	// Settings are further ones of the poller, without ONCEHOUSE_.
	Settings map[string]string `yaml:"settings"`
	// Layers are ARNs of Lambda layers: one holds the file that CA_FILE names, below /opt.
	Layers     []string `yaml:"layers"`
	Function   `yaml:",inline"`
	Thresholds OutboxThresholds `yaml:"alarms"`
}

// Database is the primary, and who logs in.
type Database struct {
	// Secret is the ARN of a JSON secret as RDS writes it; what it lacks of host,
	// port and database is given here. SecretKey is its KMS key, if that is not
	// AWS's own.
	Secret    string `yaml:"secret"`
	SecretKey string `yaml:"secret_key"`
	Host      string `yaml:"host"`
	Port      int    `yaml:"port"`
	Name      string `yaml:"name"`
	// User logs in by IAM, without a secret, at the instance or cluster with this
	// resource id (db-..., cluster-...).
	User       string `yaml:"user"`
	ResourceID string `yaml:"resource_id"`
	Schema     string `yaml:"schema"`
	Table      string `yaml:"table"`
	// CAFile is a PEM file of a layer with the authorities of RDS.
	CAFile string `yaml:"ca_file"`
}

// OutboxThresholds are where alarms begin that depend on the outbox.
type OutboxThresholds struct {
	// Lag is the age of the oldest row when it is published, or is not.
	Lag time.Duration `yaml:"lag"`
	// DeadLetters is how many in five minutes.
	DeadLetters int `yaml:"dead_letters"`
	// PartitionDays is for how many days partitions are made ahead, of a table that is
	// emptied by dropping them; it rings when they reach for a third of that.
	PartitionDays int `yaml:"partition_days"`
}

// PartitionsAhead is how far partitions have to reach.
func (t OutboxThresholds) PartitionsAhead() time.Duration {
	return time.Duration(t.PartitionDays) * 24 * time.Hour / 3
}

// InPartitions says that the table's partitions are dropped when they are published.
func (o Outbox) InPartitions() bool { return o.Settings["RETENTION"] == "partitions" }

// builtinOutbox is what an outbox has that does not say otherwise. A run is over
// shortly before the next minute's.
func builtinOutbox() Outbox {
	return Outbox{
		Shards: 1, Topic: "outbox.event." + routedBy, CreateCursorTopic: true, Database: Database{Schema: "public", Table: "outbox"},
		Function:   Function{Memory: 512, Timeout: 58 * time.Second, Architecture: ARM64, LogRetentionDays: 30},
		Thresholds: OutboxThresholds{Lag: 5 * time.Minute, DeadLetters: 1, PartitionDays: 40}, // as the migration makes them
	}
}

// routedBy stands for a row's aggregate type in a topic's template.
const routedBy = "${routedByValue}"

// OutboxName is the outbox's function, and its stack's name, too.
func (c *Config) OutboxName(o Outbox) string { return c.Prefix() + "-" + o.Name + "-outbox" }

// ScheduleName is the name of the schedule of one of the outbox's shards.
func (c *Config) ScheduleName(o Outbox, shard int) string {
	return fmt.Sprintf("%s-%d", c.OutboxName(o), shard)
}

// TransactionalIDs are those of the outbox's shards, as a pattern of IAM
// (shared/outbox/kafkalog).
func (o Outbox) TransactionalIDs() string { return "oncehouse-outbox-" + o.Name + "-*" }

// Topics are those that the outbox publishes to, as a pattern of IAM.
func (o Outbox) Topics() string { return strings.ReplaceAll(o.Topic, routedBy, "*") }

// derivedOutbox are the poller's settings that follow from the rest of the file.
func (c *Config) derivedOutbox(o Outbox) []setting {
	auth, port := "password", ""
	if o.Database.Secret == "" {
		auth = "iam"
	}
	if o.Database.Port > 0 {
		port = strconv.Itoa(o.Database.Port)
	}
	return []setting{
		{"OUTBOX", ".name", o.Name},
		{"SHARDS", ".shards", strconv.Itoa(o.Shards)},
		{"SCHEMA", ".database.schema", o.Database.Schema},
		{"TABLE", ".database.table", o.Database.Table},
		{"CURSOR_TOPIC", ".cursor_topic", o.CursorTopic},
		{"CREATE_CURSOR_TOPIC", ".create_cursor_topic", strconv.FormatBool(o.CreateCursorTopic)},
		{"DEAD_LETTER_TOPIC", ".dead_letter_topic", o.DeadLetterTopic},
		{"TOPIC_TEMPLATE", ".topic", o.Topic},
		{"DATABASE_SECRET", ".database.secret", o.Database.Secret},
		{"DATABASE_HOST", ".database.host", o.Database.Host},
		{"DATABASE_PORT", ".database.port", port},
		{"DATABASE_NAME", ".database.name", o.Database.Name},
		{"DATABASE_USER", ".database.user", o.Database.User},
		{"DATABASE_AUTH", ".database.user", auth},
		{"DATABASE_CA_FILE", ".database.ca_file", o.Database.CAFile},
		{"KAFKA_BROKERS", "cluster.brokers", strings.Join(c.Cluster.Brokers, ",")},
		{"KAFKA_AUTH", "cluster.auth", c.Cluster.Auth},
		{"KAFKA_TLS", "cluster.auth", "true"},
		{"KAFKA_SECRET", "cluster.secret", c.Cluster.Secret},
		// In clear they would be in the template, in the console and in the file.
		{"DATABASE_PASSWORD", ".database.secret", ""},
		{"KAFKA_USER", "cluster.secret", ""},
		{"KAFKA_PASSWORD", "cluster.secret", ""},
	}
}

// OutboxEnvironment is the environment of the outbox's function: what
// functions/outbox-poller/config parses.
func (c *Config) OutboxEnvironment(o Outbox) map[string]string {
	return environment(c.derivedOutbox(o), o.Settings)
}

func (r *reader) checkOutbox(c *Config, o Outbox, path string) {
	if r.form(path+".name", o.Name, nameForm, "small letters, digits and dashes, such as orders") {
		if name := c.ScheduleName(o, max(o.Shards-1, 0)); len(name) > maxFunctionName { // functions and schedules have the same limit
			r.problem(path+".name", "makes the schedule name %s of %d characters: at most %d expected", name, len(name), maxFunctionName)
		}
	}
	if len(c.Cluster.Brokers) == 0 {
		r.problem("cluster.brokers", "are missing: %s publishes to them, host:port expected", path)
	}
	if !strings.Contains(o.Topic, routedBy) {
		r.problem(path+".topic", "is %q: a template with %s expected, such as outbox.event.%s", o.Topic, routedBy, routedBy)
	}
	for i, arn := range o.Layers {
		r.form(fmt.Sprintf("%s.layers[%d]", path, i), arn, layerForm, "the ARN of a version of a Lambda layer, arn:aws:lambda:...:layer:<name>:<version>")
	}
	r.checkDatabase(c, o.Database, path+".database")
	r.checkFunction(o.Function, path)
	if o.Thresholds.Lag < time.Second {
		r.problem(path+".alarms.lag", "is %s: at least 1s expected", o.Thresholds.Lag)
	}
	r.between(path+".alarms.dead_letters", o.Thresholds.DeadLetters, 1, 1<<40)
	r.between(path+".alarms.partition_days", o.Thresholds.PartitionDays, 1, 3650)
	r.notDerived(c.derivedOutbox(o), o.Settings, path)
}

var (
	layerForm    = regexp.MustCompile(`^arn:aws[a-z-]*:lambda:[a-z0-9-]+:\d{12}:layer:[A-Za-z0-9_-]+:\d+$`)
	resourceForm = regexp.MustCompile(`^(db|cluster)-[A-Z0-9]+$`)
)

// checkDatabase: RDS' secret, or RDS' IAM, which knows an instance by its resource id.
// https://docs.aws.amazon.com/AmazonRDS/latest/UserGuide/UsingWithRDS.IAMDBAuth.IAMPolicy.html
func (r *reader) checkDatabase(c *Config, d Database, path string) {
	if d.Secret == "" {
		for at, value := range map[string]string{".host": d.Host, ".name": d.Name, ".user": d.User} {
			if value == "" {
				r.problem(path+at, "is missing: without %s.secret (password) the function logs in by IAM, with host, name, user and resource_id", path)
			}
		}
		r.form(path+".resource_id", d.ResourceID, resourceForm, "the resource id of the instance or cluster, db-... or cluster-...")
		return
	}
	if r.form(path+".secret", d.Secret, secretForm, "the whole ARN of a JSON secret with username and password, arn:aws:secretsmanager:<region>:<account>:secret:<name>-<6 characters>") {
		r.sameRegion(c, path+".secret", secretForm.FindStringSubmatch(d.Secret)[1])
	}
	if d.SecretKey != "" {
		r.form(path+".secret_key", d.SecretKey, keyForm, "the ARN of a KMS key, arn:aws:kms:...:key/...")
	}
	for at, value := range map[string]string{".user": d.User, ".resource_id": d.ResourceID} {
		if value != "" {
			r.problem(path+at, "goes with IAM, without %s.secret: leave one of them out", path)
		}
	}
}

// checkPoller asks the poller's own parser.
func (r *reader) checkPoller(c *Config, o Outbox, path string) {
	cfg, err := poller.Parse(c.OutboxEnvironment(o))
	r.refused(err, c.derivedOutbox(o), path, "the outbox poller")
	if err == nil && o.Timeout <= cfg.DeadlineMargin+cfg.Reserve {
		r.problem(path+".timeout", "is %s: more than DEADLINE_MARGIN + RESERVE (%s) expected, or nothing could be published; a minute less a moment is meant", o.Timeout, cfg.DeadlineMargin+cfg.Reserve)
	}
}
