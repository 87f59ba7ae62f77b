package docs

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const secondsPerMonth = 730 * 3600

// prices reads the first table of cost.md.
func prices(t *testing.T, page string) func(what string) float64 {
	t.Helper()
	return func(what string) float64 {
		m := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(what) + ` \| [^|]+ \| ([\d.]+) \|$`).FindStringSubmatch(page)
		require.NotNil(t, m, "no price of %s", what)
		return number(t, m[1])
	}
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	require.NoError(t, err)
	return v
}

// The examples of cost.md are what its formulas give at its prices.
func TestCostsAreWhatTheFormulasGive(t *testing.T) {
	page := read(t, "cost.md")
	price := prices(t, page)
	rows := regexp.MustCompile(`(?m)^\| (\d+) \| (\d+) \|((?: [\d.]+ \|){8})$`).FindAllStringSubmatch(page, -1)
	require.Len(t, rows, 3)
	for _, row := range rows {
		perSecond, perInvocation := number(t, row[1]), number(t, row[2])
		rate := perSecond / perInvocation
		invocations := rate * secondsPerMonth / 1e6 // millions
		duration := 0.1 + 0.00002*perInvocation
		traced := math.Min(rate, 1) + 0.05*math.Max(rate-1, 0)
		want := []float64{
			invocations * (price("Lambda request") + duration*price("Lambda duration, arm64")),
			730 * price("Lambda event poller unit"),
			2 * invocations * price("DynamoDB on-demand write unit (1 kB)"),
			invocations * (1.9 + 0.7) * price("CloudWatch Logs, ingested"), // a million kB is a GB
			22*price("CloudWatch custom metric") + 18*price("CloudWatch alarm, each metric") + price("CloudWatch dashboard"),
			traced * secondsPerMonth / 1e6 * price("X-Ray trace"),
		}
		total := 0.0
		for _, part := range want {
			total += part
		}
		want = append(want, total, total/(perSecond*secondsPerMonth/1e6))
		for i, cell := range strings.Split(strings.Trim(row[3], " |"), "|") {
			_, decimals, _ := strings.Cut(strings.TrimSpace(cell), ".")
			half := 0.51 * math.Pow10(-len(decimals))
			require.InDelta(t, want[i], number(t, cell), half, "%s records/s, column %d", row[1], i+3)
		}
	}
}
