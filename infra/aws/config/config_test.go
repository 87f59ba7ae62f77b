package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/aws/config"
)

const file = `
environment:
  name: production
  account: "111122223333"
  region: eu-west-1
  network:
    subnets: [subnet-1a]
    security_groups: [sg-1a]
cluster:
  arn: arn:aws:kafka:eu-west-1:111122223333:cluster/events/3fd2a1b0-s1
  type: provisioned
  auth: iam
clickhouse:
  urls: [https://ch.example.com:8443]
  database: default
  user: oncehouse
  password_secret: arn:aws:secretsmanager:eu-west-1:111122223333:secret:ch-AbCdEf:password
defaults:
  memory: 512
  settings: {EPOCH: ms}
  alarms: {event_lag: 5m}
pipelines:
  - name: clicks
  - name: orders
    topic: shop.orders
    memory: 2048
    settings: {UNKNOWN_FIELDS: refuse}
`

func TestAPipelineIsOnTopOfTheDefaults(t *testing.T) {
	c, err := config.Parse("f.yaml", []byte(file))
	require.NoError(t, err)
	clicks, orders := c.Pipelines[0], c.Pipelines[1]

	require.Equal(t, []string{"clicks", "clicks"}, []string{clicks.Topic, clicks.Table})
	require.Equal(t, []string{"shop.orders", "orders"}, []string{orders.Topic, orders.Table})
	require.Equal(t, []int{512, 2048}, []int{clicks.Memory, orders.Memory})
	require.Equal(t, map[string]string{"EPOCH": "ms"}, clicks.Settings, "one pipeline's settings are not another's")
	require.Equal(t, map[string]string{"EPOCH": "ms", "UNKNOWN_FIELDS": "refuse"}, orders.Settings)
	require.Equal(t, 5*time.Minute, orders.Thresholds.EventLag)
	require.Equal(t, 50, orders.Thresholds.DuplicatesPercent)
	require.Equal(t, config.Pollers{Minimum: 1, Maximum: 1}, clicks.Pollers, "no scaling, no rebalances")
	require.Nil(t, clicks.OnFailure)
	require.True(t, clicks.PartialResponses)
	require.Equal(t, "warn", clicks.MappingLog)
	require.Equal(t, "oncehouse-production-clicks", c.FunctionName(clicks))
	require.Equal(t, "oncehouse-production-clicks-v1", c.ConsumerGroup(clicks))
}

func TestExamplesAreAccepted(t *testing.T) {
	examples, err := filepath.Glob("../examples/*.yaml")
	require.NoError(t, err)
	require.Len(t, examples, 3)
	for _, path := range examples {
		_, err := config.Read(path)
		require.NoError(t, err)
	}
}

// change is an edit of the file and what is said to it.
type change struct{ old, new, path, says string }

