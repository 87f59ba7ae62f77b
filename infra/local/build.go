package main

import (
	"context"
	"fmt"
	"os"
	"text/tabwriter"

	"oncehouse/infra/local/artifact"
)

type buildCommand struct {
	Dir     string `help:"Directory for <function>-<arch>.zip." type:"path" default:".build"`
	Version string `help:"What the executables say they are; default the tag of HEAD, or one made from the latest commit."`
}

// Run builds every function for both processors and says what came out.
func (c *buildCommand) Run(ctx context.Context) error {
	root, err := root()
	if err != nil {
		return err
	}
	stamp, err := artifact.StampOf(ctx, root)
	if err != nil {
		return err
	}
	if c.Version != "" {
		stamp.Version = c.Version
	}
	names, err := artifact.Functions(root)
	if err != nil {
		return err
	}
	fmt.Printf("version %s, commit %s\n", stamp.Version, stamp.Commit)
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "zip\tbinary\tzipped\tCodeSha256\tby") // into memory, till Flush
	for _, name := range names {
		for _, arch := range []string{artifact.ARM64, artifact.AMD64} {
			made, err := artifact.Make(ctx, artifact.Source{Root: root, Function: name, Arch: arch, Stamp: stamp}, c.Dir)
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintf(table, "%s\t%.2f MB\t%.2f MB\t%s\t%s\n",
				shown(made.Zip), megabytes(made.BinaryBytes), megabytes(made.Bytes), made.CodeSHA256, made.GoVersion)
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print what was built: %w", err)
	}
	return nil
}

func megabytes(n int64) float64 { return float64(n) / 1e6 }
