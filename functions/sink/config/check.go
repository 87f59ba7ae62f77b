package config

import (
	"oncehouse/shared/delivery"
	"oncehouse/shared/rowbinary"
	"oncehouse/shared/settings"
)

// check checks what no setting can be judged for alone.
func (c *Config) check(p *settings.Problems) {
	needed := c.InsertTimeout + c.ClockMargin + c.DeadlineMargin
	p.Unless(c.FunctionTimeout > needed, "FUNCTION_TIMEOUT",
		"is %s: more than ONCEHOUSE_INSERT_TIMEOUT + ONCEHOUSE_CLOCK_MARGIN + ONCEHOUSE_DEADLINE_MARGIN (%s) expected, or nothing could be sent", c.FunctionTimeout, needed)
	p.Unless(c.LedgerTable != "" || c.Guarantee == delivery.AtLeastOnce, "LEDGER_TABLE",
		"is missing: %s needs a ledger", c.Guarantee)
	p.Unless(c.Password == "" || c.PasswordSecret == nil, "CLICKHOUSE_PASSWORD",
		"is set, and so is ONCEHOUSE_CLICKHOUSE_PASSWORD_SECRET: one of the two expected")
	p.Unless((c.Overflow != "") == (c.Unknown == rowbinary.UnknownCollect), "OVERFLOW_COLUMN",
		"goes with ONCEHOUSE_UNKNOWN_FIELDS=collect: both or neither expected")
	p.Unless(c.Format != rowbinary.FormatRaw || c.RawKey != "" || c.RawValue != "", "FORMAT",
		"is raw: ONCEHOUSE_RAW_KEY_COLUMN or ONCEHOUSE_RAW_VALUE_COLUMN expected, or both")
	p.Unless(c.Format == rowbinary.FormatRaw || c.RawKey+c.RawValue+c.RawHeaders+c.RawTimestamp == "", "FORMAT",
		"is %s, which the ONCEHOUSE_RAW_..._COLUMN settings have no meaning for", c.Format)
	marked := c.DeleteMarker != "" && len(c.DeleteKeys) > 0
	p.Unless(c.Tombstones != rowbinary.TombstonesDelete || marked, "TOMBSTONES",
		"is delete: ONCEHOUSE_DELETE_MARKER_COLUMN and ONCEHOUSE_DELETE_KEY_COLUMNS expected")
	c.Check(p, c.Brokers)
	if !p.None() {
		return
	}
	target := c.Target()
	if err := target.Validate(); err != nil { // what only the adapter knows
		p.AddWhole(err)
	}
}