func TestWrongFilesAreRefused(t *testing.T) {
	const pipeline = "  - name: clicks\n"
	at := func(text string) string { return pipeline + "    " + text + "\n" }
	for name, c := range map[string]change{
		"unknown key":             {"  region:", "  regoin: x\n  region:", "environment.regoin", "is no key: one of account, key, name, network, region, tags expected"},
		"unknown key in a list":   {pipeline, at("tabel: x"), "pipelines[0].tabel", "is no key"},
		"key twice":               {"  region: eu-west-1", "  region: eu-west-1\n  region: eu-west-1", "environment.region", "is there twice"},
		"list for a mapping":      {"cluster:\n", "cluster: []\nx:\n", "cluster", "is a list: keys with values expected"},
		"mapping for a text":      {"name: production", "name: {a: b}", "environment.name", "is keys with values: a text expected"},
		"text for a list":         {"[https://ch.example.com:8443]", "https://ch.example.com:8443", "clickhouse.urls", "is one value: a list expected"},
		"text for a number":       {pipeline, at("batch_size: many"), "pipelines[0].batch_size", `is "many": a whole number expected`},
		"number for a duration":   {pipeline, at("timeout: 60"), "pipelines[0].timeout", "a duration such as 1m30s expected"},
		"environment name":        {"name: production", "name: Production", "environment.name", "small letters"},
		"account":                 {`"111122223333"`, "1234", "environment.account", "12 digits"},
		"region":                  {"region: eu-west-1", "region: Ireland", "environment.region", "an AWS region such as eu-west-1 expected"},
		"network without subnets": {"[subnet-1a]", "[]", "environment.network.subnets", "are missing"},
		"a group for a subnet":    {"[subnet-1a]", "[sg-1a]", "environment.network.subnets[0]", "subnet-"},
		"no cluster":              {"arn: arn:aws:kafka:eu-west-1:111122223333:cluster/events/3fd2a1b0-s1", "", "cluster.arn", "is missing"},
		"cluster elsewhere":       {"kafka:eu-west-1", "kafka:eu-west-2", "cluster.arn", "is of region eu-west-2"},
		"cluster of others":       {"1:111122223333:cluster", "1:999999999999:cluster", "cluster.arn", "is of account 999999999999"},
		"cluster type":            {"type: provisioned", "type: express", "cluster.type", "serverless or provisioned expected"},
		"serverless with scram":   {"type: provisioned\n  auth: iam", "type: serverless\n  auth: scram-sha-512", "cluster.auth", "MSK Serverless has nothing else"},
		"scram without secret":    {"auth: iam", "auth: scram-sha-512", "cluster.secret", "is missing"},
		"scram without key":       {"auth: iam", "auth: scram-sha-512\n  secret: arn:aws:secretsmanager:eu-west-1:111122223333:secret:AmazonMSK_x-AbCdEf", "cluster.secret_key", "customer managed key"},
		"scram secret's name":     {"auth: iam", "auth: scram-sha-512\n  secret: arn:aws:secretsmanager:eu-west-1:111122223333:secret:x-AbCdEf", "cluster.secret", "begins with AmazonMSK_"},
		"iam with secret":         {"auth: iam", "auth: iam\n  secret: x", "cluster.secret", "leave it out"},
		"broker without port":     {"auth: iam", "auth: iam\n  brokers: [b-1.example.com]", "cluster.brokers", "host:port"},
		"no server":               {"[https://ch.example.com:8443]", "[]", "clickhouse.urls", "are missing"},
		"server without port":     {"https://ch.example.com:8443", "https://ch.example.com", "clickhouse.urls", "host:port"},
		"no password":             {"password_secret: arn:aws:secretsmanager:eu-west-1:111122223333:secret:ch-AbCdEf:password", "", "clickhouse.password_secret", "the whole ARN expected"},
		"password's short ARN":    {"secret:ch-AbCdEf", "secret:ch", "clickhouse.password_secret", "the whole ARN expected"},
		"password elsewhere":      {"secretsmanager:eu-west-1", "secretsmanager:us-east-1", "clickhouse.password_secret", "is of region us-east-1"},
		"email":                   {"defaults:", "alarms: {emails: [nobody]}\ndefaults:", "alarms.emails[0]", "an email address expected"},
		"default name":            {"  memory: 512", "  memory: 512\n  name: x", "defaults.name", "a pipeline's own"},
		"pipeline without name":   {pipeline, "  - topic: clicks\n", "pipelines[0].name", "is missing"},
		"pipeline name":           {pipeline, "  - name: page_views\n", "pipelines[0].name", "small letters, digits and dashes"},
		"pipeline name too long":  {pipeline, "  - name: " + strings.Repeat("x", 60) + "\n", "pipelines[0].name", "at most 64 expected"},
		"name twice":              {"- name: orders", "- name: clicks", "pipelines[1].name", "another one expected"},
		"table twice":             {"topic: shop.orders", "topic: clicks\n    table: clicks", "pipelines[1].table", "a table of its own expected"},
		"latest":                  {pipeline, at("start: latest"), "pipelines[0].start", "trim-horizon or a moment"},
		"group version":           {pipeline, at("group_version: 0"), "pipelines[0].group_version", "from 1"},
		"batch too large":         {pipeline, at("batch_size: 10001"), "pipelines[0].batch_size", "from 1 to 10000"},
		"window too long":         {pipeline, at("batch_window: 6m"), "pipelines[0].batch_window", "0s to 5m0s"},
		"window in parts":         {pipeline, at("batch_window: 500ms"), "pipelines[0].batch_window", "whole seconds"},
		"timeout too long":        {pipeline, at("timeout: 15m"), "pipelines[0].timeout", "up to 14m0s"},
		"timeout too short":       {pipeline, at("timeout: 10s"), "pipelines[0].timeout", "ONCEHOUSE_INSERT_TIMEOUT"},
		"memory":                  {pipeline, at("memory: 64"), "pipelines[0].memory", "from 128"},
		"architecture":            {pipeline, at("architecture: x86"), "pipelines[0].architecture", "arm64 or amd64"},
		"log retention":           {pipeline, at("log_retention_days: 10"), "pipelines[0].log_retention_days", "one of 1 3 5 7 14 30"},
		"concurrency":             {pipeline, at("reserved_concurrency: -1"), "pipelines[0].reserved_concurrency", "from 0"},
		"pollers":                 {pipeline, at("pollers: {minimum: 4, maximum: 2}"), "pipelines[0].pollers.maximum", "from 4"},
		"pollers on demand":       {pipeline, at("pollers: {minimum: 0, maximum: 2}"), "pipelines[0].pollers.maximum", "on-demand mode"},
		"poller group":            {pipeline, at("pollers: {minimum: 1, group: 'a b'}"), "pipelines[0].pollers.group", "up to 128 letters"},
		"poller group on demand":  {pipeline, at("pollers: {minimum: 0, group: small}\n    partial_responses: false"), "pipelines[0].pollers.group", "needs provisioned mode"},
		"partial on demand":       {pipeline, at("pollers: {minimum: 0}"), "pipelines[0].partial_responses", "need provisioned mode"},
		"destination on demand":   {pipeline, at("pollers: {minimum: 0}\n    partial_responses: false\n    on_failure: {attempts: 9, destination: 'arn:aws:s3:::b'}"), "pipelines[0].on_failure", "needs provisioned mode"},
		"destination alone":       {pipeline, at("on_failure: {destination: 'arn:aws:s3:::b'}"), "pipelines[0].on_failure.attempts", "Lambda gives up after 10"},
		"destination endlessly":   {pipeline, at("on_failure: {attempts: -1, destination: 'arn:aws:s3:::b'}"), "pipelines[0].on_failure.attempts", "from 1 to 10000"},
		"destination unknown":     {pipeline, at("on_failure: {attempts: 9, destination: x}"), "pipelines[0].on_failure.destination", "an SQS queue or of an S3 bucket, or kafka://<topic>"},
		"destination SNS":         {pipeline, at("on_failure: {attempts: 9, destination: 'arn:aws:sns:eu-west-1:111122223333:x'}"), "pipelines[0].on_failure.destination", "an SQS queue"},
		"destination on itself":   {pipeline, at("on_failure: {attempts: 9, destination: 'kafka://clicks'}"), "pipelines[0].on_failure.destination", "the topic of pipelines[0]"},
		"destination on another":  {pipeline, at("on_failure: {attempts: 9, destination: 'kafka://shop.orders'}"), "pipelines[0].on_failure.destination", "the topic of pipelines[1]"},
		"topic on demand":         {pipeline, at("pollers: {minimum: 0}\n    partial_responses: false\n    on_failure: {attempts: 9, destination: 'kafka://failed'}"), "pipelines[0].on_failure", "needs provisioned mode"},
		"mapping log":             {pipeline, at("mapping_log: error"), "pipelines[0].mapping_log", "none or warn or info or debug expected"},
		"mapping log on demand":   {pipeline, at("pollers: {minimum: 0}\n    partial_responses: false\n    mapping_log: info"), "pipelines[0].mapping_log", "needs provisioned mode"},
		"filter no JSON":          {pipeline, at("filters: ['value = 1']"), "pipelines[0].filters[0]", "is no JSON object"},
		"filter on the key":       {pipeline, at("filters: ['{\"key\":[\"a\"]}']"), "pipelines[0].filters[0]", "has the keys key: value and no other expected"},
		"filter on more":          {pipeline, at("filters: ['{\"key\":[\"a\"],\"value\":[\"b\"]}']"), "pipelines[0].filters[0]", "has the keys key, value"},
		"filter without a list":   {pipeline, at("filters: ['{\"value\":{\"a\":{\"kind\":\"click\"}}}']"), "pipelines[0].filters[0]", `has "kind", which is neither a list`},
		"filter of nothing":       {pipeline, at("filters: ['{\"value\":{}}']"), "pipelines[0].filters[0]", `has "value"`},
		"filter too long":         {pipeline, at("filters: ['{\"value\":[\"" + strings.Repeat("x", 4090) + "\"]}']"), "pipelines[0].filters[0]", "at most 4096"},
		"too many filters":        {pipeline, at("filters: [" + strings.Repeat(`'{"value":["x"]}', `, 6) + "]"), "pipelines[0].filters", "at most 5"},
		"schema registry":         {pipeline, at("schema_registry: {uri: x}"), "pipelines[0].schema_registry", "is not offered: a schema registry makes Lambda hand over other bytes than Kafka's"},
		"bisecting":               {pipeline, at("bisect: true"), "pipelines[0].bisect", "is not offered"},
		"key of others' region":   {"  region: eu-west-1", "  region: eu-west-1\n  key: arn:aws:kms:us-east-1:111122223333:key/2222", "environment.key", "is of region us-east-1"},
		"key's alias":             {"  region: eu-west-1", "  region: eu-west-1\n  key: arn:aws:kms:eu-west-1:111122223333:alias/x", "environment.key", "not that of an alias"},
		"threshold":               {pipeline, at("alarms: {duplicates_percent: 0}"), "pipelines[0].alarms.duplicates_percent", "from 1 to 100"},
		"guarantee":               {pipeline, at("guarantee: best-effort"), "pipelines[0].guarantee", "one of exactly-once, at-least-once, at-most-once expected"},
		"unknown setting":         {pipeline, at("settings: {UNKNOWN_FIELD: refuse}"), "pipelines[0].settings.UNKNOWN_FIELD", "did you mean ONCEHOUSE_UNKNOWN_FIELDS?"},
		"setting's value":         {pipeline, at("settings: {UNKNOWN_FIELDS: drop}"), "pipelines[0].settings.UNKNOWN_FIELDS", "one of ignore, refuse, collect expected"},
		"derived setting":         {pipeline, at("settings: {TOPIC: x}"), "pipelines[0].settings.TOPIC", "follows from topic: set it there"},
		"password in clear":       {pipeline, at("settings: {CLICKHOUSE_PASSWORD: x}"), "pipelines[0].settings.CLICKHOUSE_PASSWORD", "follows from clickhouse.password_secret: set it there"},
		"setting with prefix":     {pipeline, at("settings: {ONCEHOUSE_EPOCH: s}"), "pipelines[0].settings.ONCEHOUSE_EPOCH", "is not a setting"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, file, c.old, "the edit has no effect")
			problems := refuse(t, strings.Replace(file, c.old, c.new, 1))
			i := slices.IndexFunc(problems, func(p config.Problem) bool { return p.Path == c.path })
			require.NotEqual(t, -1, i, "no problem at %s: %v", c.path, problems)
			require.Contains(t, problems[i].Text, c.says)
		})
	}
}

