// Package config is what the sink is told by its environment: one struct, read
// once, refused as a whole.
//
//	cfg, err := config.Parse(settings.Environ(os.Environ()))
//	if err != nil {
//		return err // a *settings.Error with every problem, by the setting's name
//	}
//	engine, err := delivery.NewEngine(cfg.Rules(), ports)
//
// The struct's tags are the one place that says what a setting is called, what
// it may be and what it means (shared/settings).
package config

import (
	"time"

	"oncehouse/shared/clickhouse"
	"oncehouse/shared/delivery"
	"oncehouse/shared/kafkacluster"
	"oncehouse/shared/memory"
	"oncehouse/shared/rowbinary"
	"oncehouse/shared/secrets"
	"oncehouse/shared/settings"
)

// Settings are all of them, in the order of the struct.
func Settings() []settings.Setting { return settings.Of(&Config{}) }

// Config is the sink's configuration. Parse makes valid ones.
type Config struct {
	_ struct{} `section:"The pipeline"`

	Pipeline     string             `env:"PIPELINE,required" match:"pipeline" doc:"The pipeline's name. It is part of the ledger's keys and of every token: never change it while the pipeline lives."`
	Topic        string             `env:"TOPIC,required" match:"topic" doc:"The one topic that is read. An event of another topic is refused."`
	Cluster      string             `env:"CLUSTER" match:"cluster" doc:"Tells two Kafka clusters apart that have the topic. By default <name>/<uuid> from the event's MSK ARN; required for self-managed Kafka. Never change it while the pipeline lives."`
	Guarantee    delivery.Guarantee `env:"GUARANTEE" envDefault:"exactly-once" oneof:"exactly-once at-least-once at-most-once" doc:"What the pipeline promises."`
	LedgerTable  string             `env:"LEDGER_TABLE" match:"dynamo" doc:"The DynamoDB table of the ledger (partition key: lane, a string). Required unless the guarantee is at-least-once; with at-least-once it marks the lanes that exactly-once knew."`
	LetterQueue  string             `env:"DEAD_LETTER_QUEUE_URL,required" match:"url" doc:"The SQS queue for records that do not fit the table."`
	LogLevel     settings.Level     `env:"LOG_LEVEL" envDefault:"info" oneof:"debug info warn error" doc:"The least level that is logged. The summary line of a lane that went well is info."`
	PartialBatch bool               `env:"REPORT_BATCH_ITEM_FAILURES" envDefault:"false" doc:"Report failed lanes and let the others pass. Only together with ReportBatchItemFailures at the event source mapping (provisioned mode): without it Lambda would take the report for success."`
	Lanes        int                `env:"LANE_CONCURRENCY" envDefault:"4" min:"1" max:"64" doc:"How many partitions of one event are delivered at a time."`

	_ struct{} `section:"Time"`

	FunctionTimeout time.Duration `env:"FUNCTION_TIMEOUT,required" min:"5s" max:"15m" doc:"The function's timeout, as Lambda has it. More than INSERT_TIMEOUT + CLOCK_MARGIN + DEADLINE_MARGIN."`
	InsertTimeout   time.Duration `env:"INSERT_TIMEOUT" envDefault:"30s" min:"1s" max:"14m" doc:"Bounds one insert, at the server too. No insert begins later than this before the end of the invocation."`
	SendWindow      time.Duration `env:"SEND_WINDOW" envDefault:"5s" min:"10ms" max:"5m" doc:"How soon after its announcement in the ledger an insert must be sent. The lane of a function that crashed is undecided for SEND_WINDOW + INSERT_TIMEOUT + CLOCK_MARGIN."`
	ClockMargin     time.Duration `env:"CLOCK_MARGIN" envDefault:"2s" min:"1ms" max:"1m" doc:"The greatest difference between any two clocks involved."`
	DeadlineMargin  time.Duration `env:"DEADLINE_MARGIN" envDefault:"1s" min:"100ms" max:"1m" doc:"Deliveries end this long before Lambda would end the function."`
	TrustHorizon    time.Duration `env:"TRUST_HORIZON" envDefault:"10m" min:"0s" max:"24h" doc:"How old an announced insert may be for its token to be trusted (Replicated and Shared tables)."`

	_ struct{} `section:"Delivery"`

	ChunkRows             int                 `env:"CHUNK_ROWS" envDefault:"500000" min:"1" max:"999999" doc:"The most rows of one insert."`
	ChunkBytes            settings.Bytes      `env:"CHUNK_BYTES" envDefault:"64MiB" min:"1KiB" max:"255MiB" doc:"The most encoded bytes of one insert."`
	Replay                delivery.Replay     `env:"REPLAY" envDefault:"auto" oneof:"auto token probe" doc:"How an insert whose answer was lost is finished: again under its token, or by looking into the table first. auto lets the table decide."`
	OnRecreate            delivery.OnRecreate `env:"ON_RECREATE" envDefault:"block" oneof:"block new-generation" doc:"What happens when the topic was deleted and made again."`
	MaxAttempts           int                 `env:"MAX_ATTEMPTS" envDefault:"3" min:"1" max:"100" doc:"How often missing rows are sent, each time under a new token, before somebody is called; from then on it is once an invocation."`
	AcceptIncompleteViews bool                `env:"ACCEPT_INCOMPLETE_VIEWS" envDefault:"false" doc:"A materialized view may miss or double a chunk whose insert was in doubt."`
	PoisonShare           float64             `env:"POISON_SHARE" envDefault:"0.5" min:"0.01" max:"1" doc:"A batch with a larger share of records that do not fit is a fault of the schema, and blocks."`
	PoisonAtLeast         int                 `env:"POISON_AT_LEAST" envDefault:"100" min:"1" max:"1000000" doc:"Batches with fewer records that do not fit are never a fault of the schema."`

	_ struct{} `section:"ClickHouse"`

	Endpoints      []string               `env:"CLICKHOUSE_URL,required" match:"endpoint" doc:"The server: https://host:8443 or http://host:8123. Several with commas are replicas of one another; a plain MergeTree table takes one."`
	Database       string                 `env:"CLICKHOUSE_DATABASE" envDefault:"default" doc:"The table's database."`
	Table          string                 `env:"CLICKHOUSE_TABLE,required" doc:"The table."`
	User           string                 `env:"CLICKHOUSE_USER" envDefault:"default" doc:"The user."`
	Password       secrets.Text           `env:"CLICKHOUSE_PASSWORD" doc:"The password, in clear. Prefer CLICKHOUSE_PASSWORD_SECRET."`
	PasswordSecret *secrets.Ref           `env:"CLICKHOUSE_PASSWORD_SECRET" match:"secret" doc:"The password's ARN in Secrets Manager; of a JSON secret with :<key> behind it."`
	CAFile         string                 `env:"CLICKHOUSE_CA_FILE" doc:"A PEM file with the authorities to trust instead of the system's."`
	ServerName     string                 `env:"CLICKHOUSE_SERVER_NAME" doc:"The name that the certificate must have instead of the URL's."`
	Proxy          string                 `env:"CLICKHOUSE_PROXY" match:"url" doc:"An HTTP proxy to go through. It must not send anything twice."`
	Compression    clickhouse.Compression `env:"CLICKHOUSE_COMPRESSION" envDefault:"none" oneof:"none gzip" doc:"How rows travel."`

	_ struct{} `section:"Kafka (the event source mapping reads it; the sink itself does only to finish what was interrupted)"`

	Brokers []string `env:"KAFKA_BROKERS" match:"broker" doc:"Bootstrap brokers. Without a route to Kafka a lane stops when only the broker could tell: an interrupted insert whose records came back in other batches, a topic that may have been recreated."`
	kafkacluster.Settings

	_ struct{} `section:"Rows"`

	Format           rowbinary.Format     `env:"FORMAT" envDefault:"json" oneof:"json raw" doc:"json: the keys of a record's JSON object are columns. raw: key, value, headers and timestamp go into the RAW_ columns as they are."`
	Unknown          rowbinary.Unknown    `env:"UNKNOWN_FIELDS" envDefault:"ignore" oneof:"ignore refuse collect" doc:"What happens to a field that no column takes. It is counted in each case."`
	Overflow         string               `env:"OVERFLOW_COLUMN" doc:"The column for unknown fields under collect: JSON, String or Map(String, String)."`
	Missing          rowbinary.Missing    `env:"MISSING_FIELDS" envDefault:"refuse" oneof:"refuse zero" doc:"What happens when a field is absent whose column has neither a default nor NULL."`
	NullAsDefault    bool                 `env:"NULL_AS_DEFAULT" envDefault:"false" doc:"Take null for a column that is not Nullable as if the field were absent."`
	CaseInsensitive  bool                 `env:"CASE_INSENSITIVE" envDefault:"false" doc:"Match fields to columns whatever their case."`
	Epoch            rowbinary.Epoch      `env:"EPOCH" envDefault:"column" oneof:"column s ms us ns" doc:"The unit of numbers in DateTime and DateTime64 columns."`
	TruncateFraction bool                 `env:"TRUNCATE_FRACTION" envDefault:"false" doc:"Drop fraction digits that a DateTime or DateTime64 column does not hold, instead of refusing the record."`
	RawJSON          []string             `env:"RAW_JSON_COLUMNS" doc:"String columns that take the JSON text of any value."`
	Tombstones       rowbinary.Tombstones `env:"TOMBSTONES" envDefault:"skip" oneof:"skip letter delete" doc:"What happens to a record without a value."`
	DeleteMarker     string               `env:"DELETE_MARKER_COLUMN" doc:"Under delete: the UInt8 or Bool column that says that a row is deleted."`
	DeleteKeys       []string             `env:"DELETE_KEY_COLUMNS" doc:"Under delete: the columns that the record's key fills."`
	DeleteKeyFormat  rowbinary.KeyFormat  `env:"DELETE_KEY_FORMAT" envDefault:"text" oneof:"text json" doc:"Under delete: the key is the text of the one key column, or a JSON object."`
	RawKey           string               `env:"RAW_KEY_COLUMN" doc:"Under raw: the column for the key."`
	RawValue         string               `env:"RAW_VALUE_COLUMN" doc:"Under raw: the column for the value."`
	RawHeaders       string               `env:"RAW_HEADERS_COLUMN" doc:"Under raw: the column for the headers."`
	RawTimestamp     string               `env:"RAW_TIMESTAMP_COLUMN" doc:"Under raw: the column for the timestamp."`

	_ struct{} `section:"Where a row comes from (columns that the table does not have are left out)"`

	TopicColumn     string `env:"TOPIC_COLUMN" envDefault:"_topic" doc:"The column for the topic. Exactly-once looks for stored rows by topic, partition and offset."`
	PartitionColumn string `env:"PARTITION_COLUMN" envDefault:"_partition" doc:"The column for the partition."`
	OffsetColumn    string `env:"OFFSET_COLUMN" envDefault:"_offset" doc:"The column for the offset."`
	TimestampColumn string `env:"TIMESTAMP_COLUMN" envDefault:"_timestamp" doc:"The column for the record's timestamp."`
	KeyColumn       string `env:"KEY_COLUMN" envDefault:"_key" doc:"The column for the record's key."`
	HeadersColumn   string `env:"HEADERS_COLUMN" envDefault:"_headers" doc:"The column for the record's headers."`

	// MemoryBytes is the function's memory, 0 outside of Lambda.
	MemoryBytes int64 `env:"-"`
}

