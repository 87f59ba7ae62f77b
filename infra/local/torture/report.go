package torture

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
	"time"
)

//go:embed report.html
var page string

// Report is what the page says.
type Report struct {
	// Command repeats the run, on the revision and with the broker named.
	Command, Revision, Broker, Machine string
	Begun                              time.Time
	Results                            []Result
}

// Write writes the page: one file that needs nothing else.
func (r *Report) Write(out io.Writer) error {
	parsed, err := template.New("report").Parse(page)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	content := struct {
		*Report
		Verdicts []string
		Charts   []chart
		Moments  []momentRow
		Legend   []lane
	}{Report: r, Legend: lanes()}
	for i := range r.Results {
		verdict := "as it must be"
		if err := r.Results[i].Verdict(); err != nil {
			verdict = err.Error()
		}
		content.Verdicts = append(content.Verdicts, verdict)
		content.Charts = append(content.Charts, newChart(&r.Results[i]))
	}
	for m := range moments {
		content.Moments = append(content.Moments, countMoment(m, r.Results))
	}
	if err := parsed.Execute(out, content); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// momentRow is how often a moment came, by subject.
type momentRow struct {
	Name   string
	Counts []int
}

func countMoment(m Moment, results []Result) momentRow {
	row := momentRow{m.String(), make([]int, len(results))}
	for i := range results {
		for _, e := range results[i].Events {
			if e.Moment == m {
				row.Counts[i] += max(1, e.Killed)
			}
		}
	}
	return row
}

// lane is one line of ticks: whose kills they are.
type lane struct{ Name, Class string }

func lanes() []lane {
	return []lane{
		{Function, "function"}, {Mapping, "mapping"}, {Engine, "engine"},
		{Service, "service"}, {Database, "database"}, {Outbox, "outbox"}, {"connection", "connection"},
	}
}

// The chart's measures, in units of the drawing: two panels and, for each kind of
// victim that was struck, a lane of ticks, over one axis of time.
const (
	chartWidth  = 960.0
	marginLeft  = 80.0
	panelHeight = 120.0
	panelGap    = 26.0
	laneHeight  = 15.0
	chartHeight = 18 + 2*panelHeight + 2*panelGap + 24 // and the lanes
)

// chart is one subject's drawing, ready to be written.
type chart struct {
	Title         string
	Width, Height float64
	Panels        []panel
	Lanes         []ticks
	Axis          []label
	Description   string
}

// panel is one set of lines over an axis of its own.
type panel struct {
	Title       string
	Left, Right float64
	Top, Bottom float64
	Grid        []label
	Lines       []line
}

type line struct{ Class, Points string }

// ticks are the kills of one lane as one path.
type ticks struct {
	lane
	X, Y float64
	Path string
}

type label struct {
	X, Y float64
	Text string
}

func newChart(r *Result) chart {
	span := max(r.Took.Seconds(), 1)
	x := func(at time.Duration) float64 {
		return marginLeft + (chartWidth-marginLeft-10)*min(1, at.Seconds()/span)
	}
	c := chart{
		Title: r.Subject, Width: chartWidth, Height: chartHeight,
		Description: fmt.Sprintf("%s over %.0f seconds: records produced, rows in the table, records waiting, and every kill", r.Subject, span),
	}
	top := 18.0
	c.Panels = append(c.Panels, newPanel("records", top, r.Samples, x, []series{
		{"produced", func(p Progress) int64 { return p.Produced }}, {"rows", func(p Progress) int64 { return p.Rows }},
	}))
	top += panelHeight + panelGap
	c.Panels = append(c.Panels, newPanel("lag: records produced and not settled", top, r.Samples, x, []series{
		{"lag", func(p Progress) int64 { return p.Produced - p.Settled }},
	}))
	top += panelHeight + panelGap
	for _, l := range lanes() {
		if t := newTicks(l, top, r.Events, x); t.Path != "" {
			c.Lanes = append(c.Lanes, t)
			c.Height += laneHeight
			top += laneHeight
		}
	}
	step := niceStep(span, 8)
	for at := 0.0; at <= span; at += step {
		c.Axis = append(c.Axis, label{x(time.Duration(at * float64(time.Second))), top + 18, fmt.Sprintf("%.0f s", at)})
	}
	return c
}

// series is one line of a panel.
type series struct {
	class string
	value func(Progress) int64
}

func newPanel(title string, top float64, samples []Sample, x func(time.Duration) float64, all []series) panel {
	p := panel{Title: title, Left: marginLeft, Right: chartWidth - 10, Top: top, Bottom: top + panelHeight}
	most := int64(1)
	for _, s := range samples {
		for _, each := range all {
			most = max(most, each.value(s.Progress))
		}
	}
	step := niceStep(float64(most), 3)
	highest := step * math.Ceil(float64(most)/step)
	y := func(v float64) float64 { return p.Bottom - panelHeight*v/highest }
	for v := 0.0; v <= highest; v += step {
		p.Grid = append(p.Grid, label{marginLeft - 8, y(v), short(v)})
	}
	for _, each := range all {
		var points strings.Builder
		for _, s := range samples {
			_, _ = fmt.Fprintf(&points, "%.1f,%.1f ", x(s.At), y(float64(each.value(s.Progress)))) // a Builder's Write never fails
		}
		p.Lines = append(p.Lines, line{each.class, points.String()})
	}
	return p
}

func newTicks(l lane, top float64, events []Event, x func(time.Duration) float64) ticks {
	t := ticks{lane: l, X: marginLeft - 8, Y: top + laneHeight - 4}
	var path strings.Builder
	for _, e := range events {
		if victim := e.Moment.Victim(); victim == l.Name || (victim == "" && l.Class == "connection") {
			_, _ = fmt.Fprintf(&path, "M%.1f %.1fv%.1f", x(e.At), top+2, laneHeight-4)
		}
	}
	t.Path = path.String()
	return t
}

// niceStep is a round distance between about n marks up to most.
func niceStep(most float64, n int) float64 {
	rough := most / float64(n)
	unit := math.Pow(10, math.Floor(math.Log10(rough)))
	for _, factor := range []float64{1, 2, 5} {
		if rough <= unit*factor {
			return max(1, unit*factor)
		}
	}
	return max(1, unit*10)
}

// short is a count as an axis shows it.
func short(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%gM", v/1e6)
	case v >= 1e3:
		return fmt.Sprintf("%gk", v/1e3)
	}
	return fmt.Sprintf("%g", v)
}
