// Package config is what the outbox poller is told by its environment: one
// struct, read once, refused as a whole.
//
//	cfg, err := config.Parse(settings.Environ(os.Environ()))
//	if err != nil {
//		return err // a *settings.Error with every problem, by the setting's name
//	}
//	poller, err := outbox.NewPoller(cfg.Shard(0), table, log, cfg.Router(), cfg.Rules())
//
// The struct's tags are the one place that says what a setting is called, what
// it may be and what it means (shared/settings).
package config

import (
	"cmp"
	"strings"
	"time"

	"oncehouse/shared/kafkacluster"
	"oncehouse/shared/memory"
	"oncehouse/shared/outbox"
	"oncehouse/shared/outbox/kafkalog"
	"oncehouse/shared/outbox/postgres"
	"oncehouse/shared/secrets"
	"oncehouse/shared/settings"
)

// Config is the poller's configuration. Parse makes valid ones.
type Config struct {
	_ struct{} `section:"The outbox"`

	Outbox      string         `env:"OUTBOX,required" match:"pipeline" doc:"The outbox's name, for metrics, too. Its transactional ids are made of it: it must be the only one of that name in the Kafka cluster, and never change while the outbox lives."`
	Schema      string         `env:"SCHEMA" envDefault:"public" match:"identifier" doc:"The schema of the outbox table."`
	Table       string         `env:"TABLE" envDefault:"outbox" match:"identifier" doc:"The outbox table."`
	Shards      int            `env:"SHARDS" envDefault:"1" min:"1" max:"256" doc:"Into how many parts the aggregates are divided. Each has a poller of its own. Never change it without the action reshard."`
	CursorTopic string         `env:"CURSOR_TOPIC" match:"topic" doc:"The compacted topic that holds how far each shard is published: one partition for each shard, of this outbox alone. By default oncehouse.outbox.<OUTBOX>."`
	Create      bool           `env:"CREATE_CURSOR_TOPIC" envDefault:"false" doc:"Make the cursor topic if there is none."`
	Compaction  time.Duration  `env:"MIN_COMPACTION_LAG" envDefault:"168h" min:"0s" max:"8760h" doc:"How long the cursor topic must keep what it compacts (min.compaction.lag.ms). 0s takes whatever it has, for clusters where it cannot be set."`
	DeadLetters string         `env:"DEAD_LETTER_TOPIC" match:"topic" doc:"The topic for rows that cannot be published, in the same transaction. Without it the first such row halts its shard, and with it all that follow."`
	LogLevel    settings.Level `env:"LOG_LEVEL" envDefault:"info" oneof:"debug info warn error" doc:"The least level that is logged. The summary line of a run that went well is info."`

	_ struct{} `section:"Columns"`

	IDColumn            string `env:"ID_COLUMN" envDefault:"id" match:"identifier" doc:"The event's id. It becomes the header id."`
	AggregateTypeColumn string `env:"AGGREGATE_TYPE_COLUMN" envDefault:"aggregatetype" match:"identifier" doc:"What the topic's name is made of."`
	AggregateIDColumn   string `env:"AGGREGATE_ID_COLUMN" envDefault:"aggregateid" match:"identifier" doc:"The record's key: what events are kept in order by. It also decides the shard: with more than one, never change it without the action reshard."`
	TypeColumn          string `env:"TYPE_COLUMN" envDefault:"type" match:"identifier" doc:"The event's type, for HEADERS."`
	PayloadColumn       string `env:"PAYLOAD_COLUMN" envDefault:"payload" match:"identifier" doc:"The record's value, as PostgreSQL prints it: jsonb, json, text or bytea."`
	SeqColumn           string `env:"SEQ_COLUMN" envDefault:"seq" match:"identifier" doc:"The identity that says in which order rows were inserted."`
	XIDColumn           string `env:"XID_COLUMN" envDefault:"xid" match:"identifier" doc:"The id of the transaction that inserted the row (xid8)."`
	TimestampColumn     string `env:"TIMESTAMP_COLUMN" match:"identifier" doc:"The column for the record's timestamp: timestamp, timestamptz or a whole number. Without it a record is as old as its transaction."`
	TimestampUnit       string `env:"TIMESTAMP_UNIT" envDefault:"ms" oneof:"s ms us ns" doc:"The unit of TIMESTAMP_COLUMN where it is a number."`

	_ struct{} `section:"Records"`

	TopicTemplate string   `env:"TOPIC_TEMPLATE" envDefault:"outbox.event.${routedByValue}" doc:"The topic of a row; ${routedByValue} is its aggregate type (Debezium's route.topic.replacement). The topics have to exist."`
	Headers       []string `env:"HEADERS" doc:"Columns that become headers: column:header or column:header:alias (Debezium's table.fields.additional.placement)."`
	Tombstones    bool     `env:"TOMBSTONES" envDefault:"false" doc:"Publish a row without a payload as a tombstone. Without it such a row cannot be published."`

	_ struct{} `section:"Time and size"`

	DeadlineMargin   time.Duration  `env:"DEADLINE_MARGIN" envDefault:"1s" min:"100ms" max:"1m" doc:"A run ends this long before Lambda would end the function. The function's timeout must be longer than DEADLINE_MARGIN + RESERVE."`
	Reserve          time.Duration  `env:"RESERVE" envDefault:"4s" min:"200ms" max:"1m" doc:"How long before its end a run begins no more transactions: half of it is for the last one, half for leaving none open."`
	PollInterval     time.Duration  `env:"POLL_INTERVAL" envDefault:"20ms" min:"1ms" max:"1m" doc:"The wait after a look that found no rows."`
	CursorInterval   time.Duration  `env:"CURSOR_INTERVAL" envDefault:"30s" min:"1s" max:"1h" doc:"How often the cursor is written while there are no rows: what is behind it may be removed."`
	StatementTimeout time.Duration  `env:"STATEMENT_TIMEOUT" envDefault:"30s" min:"1s" max:"14m" doc:"Bounds each statement, at the server."`
	TransactionRows  int            `env:"TRANSACTION_ROWS" envDefault:"1000" min:"1" max:"100000" doc:"The most rows of one Kafka transaction."`
	TransactionBytes settings.Bytes `env:"TRANSACTION_BYTES" envDefault:"8MiB" min:"64KiB" max:"256MiB" doc:"The most bytes of one Kafka transaction."`

	TransactionTimeout time.Duration `env:"TRANSACTION_TIMEOUT" envDefault:"15s" min:"1s" max:"15m" doc:"How long Kafka lets a transaction stay open that nobody ends. It is less where less time remains."`

	_ struct{} `section:"Retention (what is published is removed while the poller runs, or never)"`

	Retention     string        `env:"RETENTION" envDefault:"none" oneof:"none delete partitions" doc:"none: the table keeps its rows. delete: published rows are deleted, some at a time. partitions: partitions are dropped when all of their rows are published."`
	RetentionKeep time.Duration `env:"RETENTION_KEEP" envDefault:"24h" min:"1m" max:"8760h" doc:"How long rows stay at least: by TIMESTAMP_COLUMN, or from the end of their partition on. Longer than any transaction that writes events. Without TIMESTAMP_COLUMN deleted rows go as soon as they are published."`
	RetentionRows int           `env:"RETENTION_ROWS" envDefault:"10000" min:"1" max:"1000000" doc:"Under delete: the most rows at a time, every ten seconds, or every second while there are more."`
	LockTimeout   time.Duration `env:"LOCK_TIMEOUT" envDefault:"100ms" min:"1ms" max:"10s" doc:"Under partitions: how long a DROP may wait, and inserts behind it. Then it is tried again later."`

	_ struct{} `section:"PostgreSQL (the primary: a replica is refused)"`

	DatabaseHost     string       `env:"DATABASE_HOST" doc:"The server. Required unless DATABASE_SECRET names it."`
	DatabasePort     int          `env:"DATABASE_PORT" envDefault:"0" min:"0" max:"65535" doc:"The port. 0 is the secret's, or else 5432."`
	DatabaseName     string       `env:"DATABASE_NAME" doc:"The database. Required unless DATABASE_SECRET names it."`
	DatabaseUser     string       `env:"DATABASE_USER" doc:"The user. Required unless DATABASE_SECRET names it."`
	DatabaseAuth     string       `env:"DATABASE_AUTH" envDefault:"password" oneof:"password iam" doc:"How the function authenticates. iam is that of RDS, with the function's own role."`
	DatabasePassword secrets.Text `env:"DATABASE_PASSWORD" doc:"The password, in clear. Prefer DATABASE_SECRET."`
	DatabaseSecret   *secrets.Ref `env:"DATABASE_SECRET" match:"secret" doc:"The ARN of a JSON secret as RDS writes it: username and password, and host, port and dbname where the settings above are not set. It is fetched for each connection, since RDS rotates it."`
	DatabaseTLS      string       `env:"DATABASE_TLS" envDefault:"verify-full" oneof:"verify-full disable" doc:"verify-full: by TLS, with a certificate that is the server's. disable: in clear."`
	DatabaseCAFile   string       `env:"DATABASE_CA_FILE" doc:"A PEM file with the authorities to trust instead of the system's. Those of RDS are not among the system's: https://truststore.pki.rds.amazonaws.com/global/global-bundle.pem."`

	_ struct{} `section:"Kafka"`

	Brokers []string `env:"KAFKA_BROKERS,required" match:"broker" doc:"Bootstrap brokers."`
	kafkacluster.Settings
	Compression string `env:"KAFKA_COMPRESSION" envDefault:"lz4" oneof:"none gzip snappy lz4 zstd" doc:"How records travel, and lie in the topics."`

	// MemoryBytes is the function's memory, 0 outside of Lambda.
	MemoryBytes int64 `env:"-"`

	router *outbox.Router
}

