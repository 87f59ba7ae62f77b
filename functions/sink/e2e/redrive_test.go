package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oncehouse/functions/sink/redrive"
	"oncehouse/infra/local/queue"
)

// moments of a redrive at which the function is killed.
var redriveMoments = append(slices.DeleteFunc(slices.Clone(moments), func(m moment) bool { return strings.HasSuffix(m.name, "-the-letters") }),
	moment{"before-the-delete", func(p *pipeline) {
		act := func() queue.Fault { killed(p); return queue.Fault{Refuse: "ServiceUnavailable"} }
		p.onDelete.Store(&act)
	}},
	moment{"after-the-delete", func(p *pipeline) {
		act := func() queue.Fault { killed(p); return queue.Fault{DropAnswer: true} }
		p.onDelete.Store(&act)
	}},
)

// Letters go back through the engine once, wherever the function is killed.
func (s *stack) testRedrive(t *testing.T) {
	t.Parallel()
	narrow := strings.Replace(s.ddl, "duration_ms UInt32", "duration_ms UInt16", 1)
	require.NotEqual(t, s.ddl, narrow)
	for _, m := range redriveMoments {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			p := s.pipeline(t, "redrive-"+m.name, options{ddl: narrow, settings: short("1s")})
			p.redeliver(event(batch(2, 0, 29)))
			missing := 30 - p.count()
			require.Greater(t, missing, 2)
			require.Equal(t, missing, p.letters.Len(p.name()))
			answer := p.redrive()
			require.Equal(t, map[string]int{"out_of_range": missing}, answer.Kept)
			require.Contains(t, answer.Examples["out_of_range"], "duration_ms")

			require.NoError(t, p.conn.Exec(t.Context(), "ALTER TABLE clicks MODIFY COLUMN duration_ms UInt32"))
			m.arm(p)
			p.failAs("Runtime.ExitError", []byte(`{"oncehouse":{"action":"redrive"}}`))
			require.Eventually(t, func() bool {
				p.ahead.Add(int64(time.Hour)) // what the killed one had taken is seen again
				p.redrive()
				return p.letters.Len(p.name()) == 0
			}, 2*time.Minute, time.Millisecond)
			require.Equal(t, through(0, 29), p.offsets())
		})
	}
}

func (p *pipeline) redrive() redrive.Answer {
	p.t.Helper()
	result, err := p.Invoke(p.t.Context(), []byte(`{"oncehouse":{"action":"redrive"}}`))
	require.NoError(p.t, err)
	require.Empty(p.t, result.FunctionError, "%s: %s", result.ErrorType, result.ErrorMessage)
	var answer redrive.Answer
	require.NoError(p.t, json.Unmarshal(result.Payload, &answer))
	return answer
}
