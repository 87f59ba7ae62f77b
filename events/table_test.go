package events

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/infra/local/engine/enginetest"
	"oncehouse/shared/kafkaevent"
	"oncehouse/shared/offsets"
	"oncehouse/shared/rowbinary"
)

var columnType = regexp.MustCompile(`(?m)^    (\w+) +([A-Z].*?),?$`)

// encode is the rows of one event as the sink encodes them for clicks.sql, what
// it refused, and what it passed over.
func encode(t *testing.T, encoder *rowbinary.Encoder, file string) (body []byte, refused, skipped lanes) {
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	var d kafkaevent.Decoder
	event, err := d.Decode(content)
	require.NoError(t, err)
	refused, skipped = lanes{}, lanes{}
	writer := encoder.NewWriter()
	for _, b := range event.Batches {
		var sets [rowbinary.Refused + 1]offsets.Set
		for i := range b.Records {
			var outcome rowbinary.Outcome
			body, outcome, _ = writer.Append(body, b.Topic, b.Partition, &b.Records[i])
			sets[outcome] = sets[outcome].Append(b.Records[i].Offset)
		}
		if set := sets[rowbinary.Refused]; set != nil {
			refused[b.String()] = set.String()
		}
		if set := sets[rowbinary.Skipped]; set != nil {
			skipped[b.String()] = set.String()
		}
	}
	return body, refused, skipped
}

// TestTableTakesWhatTheReadmeSays creates the table on the real engine and
// stores every event that is taken, by the sink's own encoder.
func TestTableTakesWhatTheReadmeSays(t *testing.T) {
	ddl, err := os.ReadFile("clicks.sql")
	require.NoError(t, err)
	var columns []rowbinary.Column
	for _, match := range columnType.FindAllStringSubmatch(string(ddl), -1) {
		columns = append(columns, rowbinary.Column{Name: match[1], Type: match[2]})
	}
	require.Len(t, columns, 15)
	encoder, err := rowbinary.Compile(columns, rowbinary.Options{Provenance: rowbinary.StandardProvenance(), Unknown: rowbinary.UnknownRefuse})
	require.NoError(t, err)

	address := "http://" + enginetest.Run(t).Addr()
	post(t, address, string(ddl), nil)
	insert := "INSERT INTO clicks (" + strings.Join(encoder.Columns(), ", ") + ") FORMAT RowBinaryWithDefaults"
	var stored int64
	for _, s := range samples {
		if s.refused != "" {
			continue
		}
		body, refused, skipped := encode(t, encoder, s.file)
		require.Equal(t, s.poison, orNil(refused), s.file)
		require.Equal(t, s.tombstones, orNil(skipped), s.file)
		if len(body) > 0 {
			post(t, address, insert, body)
		}
		stored += count(s.lanes) - count(s.poison) - count(s.tombstones)
		require.Equal(t, fmt.Sprintln(stored), post(t, address, "SELECT count() FROM clicks", nil), s.file)
	}
	c := stream.Click(good(1)[0])
	require.Equal(t, fmt.Sprintf("%s\t%d\t%s\t%s\tuser-%d\n", c.UUID(), c.UserID, c.Price(), c.Time.Format("2006-01-02 15:04:05.000"), c.UserID),
		post(t, address, "SELECT event_id, user_id, toDecimalString(price, 2), ts, _key FROM clicks WHERE _topic = 'clicks' AND _partition = 0 AND _offset = 100", nil))
}

func post(t *testing.T, address, query string, body []byte) string {
	response, err := http.Post(address+"/?query="+url.QueryEscape(query), "application/octet-stream", bytes.NewReader(body))
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	answer, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode, "%s", answer)
	return string(answer)
}
