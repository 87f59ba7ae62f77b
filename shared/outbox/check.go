package outbox

import (
	"fmt"
)

// The reasons of refusals that the poller gives itself.
const (
	ReasonNotInitialised = "NotInitialised"
	ReasonInitialised    = "AlreadyInitialised"
	ReasonCursorLost     = "CursorLost"
	ReasonOtherDatabase  = "OtherDatabase"
	ReasonOtherTable     = "OtherTable"
	ReasonTimeline       = "TimelineChanged"
	ReasonCursorAhead    = "CursorAhead"
	ReasonShards         = "ShardsChanged"
	ReasonShardKey       = "ShardKeyChanged"
	ReasonMoving         = "Resharding"
	ReasonMoveTime       = "ReshardingTime"
	ReasonVersion        = "VersionUnknown"
	ReasonPlanForeign    = "PlanForeign"
	ReasonPlanLost       = "PlanLost"
	ReasonRouting        = "RoutingChanged"
	ReasonTopicMissing   = "TopicMissing"
	ReasonHalted         = "RowHalted"
)

const remedyReset = "if it is meant, reset the cursor: from where is a person's decision, because rows are published again or passed over"

// check refuses a cursor that this database, or this poller, cannot go on from.
func (c *Cursor) check(shard Shard, now Snapshot) error {
	switch {
	case c.Version != version:
		return &Refusal{ReasonVersion, []string{fmt.Sprintf("the cursor has version %d, this poller knows %d", c.Version, version)}, "run the version of oncehouse that wrote it"}
	case c.Move != nil:
		return c.moving()
	case c.Shard != shard.Index || c.Shards != shard.Of:
		return &Refusal{
			ReasonShards, []string{fmt.Sprintf("the cursor is of shard %d of %d, this poller of %s", c.Shard, c.Shards, shard)},
			"configure the shards that the outbox has, or move it to others",
		}
	case c.By != shard.by():
		return &Refusal{
			ReasonShardKey, []string{fmt.Sprintf("the cursor's shards are divided by column %q, this poller's by %q: rows would move from one shard's cursor to another's", c.By, shard.by())},
			"configure the column that the outbox is divided by, or move the outbox to shards that are divided by the other",
		}
	}
	if err := c.Identity.check(now.Identity); err != nil {
		return err
	}
	var problems []string
	if err := notAhead(c.Done, now.Text); err != nil {
		problems = append(problems, err.Error())
	}
	if c.LastSeq > now.LastSeq {
		problems = append(problems, fmt.Sprintf("seq %d (id %s) is published, the sequence stands at %d", c.LastSeq, c.LastID, now.LastSeq))
	}
	if problems != nil {
		return &Refusal{ReasonCursorAhead, problems, "the database was restored, or its sequence set back: " + remedyReset}
	}
	return nil
}

func (c *Cursor) moving() error {
	return &Refusal{
		ReasonMoving, []string{fmt.Sprintf("the outbox is being moved from %d to %d shards, divided by column %q", c.Shards, c.Move.Shards, c.Move.By)},
		"let the move end: run it again with the same number of shards, divided by the same column",
	}
}

// check refuses another history of the table.
func (i Identity) check(now Identity) error {
	switch {
	case i.SystemID != now.SystemID:
		return &Refusal{
			ReasonOtherDatabase, []string{fmt.Sprintf("the cursor is of the database cluster %d, this is %d", i.SystemID, now.SystemID)},
			"point the poller at its database; " + remedyReset,
		}
	case i.DatabaseOID != now.DatabaseOID:
		return &Refusal{
			ReasonOtherDatabase, []string{fmt.Sprintf("the cursor is of the database with oid %d of its cluster, this one has %d", i.DatabaseOID, now.DatabaseOID)},
			"point the poller at its database; " + remedyReset,
		}
	case i.TableOID != now.TableOID:
		return &Refusal{
			ReasonOtherTable, []string{fmt.Sprintf("the cursor is of the table with oid %d, this one has %d", i.TableOID, now.TableOID)},
			"point the poller at its table; " + remedyReset,
		}
	case i.XIDColumn != now.XIDColumn || i.SeqColumn != now.SeqColumn:
		return &Refusal{
			ReasonOtherTable, []string{fmt.Sprintf("the cursor goes by the table's columns %d and %d (xid and seq), this poller by %d and %d: others are configured, or they were made again", i.XIDColumn, i.SeqColumn, now.XIDColumn, now.SeqColumn)},
			"configure the columns that the cursor goes by; " + remedyReset,
		}
	case i.KeyType != now.KeyType:
		return &Refusal{
			ReasonShardKey, []string{fmt.Sprintf("the column that divides the shards was of a type of category %q, and is of %q: the same value may be another shard's now", i.KeyType, now.KeyType)},
			"give the column its type back, and move the outbox to one shard before it is changed; " + remedyReset,
		}
	case i.Timeline != now.Timeline:
		return &Refusal{
			ReasonTimeline, []string{fmt.Sprintf("the cursor is of timeline %d, the database is on %d: a standby was promoted, or a backup restored", i.Timeline, now.Timeline)},
			"if no commit was lost by it, reset the cursor and keep its position; else " + remedyReset,
		}
	}
	return nil
}

// check refuses a plan that cannot be finished as it was begun.
func (p *Plan) check(c *Cursor, routing string, now Snapshot) error {
	foreign := func(format string, args ...any) error {
		return &Refusal{
			ReasonPlanForeign, []string{fmt.Sprintf("the plan of window %d does not go with its cursor: ", p.Number) + fmt.Sprintf(format, args...)},
			remedyReset,
		}
	}
	switch {
	case p.Version != version:
		return &Refusal{ReasonVersion, []string{fmt.Sprintf("the plan has version %d, this poller knows %d", p.Version, version)}, "run the version of oncehouse that wrote it"}
	case p.Incarnation != c.Incarnation:
		return foreign("it is of incarnation %s, the cursor of %s", p.Incarnation, c.Incarnation)
	case c.Open == nil && p.Number != c.Window+1:
		return foreign("the cursor has finished window %d", c.Window)
	case c.Open == nil && p.From != c.Done:
		return foreign("it begins at %s, the cursor ends at %s", p.From, c.Done)
	case c.Open != nil && (p.Number != c.Window || p.Window != c.Open.Window):
		return foreign("window %d, %s..%s, is open", c.Window, c.Open.From, c.Open.To)
	case p.Routing != routing:
		return &Refusal{
			ReasonRouting, []string{fmt.Sprintf("window %d was begun with the routing %s, the configuration has %s", p.Number, p.Routing, routing)},
			"configure it as it was until the window is finished, then change it; or reset the cursor and keep its position: rows that consumers saw uncommitted come again",
		}
	}
	if err := p.Identity.check(now.Identity); err != nil {
		return err
	}
	if err := notAhead(p.To, now.Text); err != nil {
		return &Refusal{ReasonCursorAhead, []string{err.Error()}, "the database was restored: " + remedyReset}
	}
	return nil
}

// haltedAt is the stop at a row that cannot be published.
func haltedAt(row *Row, why unfit) *Refusal {
	return &Refusal{
		ReasonHalted, []string{fmt.Sprintf("row %s (seq %d, aggregate type %q): %v", row.ID, row.Seq, row.AggregateType, why)},
		why.remedy + ", or delete it, or configure a dead-letter topic; everything before it is published",
	}
}