func TestWrongOutboxesAreRefused(t *testing.T) {
	const secret = "arn:aws:secretsmanager:eu-west-1:111122223333:secret:rds-AbCdEf"
	const before = "outboxes:\n  - name: shop\n    database: {secret: '" + secret + "'}\n"
	good := strings.Replace(file, "auth: iam", "auth: iam\n  brokers: [b-1.example.com:9098]", 1) + before
	c, err := config.Parse("f.yaml", []byte(good))
	require.NoError(t, err)
	require.Equal(t, "oncehouse-production-shop-outbox", c.OutboxName(c.Outboxes[0]))
	require.Equal(t, "oncehouse.outbox.shop", c.Outboxes[0].CursorTopic)
	require.Equal(t, "outbox.event.*", c.Outboxes[0].Topics())
	require.Equal(t, 58*time.Second, c.Outboxes[0].Timeout)

	at := func(text string) string { return before + "    " + text + "\n" }
	for name, c := range map[string]change{
		"no name":               {"- name: shop", "- topic: 'x.${routedByValue}'", "outboxes[0].name", "is missing"},
		"name too long":         {"- name: shop", "- name: " + strings.Repeat("x", 40), "outboxes[0].name", "at most 64 expected"},
		"name of a pipeline":    {"- name: shop", "- name: clicks", "outboxes[0].name", "like that of pipelines[0]"},
		"function's name":       {"- name: orders\n", "- name: shop-outbox\n", "outboxes[0].name", "like that of pipelines[1]"},
		"no brokers":            {"\n  brokers: [b-1.example.com:9098]", "", "cluster.brokers", "outboxes[0] publishes to them"},
		"no database":           {"    database: {secret: '" + secret + "'}\n", "", "outboxes[0].database.resource_id", "db-... or cluster-..."},
		"secret's short ARN":    {"rds-AbCdEf", "rds", "outboxes[0].database.secret", "the whole ARN"},
		"secret elsewhere":      {secret, strings.Replace(secret, "eu-west-1", "eu-west-2", 1), "outboxes[0].database.secret", "is of region eu-west-2"},
		"secret and user":       {"secret: '" + secret + "'", "secret: '" + secret + "', user: x", "outboxes[0].database.user", "leave one of them out"},
		"secret's key":          {"secret: '" + secret + "'", "secret: '" + secret + "', secret_key: x", "outboxes[0].database.secret_key", "a KMS key"},
		"IAM without a user":    {"secret: '" + secret + "'", "host: h, name: n, resource_id: db-A1", "outboxes[0].database.user", "is missing"},
		"topic without the row": {before, at("topic: events"), "outboxes[0].topic", "a template with ${routedByValue} expected"},
		"cursors in a topic":    {before, at("cursor_topic: clicks"), "outboxes[0].cursor_topic", "the topic of pipelines[0]"},
		"dead letters there":    {before, at("dead_letter_topic: oncehouse.outbox.shop"), "outboxes[0].dead_letter_topic", "compacted"},
		"no shards":             {before, at("shards: 0"), "outboxes[0].shards", "from 1 to 256"},
		"layer":                 {before, at("layers: [x]"), "outboxes[0].layers[0]", "a version of a Lambda layer"},
		"timeout":               {before, at("timeout: 5s"), "outboxes[0].timeout", "more than DEADLINE_MARGIN + RESERVE (5s)"},
		"lag":                   {before, at("alarms: {lag: 0s}"), "outboxes[0].alarms.lag", "at least 1s"},
		"partition days":        {before, at("alarms: {partition_days: 0}"), "outboxes[0].alarms.partition_days", "from 1 to 3650"},
		"unknown key":           {before, at("topics: []"), "outboxes[0].topics", "is no key: one of alarms, architecture, create_cursor_topic"},
		"unknown setting":       {before, at("settings: {RETENTON: delete}"), "outboxes[0].settings.RETENTON", "did you mean ONCEHOUSE_RETENTION?"},
		"password in clear":     {before, at("settings: {DATABASE_PASSWORD: x}"), "outboxes[0].settings.DATABASE_PASSWORD", "follows from database.secret"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, good, c.old, "the edit has no effect")
			problems := refuse(t, strings.Replace(good, c.old, c.new, 1))
			i := slices.IndexFunc(problems, func(p config.Problem) bool { return p.Path == c.path })
			require.NotEqual(t, -1, i, "no problem at %s: %v", c.path, problems)
			require.Contains(t, problems[i].Text, c.says)
		})
	}
	_, err = config.Parse("f.yaml", []byte(good+before[len("outboxes:\n"):]))
	require.ErrorContains(t, err, `outboxes[1].name is "shop" like that of outboxes[0]`)
	alone, _, _ := strings.Cut(good, "pipelines:")
	_, err = config.Parse("f.yaml", []byte(alone+before))
	require.NoError(t, err, "an installation may have outboxes only")
}

