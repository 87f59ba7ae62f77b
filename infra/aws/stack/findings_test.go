package stack_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssqs"
	"github.com/aws/jsii-runtime-go"
	"github.com/stretchr/testify/require"

	"oncehouse/infra/aws/nag"
)

// cdk-nag's findings, and CDK's own. That CloudFormation's rules are kept, the
// synthesis itself has checked (cdk.json).
func TestNothingIsFound(t *testing.T) {
	for name, in := range examples {
		for _, f := range in.findings {
			t.Errorf("%s: %s: %s: %s", name, f.path, f.level, f.text)
		}
	}
}

func TestWhatIsWrongIsFound(t *testing.T) {
	app := awscdk.NewApp(&awscdk.AppProps{Outdir: jsii.String(t.TempDir())})
	stack := awscdk.NewStack(app, jsii.String("wrong"), nil)
	awssqs.NewQueue(stack, jsii.String("Queue"), nil)
	role := awsiam.NewRole(stack, jsii.String("Role"), &awsiam.RoleProps{AssumedBy: awsiam.NewServicePrincipal(jsii.String("lambda.amazonaws.com"), nil)})
	role.AddToPolicy(awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{Actions: jsii.Strings("sqs:SendMessage"), Resources: jsii.Strings("*", "arn:aws:sqs:eu-west-1:111122223333:x*")}))
	nag.Accept(role, "AwsSolutions-IAM5", "One of the two is accepted here.", "Resource::*")
	nag.Check(app)
	findings, err := findingsOf(*app.Synth(nil).Directory())
	require.NoError(t, err)

	var found []string
	for _, f := range findings {
		if f.level == "error" {
			rule, _, _ := strings.Cut(f.text, ":")
			found = append(found, f.path+" "+rule)
		}
	}
	require.ElementsMatch(t, []string{
		"/wrong/Queue/Resource AwsSolutions-SQS3", "/wrong/Queue/Resource AwsSolutions-SQS4",
		"/wrong/Role/DefaultPolicy/Resource AwsSolutions-IAM5[Resource", // and not the one that is accepted
	}, found)
}

// cfn-lint is Python's: pip install cfn-lint.
func TestTemplatesPassCfnLint(t *testing.T) {
	lint, err := exec.LookPath("cfn-lint")
	if err != nil {
		t.Log("NOT LINTED: cfn-lint is not installed (pip install cfn-lint)")
		return
	}
	regions := map[string][]string{} // one run each: it takes seconds to begin
	for _, in := range examples {
		templates, err := filepath.Glob(filepath.Join(in.dir, "*.template.json"))
		require.NoError(t, err)
		require.Len(t, templates, len(in.templates))
		regions[in.config.Environment.Region] = append(regions[in.config.Environment.Region], templates...)
	}
	for region, templates := range regions {
		// W3005: CDK names what CloudFormation would find by itself.
		arguments := append([]string{"--ignore-checks", "W3005", "--regions", region, "--"}, templates...)
		report, err := exec.CommandContext(t.Context(), lint, arguments...).CombinedOutput()
		require.NoError(t, err, string(report))
	}
}
