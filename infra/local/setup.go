package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"oncehouse/infra/local/broker"
	"oncehouse/infra/local/engine/chdb"
	"oncehouse/infra/local/postgres"
	"oncehouse/infra/local/repository"
)

// oldestNode is the oldest major version of Node.js that the packages run on.
const oldestNode = 20

type setupCommand struct {
	Kafka string `help:"With apache: Java and Maven are checked and the broker is fetched too." env:"KAFKA" default:"embedded"`
}

// Run installs what is missing; a second run changes nothing.
func (c *setupCommand) Run(ctx context.Context) error {
	root, err := repository.Root()
	if err != nil {
		return err
	}
	if chdb.Package(runtime.GOOS, runtime.GOARCH) == "" {
		_, err := chdb.Find(root) // says so
		return err
	}
	if err := findTools(ctx); err != nil {
		return err
	}
	installed, err := isInstalled(root)
	if err != nil {
		return err
	}
	if !installed {
		fmt.Println("npm packages: installing those of package-lock.json (about 210 MB to download, once)")
		// npm ci removes everything first, under whoever uses it
		if err := npm(ctx, root, "ci"); err != nil {
			return err
		}
	}
	if _, err := chdb.Find(root); err != nil {
		// package-lock.json holds the engine for linux/amd64; the others have
		// packages of the same version.
		engine := chdb.Package(runtime.GOOS, runtime.GOARCH) + "@" + chdb.Release
		if err := npm(ctx, root, "install", "--no-save", engine); err != nil {
			return err
		}
	}
	library, err := chdb.Find(root)
	if err != nil {
		return err
	}
	fmt.Printf("engine: %s %s for %s/%s\n", filepath.Base(filepath.Dir(library)), chdb.Release, runtime.GOOS, runtime.GOARCH)
	if found, err := postgres.Find(root); err != nil {
		fmt.Println("postgres: none (the outbox needs one: install PostgreSQL 13 or newer)")
	} else {
		fmt.Printf("postgres: %s\n", found)
	}
	if c.Kafka == "apache" {
		if _, err := exec.LookPath("java"); err != nil {
			return errors.New("KAFKA=apache needs java and it is missing: install Java 17 or newer, or use the embedded broker")
		}
		jars, err := broker.Setup(ctx, filepath.Join(root, ".cache", "kafka"), os.Stderr)
		if err != nil {
			return err
		}
		fmt.Println("kafka: " + filepath.Base(jars))
	}
	return nil
}

// lockfile is package-lock.json, and what npm keeps of it in node_modules.
type lockfile struct {
	Packages map[string]struct {
		Integrity string `json:"integrity"`
		Optional  bool   `json:"optional"`
	} `json:"packages"`
}

// isInstalled reports whether node_modules is what package-lock.json says.
// Optional packages may be missing: they are for other machines.
func isInstalled(root string) (bool, error) {
	var wanted, have lockfile
	text, err := os.ReadFile(filepath.Join(root, "package-lock.json"))
	if err == nil {
		err = json.Unmarshal(text, &wanted)
	}
	if err != nil {
		return false, fmt.Errorf("read package-lock.json: %w", err)
	}
	text, err = os.ReadFile(filepath.Join(root, "node_modules", ".package-lock.json"))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &have)
	}
	if err != nil {
		return false, fmt.Errorf("read what npm installed: %w", err)
	}
	for path, p := range wanted.Packages {
		if path != "" && have.Packages[path] != p && !p.Optional {
			return false, nil
		}
	}
	return true, nil
}

// findTools names every tool that is missing or too old, at once.
func findTools(ctx context.Context) error {
	var problems []error
	for _, tool := range []struct{ name, remedy string }{
		{"go", "install Go 1.26 or later"},
		{"node", fmt.Sprintf("install Node.js %d or later", oldestNode)},
		{"npm", "install npm, which comes with Node.js"},
	} {
		if _, err := exec.LookPath(tool.name); err != nil {
			problems = append(problems, fmt.Errorf("%s is not installed: %s", tool.name, tool.remedy))
		} else if tool.name == "node" {
			problems = append(problems, checkNode(ctx))
		}
	}
	return errors.Join(problems...)
}

// checkNode wants a Node.js that the CDK and dynalite run on; its version is
// printed as "v22.1.0". Go checks its own, by go.mod.
func checkNode(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "node", "--version").Output()
	if err != nil {
		return fmt.Errorf("ask node for its version: %w", err)
	}
	version := strings.TrimSpace(string(out))
	major, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	if n, err := strconv.Atoi(major); err != nil || n < oldestNode {
		return fmt.Errorf("node is %s: install Node.js %d or later", version, oldestNode)
	}
	return nil
}

// npm runs npm in the repository; what it says is shown when it fails.
func npm(ctx context.Context, root string, args ...string) error {
	cmd := exec.CommandContext(ctx, "npm", args...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("npm %s failed (is the registry reachable, and the disk not full?): %w: %s", args[0], err, out)
	}
	return nil
}

// findLibrary is where make setup puts the engine.
func findLibrary() (string, error) {
	root, err := repository.Root()
	if err != nil {
		return "", err
	}
	return chdb.Find(root)
}
