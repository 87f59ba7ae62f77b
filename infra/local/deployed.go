package main

import (
	"archive/zip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"oncehouse/infra/build/artifact"
	"oncehouse/infra/local/broker"
	local "oncehouse/infra/local/dynamodb"
	"oncehouse/infra/local/lambdahost"
	"oncehouse/infra/local/secretsmanager"
	"oncehouse/infra/local/stack"
	"oncehouse/infra/local/template"
	"oncehouse/shared/ledger/dynamo"
	"oncehouse/shared/secrets"
	"oncehouse/shared/settings"
)

// partitions of the template's topic here: as many as the sample events have.
const partitions = 6

// deployed is a function as a template deploys it, with servers of this machine
// in the place of AWS's.
type deployed struct {
	*lambdahost.Function
	table tableName
	log   *os.File
	vault *secretsmanager.Server
}

// startDeployed starts the sink of a template.
func (c *invokeCommand) startDeployed(ctx context.Context, root string, s *stack.Stack) (*deployed, error) {
	t, err := template.Read(c.Template)
	if err != nil {
		return nil, err
	}
	f, err := t.Function(c.Function)
	if err != nil {
		return nil, err
	}
	environ, err := f.Environment(func(r template.Resource, attribute string) (string, error) {
		if r.Type == "AWS::SQS::Queue" && attribute == "" {
			return s.LetterQueueURL(), nil
		}
		return "", template.ErrUnresolved
	})
	if err != nil {
		return nil, err
	}
	d := &deployed{table: tableName{environ[settings.Prefix+"CLICKHOUSE_DATABASE"], environ[settings.Prefix+"CLICKHOUSE_TABLE"]}}
	if d.table.database == "" || d.table.name == "" {
		return nil, fmt.Errorf("%s is no sink: no table is in its environment", f.Name)
	}
	if d.vault, err = secretsmanager.Start(localSecrets(environ)); err != nil {
		return nil, err
	}
	if err := d.start(ctx, c, root, s, f, environ); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *deployed) start(ctx context.Context, c *invokeCommand, root string, s *stack.Stack, f *template.Function, environ map[string]string) error {
	if err := createLedger(ctx, s, environ[settings.Prefix+"LEDGER_TABLE"]); err != nil {
		return err
	}
	// The mapping would read it: a redelivery is told from another topic by its id.
	topic := broker.Topic{Name: environ[settings.Prefix+"TOPIC"], Partitions: partitions}
	if err := broker.CreateTopics(ctx, s.Broker, topic); err != nil {
		return err
	}
	code, err := c.code(ctx, root, f)
	if err != nil {
		return err
	}
	if d.log, err = os.Create(filepath.Join(c.Dir, "log", f.Name+".log")); err != nil {
		return fmt.Errorf("open the function's log: %w", err)
	}
	changed := localise(environ, s, d.vault.Endpoint())
	d.Function, err = lambdahost.New(lambdahost.Config{
		Name: f.Name, Bootstrap: filepath.Join(c.Dir, "code", f.Handler), MemoryMB: f.MemoryMB, Timeout: f.Timeout,
		Env: environ, Region: local.Region, Log: d.log,
	})
	if err != nil {
		return err
	}
	fmt.Printf("function %s of %s\n  code     %s\n  settings %d variables of the template; for this machine: %s\n", f.Name, shown(c.Template), code,
		len(f.Variables), strings.Join(changed, ", "))
	return nil
}

func (d *deployed) close() error {
	if d.Function != nil {
		d.Close()
	}
	if d.log != nil {
		_ = d.log.Close() // nothing is buffered
	}
	return d.vault.Close()
}

