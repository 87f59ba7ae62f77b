// Package engine is a ClickHouse server for one machine: the real engine
// (package chdb) behind the HTTP interface of ClickHouse.
//
//	srv, err := engine.Start(ctx, engine.Options{Binary: bin, Data: dir, Library: lib})
//	defer srv.Stop()
//	conn, err := clickhouse.Open(&clickhouse.Options{Protocol: clickhouse.HTTP, Addr: []string{srv.Addr()}})
//
// The server is a process of its own, so that it can be killed for real and so
// that the engine's memory and threads are not the caller's. [Serve] is the
// body of that process, [Start] starts it from a program that calls Serve, and
// [Query] asks it as curl would. Tests use package enginetest, and package faults
// to break the connection in between.
//
// # What answers like the server
//
// Queries by GET and POST, in the URL, the body or both; GET is read-only.
// Settings, parameters (param_x), database, default_format and query_id in the
// URL; sessions; native framing (compress, decompress) and HTTP compression in
// both directions; exceptions by text, header and status; X-ClickHouse-Summary
// and its siblings; external tables in multipart forms.
//
// An INSERT with data is streamed: the engine sees the data as it arrives. A
// body that ends early, in whatever framing, cancels the insert, and nothing of
// it is stored that was not already a block of min_insert_block_size_rows.
//
// # What does not
//
// The library has no asynchronous insert queue, no query_log and part_log, no
// native TCP protocol, no users, and no Replicated tables. It cannot take a
// query_id: the id is kept in log_comment, where system.processes and
// KILL QUERY WHERE Settings['log_comment'] = ... find it. INSERT ... SELECT FROM
// input() is refused (48). A client that leaves does not cancel its SELECT,
// which is the server's default too (cancel_http_readonly_queries_on_client_close).
package engine
