package clickhouse

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"syscall"

	ch "github.com/ClickHouse/clickhouse-go/v2"

	"oncehouse/shared/delivery"
)

// This file is the only one that reads errors. What an insert's error means:
//
//	nothing of the rows left this process      Retryable (Fatal where the code says so)
//	exception of stage door                    as the code says
//	exception of stage plan, no views          as the code says
//	exception of stage plan, views             InDoubt: a view may have raised it behind the source's rows
//	any other exception, with any status       InDoubt
//	a 200 that does not prove the insert       InDoubt
//	a time-out, a reset, an end too early,
//	a status without an exception              InDoubt
//
// A row error of the server (a constraint, 469; a view that throws) is among
// the other exceptions: it is not poison, because the server does not say which
// row, and with several table partitions some may be stored. So are 241 (memory
// limit), 159 and 160 (too slow), 242 (read-only: a Replicated table says so
// between two partitions of one insert, too), 319 (unknown status) and 216,
// which says that an earlier send under this query id is still running: what
// will become of it is not known yet.

// stage is how far the server had come when it raised an exception.
type stage int

const (
	// running: parts may be stored.
	running stage = iota
	// door: before the query was begun.
	door
	// plan: before the first row was written, unless a view raised it.
	plan
)

// rule is what one exception code means.
type rule struct {
	stage stage
	kind  delivery.Kind // when surely not applied
	what  string        // in place of the server's words; "" keeps those alone
	fix   string
}

// ruleOf knows the codes that surely precede every write. Source: ClickHouse
// src/Common/ErrorCodes.cpp for the numbers; for 252, MergeTreeSink::onStart and
// ReplicatedMergeTreeSink, which ask only before the first block.
func (t *Target) ruleOf(code int32) rule {
	table := tableName{t.config.Database, t.config.Table}
	switch code {
	case 516, 192, 193, 194: // AUTHENTICATION_FAILED, UNKNOWN_USER, WRONG_PASSWORD, REQUIRED_PASSWORD
		return rule{door, delivery.Retryable, fmt.Sprintf("ClickHouse refuses user %q or its password", t.config.User),
			"set the user and password that the server knows"}
	case 195: // IP_ADDRESS_NOT_ALLOWED
		return rule{door, delivery.Retryable, fmt.Sprintf("ClickHouse refuses user %q from this address", t.config.User),
			"allow the function's address for this user"}
	case 202: // TOO_MANY_SIMULTANEOUS_QUERIES
		return rule{door, delivery.Retryable, "ClickHouse runs too many queries already", ""}
	case 115, 452: // UNKNOWN_SETTING, SETTING_CONSTRAINT_VIOLATION
		return rule{door, delivery.Fatal, "ClickHouse refuses a setting that every insert needs", "allow the setting in the user's profile, or upgrade the server"}
	case 81: // UNKNOWN_DATABASE
		return rule{plan, delivery.Retryable, fmt.Sprintf("there is no database %s", quoteName(t.config.Database)),
			"CREATE DATABASE " + quoteName(t.config.Database)}
	case 60: // UNKNOWN_TABLE
		return rule{plan, delivery.Retryable, fmt.Sprintf("there is no table %s", table), fmt.Sprintf("CREATE TABLE %s (...)", table)}
	case 16, 47: // NO_SUCH_COLUMN_IN_TABLE, UNKNOWN_IDENTIFIER
		return rule{plan, delivery.Retryable, fmt.Sprintf("a column of table %s is gone", table), "the next invocation reads the columns anew"}
	case 497: // ACCESS_DENIED
		return rule{plan, delivery.Retryable, fmt.Sprintf("user %q lacks a grant", t.config.User),
			fmt.Sprintf("GRANT SELECT, INSERT, SHOW ON %s TO %s; GRANT SELECT ON system.* TO %[2]s", table, quoteName(t.config.User))}
	case 252: // TOO_MANY_PARTS
		return rule{plan, delivery.Retryable, fmt.Sprintf("table %s has too many parts", table), "larger batches, or fewer partitions in the table"}
	case 241: // MEMORY_LIMIT_EXCEEDED
		return rule{running, delivery.Retryable, "ClickHouse is short of memory", ""}
	case 242: // TABLE_IS_READ_ONLY
		return rule{running, delivery.Retryable, fmt.Sprintf("table %s is read-only", table), "see system.replicas: the server has lost its Keeper session, or is shutting down"}
	case 159: // TIMEOUT_EXCEEDED
		return rule{running, delivery.Retryable, "ClickHouse took longer than the insert timeout", ""}
	case 216: // QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING
		return rule{running, delivery.Retryable, "an earlier send of these offsets is still running", ""}
	case 469: // VIOLATED_CONSTRAINT
		return rule{running, delivery.Fatal, fmt.Sprintf("a row violates a constraint of table %s", table), "drop the constraint, or have the producer keep it"}
	}
	return rule{running, delivery.Retryable, "", ""}
}

