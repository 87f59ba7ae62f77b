// Command build makes what is deployed of every function, for both processors
// that Lambda has, and says what came out:
//
//	go run ./infra/build [--version v1.2.3] [--dir .build]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"text/tabwriter"

	"oncehouse/infra/build/artifact"
)

func main() {
	dir := flag.String("dir", ".build", "directory for <function>-<arch>.zip")
	version := flag.String("version", "", "what the executables say they are; default the tag of HEAD, or one made from the latest commit")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := build(ctx, *dir, *version)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

func build(ctx context.Context, dir, version string) error {
	const root = "." // of the repository, as for all of make's commands
	stamp, err := artifact.StampOf(ctx, root)
	if err != nil {
		return err
	}
	if version != "" {
		stamp.Version = version
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
			made, err := artifact.Make(ctx, artifact.Source{Root: root, Function: name, Arch: arch, Stamp: stamp}, dir)
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintf(table, "%s\t%.2f MB\t%.2f MB\t%s\t%s\n", filepath.Clean(made.Zip),
				megabytes(made.BinaryBytes), megabytes(made.Bytes), made.CodeSHA256, made.GoVersion)
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print what was built: %w", err)
	}
	return nil
}

func megabytes(n int64) float64 { return float64(n) / 1e6 }
