-- The table of the order events (infra/local/orders): what an application's
-- outbox tells, and where each event came from.
CREATE TABLE orders
(
    event_id   UUID,
    order_id   UInt64,
    version    UInt64,
    status     LowCardinality(String),
    amount     Decimal(12, 2),
    items      Array(String),
    note       Nullable(String),
    placed_at  DateTime64(6, 'UTC'),

    _topic     LowCardinality(String),
    _partition Int32,
    _offset    Int64,
    _key       Nullable(String)
)
ENGINE = MergeTree
ORDER BY (order_id, version)
