package stack_test

import (
	"bytes"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/aws/config"
	"oncehouse/shared/secrets"
)

// statement is one of a role's policy.
type statement struct {
	effect             string
	actions, resources []string
}

func statements(t *testing.T, made template) []statement {
	t.Helper()
	texts := func(v any) []string {
		if one, ok := v.(string); ok {
			return []string{one}
		}
		var all []string
		for _, each := range v.([]any) {
			all = append(all, each.(string))
		}
		return all
	}
	var all []statement
	for _, policy := range made.all("AWS::IAM::Policy") {
		if policy["Roles"].([]any)[0] != made.only(t, "AWS::Lambda::Function")["Role"] {
			continue
		}
		for _, s := range policy["PolicyDocument"].(map[string]any)["Statement"].([]any) {
			s := s.(map[string]any)
			all = append(all, statement{s["Effect"].(string), texts(s["Action"]), texts(s["Resource"])})
		}
	}
	require.NotEmpty(t, all)
	return all
}

// onAll are the actions that may be allowed on all resources, and why.
var onAll = map[string]string{
	"xray:PutTraceSegments":          "X-Ray has no resources",
	"xray:PutTelemetryRecords":       "X-Ray has no resources",
	"ec2:DescribeNetworkInterfaces":  "EC2's describing calls take no resource",
	"ec2:DescribeVpcs":               "EC2's describing calls take no resource",
	"ec2:DescribeSubnets":            "EC2's describing calls take no resource",
	"ec2:DescribeSecurityGroups":     "EC2's describing calls take no resource",
	"ec2:CreateNetworkInterface":     "in subnets of the cluster, which may be another account's (shared VPC); denied to the code",
	"ec2:DeleteNetworkInterface":     "of interfaces that have no name yet; denied to the code",
	"ec2:AssignPrivateIpAddresses":   "to interfaces that have no name yet; denied to the code",
	"ec2:UnassignPrivateIpAddresses": "of interfaces that have no name yet; denied to the code",
}

func TestRolesAllowNothingOnEverything(t *testing.T) {
	eachPipeline(t, func(t *testing.T, _ installation, _ config.Pipeline, made template) {
		require.NotContains(t, made.only(t, "AWS::IAM::Role"), "ManagedPolicyArns")
		denied := map[string]bool{}
		for _, s := range statements(t, made) {
			for _, action := range s.actions {
				require.NotContains(t, action, "*")
				if s.effect == "Deny" {
					denied[action] = true
				} else if slices.Contains(s.resources, "*") {
					require.NotEmpty(t, onAll[action], action)
				}
			}
		}
		for action := range onAll {
			require.Equal(t, strings.HasPrefix(action, "ec2:"), denied[action], action)
		}
	})
}

// rights are actions with their resources.
type rights map[string][]string

func (r rights) add(resource string, actions ...string) {
	for _, action := range actions {
		if !slices.Contains(r[action], resource) {
			r[action] = append(r[action], resource)
		}
	}
}

func TestRolesAllowWhatIsCalledAndNothingElse(t *testing.T) {
	calls := calledBy(t, "./functions/sink")
	eachPipeline(t, func(t *testing.T, in installation, p config.Pipeline, made template) {
		need := rights{}
		addCodes(t, need, calls, in.config)
		addMappings(need, in.config, p)
		addServices(need, in.config, keys(onAll))
		requireRights(t, need, made)
	})
}

// requireRights: the function's role allows what is needed, and nothing else.
func requireRights(t *testing.T, need rights, made template) {
	t.Helper()
	allowed := rights{}
	for _, s := range statements(t, made) {
		for _, resource := range s.resources {
			if s.effect == "Allow" {
				allowed.add(resource, s.actions...)
			}
		}
	}
	for action := range need {
		require.ElementsMatch(t, need[action], allowed[action], action)
	}
	for action := range allowed {
		require.Contains(t, need, action)
	}
}

// addCodes adds what the sink itself calls. It reads Kafka by offset, too, which
// needs no more than the mapping does.
func addCodes(t *testing.T, need rights, calls map[string][]string, c *config.Config) {
	t.Helper()
	require.ElementsMatch(t, []string{"dynamodb", "sqs", "secretsmanager"}, keys(calls), "a service without its rights here")
	for _, call := range calls["dynamodb"] {
		need.add("arn:aws:dynamodb:"+c.Environment.Region+":"+c.Environment.Account+":table/"+c.LedgerTable(), "dynamodb:"+call)
	}
	for _, call := range calls["sqs"] {
		// One right for one message and for many.
		need.add("<AWS::SQS::Queue Arn>", "sqs:"+strings.TrimSuffix(call, "Batch"))
	}
	password, err := secrets.ParseRef(c.ClickHouse.PasswordSecret)
	require.NoError(t, err)
	for _, call := range calls["secretsmanager"] {
		need.add(password.ARN, "secretsmanager:"+call)
	}
	if c.ClickHouse.SecretKey != "" {
		need.add(c.ClickHouse.SecretKey, "kms:Decrypt")
	}
}

