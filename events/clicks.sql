-- The table of the sample events, the demo and the benchmarks. The last five
-- columns are where a row comes from: exactly-once needs the first three of
-- them to find out, after a failure, which records the table already holds.
CREATE TABLE clicks
(
    event_id    UUID,
    user_id     UInt64,
    session     String,
    url         String,
    referrer    Nullable(String),
    ts          DateTime64(3, 'UTC'),
    duration_ms UInt32,
    price       Decimal(12, 2),
    tags        Array(LowCardinality(String)),
    props       Map(LowCardinality(String), String),

    _topic      LowCardinality(String),
    _partition  Int32,
    _offset     Int64,
    _timestamp  DateTime64(3, 'UTC'),
    _key        Nullable(String)
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(ts)
ORDER BY (user_id, ts)