// Parse reads a configuration. The error is a *settings.Error.
func Parse(environ map[string]string) (*Config, error) {
	c := &Config{}
	if err := settings.Read(environ, c, c.check); err != nil {
		return nil, err
	}
	c.MemoryBytes = memory.Size(environ)
	return c, nil
}

// Rules are what delivery is asked for.
func (c *Config) Rules() delivery.Rules {
	return delivery.Rules{
		Guarantee: c.Guarantee, Replay: c.Replay, OnRecreate: c.OnRecreate,
		TrustHorizon: c.TrustHorizon, InsertTimeout: c.InsertTimeout, SendWindow: c.SendWindow,
		ClockMargin: c.ClockMargin, FunctionTimeout: c.FunctionTimeout,
		ChunkLimit:            delivery.Limit{Rows: c.ChunkRows, Bytes: int(c.ChunkBytes)},
		AcceptIncompleteViews: c.AcceptIncompleteViews,
		PoisonShare:           c.PoisonShare, PoisonAtLeast: c.PoisonAtLeast, MaxAttempts: c.MaxAttempts,
	}
}

// Rows are how a record becomes a row.
func (c *Config) Rows() rowbinary.Options {
	return rowbinary.Options{
		Format: c.Format, Unknown: c.Unknown, Overflow: c.Overflow, Missing: c.Missing,
		NullAsDefault: c.NullAsDefault, CaseInsensitive: c.CaseInsensitive, Epoch: c.Epoch,
		TruncateFraction: c.TruncateFraction, RawColumns: c.RawJSON, Tombstones: c.Tombstones,
		Delete: rowbinary.Delete{Marker: c.DeleteMarker, KeyColumns: c.DeleteKeys, KeyFormat: c.DeleteKeyFormat},
		Raw:    rowbinary.RawMapping{Key: c.RawKey, Value: c.RawValue, Headers: c.RawHeaders, Timestamp: c.RawTimestamp},
		Provenance: rowbinary.Provenance{
			Topic: c.TopicColumn, Partition: c.PartitionColumn, Offset: c.OffsetColumn,
			Timestamp: c.TimestampColumn, Key: c.KeyColumn, Headers: c.HeadersColumn,
		},
	}
}

// Target is the table and how to reach it.
func (c *Config) Target() clickhouse.Config {
	return clickhouse.Config{
		Endpoints: c.Endpoints, Database: c.Database, Table: c.Table,
		User: c.User, Password: c.Password,
		CAFile: c.CAFile, ServerName: c.ServerName, Proxy: c.Proxy, Compression: c.Compression,
		Rows: c.Rows(), Rules: c.Rules(),
	}
}
