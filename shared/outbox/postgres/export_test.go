package postgres

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// Session is what every connection is set to.
func Session(c Config) [][2]string { return c.withDefaults().session() }

// Statements are those that chart a window and read a page of it.
func Statements(t testing.TB, conn *pgx.Conn, c Config) (chart, page string) {
	t.Helper()
	c = c.withDefaults()
	columns, err := inspectColumns(t.Context(), conn, c)
	require.NoError(t, err)
	l := newLayout(c, columns, history{version: 180000})
	return l.chart, l.page
}

// AnswerWithin sets how long an idle connection may take to answer.
func (t *Table) AnswerWithin(d time.Duration) { t.answer = d }
