package settings

import (
	"net/url"
	"strings"

	"oncehouse/shared/secrets"
)

// form is what a text must look like, and how to say it.
type form struct {
	says   string
	admits func(string) bool
}

// formOf returns the form that a match tag names, the zero form for none.
func formOf(match string) form {
	switch match {
	case "pipeline": // no slash and no colon: they part the ledger's keys and the tokens
		return form{"a name of letters, digits and ._-, at most 63", func(s string) bool { return isName(s, "._-", 63) }}
	case "topic": // org.apache.kafka.common.internals.Topic
		return form{"a Kafka topic of letters, digits and ._-, at most 249", func(s string) bool { return s != "." && s != ".." && isName(s, "._-", 249) }}
	case "cluster":
		return form{"a name of letters, digits and ._-/, at most 128", func(s string) bool { return isName(s, "._-/", 128) }}
	case "dynamo":
		return form{"the name or ARN of a DynamoDB table", func(s string) bool { return len(s) >= 3 && isName(s, "._-:/", 1024) }}
	case "url":
		return form{"a URL, http:// or https://", isURL}
	case "endpoint":
		return form{"http://host:port or https://host:port, several with commas", isEndpoint}
	case "broker":
		return form{"host:port, several with commas", isBroker}
	case "identifier": // of SQL, at most NAMEDATALEN-1 bytes
		return form{"a name as the database has it, without quotes", func(s string) bool { return len(s) <= 63 && !strings.ContainsAny(s, "\"\x00") }}
	case "secret":
		return form{"arn:aws:secretsmanager:<region>:<account>:secret:<name>, with or without :<json key>",
			func(s string) bool { _, err := secrets.ParseRef(s); return err == nil }}
	}
	return form{}
}

// isName: ASCII letters, digits and the extra characters, at most that many.
func isName(text, extra string, most int) bool {
	for _, c := range text {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.ContainsRune(extra, c):
		default:
			return false
		}
	}
	return text != "" && len(text) <= most
}

func isURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

// isEndpoint wants the port: ClickHouse has no default one. User and password
// have settings of their own.
func isEndpoint(text string) bool {
	u, err := url.Parse(text)
	return isURL(text) && err == nil && u.Port() != "" && u.User == nil && strings.Trim(u.Path, "/") == "" && u.RawQuery == ""
}

func isBroker(text string) bool {
	u, err := url.Parse("kafka://" + text)
	return err == nil && u.Host == text && u.Hostname() != "" && u.Port() != ""
}