// refuse returns the problems of a text.
func refuse(t *testing.T, text string) []config.Problem {
	t.Helper()
	_, err := config.Parse("f.yaml", []byte(text))
	var refused *config.Error
	require.ErrorAs(t, err, &refused, "accepted")
	return refused.Problems
}

func TestAddressesInsideAVPCNeedTheVPC(t *testing.T) {
	network := "  network:\n    subnets: [subnet-1a]\n    security_groups: [sg-1a]\n"
	outside := strings.Replace(file, network, "", 1)
	_, err := config.Parse("f.yaml", []byte(outside))
	require.NoError(t, err)
	for _, edit := range [][2]string{
		{"auth: iam", "auth: iam\n  brokers: [b-1.example.com:9098]"},
		{"ch.example.com", "ch.eu-west-1.vpce.aws.clickhouse.cloud"},
	} {
		problems := refuse(t, strings.Replace(outside, edit[0], edit[1], 1))
		require.Len(t, problems, 1)
		require.Equal(t, "environment.network", problems[0].Path)
	}
}

func TestEveryProblemIsSaidAtOnce(t *testing.T) {
	wrong := strings.NewReplacer(
		"region: eu-west-1\n", "region: Ireland\n", "- name: clicks", "- on_failure: {destination: 'arn:aws:s3:::b'}", "auth: iam", "auth: none", "  memory: 512", "  memroy: 512",
		"memory: 2048", "memory: lots", "UNKNOWN_FIELDS", "TOPIC",
	).Replace(file)
	_, err := config.Parse("f.yaml", []byte(wrong))
	require.EqualError(t, err, `configuration refused, problems: 7
  f.yaml:5: environment.region is "Ireland": an AWS region such as eu-west-1 expected
  f.yaml:12: cluster.auth is "none": iam or scram-sha-512 expected
  f.yaml:19: defaults.memroy is no key: one of alarms, architecture, batch_size, batch_window, filters, group_version, guarantee, kafka_metrics, log_retention_days, mapping_log, memory, name, on_failure, partial_responses, pollers, reserved_concurrency, settings, start, table, timeout, topic expected
  f.yaml:23: pipelines[0].name is missing: small letters, digits and dashes, such as page-views expected
  f.yaml:23: pipelines[0].on_failure.attempts is 0: a number from 1 to 10000 expected; without one Lambda gives up after 10, and a short outage of ClickHouse diverts good data
  f.yaml:26: pipelines[1].memory is "lots": a whole number expected
  f.yaml:27: pipelines[1].settings.TOPIC follows from topic: set it there`)
}

func TestWhatIsNoFileIsRefused(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "comment": "# nothing\n", "not YAML": "a: [", "a list": "- a\n", "two documents": file + "\n---\na: b\n",
	} {
		t.Run(name, func(t *testing.T) {
			require.NotEmpty(t, refuse(t, text))
		})
	}
	_, err := config.Read("there-is-none.yaml")
	require.ErrorIs(t, err, os.ErrNotExist)
}