// addMappings adds what the event source mapping calls with the function's role.
// https://docs.aws.amazon.com/lambda/latest/dg/with-msk-permissions.html,
// https://docs.aws.amazon.com/lambda/latest/dg/msk-cluster-auth.html and
// https://docs.aws.amazon.com/lambda/latest/dg/kafka-on-failure.html
func addMappings(need rights, c *config.Config, p config.Pipeline) {
	k := c.Cluster
	need.add(k.ARN, "kafka:DescribeClusterV2", "kafka:GetBootstrapBrokers")
	before, path, _ := strings.Cut(k.ARN, ":cluster/")
	if k.Auth == config.IAM {
		need.add(k.ARN, "kafka-cluster:Connect")
		need.add(before+":topic/"+path+"/"+p.Topic, "kafka-cluster:DescribeTopic", "kafka-cluster:ReadData")
		need.add(before+":group/"+path+"/"+c.ConsumerGroup(p), "kafka-cluster:DescribeGroup", "kafka-cluster:AlterGroup")
	} else {
		need.add(k.ARN, "kafka:ListScramSecrets")
		need.add(k.Secret, "secretsmanager:DescribeSecret", "secretsmanager:GetSecretValue")
		need.add(k.SecretKey, "kms:Decrypt")
	}
	if p.OnFailure == nil {
		return
	}
	switch to := p.OnFailure.Destination; {
	case strings.Contains(to, ":s3:::"):
		need.add(to, "s3:ListBucket")
		need.add(to+"/*", "s3:PutObject")
	case strings.HasPrefix(to, "kafka://"):
		need.add(before+":topic/"+path+"/"+strings.TrimPrefix(to, "kafka://"), "kafka-cluster:DescribeTopic", "kafka-cluster:WriteData")
	default:
		need.add(to, "sqs:SendMessage")
	}
}

// addServices adds what AWS's services do with the function's role: Lambda writes
// the log and decrypts the environment, SQS and DynamoDB use the key.
// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-key-management.html and
// https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/encryption.usagenotes.html
func addServices(need rights, c *config.Config, onAll []string) {
	need.add("<AWS::Logs::LogGroup Arn>", "logs:CreateLogStream", "logs:PutLogEvents")
	need.add("*", onAll...)
	if c.Environment.Key != "" {
		need.add(c.Environment.Key, "kms:Decrypt", "kms:GenerateDataKey")
	}
}

// neverCalled are requests that are made for something else.
var neverCalled = map[string]string{
	"dynamodb.CreateTable": "describes the ledger's table, for the emulator and for the stack's key",
}

// calledBy are the operations of AWS's APIs that a function of the root module can
// call, by service: each operation takes a request of its own type, <operation>Input.
func calledBy(t *testing.T, function string) map[string][]string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", `{{if not .Standard}}{{.ImportPath}}{{end}}`, function)
	list.Dir = "../../.."
	list.Stderr = &bytes.Buffer{}
	packages, err := list.Output()
	require.NoError(t, err, list.Stderr)
	service := regexp.MustCompile(`"github\.com/aws/aws-sdk-go-v2/service/(\w+)"`)
	request := regexp.MustCompile(`\b(\w+)\.(\w+)Input\b`)
	calls := map[string][]string{}
	for name := range strings.FieldsSeq(string(packages)) {
		dir, ours := strings.CutPrefix(name, "oncehouse/")
		if !ours {
			continue
		}
		text := sourceOf(t, dir)
		services := map[string]bool{}
		for _, m := range service.FindAllStringSubmatch(text, -1) {
			services[m[1]] = true
			calls[m[1]] = slices.Clip(calls[m[1]])
		}
		for _, m := range request.FindAllStringSubmatch(text, -1) {
			if services[m[1]] && neverCalled[m[1]+"."+m[2]] == "" && !slices.Contains(calls[m[1]], m[2]) {
				calls[m[1]] = append(calls[m[1]], m[2])
			}
		}
	}
	for service, operations := range calls {
		require.NotEmpty(t, operations, "no requests to %s found: has the code moved?", service)
	}
	return calls
}

// sourceOf is the text of a package of the root module, without its tests.
func sourceOf(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../../..", dir, "*.go"))
	require.NoError(t, err)
	var all strings.Builder
	for _, file := range files {
		if strings.HasSuffix(path.Base(file), "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		all.Write(text)
	}
	return all.String()
}

func keys[V any](m map[string]V) []string {
	var all []string
	for key := range m {
		all = append(all, key)
	}
	return all
}
