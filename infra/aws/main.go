// Command aws is the CDK app of oncehouse. The CDK CLI runs it at the root of
// the repository (cdk.json); the context value config is the path of the file
// that describes the installation:
//
//	npx cdk synth -c config=oncehouse.yaml
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/jsii-runtime-go"

	"oncehouse/infra/aws/config"
	"oncehouse/infra/aws/stack"
)

func main() {
	err := run()
	jsii.Close()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run makes the stacks of the file that the context names.
func run() error {
	app := awscdk.NewApp(nil)
	path, ok := app.Node().TryGetContext(jsii.String("config")).(string)
	if !ok {
		return fmt.Errorf("no configuration: -c config=<file> expected; infra/aws/examples has some")
	}
	c, err := config.Read(path)
	if err != nil {
		return err
	}
	if err := built(c); err != nil {
		return err
	}
	stack.Add(app, c, asset)
	app.Synth(nil)
	return nil
}

// built says whether there is all that is to be deployed.
func built(c *config.Config) error {
	var needed []string
	for _, p := range c.Pipelines {
		needed = append(needed, asset(stack.Sink, p.Architecture))
	}
	for _, o := range c.Outboxes {
		needed = append(needed, asset(stack.Poller, o.Architecture))
	}
	for _, path := range needed {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("find a function: %w: run make build first", err)
		}
	}
	return nil
}

// asset is where make build puts a function. A zip is uploaded as it is, so that
// Lambda's CodeSha256 is the one that make build prints.
func asset(function, architecture string) string {
	return filepath.Join(".build", function+"-"+architecture+".zip")
}
