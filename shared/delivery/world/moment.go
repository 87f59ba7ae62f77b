package world

import (
	"slices"
	"time"

	"oncehouse/shared/delivery"
)

// Moments are the moments to come at which something of this state ends: a
// deadline, a window to send in, an invocation, trust in a token, an insert's
// time to land, the wait for a new generation. Between two of them nothing
// changes by time alone, so a model needs to look only at each of them, the last
// moment before it is over, and just after. skews are how far clocks may be ahead.
func (w *World) Moments(skews ...time.Duration) []time.Time {
	var ends []time.Time
	e := &w.Entry
	for _, skew := range append(skews, 0) {
		ends = append(ends, e.Deadline.Add(-skew))
		if e.Intent != nil && w.Traits.TokensTrusted {
			ends = append(ends, e.Intent.Created.Add(w.Rules.TrustHorizon-skew-time.Millisecond))
		}
		if e.Recreation != nil {
			ends = append(ends, e.Recreation.Since.Add(w.Rules.FunctionTimeout+w.Rules.ClockMargin-skew))
		}
	}
	for _, v := range w.Live {
		ends = append(ends, v.lastSend.Add(-v.skew))
		if v.topic < w.Topic {
			ends = append(ends, v.Ends)
		}
		if v.Step.Op == delivery.OpInsert {
			ends = append(ends, v.Step.Send.NotAfter.Add(-v.skew))
		}
	}
	for _, f := range w.Table.flights {
		ends = append(ends, f.Until)
	}
	for _, l := range w.Table.log {
		ends = append(ends, l.at.Add(w.Table.Window-time.Millisecond))
	}
	var out []time.Time
	for _, end := range ends {
		for _, at := range []time.Time{end, end.Add(time.Millisecond)} {
			if at.After(w.Now) {
				out = append(out, at)
			}
		}
	}
	slices.SortFunc(out, time.Time.Compare)
	return slices.CompactFunc(out, time.Time.Equal)
}