// Settings are all of them, in the order of the struct.
func Settings() []settings.Setting { return settings.Of(&Config{}) }

// Parse reads a configuration. The error is a *settings.Error.
func Parse(environ map[string]string) (*Config, error) {
	c := &Config{}
	if err := settings.Read(environ, c, c.check); err != nil {
		return nil, err
	}
	c.MemoryBytes = memory.Size(environ)
	return c, nil
}

// Router is how a row becomes a record.
func (c *Config) Router() *outbox.Router { return c.router }

// Shard is the shard with that index.
func (c *Config) Shard(index int) outbox.Shard {
	return outbox.Shard{Index: index, Of: c.Shards, By: c.AggregateIDColumn}
}

// Rules are how a shard is polled.
func (c *Config) Rules() outbox.Rules {
	return outbox.Rules{
		Rows: c.TransactionRows, Bytes: int(c.TransactionBytes),
		Poll: c.PollInterval, Keep: c.CursorInterval, Reserve: c.Reserve, DeadLetters: c.DeadLetters,
	}
}

// TableOf is where the rows of a shard are.
func (c *Config) TableOf(shard outbox.Shard) postgres.Config {
	return postgres.Config{
		Schema: c.Schema, Table: c.Table, Shard: shard, StatementTimeout: c.StatementTimeout,
		Columns: postgres.Columns{
			ID: c.IDColumn, AggregateType: c.AggregateTypeColumn, AggregateID: c.AggregateIDColumn, Type: c.TypeColumn,
			Payload: c.PayloadColumn, Seq: c.SeqColumn, XID: c.XIDColumn,
			Timestamp: c.TimestampColumn, TimestampUnit: postgres.Unit(c.TimestampUnit), Extra: c.router.Columns(),
		},
	}
}

