package demo

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/oracle"
	"oncehouse/shared/delivery"
)

func TestProofLine(t *testing.T) {
	line := Proof{
		Guarantee: delivery.ExactlyOnce, Count: oracle.Count{Produced: 5, Stored: 3, DeadLetters: 1, Tombstones: 1},
		Kills: 2, Recuts: 4, Seconds: 1.5,
	}.String()
	require.Equal(t, `PROOF {"guarantee":"exactly-once","produced":5,"stored":3,"dead_letters":1,"tombstones":1,"lost":0,"duplicated":0,"wrong_values":0,"kills":2,"recuts":4,"seconds":1.5}`, line)
	var back Proof
	require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(line, "PROOF ")), &back))
	require.True(t, back.Exact())
}
