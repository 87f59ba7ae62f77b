package torture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncehouse/infra/local/lambdahost"
	"oncehouse/infra/local/mapping"
	"oncehouse/infra/local/process"
)

// Poller is an event source mapping in a process of its own, so that it can be
// killed. It invokes its function by Lambda's API: when it dies, an invocation
// under way goes on without it.
type Poller struct {
	Brokers  []string `help:"Bootstrap addresses." required:""`
	Topic    string   `help:"Topic to read." required:""`
	Group    string   `help:"Consumer group." required:""`
	Instance string   `help:"The static member's name in the group (group.instance.id)." required:""`
	Function string   `help:"URL of the function's Invoke operation." required:""`
	Batch    int      `help:"The most records of one event." required:""`
	Pollers  int      `help:"Among how many the partitions are divided." required:""`
	Seed     uint64   `help:"Seed of the boundaries of what is delivered again." required:""`
}

// Run polls until ctx ends.
func (p *Poller) Run(ctx context.Context, log io.Writer) error {
	m, err := mapping.Start(ctx, mapping.Config{
		Brokers: p.Brokers, Topic: p.Topic, Group: p.Group, Options: []kgo.Opt{kgo.InstanceID(p.Instance)},
		Function: &remote{url: p.Function}, FunctionARN: p.Function,
		BatchSize: p.Batch, Pollers: p.Pollers, MaxConcurrency: p.Pollers, ReportBatchItemFailures: true,
		Backoff: 50 * time.Millisecond, MaxBackoff: time.Second,
		Recut: recut(p.Seed), Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	m.Stop()
	return nil
}

// recut gives a batch that comes again other boundaries, twice; after that it
// comes as it is, as at Lambda, so that no batch is cut to pieces.
func recut(seed uint64) func(mapping.Redelivery) int {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // boundaries, not secrets
	return func(r mapping.Redelivery) int {
		if r.Attempt > 2 {
			return 0
		}
		mu.Lock()
		defer mu.Unlock()
		return max(1, r.Count/2) + random.IntN(r.Count+2)
	}
}

// remote is a function behind Lambda's Invoke operation.
type remote struct{ url string }

// Invoke runs the function. Error: it did not run, or nobody knows.
func (f *remote) Invoke(ctx context.Context, payload []byte) (lambdahost.Result, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url, bytes.NewReader(payload))
	if err != nil {
		return lambdahost.Result{}, fmt.Errorf("invoke the function: %w", err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return lambdahost.Result{}, fmt.Errorf("invoke the function: %w", err)
	}
	answer, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return lambdahost.Result{}, fmt.Errorf("invoke the function: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		return lambdahost.Result{}, fmt.Errorf("invoke the function: %s: %s", res.Status, strings.TrimSpace(string(answer)))
	}
	return lambdahost.Result{Payload: answer, FunctionError: res.Header.Get("X-Amz-Function-Error")}, nil
}

// start starts the poller as a process of program.
func (p *Poller) start(program string, log io.Writer) (*process.Process, error) {
	return process.Start(process.Spec{Name: "event source mapping", Path: program, Output: log, Args: []string{
		"mapping", "--brokers=" + strings.Join(p.Brokers, ","), "--topic=" + p.Topic, "--group=" + p.Group,
		"--instance=" + p.Instance, "--function=" + p.Function, "--batch=" + strconv.Itoa(p.Batch),
		"--pollers=" + strconv.Itoa(p.Pollers), "--seed=" + strconv.FormatUint(p.Seed, 10),
	}})
}
