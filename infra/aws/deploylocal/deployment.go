package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// deployment goes through the life of an installation.
type deployment struct {
	cdk
	account
	before, after *example
	// ids are the physical ids after create, by stack and logical id.
	ids map[string]map[string]string
}

func (d *deployment) bootstrap(ctx context.Context) error {
	// No app is needed for it, and its synthesis would be the slowest part.
	return d.run(ctx, "bootstrap", "bootstrap", "--app", "", "aws://"+d.emulator.account+"/"+d.emulator.region)
}

// create makes all stacks, looks at every resource, and leaves something in
// what must not be lost.
func (d *deployment) create(ctx context.Context) error {
	stacks, err := d.deploy(ctx, "create", d.before)
	if err != nil {
		return err
	}
	d.ids = stacks
	return d.leave(ctx, d.before.Config)
}

// update deploys the changed example: the changes arrive, and nothing is made
// anew for them.
func (d *deployment) update(ctx context.Context) error {
	stacks, err := d.deploy(ctx, "update", d.after)
	if err != nil {
		return err
	}
	for name, made := range stacks {
		if !maps.Equal(made, d.ids[name]) {
			return fmt.Errorf("stack %s has other resources than before the update: %v, was %v", name, made, d.ids[name])
		}
	}
	say("", "every resource of %d stacks kept its physical id", len(stacks))
	return d.find(ctx, d.after.Config)
}

// destroy takes the protection away, as a person has to, and destroys all
// stacks. The ledger and the letters stay, with what is in them.
func (d *deployment) destroy(ctx context.Context) error {
	if err := d.unprotect(ctx, d.after.Prefix()); err != nil {
		return err
	}
	config, err := d.after.context()
	if err != nil {
		return err
	}
	if err := d.run(ctx, "destroy", "destroy", "--all", "--force", "-c", config, "--output", output("destroy")); err != nil {
		return err
	}
	if err := d.gone(ctx, d.after.Config); err != nil {
		return err
	}
	return d.find(ctx, d.after.Config)
}

// deploy deploys an example and checks everything in it. It returns the physical
// ids by stack and logical id.
func (d *deployment) deploy(ctx context.Context, step string, e *example) (map[string]map[string]string, error) {
	config, err := e.context()
	if err != nil {
		return nil, err
	}
	if err := d.run(ctx, step, "deploy", "--all", "--require-approval", "never", "--ci", "-c", config, "--output", output(step)); err != nil {
		return nil, err
	}
	templates, err := readTemplates(filepath.Join(directory, step))
	if err != nil {
		return nil, err
	}
	if len(templates) < 1+len(e.Pipelines) {
		return nil, fmt.Errorf("%d stacks were synthesised for %d pipelines", len(templates), len(e.Pipelines))
	}
	stacks := map[string]map[string]string{}
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(templates)) {
		t := templates[name]
		stacks[name], err = d.whole(ctx, name, t)
		problems = append(problems, err, d.watched(ctx, name, t), d.codes(ctx, t))
	}
	problems = append(problems, d.base(ctx, e.Config))
	for _, p := range e.Pipelines {
		problems = append(problems, d.pipeline(ctx, e.Config, p, stacks[e.FunctionName(p)]))
	}
	return stacks, errors.Join(problems...)
}

// output is an assembly's directory, as the CLI gets it at the root.
func output(step string) string {
	return filepath.Join(strings.TrimPrefix(directory, root+"/"), step)
}
