package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"oncehouse/infra/local/process"
)

var (
	//go:embed emulator.py
	program []byte
	// requirements is the one release of moto whose inside the program knows.
	//go:embed requirements.txt
	requirements string
)

// missingError: the emulator is not on this machine.
type missingError struct{ reason string }

func (e *missingError) Error() string {
	return fmt.Sprintf("%s: pip install '%s' (python3 on the PATH must be the one that has it)", e.reason, strings.TrimSpace(requirements))
}

// emulator is a running AWS.
type emulator struct {
	process         *process.Process
	log             *os.File
	url             string
	account, region string
}

const startTimeout = 2 * time.Minute

// startEmulator starts the AWS of one account. Error: a *missingError where moto
// is not installed.
func startEmulator(ctx context.Context, account, region string) (*emulator, error) {
	begun := time.Now()
	python, err := findMoto(ctx)
	if err != nil {
		return nil, err
	}
	script := filepath.Join(directory, "emulator.py")
	if err := os.WriteFile(script, program, 0o600); err != nil {
		return nil, fmt.Errorf("write the emulator: %w", err)
	}
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(directory, "emulator.log"))
	if err != nil {
		return nil, fmt.Errorf("open the emulator's log: %w", err)
	}
	e := &emulator{log: log, url: "http://127.0.0.1:" + strconv.Itoa(port), account: account, region: region}
	e.process, err = process.Start(process.Spec{
		Name: "the emulator", Path: python, Args: []string{script, "127.0.0.1", strconv.Itoa(port)},
		Env: append(e.environ(), "MOTO_ACCOUNT_ID="+account), Output: log,
	})
	if err != nil {
		return nil, err
	}
	within, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := e.process.WaitReady(within, e.answers); err != nil {
		e.stop()
		return nil, err
	}
	say("emulator", "%s at %s after %.1f s", strings.TrimSpace(requirements), e.url, time.Since(begun).Seconds())
	return e, nil
}

// findMoto returns the Python that has the required release of moto.
func findMoto(ctx context.Context) (string, error) {
	python, err := exec.LookPath("python3")
	if err != nil {
		return "", &missingError{"python3 is not installed"}
	}
	want := requirements[strings.Index(requirements, "==")+2:]
	out, err := exec.CommandContext(ctx, python, "-c", "import importlib.metadata as m; print(m.version('moto'))").Output()
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		return "", &missingError{"moto is not installed"}
	}
	if got := bytes.TrimSpace(out); string(got) != strings.TrimSpace(want) {
		return "", &missingError{fmt.Sprintf("moto is %s", got)}
	}
	return python, nil
}

func (e *emulator) answers(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url+"/moto-api/data.json", nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

func (e *emulator) stop() {
	e.process.Kill()
	_ = e.log.Close() // it is for reading after a failure
}

// credentials that no AWS would take.
const (
	accessKey = "testing"
	secretKey = "testing"
)

// environ is the environment of everything that calls AWS: none of the user's
// own settings, and no way to the real one.
func (e *emulator) environ() []string {
	var environ []string
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "AWS_") && !strings.HasPrefix(variable, "CDK_") && !strings.HasPrefix(variable, "MAKE") {
			environ = append(environ, variable)
		}
	}
	return append(environ, "AWS_ENDPOINT_URL="+e.url, "AWS_ACCESS_KEY_ID="+accessKey, "AWS_SECRET_ACCESS_KEY="+secretKey,
		"AWS_REGION="+e.region, "AWS_DEFAULT_REGION="+e.region, "AWS_EC2_METADATA_DISABLED=true",
		"AWS_CONFIG_FILE="+os.DevNull, "AWS_SHARED_CREDENTIALS_FILE="+os.DevNull)
}
