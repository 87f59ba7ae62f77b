package kafkaevent

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// sampleEvents are all of the repository's sample events, the refused ones too.
func sampleEvents(t testing.TB) [][]byte {
	var samples [][]byte
	for _, pattern := range []string{"../../events/*.json", "../../events/refused/*.json"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			content, err := os.ReadFile(file)
			require.NoError(t, err)
			samples = append(samples, content)
		}
	}
	return samples
}

// agree holds the decoder against the oracle and says whether they accept.
func agree(t *testing.T, d *Decoder, payload []byte) bool {
	want, wantErr := oracle(payload)
	before := bytes.Clone(payload)
	got, err := d.Decode(payload)
	require.Equal(t, before, payload, "the payload was changed")
	if wantErr != nil {
		require.Error(t, err, "the oracle refuses: %v\n%s", wantErr, payload)
		var refused *RefusedError
		require.ErrorAs(t, err, &refused)
		require.LessOrEqual(t, refused.Byte, len(payload))
		require.GreaterOrEqual(t, refused.Byte, 0)
		return false
	}
	require.NoError(t, err, "%s", payload)
	require.Equal(t, want.Source, got.Source)
	require.Equal(t, want.SourceARN, got.SourceARN)
	require.Equal(t, want.BootstrapServers, got.BootstrapServers)
	require.Len(t, got.Batches, len(want.Batches))
	for i := range want.Batches {
		require.Equal(t, want.Batches[i], got.Batches[i], "%s", payload)
	}
	return true
}

// FuzzDecode: arbitrary bytes never panic, and what is accepted, with which
// records, is what the oracle says.
func FuzzDecode(f *testing.F) {
	for _, sample := range sampleEvents(f) {
		f.Add(sample)
	}
	for _, c := range accepted {
		f.Add([]byte(c.payload))
	}
	for _, c := range refusals {
		f.Add([]byte(c.payload))
	}
	var d Decoder // lives over all events: nothing of one may show in the next
	f.Fuzz(func(t *testing.T, payload []byte) { agree(t, &d, payload) })
}

// FuzzMutated changes valid samples by whole tokens, which byte-wise fuzzing
// seldom does: what comes out is mostly JSON, and often still an event.
func FuzzMutated(f *testing.F) {
	samples := sampleEvents(f)
	for seed := range uint64(8) {
		f.Add(seed)
	}
	var d Decoder
	f.Fuzz(func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 1))
		agree(t, &d, mutate(random, samples))
	})
}

func TestMutatedSamplesAreDecodedAsTheOracleSays(t *testing.T) {
	samples := sampleEvents(t)
	var d Decoder
	taken, refused := 0, 0
	for seed := range uint64(600) {
		if agree(t, &d, mutate(rand.New(rand.NewPCG(seed, 2)), samples)) {
			taken++
		} else {
			refused++
		}
	}
	require.Greater(t, taken, 75)
	require.Greater(t, refused, 75)
}

// token is a JSON token, roughly: good enough to cut events by.
var token = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|[a-z]+|[{}\[\],:]|\s+`)

// replacements are tokens that events have, should not have, or might.
var replacements = []string{
	`null`, `true`, `0`, `-1`, `-0`, `00`, `1.0`, `1e2`, `9223372036854775807`, `9223372036854775808`, `-9223372036854775808`,
	`18446744073709551616`, `127`, `-128`, `-129`, `255`, `256`, `""`, `"="`, `"QQ=="`, `"QR=="`, `"Q==="`, `"QQ"`, `"QUI="`, `"QUJD"`,
	`"QQ==QQ=="`, `"QU\nJD"`, `"QUJ\/"`, `"\u0051Q=="`, `"\ud800"`, `"\ud83d\ude00"`, `"\uFFFD"`, "\"\xff\"", `"\u0000"`, `"clicks-0"`,
	`"clicks"`, `"topic"`, `"offset"`, `"value"`, `"key"`, `"headers"`, `"records"`, `"eventSource"`, `"of\u0066set"`, `"Offset"`,
	`[]`, `{}`, `[[]]`, `[{}]`, `{"a":[1,-1]}`, `{"dataFormat":"AVRO"}`, `{"a":{"b":[{}]}}`, ` `, ",", "\n\t",
}

func mutate(random *rand.Rand, samples [][]byte) []byte {
	payload := samples[random.IntN(len(samples))]
	tokens := token.FindAll(payload, -1)
	for range 1 + random.IntN(3) {
		i, k := random.IntN(len(tokens)), random.IntN(len(tokens))
		switch random.IntN(7) {
		case 0: // one token for another of the event
			tokens[i] = tokens[k]
		case 1:
			tokens[i] = []byte(replacements[random.IntN(len(replacements))])
		case 2:
			tokens[i] = nil
		case 3: // a run of tokens twice
			run := tokens[i:min(i+1+random.IntN(8), len(tokens))]
			tokens[i] = bytes.Join(append([][]byte{tokens[i]}, run...), nil)
		case 4: // white space in front of each token
			for t := range tokens {
				tokens[t] = append([]byte(" \t\r\n"[:random.IntN(4)]), tokens[t]...)
			}
		case 5: // some character of a string as an escape
			tokens[i] = escapeOne(random, tokens[i])
		default:
			if b := bytes.Clone(tokens[i]); len(b) > 0 {
				b[random.IntN(len(b))] = byte(random.Uint32())
				tokens[i] = b
			}
		}
	}
	return bytes.Join(tokens, nil)
}

func escapeOne(random *rand.Rand, text []byte) []byte {
	if len(text) < 3 || text[0] != '"' || bytes.IndexByte(text, '\\') >= 0 {
		return text
	}
	at := 1 + random.IntN(len(text)-2)
	hex := strconv.FormatUint(0x10000|uint64(text[at]), 16)[1:]
	return bytes.Join([][]byte{text[:at], []byte(`\u` + hex), text[at+1:]}, nil)
}
