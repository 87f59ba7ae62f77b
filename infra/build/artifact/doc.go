// Package artifact makes what is deployed of a function: one static executable
// for Lambda's provided.al2023, in a zip.
//
//	stamp, err := artifact.StampOf(ctx, root)
//	names, err := artifact.Functions(root) // functions/<name>/main.go
//	made, err := artifact.Make(ctx, artifact.Source{Root: root, Function: "sink", Arch: "arm64", Stamp: stamp}, ".build")
//	fmt.Println(made.Zip, made.CodeSHA256)
//
// The same sources, built by the same Go, are the same bytes, on whatever
// machine and in whatever directory. So anyone can build a commit and compare
// CodeSHA256 with what Lambda says of the function that runs
// (aws lambda get-function-configuration --query CodeSha256): CDK uploads the
// zip as it is.
//
// Version and commit are linked into two variables of package main. Every
// function has them, and logs them when it starts and when it refuses to start.
package artifact