// insertError is what a failed insert means. left: rows may have left this
// process. late: the last send moment came first.
func (t *Target) insertError(err error, left, late, views bool) *delivery.Error {
	if late && !left {
		return &delivery.Error{Kind: delivery.Retryable, Reason: delivery.ReasonOutOfTime, Message: "nothing was sent", Err: errOutOfTime}
	}
	out := t.readError(err)
	if !left {
		out.Message = join(out.Message, "nothing was sent")
		return out
	}
	var exception *ch.Exception
	if errors.As(err, &exception) && !errors.As(err, new(*unprovenError)) {
		r := t.ruleOf(exception.Code)
		if r.stage == door || r.stage == plan && !views {
			out.Kind = r.kind
			return out
		}
	}
	out.Kind = delivery.InDoubt
	return out
}

// readError is what an error means where nothing was to be stored: what a person
// or time can put right. It says which of the usual things is wrong.
func (t *Target) readError(err error) *delivery.Error {
	out := &delivery.Error{Kind: delivery.Retryable, Reason: delivery.ReasonTarget, Err: bare(err)}
	var exception *ch.Exception
	var missing noTableError
	switch {
	case errors.As(err, &missing):
		r := t.ruleOf(60)
		out.Message = r.what + ", or user " + quoteName(t.config.User) + " is not shown it"
		out.Remedy = r.fix + "; or " + t.ruleOf(497).fix
	case errors.As(err, &exception):
		r := t.ruleOf(exception.Code)
		out.Kind, out.Message, out.Remedy = r.kind, r.what, r.fix
	default:
		out.Message = t.describe(err)
	}
	return out
}

// describe names what kept ClickHouse from answering.
func (t *Target) describe(err error) string {
	at := strings.Join(t.config.Endpoints, ", ")
	var dns *net.DNSError
	var op *net.OpError
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var record tls.RecordHeaderError
	var status *ch.HTTPError
	var answer *unprovenError
	switch {
	case errors.As(err, &answer):
		return "the answer of " + at + " does not prove that the insert was done"
	case errors.As(err, &dns):
		return "the name of " + at + " does not resolve"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "ClickHouse at " + at + " is unreachable: nothing listens there"
	case errors.As(err, &op) && op.Op == "dial":
		return "ClickHouse at " + at + " is unreachable"
	case errors.As(err, &authority), errors.As(err, &host):
		return "the certificate of " + at + " is not trusted"
	case errors.As(err, &record), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"): // net/http has no type for it
		return at + " does not speak TLS"
	case errors.As(err, &status):
		return fmt.Sprintf("%s answered with status %d and no exception of ClickHouse", at, status.StatusCode)
	case errors.Is(err, context.Canceled):
		return "the call was cancelled"
	case isTimeout(err):
		return "ClickHouse at " + at + " accepted the connection and did not answer in time (an idle ClickHouse Cloud service needs up to a minute to wake)"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "the connection to " + at + " broke"
	}
	return "asking ClickHouse at " + at + " failed"
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ch.ErrAcquireConnTimeout) ||
		errors.As(err, &timeout) && timeout.Timeout()
}

// bare is err without the request's URL, whose query is long and says nothing.
func bare(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

// prefix says what was being done in front of what went wrong.
func prefix(doing, message string) string {
	if message == "" {
		return doing
	}
	return doing + ": " + message
}
