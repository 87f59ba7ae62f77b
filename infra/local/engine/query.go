package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Query sends a statement to the server at url as curl would, and returns the
// body of the answer, which the caller closes. Error: what the server said
// instead.
func Query(ctx context.Context, url, statement string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(statement))
	if err != nil {
		return nil, fmt.Errorf("query the engine: %w", err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("query the engine: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		message, _ := io.ReadAll(io.LimitReader(res.Body, 1000))
		return nil, errors.Join(fmt.Errorf("query the engine: %s", strings.TrimSpace(string(message))), res.Body.Close())
	}
	return res.Body, nil
}

// QueryText is Query with the whole answer as a text.
func QueryText(ctx context.Context, url, statement string) (string, error) {
	body, err := Query(ctx, url, statement)
	if err != nil {
		return "", err
	}
	answer, err := io.ReadAll(body)
	if err = errors.Join(err, body.Close()); err != nil {
		return "", fmt.Errorf("read the engine's answer: %w", err)
	}
	return string(answer), nil
}

// CreateTable runs the CREATE TABLE of a file that is called like its table, under
// another name, and with more (SETTINGS) at its end.
func CreateTable(ctx context.Context, url, file, name, more string) error {
	ddl, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the table's DDL: %w", err)
	}
	own := strings.TrimSuffix(filepath.Base(file), ".sql")
	_, err = QueryText(ctx, url, strings.Replace(string(ddl), "CREATE TABLE "+own+"\n", "CREATE TABLE "+name+"\n", 1)+more)
	return err
}

// Count is how many rows a table has, or a table with the conditions behind it.
func Count(ctx context.Context, url, from string) (int64, error) {
	text, err := QueryText(ctx, url, "SELECT count() FROM "+from)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the number of rows: %w", err)
	}
	return n, nil
}
