package clickhouse

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"

	"oncehouse/shared/delivery"
)

// oneBlock is above every chunk (delivery.MaxBlockRows, MaxBlockBytes), so that
// the server neither splits an insert nor joins it with another.
const oneBlock = 4 * delivery.MaxBlockBytes

// required are the settings that every insert pins because server defaults and
// user profiles differ; a server that lacks one is too old.
func required() map[string]string {
	return map[string]string{
		// One insert, done when it is answered.
		"async_insert":          "0",
		"wait_for_async_insert": "1",
		// One insert, one block: nothing reads, parses or squashes it in pieces.
		"max_insert_block_size":         strconv.Itoa(oneBlock),
		"min_insert_block_size_rows":    strconv.Itoa(oneBlock),
		"min_insert_block_size_bytes":   strconv.Itoa(oneBlock),
		"input_format_parallel_parsing": "0",
		"max_insert_threads":            "1",
		"max_threads":                   "1",
		"parallel_view_processing":      "0",
		// Any number of table partitions: chunks follow Kafka, not the table (D18).
		"max_partitions_per_insert_block": "0",
		// Tokens reach the views; an error in a view is an error of the insert.
		"deduplicate_blocks_in_dependent_materialized_views": "1",
		"materialized_views_ignore_errors":                   "0",
		// All rows or an error: no row left out, nothing cut off by a limit.
		"input_format_allow_errors_num":   "0",
		"input_format_allow_errors_ratio": "0",
		"timeout_overflow_mode":           "throw",
		// The encoder marks absent fields; the server computes their DEFAULT.
		"input_format_defaults_for_omitted_fields": "1",
		// A JSON column keeps strings as strings, whatever they look like, and
		// booleans and numbers as such, whatever stands beside them.
		"input_format_try_infer_integers":                  "1",
		"input_format_try_infer_dates":                     "0",
		"input_format_try_infer_datetimes":                 "0",
		"input_format_json_try_infer_numbers_from_strings": "0",
		"input_format_json_read_bools_as_numbers":          "0",
		"input_format_json_read_bools_as_strings":          "0",
		"input_format_json_read_numbers_as_strings":        "0",
		// The status line waits for the end, so that it can tell.
		"send_progress_in_http_headers": "0",
	}
}

// optional are pinned where system.settings lists them; elsewhere the server
// behaves like this without.
func optional() map[string]string {
	return map[string]string{
		"input_format_binary_read_json_as_string":             "1",
		"input_format_connection_handling":                    "0", // a cut body is an error, not an end
		"input_format_max_block_wait_ms":                      "0",
		"input_format_max_block_size_bytes":                   "0",
		"max_insert_block_size_bytes":                         "0",
		"ignore_materialized_views_with_dropped_target_table": "0",
		"implicit_transaction":                                "0",
		// Newer servers keep each element of an array as what it is, and take arrays
		// of nothing that has a type.
		"input_format_json_infer_array_of_dynamic_from_array_of_different_types": "1",
		"input_format_try_infer_variants":                                        "0",
		"input_format_json_infer_incomplete_types_as_strings":                    "1",
		// A key with a dot is a path; the other parser rounds fractions.
		"json_type_escape_dots_in_keys": "0",
		"allow_simdjson":                "1",
	}
}

// deduplicateInsert decides where it exists, whatever insert_deduplicate says;
// elsewhere it is unknown (error 115).
const deduplicateInsert = "deduplicate_insert"

// perInsert are the settings whose value depends on the insert.
var perInsert = [...]string{"insert_deduplicate", "insert_deduplication_token", "max_execution_time"}

// pinnedNames are all settings that Preflight asks the server about.
func pinnedNames() []string {
	names := slices.Collect(maps.Keys(required()))
	names = slices.AppendSeq(names, maps.Keys(optional()))
	names = append(append(names, perInsert[:]...), deduplicateInsert)
	slices.Sort(names)
	return names
}

// pins are what every insert of one schema pins.
func pins(known map[string]string) ch.Settings {
	out := ch.Settings{"wait_end_of_query": "1"} // of the HTTP interface, not a setting
	for name, value := range required() {
		out[name] = value
	}
	for name, value := range optional() {
		if _, ok := known[name]; ok {
			out[name] = value
		}
	}
	return out
}

// pinInsert adds what one insert pins. An empty token switches deduplication
// off: on a deduplicating table no token is not neutral, equal content vanishes.
func pinInsert(base ch.Settings, known map[string]string, token string, timeout time.Duration) ch.Settings {
	out := maps.Clone(base)
	out["max_execution_time"] = seconds(timeout)
	deduplicate, mode := "1", "enable"
	if token == "" {
		deduplicate, mode = "0", "disable"
	}
	out["insert_deduplicate"] = deduplicate
	out["insert_deduplication_token"] = token
	if _, ok := known[deduplicateInsert]; ok {
		out[deduplicateInsert] = mode
	}
	return out
}

// pinRead are the settings under which Probe sees every row that is there: no
// cache, no other replica's view, nothing melted together, no limit that ends a
// result early and calls it whole.
func pinRead(timeout time.Duration) ch.Settings {
	return ch.Settings{
		"max_execution_time":       seconds(timeout),
		"use_query_cache":          "0",
		"max_parallel_replicas":    "1",
		"final":                    "0",
		"limit":                    "0",
		"offset":                   "0",
		"additional_table_filters": "{}",
		"timeout_overflow_mode":    "throw",
		"read_overflow_mode":       "throw",
		"result_overflow_mode":     "throw",
		"group_by_overflow_mode":   "throw",
		"sort_overflow_mode":       "throw",
		"distinct_overflow_mode":   "throw",
		"wait_end_of_query":        "1",
	}
}

// seconds is a duration as the server takes it, rounded down: the server gives
// up before the caller does.
func seconds(d time.Duration) string {
	return strings.TrimSuffix(strconv.FormatFloat(d.Truncate(time.Millisecond).Seconds(), 'f', 3, 64), ".000")
}