// localise puts the addresses of this machine into a deployed environment, and
// takes out how to log in and to verify the servers that they replace. Every
// other variable stays as it is deployed. It returns the names of what changed.
func localise(environ map[string]string, s *stack.Stack, vault string) (changed []string) {
	set := map[string]string{
		"AWS_ENDPOINT_URL_DYNAMODB": s.DynamoDB.Endpoint(), "AWS_ENDPOINT_URL_SQS": s.Queue.Endpoint(),
		"AWS_ENDPOINT_URL_SECRETS_MANAGER": vault,
		"AWS_ACCESS_KEY_ID":                "local", "AWS_SECRET_ACCESS_KEY": "local",
		settings.Prefix + "CLICKHOUSE_URL": s.Engine.URL(),
	}
	unset := []string{"CLICKHOUSE_SERVER_NAME", "CLICKHOUSE_CA_FILE", "CLICKHOUSE_PROXY"}
	if environ[settings.Prefix+"KAFKA_BROKERS"] != "" {
		set[settings.Prefix+"KAFKA_BROKERS"] = s.Bootstrap()
		unset = append(unset, "KAFKA_AUTH", "KAFKA_TLS", "KAFKA_SECRET", "KAFKA_CA_FILE")
	}
	maps.Copy(environ, set)
	changed = slices.Collect(maps.Keys(set))
	for _, name := range unset {
		if _, ok := environ[settings.Prefix+name]; ok {
			delete(environ, settings.Prefix+name)
			changed = append(changed, settings.Prefix+name)
		}
	}
	slices.Sort(changed)
	return changed
}

// localSecrets are the secrets that an environment names, with what a local
// server takes in them.
func localSecrets(environ map[string]string) map[string]string {
	all := map[string]string{}
	for _, value := range environ {
		ref, err := secrets.ParseRef(value)
		switch {
		case err != nil: // no secret
		case ref.Key == "":
			all[ref.ARN] = "local"
		default:
			object, _ := json.Marshal(map[string]string{ref.Key: "local"}) // strings always do
			all[ref.ARN] = string(object)
		}
	}
	return all
}

// createLedger makes the table as the base stack would.
func createLedger(ctx context.Context, s *stack.Stack, name string) error {
	if name == "" {
		return nil
	}
	_, err := dynamodb.NewFromConfig(s.DynamoDB.Config()).CreateTable(ctx, dynamo.Schema(name))
	var exists *types.ResourceInUseException
	if err != nil && !errors.As(err, &exists) {
		return fmt.Errorf("create the ledger %s: %w", name, err)
	}
	return nil
}

// code puts the function's executable into Dir/code, and says where it is from:
// out of the template's own zip where this machine can run it, else compiled
// from the same sources.
func (c *invokeCommand) code(ctx context.Context, root string, f *template.Function) (string, error) {
	dir := filepath.Join(c.Dir, "code")
	if err := os.RemoveAll(dir); err != nil {
		return "", fmt.Errorf("remove older code: %w", err)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", fmt.Errorf("make the code's directory: %w", err)
	}
	path := filepath.Join(dir, f.Handler)
	if f.Arch == runtime.GOARCH && runtime.GOOS == "linux" {
		return shown(f.Asset) + ", as it is deployed", unpack(f.Asset, f.Handler, path)
	}
	err := artifact.Compile(ctx, artifact.Source{Root: root, Function: "sink", Arch: runtime.GOARCH, OS: runtime.GOOS}, path)
	return fmt.Sprintf("functions/sink for %s/%s: the template's is for linux/%s", runtime.GOOS, runtime.GOARCH, f.Arch), err
}

// unpack takes one executable out of a zip.
func unpack(path, name, to string) error {
	archive, err := zip.OpenReader(path)
	if err != nil {
		return fmt.Errorf("open the code: %w", err)
	}
	defer func() { _ = archive.Close() }()
	in, err := archive.Open(name)
	if err != nil {
		return fmt.Errorf("find %s in the code: %w", name, err)
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o700) //nolint:gosec // it is run
	if err != nil {
		return fmt.Errorf("unpack the code: %w", err)
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("unpack the code: %w", err)
	}
	return nil
}
