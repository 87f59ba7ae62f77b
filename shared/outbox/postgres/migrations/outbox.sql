-- The outbox: one table, one index. Applications insert their events in the
-- transaction that changes their own rows; oncehouse reads them and never writes.
-- The first five columns are those of Debezium's outbox event router.

CREATE TABLE outbox (
    id            uuid        NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY,
    aggregatetype text        NOT NULL,      -- names the topic: outbox.event.<aggregatetype>
    aggregateid   text,                      -- the key: events of one aggregate keep their order
    type          text        NOT NULL,      -- can go into a header
    payload       jsonb,                     -- or json, text, bytea; NULL is a tombstone
    created_at    timestamptz NOT NULL DEFAULT now(),
    -- Both are filled in by PostgreSQL. CACHE 1: a session that keeps values in
    -- stock would use them out of order.
    seq           bigint      GENERATED ALWAYS AS IDENTITY (CACHE 1),
    xid           xid8        NOT NULL DEFAULT pg_current_xact_id()
);

-- What is new since a snapshot is two short ranges of this index.
CREATE INDEX outbox_xid_seq ON outbox (xid, seq);

-- The table only grows and is deleted from at its old end: visit it early and
-- often, so that the index alone answers what a backlog holds.
ALTER TABLE outbox SET (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_vacuum_scale_factor = 0.02);

-- For the role of the poller:
--   GRANT SELECT ON outbox TO poller;
--   GRANT SELECT ON SEQUENCE outbox_seq_seq TO poller;
