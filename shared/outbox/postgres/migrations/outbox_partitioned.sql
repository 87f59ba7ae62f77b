-- The outbox in partitions of a day, for tables that are emptied by dropping: a
-- DROP leaves no dead rows. The first five columns are those of Debezium's outbox
-- event router.
--
-- Partitions have to be there before their day begins, or inserts fail: let
-- pg_partman or a monthly job run the last statement again. Never add a DEFAULT
-- partition: rows in it would bar the partition they belong to.

CREATE SEQUENCE outbox_seq_seq CACHE 1;

CREATE TABLE outbox (
    id            uuid        NOT NULL DEFAULT gen_random_uuid(),
    aggregatetype text        NOT NULL,      -- names the topic: outbox.event.<aggregatetype>
    aggregateid   text,                      -- the key: events of one aggregate keep their order
    type          text        NOT NULL,      -- can go into a header
    payload       jsonb,                     -- or json, text, bytea; NULL is a tombstone
    created_at    timestamptz NOT NULL DEFAULT now(), -- when the transaction began: leave it to the default
    -- Both are filled in by PostgreSQL. An identity column would do from version
    -- 17 on; before, it is not handed down to partitions.
    seq           bigint      NOT NULL DEFAULT nextval('outbox_seq_seq'),
    xid           xid8        NOT NULL DEFAULT pg_current_xact_id(),
    PRIMARY KEY (id, created_at)
) PARTITION BY RANGE (created_at);

ALTER SEQUENCE outbox_seq_seq OWNED BY outbox.seq;

-- What is new since a snapshot is two short ranges of this index.
CREATE INDEX outbox_xid_seq ON outbox (xid, seq);

-- Forty days, from yesterday on, that are not there yet.
DO $$
DECLARE
    day date;
BEGIN
    FOR day IN SELECT generate_series(current_date - 1, current_date + 40, '1 day') LOOP
        EXECUTE format('CREATE TABLE IF NOT EXISTS outbox_%s PARTITION OF outbox FOR VALUES FROM (%L) TO (%L)',
            to_char(day, 'YYYYMMDD'), day::timestamp AT TIME ZONE 'UTC', (day + 1)::timestamp AT TIME ZONE 'UTC');
    END LOOP;
END $$;

-- For the role of the poller, and of retention, which has to own what it drops:
--   GRANT SELECT ON outbox TO poller;
--   GRANT SELECT ON SEQUENCE outbox_seq_seq TO poller;
