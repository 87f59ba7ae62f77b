// Package clickhouse stores chunks in a ClickHouse table over HTTP(S): it is
// the delivery.Target of the real server.
//
//	target, err := clickhouse.New(clickhouse.Config{
//		Endpoints: []string{"https://abc.eu-west-1.aws.clickhouse.cloud:8443"},
//		Database:  "default", Table: "clicks", User: "sink", Password: secret,
//		Rows:      rowbinary.Options{Provenance: rowbinary.StandardProvenance()},
//		Rules:     delivery.DefaultRules(),
//	})
//	traits, err := target.Preflight(ctx)           // once an invocation
//	chunk, err := target.Encode(lane, records, limit)
//	err = target.Insert(ctx, delivery.Insert{Lane: lane, Chunk: chunk, Token: token, ...})
//	there, err := target.Probe(ctx, lane, offsets) // when an answer was lost
//
// # One insert, one block, one send
//
// Every insert pins the settings that make it one block under one token
// (pins.go says why each), carries its deadline as max_execution_time, and a
// query id by which an operator finds it in system.query_log:
//
//	oncehouse/<pipeline>/<topic>/<partition>/<first>-<last>      attempt 1
//	oncehouse/<pipeline>/<topic>/<partition>/<first>-<last>/<n>  attempt n > 1
//
// The driver sends through a transport of ours (transport.go). It takes from
// net/http what a second send would need, hands out the rows only before the
// last send moment, knows whether any of them left, and wants proof with a 200:
// an empty answer, no exception in header, trailer or body, and our query id.
//
// # What an error means
//
// classify.go is the one place that reads errors. Retryable is said only where
// surely nothing was stored: no row left this process, or ClickHouse refused
// before it wrote. Everything else is InDoubt, and stays it until Probe or a
// replay under the same token decides.
//
// # What a table must be like
//
// Preflight reads what the table is (facts.go) and judges whether it can keep
// the guarantee (judge.go), with every problem at once and the SQL that would
// solve each. Later calls are one query that sees a change of the table; then
// all is read again and the encoder compiled anew. A chunk keeps the columns it
// was encoded for, and is not sent once their types or the engine have changed.
//
// # What it needs on the way
//
// A load balancer in between must send nothing twice and must let the header
// X-ClickHouse-Query-Id through: an answer without it proves nothing, and every
// insert would be in doubt. Settings and column names travel in the URL, so a
// limit on its length bounds the number of columns.
//
// # What it cannot see
//
// Probe believes what the table shows to its user: a row policy that hides rows
// from it, or a lightweight DELETE, makes stored rows look missing. The
// provenance columns name topic and partition, neither cluster nor pipeline: two
// pipelines, or two clusters with a topic of the same name, need a table each.
package clickhouse
