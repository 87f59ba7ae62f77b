// Package repository finds the clone of oncehouse that a program of the local
// stack works in: what it runs and builds is there.
package repository

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Root is the directory of go.mod, at or above the working directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod here or above: run this in a clone of oncehouse")
		}
		dir = parent
	}
}
