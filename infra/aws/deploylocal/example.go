package main

import (
	"fmt"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"

	"oncehouse/infra/aws/config"
)

// example is an installation and the file that describes it.
type example struct {
	*config.Config
	path string
}

func readExample(path string) (*example, error) {
	c, err := config.Read(path)
	if err != nil {
		return nil, err
	}
	return &example{c, path}, nil
}

// changed writes the example with other values of what people change: the size
// and the settings of the function, the mapping, an alarm.
func (e *example) changed(path string) (*example, error) {
	text, err := os.ReadFile(e.path)
	if err != nil {
		return nil, fmt.Errorf("read the example: %w", err)
	}
	var file map[string]any
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("read the example: %w", err)
	}
	for _, pipeline := range file["pipelines"].([]any) { // it was checked
		p := pipeline.(map[string]any)
		p["memory"] = 1536
		p["batch_window"] = "7s"
		p["alarms"] = map[string]any{"dead_letters": 17}
		settings, _ := p["settings"].(map[string]any)
		if settings == nil {
			settings = map[string]any{}
			p["settings"] = settings
		}
		settings["CHUNK_ROWS"] = "123456"
	}
	if text, err = yaml.Marshal(file); err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("write the changed example: %w", err)
	}
	return readExample(path)
}

// context is the path as the app gets it: it runs at the root.
func (e *example) context() (string, error) {
	path, err := filepath.Abs(e.path)
	return "config=" + path, err
}