// RetentionOf is what of the published rows may go; ok is false for nothing.
func (c *Config) RetentionOf() (r postgres.Retention, ok bool) {
	return postgres.Retention{
		Partitions: c.Retention == "partitions", Keep: c.RetentionKeep, LockTimeout: c.LockTimeout, Rows: c.RetentionRows,
	}, c.Retention != "none"
}

// LogOf is where a shard publishes them.
func (c *Config) LogOf(shard outbox.Shard, cluster kafkacluster.Cluster) kafkalog.Config {
	return kafkalog.Config{
		Cluster: cluster, Outbox: c.Outbox, Shard: shard, CursorTopic: c.CursorTopic, Create: c.Create,
		MinCompactionLag: cmp.Or(c.Compaction, -1), TransactionTimeout: c.TransactionTimeout, Compression: c.Compression,
	}
}

// check checks what no setting can be judged for alone.
func (c *Config) check(p *settings.Problems) {
	p.Unless(c.DeadLetters != cmp.Or(c.CursorTopic, kafkalog.DefaultCursorTopic(c.Outbox)), "DEAD_LETTER_TOPIC",
		"is the cursor topic, which is compacted and holds cursors only")
	c.checkDatabase(p)
	c.Check(p, c.Brokers)
	var err error
	c.router, err = outbox.NewRouter(outbox.Routing{
		Topic: c.TopicTemplate, Placement: strings.Join(c.Headers, ","), TypeColumn: c.TypeColumn, Tombstones: c.Tombstones,
		Columns: []string{c.IDColumn, c.AggregateTypeColumn, c.AggregateIDColumn, c.PayloadColumn, c.SeqColumn, c.XIDColumn},
	})
	if err != nil { // what only the router knows
		p.AddWhole(err)
	}
}

// checkDatabase checks the way to PostgreSQL as a whole.
func (c *Config) checkDatabase(p *settings.Problems) {
	if c.DatabaseSecret == nil {
		for _, s := range []struct{ name, value string }{
			{"DATABASE_HOST", c.DatabaseHost}, {"DATABASE_NAME", c.DatabaseName}, {"DATABASE_USER", c.DatabaseUser},
		} {
			p.Unless(s.value != "", s.name, "is missing, and there is no ONCEHOUSE_DATABASE_SECRET that could name it")
		}
	}
	p.Unless(c.DatabasePassword == "" || c.DatabaseSecret == nil, "DATABASE_PASSWORD",
		"is set, and so is ONCEHOUSE_DATABASE_SECRET: one of the two expected")
	if c.DatabaseAuth == "iam" {
		p.Unless(c.DatabasePassword == "" && c.DatabaseSecret == nil, "DATABASE_AUTH", "is iam, which takes no password")
		p.Unless(c.DatabaseTLS == "verify-full", "DATABASE_TLS", "is %s: verify-full expected, iam works only by TLS", c.DatabaseTLS)
	}
	p.Unless(c.DatabaseCAFile == "" || c.DatabaseTLS == "verify-full", "DATABASE_CA_FILE", "is set, and ONCEHOUSE_DATABASE_TLS is %s", c.DatabaseTLS)
}
