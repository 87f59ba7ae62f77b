// Package nag holds the app to the rules of cdk-nag's AWS Solutions pack. A
// finding is an error of the synthesis; what is accepted all the same says why,
// on the one resource and the one finding that it is true of:
//
//	nag.Check(app)
//	nag.Accept(role, "AwsSolutions-IAM5", "X-Ray has no resources to name.", "Resource::*")
//
// The rules: https://github.com/cdklabs/cdk-nag/blob/main/RULES.md
package nag

import (
	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"
	"github.com/cdklabs/cdk-nag-go/cdknag/v2"
)

// Check checks everything in the app when it is synthesised.
func Check(app awscdk.App) {
	awscdk.Aspects_Of(app).Add(cdknag.NewAwsSolutionsChecks(&cdknag.NagPackProps{
		Verbose: jsii.Bool(true), Reports: jsii.Bool(false),
	}), nil)
}

// Accept takes findings of a rule on a resource, or on what CDK puts below it.
// findings name them, such as Resource::*; a rule that has only one finding takes
// none.
func Accept(on constructs.IConstruct, rule, reason string, findings ...string) {
	accepted := cdknag.NagPackSuppression{Id: &rule, Reason: &reason}
	if len(findings) > 0 {
		all := make([]any, len(findings))
		for i := range findings {
			all[i] = findings[i]
		}
		accepted.AppliesTo = &all
	}
	cdknag.NagSuppressions_AddResourceSuppressions(on, &[]*cdknag.NagPackSuppression{&accepted}, jsii.Bool(true))
}
