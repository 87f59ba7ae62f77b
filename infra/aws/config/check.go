package config

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	sink "oncehouse/functions/sink/config"
	"oncehouse/shared/secrets"
	"oncehouse/shared/settings"
)

// AWS's limits, and the forms of its names.
const (
	maxBatchSize    = 10000
	maxBatchWindow  = 300 * time.Second
	maxMinPollers   = 200
	maxPollers      = 2000
	maxAttempts     = 10000
	maxTimeout      = 14 * time.Minute // of a function behind a Kafka mapping
	maxFunctionName = 64
	maxFilters      = 5 // https://docs.aws.amazon.com/lambda/latest/dg/invocation-eventfiltering.html
	maxPattern      = 4096
)

var (
	nameForm    = regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`) // of stacks, functions, queues and tables alike
	accountForm = regexp.MustCompile(`^\d{12}$`)
	regionForm  = regexp.MustCompile(`^[a-z]{2}(-[a-z]+)+-\d$`)
	subnetForm  = regexp.MustCompile(`^subnet-[0-9a-f]+$`)
	groupForm   = regexp.MustCompile(`^sg-[0-9a-f]+$`)
	pollersForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)
	clusterForm = regexp.MustCompile(`^arn:aws[a-z-]*:kafka:([a-z0-9-]+):(\d{12}):cluster/[^/]+/[^/]+$`)
	keyForm     = regexp.MustCompile(`^arn:aws[a-z-]*:kms:([a-z0-9-]+):(\d{12}):key/[^/]+$`)
	targetForm  = regexp.MustCompile(`^(arn:aws[a-z-]*:(sqs:[a-z0-9-]+:\d{12}:[A-Za-z0-9_-]+|s3:::[a-z0-9.-]+)|kafka://[A-Za-z0-9._-]{1,249})$`)
	// A secret's ARN ends in six characters that AWS adds; without them IAM would
	// allow nothing.
	secretForm = regexp.MustCompile(`^arn:aws[a-z-]*:secretsmanager:([a-z0-9-]+):(\d{12}):secret:[^:]+-[A-Za-z0-9]{6}$`)
	// https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_PutRetentionPolicy.html
	retentionDays = []int{1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653}
)

// check reports what is wrong with values.
func (r *reader) check(c *Config) {
	r.checkEnvironment(&c.Environment)
	r.checkCluster(c)
	r.checkClickHouse(c)
	for i, address := range c.Alarms.Emails {
		if strings.Count(address, "@") != 1 {
			r.problem(fmt.Sprintf("alarms.emails[%d]", i), "is %q: an email address expected", address)
		}
	}
	for _, key := range []string{"name", "topic", "table"} {
		if _, there := r.lines["defaults."+key]; there {
			r.problem("defaults."+key, "is a pipeline's own: name it there")
		}
	}
	if len(c.Pipelines)+len(c.Outboxes) == 0 {
		r.problem("pipelines", "are missing: at least one expected, such as {name: clicks}, or an outbox")
	}
	for i := range c.Pipelines {
		r.checkPipeline(c, c.Pipelines[i], fmt.Sprintf("pipelines[%d]", i))
	}
	for i := range c.Outboxes {
		r.checkOutbox(c, c.Outboxes[i], fmt.Sprintf("outboxes[%d]", i))
	}
	r.checkDistinct(c.Pipelines)
	r.checkApart(c)
	if len(r.problems) > 0 {
		return // the sink would say the same again in other words
	}
	for i, p := range c.Pipelines {
		r.checkSink(c, p, fmt.Sprintf("pipelines[%d]", i))
	}
	for i, o := range c.Outboxes {
		r.checkPoller(c, o, fmt.Sprintf("outboxes[%d]", i))
	}
}

func (r *reader) checkEnvironment(e *Environment) {
	r.form("environment.name", e.Name, nameForm, "a short name of small letters, digits and dashes, such as production")
	r.form("environment.account", e.Account, accountForm, "the 12 digits of an AWS account")
	r.form("environment.region", e.Region, regionForm, "an AWS region such as eu-west-1")
	for key := range e.Tags {
		if strings.HasPrefix(strings.ToLower(key), "aws:") {
			r.problem("environment.tags."+key, "begins with aws:, which AWS keeps for itself: another name expected")
		}
	}
	if e.Key != "" && r.form("environment.key", e.Key, keyForm, "the ARN of a KMS key, arn:aws:kms:...:key/..., and not that of an alias") {
		if region := keyForm.FindStringSubmatch(e.Key)[1]; region != e.Region && regionForm.MatchString(e.Region) {
			r.problem("environment.key", "is of region %s: a key of environment.region (%s) expected", region, e.Region)
		}
	}
	if e.Network == nil {
		return
	}
	r.forms("environment.network.subnets", e.Network.Subnets, subnetForm, "ids of private subnets, subnet-..., at least one")
	r.forms("environment.network.security_groups", e.Network.SecurityGroups, groupForm, "ids of security groups, sg-..., at least one")
}

func (r *reader) checkCluster(c *Config) {
	k := &c.Cluster
	if r.form("cluster.arn", k.ARN, clusterForm, "arn:aws:kafka:<region>:<account>:cluster/<name>/<uuid>") {
		m := clusterForm.FindStringSubmatch(k.ARN)
		r.sameRegion(c, "cluster.arn", m[1])
		if m[2] != c.Environment.Account && accountForm.MatchString(c.Environment.Account) {
			r.problem("cluster.arn", "is of account %s: a cluster of environment.account (%s) expected", m[2], c.Environment.Account)
		}
	}
	r.oneOf("cluster.type", k.Type, Serverless, Provisioned)
	r.oneOf("cluster.auth", k.Auth, IAM, SCRAM)
	if k.Type == Serverless && k.Auth == SCRAM {
		r.problem("cluster.auth", "is %s: %s expected, MSK Serverless has nothing else", k.Auth, IAM)
	}
	r.checkSCRAM(c)
	if len(k.Brokers) > 0 && c.Environment.Network == nil {
		r.problem("environment.network", "is missing: brokers (cluster.brokers) are reached from inside their VPC only")
	}
}

// checkSCRAM: MSK takes secrets called AmazonMSK_... under a customer managed key.
// https://docs.aws.amazon.com/msk/latest/developerguide/msk-password.html
func (r *reader) checkSCRAM(c *Config) {
	k := &c.Cluster
	if k.Auth != SCRAM {
		for path, value := range map[string]string{"cluster.secret": k.Secret, "cluster.secret_key": k.SecretKey} {
			if value != "" {
				r.problem(path, "goes with cluster.auth: %s: leave it out", SCRAM)
			}
		}
		return
	}
	if r.form("cluster.secret", k.Secret, secretForm, "the whole ARN of the secret with username and password, arn:aws:secretsmanager:...:secret:AmazonMSK_<name>-<6 characters>") {
		r.sameRegion(c, "cluster.secret", secretForm.FindStringSubmatch(k.Secret)[1])
		if !strings.Contains(k.Secret, ":secret:AmazonMSK_") {
			r.problem("cluster.secret", "is %q: a name that begins with AmazonMSK_ expected, MSK takes no other", k.Secret)
		}
	}
	r.form("cluster.secret_key", k.SecretKey, keyForm, "the ARN of the secret's KMS key, arn:aws:kms:...:key/...: MSK takes only secrets under a customer managed key")
}

func (r *reader) checkClickHouse(c *Config) {
	h := &c.ClickHouse
	if len(h.URLs) == 0 {
		r.problem("clickhouse.urls", "are missing: at least one expected, such as https://host:8443")
	}
	for i, text := range h.URLs {
		u, err := url.Parse(text)
		if err == nil && strings.Contains(u.Hostname(), ".vpce.") && c.Environment.Network == nil {
			r.problem("environment.network", "is missing: clickhouse.urls[%d] is an address of PrivateLink, which is reached from inside its VPC only", i)
		}
	}
	ref, err := secrets.ParseRef(h.PasswordSecret)
	if err != nil || !secretForm.MatchString(ref.ARN) {
		r.problem("clickhouse.password_secret", "is %q: the whole ARN expected, arn:aws:secretsmanager:<region>:<account>:secret:<name>-<6 characters>, with :<key> for one key of a JSON secret", h.PasswordSecret)
	} else {
		r.sameRegion(c, "clickhouse.password_secret", secretForm.FindStringSubmatch(ref.ARN)[1])
	}
	if h.SecretKey != "" {
		r.form("clickhouse.secret_key", h.SecretKey, keyForm, "the ARN of a KMS key, arn:aws:kms:...:key/...")
	}
}

func (r *reader) checkPipeline(c *Config, p Pipeline, path string) {
	if r.form(path+".name", p.Name, nameForm, "small letters, digits and dashes, such as page-views") {
		if name := c.FunctionName(p); len(name) > maxFunctionName {
			r.problem(path+".name", "makes the function name %s of %d characters: at most %d expected", name, len(name), maxFunctionName)
		}
	}
	r.between(path+".group_version", p.GroupVersion, 1, 1_000_000)
	r.between(path+".batch_size", p.BatchSize, 1, maxBatchSize)
	if p.BatchWindow < 0 || p.BatchWindow > maxBatchWindow || p.BatchWindow%time.Second != 0 {
		r.problem(path+".batch_window", "is %s: whole seconds from 0s to %s expected", p.BatchWindow, maxBatchWindow)
	}
	if p.Start != TrimHorizon {
		// latest is left out on purpose: what comes between the mapping's creation
		// and its first poll would be lost.
		if _, err := time.Parse(time.RFC3339, p.Start); err != nil {
			r.problem(path+".start", "is %q: %s or a moment such as 2026-01-31T00:00:00Z expected", p.Start, TrimHorizon)
		}
	}
	r.checkFunction(p.Function, path)
	r.between(path+".reserved_concurrency", p.ReservedConcurrency, 0, 100_000)
	r.checkPolling(p, path)
	r.checkOnFailure(c, p, path)
	r.checkFilters(p, path)
	r.checkThresholds(p.Thresholds, path+".alarms")
	r.notDerived(c.derived(p, ""), p.Settings, path)
}

func (r *reader) notDerived(derived []setting, further map[string]string, path string) {
	for _, s := range derived {
		if _, there := further[s.name]; there {
			r.problem(path+".settings."+s.name, "follows from %s: set it there", strings.TrimPrefix(s.path, "."))
		}
	}
}

func (r *reader) checkFunction(f Function, path string) {
	r.between(path+".memory", f.Memory, 128, 10240)
	if f.Timeout > maxTimeout || f.Timeout < time.Second || f.Timeout%time.Second != 0 {
		r.problem(path+".timeout", "is %s: whole seconds up to %s expected", f.Timeout, maxTimeout)
	}
	r.oneOf(path+".architecture", f.Architecture, ARM64, AMD64)
	if !slices.Contains(retentionDays, f.LogRetentionDays) {
		r.problem(path+".log_retention_days", "is %d: one of %s expected", f.LogRetentionDays, strings.Trim(fmt.Sprint(retentionDays), "[]"))
	}
}

// checkPolling: retries, partial responses and the like need provisioned mode,
// and CloudFormation says so only when it deploys.
// https://docs.aws.amazon.com/lambda/latest/dg/kafka-retry-configurations.html
func (r *reader) checkPolling(p Pipeline, path string) {
	onDemand := p.Pollers.Minimum == 0
	r.between(path+".pollers.minimum", p.Pollers.Minimum, 0, maxMinPollers)
	if !onDemand {
		r.between(path+".pollers.maximum", p.Pollers.Maximum, p.Pollers.Minimum, maxPollers)
	} else if p.Pollers.Maximum != 0 {
		r.problem(path+".pollers.maximum", "is %d with a minimum of 0, which is on-demand mode: leave it out, or make the minimum 1", p.Pollers.Maximum)
	}
	if g := p.Pollers.Group; g != "" && r.form(path+".pollers.group", g, pollersForm, "up to 128 letters, digits, - and _") && onDemand {
		r.problem(path+".pollers.group", "needs provisioned mode: leave it out, or make the minimum 1")
	}
	if onDemand && p.PartialResponses {
		r.problem(path+".partial_responses", "need provisioned mode: false expected, or pollers.minimum of 1 or more")
	}
	r.oneOf(path+".mapping_log", p.MappingLog, NoLog, "warn", "info", "debug")
	if onDemand && p.MappingLog != NoLog {
		r.problem(path+".mapping_log", "needs provisioned mode: %s expected, or pollers.minimum of 1 or more", NoLog)
	}
}

func (r *reader) checkOnFailure(c *Config, p Pipeline, path string) {
	f := p.OnFailure
	if f == nil {
		return
	}
	if p.Pollers.Minimum == 0 {
		r.problem(path+".on_failure", "needs provisioned mode: pollers.minimum of 1 or more expected")
	}
	if f.Attempts < 1 || f.Attempts > maxAttempts {
		r.problem(path+".on_failure.attempts", "is %d: a number from 1 to %d expected; without one Lambda gives up after 10, and a short outage of ClickHouse diverts good data", f.Attempts, maxAttempts)
	}
	r.form(path+".on_failure.destination", f.Destination, targetForm, "the ARN of an SQS queue or of an S3 bucket, or kafka://<topic>")
	for i, other := range c.Pipelines {
		if topic, is := f.Topic(); is && topic == other.Topic {
			r.problem(path+".on_failure.destination", "is the topic of pipelines[%d], which would take what Lambda says of failures for its records: a topic of its own expected", i)
		}
	}
}

// checkFilters: Lambda checks patterns only when the mapping is made, and of a
// Kafka record it filters the value alone.
// https://docs.aws.amazon.com/lambda/latest/dg/kafka-filtering.html
func (r *reader) checkFilters(p Pipeline, path string) {
	if len(p.Filters) > maxFilters {
		r.problem(path+".filters", "are %d: at most %d expected", len(p.Filters), maxFilters)
	}
	for i, text := range p.Filters {
		at := fmt.Sprintf("%s.filters[%d]", path, i)
		var pattern map[string]any
		if err := json.Unmarshal([]byte(text), &pattern); err != nil {
			r.problem(at, `is no JSON object (%v): a pattern such as {"value":{"kind":["click"]}} expected`, err)
			continue
		}
		if _, there := pattern["value"]; !there || len(pattern) != 1 {
			r.problem(at, "has the keys %s: value and no other expected, Kafka mappings filter nothing else", strings.Join(slices.Sorted(maps.Keys(pattern)), ", "))
		} else if key, ok := wrongRule(pattern); !ok {
			r.problem(at, `has %q, which is neither a list of what fits nor keys with such lists: for example {"value":{"kind":["click"]}}`, key)
		}
		if len(text) > maxPattern {
			r.problem(at, "has %d characters: at most %d expected", len(text), maxPattern)
		}
	}
}

// wrongRule is a key of a pattern, at any depth, whose value is no rule.
func wrongRule(pattern map[string]any) (string, bool) {
	for _, key := range slices.Sorted(maps.Keys(pattern)) {
		switch rule := pattern[key].(type) {
		case []any:
			if len(rule) == 0 {
				return key, false
			}
		case map[string]any:
			if inner, ok := wrongRule(rule); !ok || len(rule) == 0 {
				return cmp.Or(inner, key), false
			}
		default:
			return key, false
		}
	}
	return "", true
}

func (r *reader) checkThresholds(t Thresholds, path string) {
	if t.EventLag < time.Second {
		r.problem(path+".event_lag", "is %s: at least 1s expected", t.EventLag)
	}
	r.between(path+".offset_lag", t.OffsetLag, 1, 1<<40)
	r.between(path+".dead_letters", t.DeadLetters, 1, 1<<40)
	r.between(path+".duplicates_percent", t.DuplicatesPercent, 1, 100)
}

// checkDistinct: names are unique, and so are tables, because the provenance
// columns tell topics and partitions apart, not pipelines.
func (r *reader) checkDistinct(pipelines []Pipeline) {
	names, tables := map[string]int{}, map[[2]string]int{}
	for i, p := range pipelines {
		if first, there := names[p.Name]; there {
			r.problem(fmt.Sprintf("pipelines[%d].name", i), "is %q like that of pipelines[%d]: another one expected", p.Name, first)
			continue
		}
		names[p.Name] = i
		key := [2]string{p.Topic, p.Table}
		if first, there := tables[key]; there {
			r.problem(fmt.Sprintf("pipelines[%d].table", i), "is %q, into which pipelines[%d] stores the same topic: a table of its own expected", p.Table, first)
			continue
		}
		tables[key] = i
	}
}

// checkApart: functions, metrics and cursors are told apart by name.
func (r *reader) checkApart(c *Config) {
	functions, topics := map[string]string{}, map[string]string{}
	for i, p := range c.Pipelines {
		path := fmt.Sprintf("pipelines[%d]", i)
		functions[p.Name], functions[strings.TrimSuffix(p.Name, "-outbox")] = path, path
		topics[p.Topic] = path
	}
	for i, o := range c.Outboxes {
		path := fmt.Sprintf("outboxes[%d]", i)
		if other, there := functions[o.Name]; there {
			r.problem(path+".name", "is %q like that of %s, or its function's would be: another one expected", o.Name, other)
		}
		if other, there := topics[o.CursorTopic]; there {
			r.problem(path+".cursor_topic", "is %q, the topic of %s: one of its own expected", o.CursorTopic, other)
		}
		functions[o.Name], topics[o.CursorTopic] = path, path
	}
}

// standInQueue has the form of a queue's URL, which only CloudFormation knows.
const standInQueue = "https://sqs.eu-west-1.amazonaws.com/111122223333/letters"

// checkSink asks the sink's own parser, and says its answer in the file's words.
func (r *reader) checkSink(c *Config, p Pipeline, path string) {
	_, err := sink.Parse(c.SinkEnvironment(p, standInQueue))
	r.refused(err, c.derived(p, ""), path, "the sink")
}

// refused says what a function's parser says in the file's words.
func (r *reader) refused(err error, derived []setting, path, by string) {
	var refused *settings.Error
	if !errors.As(err, &refused) {
		return
	}
	for _, text := range refused.Problems {
		name, _, _ := strings.Cut(strings.TrimPrefix(text, settings.Prefix), " ")
		at := path + ".settings." + name
		for _, s := range derived {
			if s.name == name {
				at = s.path
				if strings.HasPrefix(s.path, ".") {
					at = path + s.path
				}
			}
		}
		r.problem(at, "is refused by %s: %s", by, text)
	}
}

func (r *reader) form(path, value string, form *regexp.Regexp, says string) bool {
	ok := form.MatchString(value)
	switch {
	case value == "":
		r.problem(path, "is missing: %s expected", says)
	case !ok:
		r.problem(path, "is %q: %s expected", value, says)
	}
	return ok
}

func (r *reader) forms(path string, values []string, form *regexp.Regexp, says string) {
	if len(values) == 0 {
		r.problem(path, "are missing: %s expected", says)
	}
	for i, value := range values {
		r.form(fmt.Sprintf("%s[%d]", path, i), value, form, says)
	}
}

func (r *reader) oneOf(path, value string, values ...string) {
	if !slices.Contains(values, value) {
		r.problem(path, "is %q: %s expected", value, strings.Join(values, " or "))
	}
}

func (r *reader) between(path string, n, least, most int) {
	if n < least || n > most {
		r.problem(path, "is %d: a number from %d to %d expected", n, least, most)
	}
}

func (r *reader) sameRegion(c *Config, path, region string) {
	if region != c.Environment.Region && regionForm.MatchString(c.Environment.Region) {
		r.problem(path, "is of region %s: one of environment.region (%s) expected", region, c.Environment.Region)
	}
}
