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
	// A first build takes minutes: each line is printed when its zip is there.
	const row = "%-30s  %-8s  %-8s  %-44s  %s\n"
	fmt.Printf(row, "zip", "binary", "zipped", "CodeSha256", "by")
	for _, name := range names {
		for _, arch := range []string{artifact.ARM64, artifact.AMD64} {
			made, err := artifact.Make(ctx, artifact.Source{Root: root, Function: name, Arch: arch, Stamp: stamp}, dir)
			if err != nil {
				return err
			}
			fmt.Printf(row, filepath.Clean(made.Zip), megabytes(made.BinaryBytes), megabytes(made.Bytes), made.CodeSHA256, made.GoVersion)
		}
	}
	return nil
}

func megabytes(n int64) string { return fmt.Sprintf("%.2f MB", float64(n)/1e6) }
