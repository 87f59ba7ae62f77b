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
	for _, p := range c.Pipelines {
		if _, err := os.Stat(asset(p.Architecture)); err != nil {
			return fmt.Errorf("find the function for %s: %w: run make build first", p.Architecture, err)
		}
	}
	stack.Add(app, c, asset)
	app.Synth(nil)
	return nil
}

// asset is where make build puts the sink. A zip is uploaded as it is, so that
// Lambda's CodeSha256 is the one that make build prints.
func asset(architecture string) string {
	return filepath.Join(".build", "sink-"+architecture+".zip")
}
