package broker

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// dialTimeout is how long a broker may take to answer once.
const dialTimeout = 10 * time.Second

type dialled struct{ addrs []string }

// Dial uses a broker that runs already. Error: none of the addresses answers
// within 10 s.
func Dial(ctx context.Context, addrs ...string) (Broker, error) {
	if len(addrs) == 0 {
		return nil, fmt.Errorf("dial a broker: no address given")
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if err := ping(ctx, addrs...); err != nil {
		return nil, fmt.Errorf("no Kafka broker answers at %s (is it running, and plaintext?): %w", strings.Join(addrs, ","), err)
	}
	return dialled{addrs}, nil
}

func (d dialled) Addrs() []string { return d.addrs }

func (dialled) Close() {}
