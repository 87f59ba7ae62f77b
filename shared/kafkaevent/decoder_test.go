package kafkaevent

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDecodeOne(t *testing.T) {
	var d Decoder
	e, err := d.Decode([]byte(`{"eventSource":"aws:kafka","records":{"a-b-1":[{"topic":"a-b","partition":1,"offset":7,"timestamp":0,"value":"eyJhIjoxfQ==","headers":[{"h":[118,-36,255]}]}]}}`))
	require.NoError(t, err)
	require.Equal(t, "a-b", e.Batches[0].Topic)
	require.Equal(t, `{"a":1}`, string(e.Batches[0].Records[0].Value))
	require.Equal(t, []byte{118, 220, 255}, e.Batches[0].Records[0].Headers[0].Value)
}
