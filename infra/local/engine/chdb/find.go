package chdb

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// Release is the npm version of the library that this package is written for.
// Not a later one unseen: 26.5.3, which npm called latest, hangs on DROP SYNC.
const Release = "26.7.3-stable.1"

// Package is the npm package that holds the library for an operating system
// and architecture, in Go's names. Where chdb publishes none it returns "".
func Package(goos, goarch string) string {
	switch goos + "/" + goarch {
	case "linux/amd64":
		return "@chdb/lib-linux-x64-gnu"
	case "linux/arm64":
		return "@chdb/lib-linux-arm64-gnu"
	case "darwin/amd64":
		return "@chdb/lib-darwin-x64"
	case "darwin/arm64":
		return "@chdb/lib-darwin-arm64"
	}
	return ""
}

// Find returns the library's path in root/node_modules. Error: it is not
// installed, with the remedy, or does not exist for this machine.
func Find(root string) (string, error) {
	return find(root, runtime.GOOS, runtime.GOARCH)
}

func find(root, goos, goarch string) (string, error) {
	pkg := Package(goos, goarch)
	if pkg == "" {
		return "", fmt.Errorf("find the ClickHouse engine: chdb publishes no library for %s/%s; use linux or darwin on amd64 or arm64", goos, goarch)
	}
	path := filepath.Join(root, "node_modules", filepath.FromSlash(pkg), "libchdb.so")
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("find the ClickHouse engine: %w; run make setup, which installs %s@%s", err, pkg, Release)
	}
	return path, nil
}
