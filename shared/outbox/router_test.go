package outbox_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"oncehouse/shared/outbox"
)

func newRouter(t *testing.T, r outbox.Routing) *outbox.Router {
	t.Helper()
	router, err := outbox.NewRouter(r)
	require.NoError(t, err)
	return router
}

func TestO14TopicsKeepTheirCaseAndIllegalOnesAreErrors(t *testing.T) {
	for _, c := range []struct{ template, aggregateType, topic, err string }{
		{"", "order", "outbox.event.order", ""},
		{"", "Order", "outbox.event.Order", ""},
		{"", "sales.Order_line-1", "outbox.event.sales.Order_line-1", ""},
		{"${routedByValue}", "Order", "Order", ""},
		{"eu.${routedByValue}.v1", "Order", "eu.Order.v1", ""},
		{"events", "Order", "events", ""},
		{"", "sales order", "", `aggregate type "sales order": topic "outbox.event.sales order": the name holds ' '`},
		{"", "Bestellung/ü", "", `the name holds '/'`},
		{"${routedByValue}", "", "", "1 to 249 characters"},
		{"${routedByValue}", "..", "", "not just dots"},
		{"", strings.Repeat("x", 250), "", "1 to 249 characters"},
	} {
		topic, err := newRouter(t, outbox.Routing{Topic: c.template}).Topic(c.aggregateType)
		require.Equal(t, c.topic, topic)
		if c.err == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, c.err)
		}
	}
	_, err := outbox.NewRouter(outbox.Routing{Topic: "outbox event ${routedByValue}"})
	require.ErrorContains(t, err, `topic template "outbox event ${routedByValue}": the name holds ' '`)
}

func TestPlacement(t *testing.T) {
	r := newRouter(t, outbox.Routing{Placement: "type:header:eventType, traceparent:header ,tenant:header:x-tenant,"})
	require.Equal(t, []string{"traceparent", "tenant"}, r.Columns())
	require.Equal(t, []string{"type"}, newRouter(t, outbox.Routing{Placement: "type:header:eventType", TypeColumn: "event_type"}).Columns())
	for placement, problem := range map[string]string{
		"type":                                "it is not column:header",
		"type:header:a:b":                     "it is not column:header",
		":header":                             "it is not column:header",
		"tenant:envelope:tenant":              "envelope is not supported, header is",
		"seq:partition":                       "partition is not supported, header is",
		"type:header:id":                      "the header id is taken",
		"type:header:oncehouse-position":      "the header oncehouse-position is taken",
		"type:header:a,tenant:header:a":       "the header a is taken",
		"tenant:envelope, seq:partition:nope": "partition is not supported",
	} {
		_, err := outbox.NewRouter(outbox.Routing{Placement: placement})
		require.ErrorContains(t, err, problem, placement)
	}
}

// What decides a row's record is in the hash, and nothing else is: a plan of one
// configuration is not finished by another.
func TestRoutingHash(t *testing.T) {
	base := outbox.Routing{Placement: "type:header:eventType"}
	hash := newRouter(t, base).Hash()
	same := base
	same.Topic, same.TypeColumn = outbox.DefaultTopic, "type"
	require.Equal(t, hash, newRouter(t, same).Hash(), "defaults are what they stand for")
	tombstones := base
	tombstones.Tombstones = true
	require.Equal(t, hash, newRouter(t, tombstones).Hash(), "a row that waits for the option was never published otherwise")
	seen := map[string]bool{hash: true}
	for _, change := range []func(*outbox.Routing){
		func(r *outbox.Routing) { r.Topic = "x.${routedByValue}" },
		func(r *outbox.Routing) { r.Placement = "" },
		func(r *outbox.Routing) { r.Placement = "type:header:type" },
		func(r *outbox.Routing) { r.Placement = "type:header:eventType,a:header" },
		func(r *outbox.Routing) { r.Columns = []string{"id", "customer"} },
		func(r *outbox.Routing) { r.Columns = []string{"id", "order"} },
	} {
		changed := base
		change(&changed)
		h := newRouter(t, changed).Hash()
		require.False(t, seen[h], fmt.Sprint(changed))
		seen[h] = true
	}
}
