// Package secrets holds texts that do not show themselves, and fetches them from
// AWS Secrets Manager.
//
//	ref, err := secrets.ParseRef("arn:aws:secretsmanager:eu-west-1:111122223333:secret:clickhouse-AbCdEf:password")
//	password, err := secrets.Fetch(ctx, client, ref)
//	connect(password.Reveal())
package secrets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
)

// Text is a secret. Whatever prints, logs or marshals it gets "[redacted]".
type Text string

const redacted = "[redacted]"

// Reveal is the secret itself.
func (t Text) Reveal() string { return string(t) }

// String is never the secret.
func (t Text) String() string { return redacted }

// GoString is never the secret.
func (t Text) GoString() string { return redacted }

// LogValue is never the secret.
func (t Text) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText is never the secret.
func (t Text) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Ref names a secret, or one key of a secret that is a JSON object: the ARN, and
// behind another colon the key. ECS writes references like this, too.
type Ref struct{ ARN, Key string }

// ParseRef reads an ARN with or without a key.
func ParseRef(text string) (Ref, error) {
	parts := strings.SplitN(text, ":", 8)
	if len(parts) < 7 || parts[0] != "arn" || parts[2] != "secretsmanager" || parts[5] != "secret" || parts[6] == "" {
		return Ref{}, errors.New("not arn:aws:secretsmanager:<region>:<account>:secret:<name>, with or without :<json key>")
	}
	r := Ref{ARN: strings.Join(parts[:7], ":")}
	if len(parts) == 8 {
		r.Key = parts[7]
	}
	return r, nil
}

// UnmarshalText is ParseRef.
func (r *Ref) UnmarshalText(text []byte) error {
	parsed, err := ParseRef(string(text))
	*r = parsed
	return err
}

// String is what ParseRef reads; a reference is no secret.
func (r Ref) String() string {
	if r.Key == "" {
		return r.ARN
	}
	return r.ARN + ":" + r.Key
}

// Client is what Fetch needs of Secrets Manager.
type Client interface {
	GetSecretValue(ctx context.Context, in *secretsmanager.GetSecretValueInput, opts ...func(*secretsmanager.Options)) (*secretsmanager.GetSecretValueOutput, error)
}

// Fetch returns the secret. Without a key it must not be a JSON object: that
// would be sent as a password, and refused without saying why.
func Fetch(ctx context.Context, client Client, ref Ref) (Text, error) {
	text, err := fetch(ctx, client, ref)
	if err != nil {
		return "", err
	}
	var object map[string]json.RawMessage
	isObject := json.Unmarshal([]byte(text), &object) == nil && object != nil
	switch {
	case ref.Key == "" && !isObject:
		return Text(text), nil
	case ref.Key == "":
		return "", fmt.Errorf("fetch secret %s: it is JSON: append one of its keys (%s) behind a colon", ref, keys(object))
	case !isObject:
		return "", fmt.Errorf("fetch secret %s: it is no JSON object that could have the key %q", ref, ref.Key)
	}
	value, ok := object[ref.Key]
	var out string
	if !ok || json.Unmarshal(value, &out) != nil || out == "" {
		return "", fmt.Errorf("fetch secret %s: key %q is not a text (there are: %s)", ref, ref.Key, keys(object))
	}
	return Text(out), nil
}

// FetchKeys returns the texts of several keys of one JSON object, as MSK keeps
// {"username", "password"}.
func FetchKeys(ctx context.Context, client Client, ref Ref, names ...string) ([]Text, error) {
	text, err := fetch(ctx, client, Ref{ARN: ref.ARN})
	if err != nil {
		return nil, err
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &object); err != nil || object == nil {
		return nil, fmt.Errorf("fetch secret %s: it is no JSON object with the keys %s", ref, strings.Join(names, ", "))
	}
	out := make([]Text, len(names))
	for i, name := range names {
		var value string
		if json.Unmarshal(object[name], &value) != nil || value == "" {
			return nil, fmt.Errorf("fetch secret %s: key %q is not a text (there are: %s)", ref, name, keys(object))
		}
		out[i] = Text(value)
	}
	return out, nil
}

// FetchMembers returns the members of a JSON object that are texts or numbers, as
// RDS keeps {"username", "password", "host", "port", "dbname"}: not every secret
// has all of them.
func FetchMembers(ctx context.Context, client Client, ref Ref) (map[string]Text, error) {
	text, err := fetch(ctx, client, Ref{ARN: ref.ARN})
	if err != nil {
		return nil, err
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &object); err != nil || object == nil {
		return nil, fmt.Errorf("fetch secret %s: it is no JSON object", ref)
	}
	out := make(map[string]Text, len(object))
	for name, raw := range object {
		var value string
		var number json.Number
		switch {
		case json.Unmarshal(raw, &value) == nil:
			out[name] = Text(value)
		case json.Unmarshal(raw, &number) == nil:
			out[name] = Text(number.String())
		}
	}
	return out, nil
}

func fetch(ctx context.Context, client Client, ref Ref) (string, error) {
	out, err := client.GetSecretValue(ctx, &secretsmanager.GetSecretValueInput{SecretId: &ref.ARN})
	if err != nil {
		return "", fmt.Errorf("fetch secret %s: %w", ref, err)
	}
	if out.SecretString == nil || *out.SecretString == "" {
		return "", fmt.Errorf("fetch secret %s: it has no text", ref)
	}
	return *out.SecretString, nil
}

func keys(object map[string]json.RawMessage) string {
	return strings.Join(slices.Sorted(maps.Keys(object)), ", ")
}
